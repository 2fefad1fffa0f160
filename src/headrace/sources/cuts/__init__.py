"""Cuts of lhotse: manifests, Shar folders and cut sets in memory, with random access.

A manifest is data: what it may say and which files it may name is checked here, and lhotse is imported only when a cut
is made. Read `source.py` first.
"""
