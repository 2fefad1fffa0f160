"""One dataset around another, its sequences changed, joined, repeated over epochs, or read by workers.

Read `multi_epoch.py` first; what has workers gets its sequences in blocks (`blockwise.py`).
"""
