"""Several pipes become one, and one several.

Knows nothing of what the items are. Read `join.py` first; `splitter.py` is what fork, demux and unzip have in common.
"""
