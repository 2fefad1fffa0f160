"""The operations, one kind in a file; `pipes/iter.py` and `pipes/map.py` export them under torchdata's names.

Decides which items each operation gives, and its state; knows nothing of where it runs. Read `map.py` first, then
`batch.py`.
"""
