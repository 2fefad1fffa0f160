"""Inputs whose order and lengths are not known beforehand, read and batched a window at a time.

It knows nothing of the iterator or the loader above it. Read `input.py` first, then `plan.py` and `work.py`.
"""
