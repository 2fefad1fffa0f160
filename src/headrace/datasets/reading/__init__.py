"""How sequences are read by their corpus indices: by whom, and what is kept in memory.

Read `reader.py` first. `ordered.py` is the epoch API of datasets that know their order: an order, and a reader. What
the epoch API (`epoch.py`) offers besides one epoch after the other is here: parts of one (`partial.py`), questions
about any while one is read (`apart.py`), chunks and batches (`batches.py`).
"""
