"""Operations that hold items: ahead of whoever wants them, or for later epochs, in memory or in files.

Read `read_ahead.py` first.
"""
