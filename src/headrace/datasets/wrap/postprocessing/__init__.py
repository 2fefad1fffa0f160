"""`PostprocessingDataset`: another dataset whose sequences a function changes, one by one or as a stream.

Read `dataset.py` first, then `readers.py` (any sequence of a known order) and `streams.py` (a stream from its start
to its end); `map_seq.py` and `map_stream.py` call the function.
"""
