"""Reads sequences by their corpus indices, and decides what is kept in memory.

Read `reader.py` first. `ordered.py` is the epoch API of datasets that know their order: an order, and a reader. What
the epoch API (`epoch.py`) offers besides one epoch after the other is here: chunks and batches (`batches.py`), and for
classes that were written for RETURNN the answers about any epoch, and reading any sequence (`foreign.py`,
`by_epoch.py`).
"""
