"""Collation: turns a list of items into arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.base import IterPipe, read
from ..core.registry import functional_pipe
from ..core.skeletons import OneForOne

Conversion = Callable[[Any], Any] | Mapping[Any, Callable[[list[Any]], Any]] | None


def default_collate(batch: Sequence[Any]) -> Any:
    """Collate the items of a batch.

    Arrays and numbers become an array with a new first axis; dicts, named tuples, tuples and lists are collated entry
    by entry; strings, bytes and everything else become a list. If there is a torch tensor in the first item, torch's
    `default_collate` is used.

    Raises:
        ValueError: Items have different shapes, lengths or keys.

    Examples:
        >>> from headrace.pipes.iter import default_collate
        >>> batch = default_collate([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
        >>> batch["x"].tolist(), batch["name"]
        ([1, 2], ['a', 'b'])
    """
    torch = sys.modules.get("torch")
    if torch is not None and _has_tensor(batch[0], torch.Tensor):
        return torch.utils.data.default_collate(batch)
    return _collate(batch)


def _collate(batch: Sequence[Any]) -> Any:
    first = batch[0]
    if isinstance(first, (np.ndarray, np.generic)):
        return np.stack(batch)
    if isinstance(first, (bool, int, float, complex)):
        return np.array(batch)
    if isinstance(first, Mapping):
        if any(item.keys() != first.keys() for item in batch):
            raise ValueError(f"the items of a batch have different keys: {_other(batch, lambda item: list(item))}")
        return {key: _collate([item[key] for item in batch]) for key in first}
    if isinstance(first, (tuple, list)):
        if any(len(item) != len(first) for item in batch):
            raise ValueError(f"the items of a batch have different lengths: {_other(batch, len)}")
        columns = [_collate(column) for column in zip(*batch, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else columns
    return list(batch)


def _other(batch: Sequence[Any], describe: Callable[[Any], Any]) -> str:
    first = describe(batch[0])
    return f"{first} and {next(describe(item) for item in batch if describe(item) != first)}"


def _has_tensor(item: Any, tensor: type) -> bool:
    if isinstance(item, Mapping):
        return any(_has_tensor(part, tensor) for part in item.values())
    if isinstance(item, (list, tuple)):
        return any(_has_tensor(part, tensor) for part in item)
    return isinstance(item, tensor)


@functional_pipe("collate")
class Collator(OneForOne[Any], source="datapipe"):
    """Collate each batch.

    Args:
        datapipe: The source, whose items are lists.
        conversion: A function of the whole batch; or a dict from column (index or key) to a function of the list of
            that column's values. Columns that are not in the dict are collated by `default_collate`.
        collate_fn: The older name of a function of the whole batch; takes precedence over `conversion`.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> [batch.tolist() for batch in IterableWrapper(range(4)).batch(2).collate()]
        [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        datapipe: IterPipe[Any],
        conversion: Conversion = default_collate,
        collate_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self.datapipe = datapipe
        self.conversion = conversion
        self.collate_fn = collate_fn

    def __iter__(self) -> Iterator[Any]:
        conversion: Any = self.collate_fn or self.conversion or default_collate
        if isinstance(conversion, Mapping):
            for batch in read(self.datapipe):
                yield _convert_columns(batch, conversion)
        else:
            for batch in read(self.datapipe):
                yield conversion(batch)


def _convert_columns(batch: Sequence[Any], functions: Mapping[Any, Callable[[list[Any]], Any]]) -> Any:
    first = batch[0]
    columns = list(first) if isinstance(first, Mapping) else list(range(len(first)))
    if unknown := [column for column in functions if column not in columns]:
        raise KeyError(f"the conversion names columns that items do not have: {unknown}; they have {columns}")
    values = [functions.get(column, default_collate)([item[column] for item in batch]) for column in columns]
    return dict(zip(columns, values, strict=True)) if isinstance(first, Mapping) else values
