"""Torch's pipes beside Headrace's: functional names for both, and replacing torch's by Headrace's.

Read `register.py` first. Torch is never imported here.
"""
