"""Workers on the nodes of a Ray cluster. Read `executor.py` first: what the trainer does."""
