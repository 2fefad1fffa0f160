"""Rows as a dataset of Ray Data: made by tasks of Ray while it is read, or here and at once."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from headrace.errors import ConfigError, did_you_mean

from .ray_blocks import import_ray

Row = Mapping[str, Any]


class Parcel(Protocol):
    """An object pickled for other processes."""

    @property
    def data(self) -> bytes:
        """The pickle."""

    @property
    def buffers(self) -> Sequence[pickle.PickleBuffer]:
        """What is not in it: large arrays."""


class Portion(Protocol):
    """The rows that one task of Ray makes."""

    @property
    def num_rows(self) -> int | None:
        """How many rows it has; None: that is not known before."""

    def rows(self, data: bytes, buffers: list[memoryview]) -> Iterator[Row]:
        """Make the rows, from data and buffers of the parcel."""


class Portions(Protocol):
    """Rows that several tasks of Ray can make."""

    @property
    def parcel(self) -> Parcel:
        """What all tasks need."""

    def cut(self, num: int) -> Sequence[Portion]:
        """Cut all of it into about `num` portions; at least one."""

    def __len__(self) -> int: ...


def dataset_of_portions(portions: Portions, block_bytes: int, **options: Any) -> Any:
    """Return rows as a `ray.data.Dataset` in their order; each time it is read, tasks of Ray make them anew.

    Args:
        portions: The rows, to be cut among tasks.
        block_bytes: Size after which a new block of rows begins, in bytes.
        **options: Of `ray.data.read_datasource`.

    Raises:
        ConfigError: Ray is not installed, or refuses the options; or there are no rows.
    """
    ray = import_ray()
    if not len(portions):
        raise _nothing_in_it()
    valid = inspect.signature(ray.data.read_datasource).parameters.keys() - {"datasource", "parallelism", "read_args"}
    for name in options.keys() - valid:  # Ray would take it for one of the source, and ignore it
        raise ConfigError(f"to_ray_dataset has no option {name!r}", fix=did_you_mean(name, valid | {"block_bytes"}))
    parcel = portions.parcel
    source_module = importlib.import_module("ray.data.datasource")
    metadata = importlib.import_module("ray.data.block").BlockMetadata
    folders = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
    shared = ray.put((folders, parcel.data, [np.frombuffer(buffer.raw(), np.uint8) for buffer in parcel.buffers]))

    class HeadraceDatasource(source_module.Datasource):  # type: ignore[misc, name-defined]
        """Tells Ray what its tasks are."""

        def estimate_inmemory_data_size(self) -> int | None:
            """Return that it is not known."""
            return None

        def get_read_tasks(self, parallelism: int, *args: Any, **others: Any) -> list[Any]:  # noqa: ARG002
            """Return one task for each portion."""
            return [
                source_module.ReadTask(
                    partial(_make_blocks, shared, portion, block_bytes),
                    metadata(num_rows=portion.num_rows, size_bytes=None, exec_stats=None, input_files=None),
                )
                for portion in portions.cut(parallelism)
            ]

    try:
        dataset = ray.data.read_datasource(HeadraceDatasource(), **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Ray Data refuses these options: {error}", where=f"to_ray_dataset, {options}") from error
    dataset.context.execution_options.preserve_order = True
    return dataset


def _make_blocks(shared: Any, portion: Portion, block_bytes: int) -> Iterator[Any]:
    """Yield the rows of a portion in blocks; in the process of a task."""
    folders, data, buffers = import_ray().get(shared)
    sys.path += [entry for entry in folders if entry not in sys.path and os.path.exists(entry)]  # as on other machines
    to_block = importlib.import_module("ray.data.block").BlockAccessor.batch_to_block
    for rows in _in_blocks(portion.rows(data, [memoryview(buffer) for buffer in buffers]), block_bytes):
        names = dict.fromkeys(name for row in rows for name in row)
        yield to_block({name: [row.get(name) for row in rows] for name in names})


def dataset_of_rows(rows: Iterable[Row], block_bytes: int, **options: Any) -> Any:
    """Return rows as a `ray.data.MaterializedDataset`: they are read here and now.

    Args:
        rows: At least one.
        block_bytes: Size after which a new block of rows begins, in bytes.
        **options: Of tasks, of which there are none: refused.

    Raises:
        ConfigError: Ray is not installed, or there are no rows, or options.
    """
    if options:
        raise ConfigError(
            f"{', '.join(options)}: this epoch is read by the loader, and not by tasks of Ray", fix="leave them out"
        )
    data = import_ray().data
    refs: list[Any] = []
    for block in _in_blocks(rows, block_bytes):
        refs.extend(data.from_items(block, override_num_blocks=1).to_arrow_refs())
    if not refs:
        raise _nothing_in_it()
    return data.from_arrow_refs(refs)


def _nothing_in_it() -> ConfigError:
    return ConfigError("the epoch has nothing in it, and Ray Data knows no columns then")


def _in_blocks(rows: Iterable[Row], block_bytes: int) -> Iterator[list[Row]]:
    block: list[Row] = []
    num_bytes = 0
    for row in rows:
        block.append(row)
        num_bytes += sum(getattr(value, "nbytes", 0) for value in row.values())
        if num_bytes >= block_bytes:
            yield block
            block, num_bytes = [], 0
    if block:
        yield block
