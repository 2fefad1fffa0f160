"""What a loader delivers, as a dataset of Ray Data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.errors import ConfigError, check_count
from headrace.loading.batch import Batch
from headrace.sources.tables.ray_data import import_ray


def to_ray_dataset(loader: Iterable[Any], *, block_bytes: int = 16 << 20) -> Any:
    """Return the next epoch of a loader as a `ray.data.MaterializedDataset`, in the order of the stream.

    Each row is what the loader delivers: a sequence with `batch_size=None`, else a batch. A dict is a row by data key.
    A `Batch` has its arrays, padded, by data key; `<data key>_lengths` of those with time, and `tags`. Anything else is
    the column "item". The epoch is read here, by the workers of the loader, and lies in the object store of this node,
    from which Ray moves to disk what does not fit.

    Args:
        loader: A `DataLoader`, or an iterable over one epoch.
        block_bytes: After so many bytes a new block of rows begins.

    Raises:
        ConfigError: Ray is not installed, or the epoch is empty.
    """
    check_count("block_bytes", block_bytes, minimum=1)
    data = import_ray().data
    refs: list[Any] = []
    rows: list[dict[str, Any]] = []
    num_bytes = 0

    def end_block() -> None:
        refs.extend(data.from_items(rows, override_num_blocks=1).to_arrow_refs())
        rows.clear()

    for item in loader:
        row = _row_of(item)
        rows.append(row)
        num_bytes += sum(getattr(value, "nbytes", 0) for value in row.values())
        if num_bytes >= block_bytes:
            end_block()
            num_bytes = 0
    if rows:
        end_block()
    if not refs:
        raise ConfigError("the epoch has nothing in it, and Ray Data knows no columns then", where=repr(loader))
    return data.from_arrow_refs(refs)


def _row_of(item: Any) -> dict[str, Any]:
    if isinstance(item, Batch):
        lengths = {f"{key}_lengths": value for key, value in item.lengths.items()}
        return {**item.arrays, **lengths, "tags": list(item.tags)}
    return dict(item) if isinstance(item, Mapping) else {"item": item}
