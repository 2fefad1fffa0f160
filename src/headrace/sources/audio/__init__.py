"""Recordings that a manifest or a folder lists, decoded to samples or features.

Other formats that hold recordings decode them by `codec.py`, too. Read `source.py` first, and `..shared.listed`.
"""
