"""File lists as users write them: lists, patterns, trees, lengths by tag; and the sizes of the files.

It decides which files a corpus has and how large they are. It knows nothing of the cache, nor of the distribution of
files. Read `file_list.py` first.
"""
