"""What users write about their files: lists, patterns, trees, lengths by tag, and what is measured of them.

It decides which files a corpus has and how large they are. It knows nothing of the cache, nor of who gets which file.
Read `file_list.py` first.
"""
