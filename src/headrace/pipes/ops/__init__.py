"""The operations: one kind a file, under their documented names in `pipes/iter.py` and `pipes/map.py`.

Decides what each gives, and its state; knows nothing of where it runs. Read `map.py` first, then `batch.py`.
"""
