"""Datasets of Ray Data: rows of a materialized one with random access, and of any other one as a stream.

Both read what `ray_blocks.py` carries to the processes that are not connected to the cluster. Ray's tensors become
lists of Arrow here, whose layout all tables share.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, check_count
from headrace.index import CorpusIndex

from .choice import choose_options
from .gather import Tables, gather_tables
from .ray_blocks import Blocks, Carried, is_materialized
from .schema import Schema, import_arrow, read_schema
from .source import TableCorpus, TableSource, descend, one_array

_INDEX_KIND = "ray-data/2"
Axes = tuple[int | None, ...]  # the size of each axis of tensors; None where it differs from row to row


class RayDataSource(TableSource):
    """Random access to the rows of a materialized `ray.data.Dataset`. Needs `headrace[ray]`.

    Columns become data keys as `ParquetSource` describes. Of Ray's tensors, an axis is of fixed size where all rows
    have one shape (a type of Ray's own), and else the first axis is time. Rows are in the order of the dataset, which
    is fixed once it is materialized.

    Each process reads blocks from the object store of its node, whereto Ray brings those of other nodes; one that is
    not connected to the cluster connects. The process that made the dataset has to live as long as its blocks are
    read. Gathering the index looks at each block once, in this process.

    Args:
        dataset: A `ray.data.MaterializedDataset`: what `materialize()` returns, or `from_items` and the like.
        fields: See `ParquetSource`.
        tag_field: Column with the tags, texts or whole numbers; "seq-0", "seq-1", ... if `None`.
        nulls: See `ParquetSource`.
        cache_bytes: How much of the blocks to hold on to, in each process; one block of each column is always held.
            Others have to be asked for again, which takes 0.5 ms. All processes of a node hold the same memory, that of
            its object store, from where Ray does not move to disk what is held.

    Raises:
        ConfigError: The dataset is not materialized, an option is wrong, or a package is missing.
        SourceError: A block cannot be read, or a row becomes no array.

    Examples:
        >>> import headrace as hr
        >>> from headrace.sources import RayDataSource
        >>> def open_loader(dataset):  # where Ray is installed
        ...     return hr.DataLoader(RayDataSource(dataset.materialize()), batch_size=32)
    """

    def __init__(
        self,
        dataset: Any,
        *,
        fields: Mapping[str, Any] | None = None,
        tag_field: str | None = None,
        nulls: Literal["refuse", "empty"] = "refuse",
        cache_bytes: int = 2 << 30,
    ) -> None:
        check_count("cache_bytes", cache_bytes)
        if not is_materialized(dataset):
            raise ConfigError(
                f"a {type(dataset).__name__} has no random access: it is not known yet which rows it has",
                fix="give dataset.materialize(), or give the dataset to headrace.DataLoader, as a stream",
            )
        import_arrow()
        self._blocks = Blocks(Carried(dataset.to_arrow_refs()))
        self._blocks.data_hosts()  # before the index is gathered, for which all blocks come here
        tables = _BlockTables(self._blocks, None)
        self._axes = tables.axes
        options = choose_options(
            tables.schema(0), tables.name(0), fields=fields, tag_field=tag_field, nulls=nulls, root=None
        )
        self._open(
            TableCorpus(options, cache_bytes),
            [],
            lambda: gather_tables(tables, options),
            index=None,
            kind=f"{_INDEX_KIND} {options.identity_text}",
        )

    @property
    def has_numbers_only(self) -> bool:
        """Whether all columns are numbers, and are data keys."""
        schema = self._tables.schema(0)
        return set(self.specs) == set(schema.top) and all(
            (layout := schema.columns[name].layout) is not None
            and layout.leaf not in ("text", "bytes", "recording", "image")
            for name in schema.top
        )

    def data_hosts(self) -> Mapping[str, float]:
        """Return the nodes where the blocks lay when this was made, by ID -> bytes."""
        return self._blocks.data_hosts()

    def _open_tables(self) -> Tables:
        return _BlockTables(self._blocks.for_another_reader(), self._axes)

    def __getstate__(self) -> tuple[Any, CorpusIndex]:
        return (self._blocks, self._axes, self._options), self._index

    def __setstate__(self, state: tuple[Any, CorpusIndex]) -> None:
        (self._blocks, self._axes, options), index = state
        self._attach(options, index)


class _BlockTables(Tables):
    """The blocks of a dataset as one table; a piece is a block.

    Args:
        blocks: References to them.
        axes: What another object for the same blocks has found out. None: all blocks are looked at.

    Attributes:
        axes: Column of tensors -> its axes in all rows.
    """

    num_tables = 1
    slow_hint = (
        "most sequences come from another block than those before, and each time one is asked for: use a larger "
        "cache_bytes, or fewer workers on each node, or shuffle within windows"
    )

    def __init__(self, blocks: Blocks, axes: dict[str, Axes] | None) -> None:
        self._blocks = blocks
        self.axes = self._find_axes() if axes is None else axes

    def _find_axes(self) -> dict[str, Axes]:
        found: dict[str, Axes] = {}
        for piece in range(len(self._blocks)):
            block = self._blocks[piece]
            for field in block.schema:
                if _is_tensor(field.type) and block.num_rows:
                    axes = _axes_of(one_array(block.column(field.name)))
                    found[field.name] = _common(found.get(field.name, axes), axes)
        return found

    def name(self, table_idx: int) -> str:  # noqa: ARG002
        """Return what messages call the dataset."""
        return self._blocks.name

    def schema(self, table_idx: int) -> Schema:
        """Return the schema of the first block that has one, with lists in place of Ray's tensors."""
        pa = import_arrow()
        for piece in range(self.num_pieces(table_idx)):
            block = self._blocks[piece]
            if block.num_columns and (block.num_rows or not self.axes):
                fields = [(name, self._column(block.slice(0, 0), name).type) for name in block.column_names]
                return read_schema(pa.schema(fields), self.name(table_idx))
        raise ConfigError("the dataset of Ray Data has no rows, and no columns are known", fix="give one that has some")

    def num_pieces(self, table_idx: int) -> int:  # noqa: ARG002
        """Return the number of blocks."""
        return len(self._blocks)

    def num_rows(self, table_idx: int, piece: int) -> int:  # noqa: ARG002
        """Return the number of rows of a block."""
        return int(self._blocks[piece].num_rows)

    def array(self, table_idx: int, piece: int, path: Sequence[str]) -> Any:
        """Return a column of a block, or a field of it."""
        block = self._blocks[piece]
        if path[0] not in block.column_names:
            raise SourceError(
                f"the block has no column {path[0]!r}, which others have",
                where=f"{self.name(table_idx)}, piece {piece}",
                fix="give all rows the same columns",
            )
        return descend(self._column(block, path[0]), path[1:])

    def _column(self, block: Any, name: str) -> Any:
        array = one_array(block.column(name))
        if _is_tensor(array.type):
            return _as_lists(array, self.axes.get(name))
        if _is_of_ray(array.type):  # pickled objects: their bytes mean nothing to a reader
            return import_arrow().nulls(len(array))
        return array

    def is_view(self, table_idx: int, array: Any) -> bool:  # noqa: ARG002
        """No: it takes no memory of this process, but keeps the block in that of the object store."""
        return False

    def close(self) -> None:
        """Let the last block go."""
        self._blocks.close()


def _is_tensor(arrow_type: Any) -> bool:
    """Tell whether it is a type of tensors of Ray's own."""
    return _is_of_ray(arrow_type) and "tensor" in arrow_type.extension_name


def _is_of_ray(arrow_type: Any) -> bool:
    """Tell whether it is a type of Ray's own: of tensors, or of pickled objects."""
    return str(getattr(arrow_type, "extension_name", "")).startswith("ray.data.")


def _axes_of(array: Any) -> Axes:
    """Return which axes have one size in all rows: the first one if the type says so, others if it is so."""
    _, shapes = _numbers_of(array)
    fixed = getattr(array.type, "shape", ())[:1]  # (None,) of a type of several shapes
    first = fixed[0] if fixed else None
    sizes = [low if low == high else None for low, high in zip(shapes.min(axis=0), shapes.max(axis=0), strict=True)]
    return (first or None, *(None if not size else int(size) for size in sizes[1:]))  # lists of size 0 have no number


def _common(ours: Axes, theirs: Axes) -> Axes:
    return tuple(a if a == b else None for a, b in itertools.zip_longest(ours, theirs))


def _numbers_of(array: Any) -> tuple[Any, NDArray[np.int64]]:
    """Return the numbers of an array of Ray's tensors, one after the other, and the shapes, `int64[rows, axes]`.

    Each value is stored as the list of its numbers in C order, of the one shape that its type says, or beside the list
    of its axes.

    Raises:
        SourceError: A value is null.
    """
    storage, num_rows = array.storage, len(array)
    if storage.null_count:
        raise SourceError("a tensor is null", where=Blocks.name, fix="fill or drop such rows")
    if not import_arrow().types.is_struct(storage.type):
        shape = array.type.shape
        return storage.flatten(), np.broadcast_to(np.asarray(shape, np.int64), (num_rows, len(shape)))
    data, axes = storage.flatten()
    return data.flatten(), axes.flatten().to_numpy().reshape(num_rows, array.type.ndim)


def _as_lists(array: Any, axes: Axes | None) -> Any:
    """Return an array of Ray's tensors as lists of lists, over the same numbers.

    Args:
        array: The tensors.
        axes: Those with a size become lists of fixed size. None: nothing is known, as there are no rows.
    """
    pa = import_arrow()
    found, shapes = _numbers_of(array)
    for axis in reversed(range(shapes.shape[1])):
        if axes is not None and axes[axis] is not None:
            found = pa.FixedSizeListArray.from_arrays(found, axes[axis])
            continue
        num_lists = np.prod(shapes[:, :axis], axis=1, dtype=np.int64)  # of this axis, in each row
        edges = np.concatenate([[0], np.cumsum(np.repeat(shapes[:, axis], num_lists))])
        found = pa.LargeListArray.from_arrays(pa.array(edges, pa.int64()), found)
    return found


class RayItems:
    """The rows of a materialized dataset of Ray Data as items, as they are: dicts by column, with texts and all else.

    Numbers are those of Python, lists are lists, tensors are arrays.

    Args:
        dataset: A `ray.data.MaterializedDataset`.
    """

    def __init__(self, dataset: Any) -> None:
        self._blocks = Blocks(Carried(dataset.to_arrow_refs()))
        self._blocks.data_hosts()  # before all of them come here
        num_rows = [self._blocks[piece].num_rows for piece in range(len(self._blocks))]
        self._edges = np.cumsum([0, *num_rows])

    def __len__(self) -> int:
        return int(self._edges[-1])

    def data_hosts(self) -> Mapping[str, float]:
        """Return the nodes where the blocks lay when this was made, by ID -> bytes."""
        return self._blocks.data_hosts()

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < len(self):
            raise IndexError(f"row {number} of a dataset of {len(self)}")
        piece = int(np.searchsorted(self._edges, number, side="right")) - 1
        row, block = number - int(self._edges[piece]), self._blocks[piece]
        return {name: column[row].as_py() for name, column in zip(block.column_names, block.columns, strict=True)}


class RayRows:
    """The rows of a dataset of Ray Data as a stream: each pass executes the dataset anew, in its order.

    Args:
        dataset: Any `ray.data.Dataset`. What it does at random has to be seeded, or each pass differs.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = Carried(dataset)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dict by column: numbers and arrays of NumPy, texts as `str`."""
        dataset = self._dataset.copy()  # with options of its own
        dataset.context.execution_options.preserve_order = True
        for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
            names = list(batch)
            for values in zip(*batch.values(), strict=True):
                yield dict(zip(names, values, strict=True))


def open_ray_data(dataset: Any, *, is_as_stored: bool, needs_lengths: bool) -> RayDataSource | RayItems | RayRows:
    """Return a reader of a dataset of Ray Data: by index if it is materialized, else as a stream.

    Args:
        dataset: A `ray.data.Dataset`.
        is_as_stored: Whether arrays by data key are wanted, if all columns are numbers.
        needs_lengths: Whether the lengths of rows have to be known.
    """
    if not is_materialized(dataset):
        return RayRows(dataset)
    if is_as_stored:
        source = RayDataSource(dataset)
        if needs_lengths or source.has_numbers_only:
            return source
    return RayItems(dataset)
