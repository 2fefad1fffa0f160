"""`headrace plan`: which rank gets how much in which sub-epoch, before anything runs.

Asks the dataset; starts no worker and copies no file. Read `command.py` first, then `subject.py` and `amounts.py`;
`table.py` shows it.
"""
