"""`PostprocessingDataset`: another dataset whose sequences a function changes, one by one or as a stream.

Read `dataset.py` first, then `call.py` (calling the function) and `readers.py` (where the next sequence comes from).
"""
