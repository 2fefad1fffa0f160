"""Operations on files: list, open, decompress, parse, check and write them.

Knows nothing of sequences or data keys. Read `local.py` first, then `parts.py`: pipes that make several items of one
open file.
"""
