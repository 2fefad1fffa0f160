"""Inputs whose order and lengths are not known beforehand, read and batched a window at a time.

Read `input.py` first (what a stream is), then `plan.py` (its batches), `work.py` and `exchange.py` (what workers do,
and how sequences get from the one that reads to the others), and `epochs.py` (which process does what).
"""
