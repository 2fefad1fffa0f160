"""Parts that only RETURNN's epoch API needs: iteration by chunks, its batches, defaults from a config.

Nothing here reads data or knows a dataset class. Read `batch.py` first, then `batch_planning.py`.
"""
