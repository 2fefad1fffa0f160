"""Inputs whose order and lengths are not known beforehand, read and batched a window at a time.

Read `input.py` first (what a stream is), then `plan.py` (its batches), `work.py` (what is read and made
where), and `epochs.py` (which process does what).
"""
