"""Operations that join several pipes into one, or split one into several.

Knows nothing of what the items are. Read `join.py` first; `splitter.py` is what fork, demux and unzip have in common.
"""
