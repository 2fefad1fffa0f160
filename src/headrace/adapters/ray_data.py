"""Converts the batches of a loader to a dataset of Ray Data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.errors import check_count
from headrace.loading.batch import row_of
from headrace.loading.loader import DataLoader
from headrace.sources.tables.ray_rows import dataset_of_rows


def to_ray_dataset(loader: Iterable[Any], *, block_bytes: int = 16 << 20, **options: Any) -> Any:
    """Return the next epoch of a loader as a `ray.data.Dataset`, see `DataLoader.to_ray_dataset`.

    Args:
        loader: A `DataLoader`, or an iterable over one epoch, which is read at once, into the object store.
        block_bytes: Size after which a new block of rows begins, in bytes.
        **options: Of `ray.data.read_datasource`, for a `DataLoader`.

    Raises:
        ConfigError: Ray is not installed, or the epoch is empty.
    """
    if isinstance(loader, DataLoader):
        return loader.to_ray_dataset(block_bytes=block_bytes, **options)
    return dataset_of_rows(map(row_of, loader), check_count("block_bytes", block_bytes, minimum=1), **options)
