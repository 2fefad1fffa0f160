"""How sequences are read by their corpus indices: by whom, and what is kept in memory.

Read `reader.py` first. `ordered.py` is the epoch API of datasets that know their order: an order, and a reader.
"""
