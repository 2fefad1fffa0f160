"""Operations that hold items: prefetching, and caches in memory or in files.

Read `read_ahead.py` first.
"""
