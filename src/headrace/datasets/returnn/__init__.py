"""What only RETURNN's epoch API needs: walking by chunks, its batches, defaults from a config.

Nothing here reads data or knows a dataset class. Read `batch.py` first, then `batch_planning.py`.
"""
