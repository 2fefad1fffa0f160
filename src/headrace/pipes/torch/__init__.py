"""Torch's pipes together with Headrace's: functional names on both, and replacing torch's by Headrace's.

Read `register.py` first. Torch is never imported here.
"""
