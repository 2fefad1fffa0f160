"""The reading services: where a graph runs, and how it is split and seeded for that.

Knows nothing of what pipes do. Read `../interface.py` first, then `multi_processing.py`.
"""
