"""A dataset of files in sub-epochs, which loaders read as a stream."""

from __future__ import annotations

from typing import Any

from headrace import DistributeFilesDataset


def open_files(files: list[str], **options: Any) -> DistributeFilesDataset:
    return DistributeFilesDataset(
        files=files,
        get_sub_epoch_dataset=lambda part: {"class": "HDFDataset", "files": part, "seq_ordering": "random"},
        partition_epoch=2,
        **{"use_worker_proc": False, **options},
    )
