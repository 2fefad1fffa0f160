"""Tar archives of the WebDataset format, read at any position and written.

Nothing is unpacked to the disk, and nothing pickled is read. Read `source.py` first, then `archive.py` and
`members.py`.
"""
