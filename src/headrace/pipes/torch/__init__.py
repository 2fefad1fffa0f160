"""Torch's pipes beside ours: functional names for both, and ours in the place of torch's.

Read `register.py` first. Torch is never imported here.
"""
