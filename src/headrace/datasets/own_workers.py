"""Whether a dataset is read by processes other than its reader's."""

from __future__ import annotations

from .base import Dataset
from .multi_proc import MultiProcDataset


def has_workers(dataset: Dataset) -> bool:
    """Tell whether a dataset, or one that it is made of, has workers. Classes say so by an attribute `has_workers`."""
    if isinstance(dataset, MultiProcDataset):
        return True
    of_files = getattr(dataset, "_stream_options", None)  # of a DistributeFilesDataset
    return not of_files.is_inline if of_files is not None else getattr(dataset, "has_workers", False) is True
