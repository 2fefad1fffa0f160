"""The reading services, which decide in which processes a graph runs, and split and seed it for that.

They know nothing of what pipes do. Read `../interface.py` first, then `multi_processing.py`.
"""
