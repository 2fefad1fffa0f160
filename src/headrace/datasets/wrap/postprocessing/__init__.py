"""`PostprocessingDataset`: another dataset whose sequences a function changes, one by one or as a stream.

Read `dataset.py` first, then `reading.py` (any sequence of a known order, or a stream from its start to its end);
`calls.py` calls the functions, which are described in `functions.py`.
"""
