"""Datasets that read something: files of one format, any source, objects in memory.

Each joins an order to a source and knows nothing of other datasets. Read `hdf.py` first, then `source.py`.
"""
