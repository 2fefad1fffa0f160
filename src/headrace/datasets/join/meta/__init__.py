"""`MetaDataset`: several datasets that describe the same sequences, read as one.

Tags are joined once, before anything is read. Read `dataset.py` first, then `corpus.py` (which sequences belong
together) and `reader.py`.
"""
