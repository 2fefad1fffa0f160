"""`DistributeFilesDataset`, files over sub-epochs and ranks, each sub-epoch a dataset opened ahead of time.

The trainer's side is `dataset.py`, `share.py` (which files) and `stream.py` (what workers send); that of workers
is `worker.py` and `shelf.py`. Read `dataset.py` first.
"""
