"""Copies of files on the local disk: `FileCache`, and `CachedFile`, which marks a file to be read through it.

It decides which copies are made, kept and removed. It knows nothing of how bytes are fetched, nor of datasets. Read
`cache.py` first.
"""
