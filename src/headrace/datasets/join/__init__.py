"""Several datasets as one, in a row, mixed by weights, or side by side for the same sequences.

It decides which part each sequence or data key comes from; it reads no file itself. Read `combined.py` first, then
`joint.py` and `meta/`.
"""
