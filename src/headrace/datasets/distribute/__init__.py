"""`DistributeFilesDataset`, files over sub-epochs and ranks, each sub-epoch a dataset opened ahead of time.

The trainer's side is `dataset.py`, `share.py` and `stream.py`, that of workers `worker.py`, `shelf.py` and `files.py`.
Read `dataset.py` first.
"""
