"""OggZip archives, recordings and texts as RETURNN stores them, read and written.

Read `source.py` first, then `archives.py`.
"""
