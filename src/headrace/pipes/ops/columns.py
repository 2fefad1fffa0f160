"""Columns of items: the ones a function gets, and the one its result goes to; flatten, slice, drop, rows2columnar.

An item with columns is a list, a tuple or a dict. It is never changed: operations work on a shallow copy.
"""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from headrace.errors import ConfigError

from ..core.base import IterPipe, read
from ..core.checks import check_takes
from ..core.registry import functional_pipe
from ..core.skeletons import OneForOne


def column_reader(function: Callable[..., Any], input_col: Any) -> Callable[[Any], Any]:
    """Return a function of an item that calls `function` with columns of the item.

    Args:
        function: The user's function.
        input_col: `None`: it gets the item. An index or key: it gets that column. A list or tuple: it gets these
            columns, each as an argument.

    Raises:
        ConfigError: The function cannot be called with that many arguments.
    """
    if isinstance(input_col, (list, tuple)):
        columns = tuple(input_col)
        check_takes(function, len(columns))
        return lambda item: function(*[item[column] for column in columns])
    check_takes(function, 1)
    if input_col is None:
        return function
    return lambda item: function(item[input_col])


def column_mapper(function: Callable[..., Any], input_col: Any, output_col: Any) -> Callable[[Any], Any]:
    """Return a function of an item that returns the item with the function's result in a column, see `Mapper`.

    Raises:
        ConfigError: `input_col` and `output_col` do not go together, or do not suit the function.
    """
    compute = column_reader(function, input_col)
    put = column_writer(input_col, output_col)
    return compute if put is None else lambda item: put(item, compute(item))


def column_writer(input_col: Any, output_col: Any) -> Callable[[Any, Any], Any] | None:
    """Return a function (item, result) that puts a result into an item; `None`: the result is the new item.

    Raises:
        ConfigError: `input_col` and `output_col` do not go together.
    """
    if input_col is None:
        if output_col is not None:
            raise ConfigError("`output_col` must be None when `input_col` is None.")
        return None
    if isinstance(output_col, (list, tuple)):
        if len(output_col) != 1:
            raise ConfigError("`output_col` must be a single-element list or tuple")
        output_col = output_col[0]
    dropped: tuple[Any, ...] = ()
    if output_col is None:
        columns = tuple(input_col) if isinstance(input_col, (list, tuple)) else (input_col,)
        output_col, dropped = columns[0], columns[1:]

    def put(item: Any, result: Any) -> Any:
        changed = list(item) if isinstance(item, tuple) else copy.copy(item)
        if output_col == -1 and isinstance(changed, list):
            changed.append(result)
        else:
            changed[output_col] = result
        for column in sorted(dropped, reverse=True):
            del changed[column]
        return tuple(changed) if isinstance(item, tuple) else changed

    return put


_MISSING = (
    "At least one index in the filter is not present in the item being returned, "
    "please be aware that expected columns/keys may be missing."
)


def _listed(indices: Any) -> list[Hashable]:
    return list(indices) if isinstance(indices, (list, tuple, set)) else [indices]


def _warn_missing(indices: Sequence[Hashable], item: Any) -> None:
    present = item if isinstance(item, dict) else range(len(item))
    for index in indices:
        if index not in present:
            warnings.warn(_MISSING, stacklevel=4)
            return


@functional_pipe("flatten")
class Flattener(OneForOne[Any], source="datapipe"):
    """Flatten columns by one level: a list, tuple or dict in a column is replaced by its elements.

    Args:
        datapipe: The source.
        indices: The columns to flatten; `None`: all that hold such containers.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper([(1, ("a", "b"))]).flatten(1))
        [(1, 'a', 'b')]
    """

    def __init__(self, datapipe: IterPipe[Any], indices: Hashable | list[Hashable] | None = None) -> None:
        self.datapipe = datapipe
        self.indices = indices

    def __iter__(self) -> Iterator[Any]:
        chosen = None if self.indices is None else _listed(self.indices)
        for item in read(self.datapipe):
            if chosen is not None:
                _warn_missing(chosen, item)
            yield _flatten_dict(item, chosen) if isinstance(item, dict) else _flatten_row(item, chosen)


def _flatten_row(item: Any, chosen: list[Hashable] | None) -> Any:
    flat: list[Any] = []
    for column, value in enumerate(item):
        if (chosen is None or column in chosen) and isinstance(value, (list, tuple)):
            flat.extend(value)
        else:
            flat.append(value)
    return tuple(flat) if isinstance(item, tuple) else flat


def _flatten_dict(item: dict[Any, Any], chosen: list[Hashable] | None) -> dict[Any, Any]:
    flat: dict[Any, Any] = {}
    for key, value in item.items():
        flat |= value if (chosen is None or key in chosen) and isinstance(value, dict) else {key: value}
    return flat


@functional_pipe("slice")
class Slicer(OneForOne[Any], source="datapipe"):
    """Keep some of the columns.

    Args:
        datapipe: The source.
        index: The first column of a slice, or a list of columns, or a key.
        stop: The end of the slice, exclusive.
        step: The step of the slice.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper([(1, "a", True)]).slice(0, 2))
        [(1, 'a')]
    """

    def __init__(
        self,
        datapipe: IterPipe[Any],
        index: int | list[Hashable],
        stop: int | None = None,
        step: int | None = None,
    ) -> None:
        if isinstance(index, list) and (stop is not None or step is not None):
            warnings.warn(
                "A list of indices was passed as well as a stop or step for the slice, "
                "these arguments can't be used together so only the indices list will be used.",
                stacklevel=3,
            )
        self.datapipe = datapipe
        self.index = index
        self.stop = stop
        self.step = step

    def __iter__(self) -> Iterator[Any]:
        for item in read(self.datapipe):
            yield self._choose(item)

    def _choose(self, item: Any) -> Any:
        if isinstance(item, dict):
            if self.stop is not None or self.step is not None:
                warnings.warn(
                    "Dictionaries are not sliced by steps, only direct index. "
                    "Please be aware that no filter was done or new item created.",
                    stacklevel=3,
                )
                return item
        elif not isinstance(self.index, list):
            return item[self.index : self.stop : self.step]
        indices = _listed(self.index)
        _warn_missing(indices, item)
        return _with_columns(item, indices.__contains__)


def _with_columns(item: Any, is_kept: Callable[[Any], bool]) -> Any:
    if isinstance(item, dict):
        return {key: value for key, value in item.items() if is_kept(key)}
    kept = [value for column, value in enumerate(item) if is_kept(column)]
    return tuple(kept) if isinstance(item, tuple) else kept


@functional_pipe("drop")
class Dropper(OneForOne[Any], source="datapipe"):
    """Drop columns.

    Args:
        datapipe: The source.
        indices: The columns to drop.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper([(1, "a", True)]).drop(1))
        [(1, True)]
    """

    def __init__(self, datapipe: IterPipe[Any], indices: Hashable | list[Hashable]) -> None:
        self.datapipe = datapipe
        self.indices = indices

    def __iter__(self) -> Iterator[Any]:
        dropped = _listed(self.indices)
        for item in read(self.datapipe):
            if not isinstance(item, (dict, list, tuple)):
                raise TypeError(f"columns are dropped from a tuple, list or dict, not from a {type(item).__name__}")
            _warn_missing(dropped, item)
            yield _with_columns(item, lambda column: column not in dropped)


@functional_pipe("rows2columnar")
class Rows2Columnar(OneForOne[Any]):
    """Turn lists of rows into dicts of columns.

    Args:
        source_datapipe: The source, whose items are lists of dicts, or of lists.
        column_names: The columns to keep; of rows that are lists, the names of all columns in order. `None`: all keys.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper([[(1, "a"), (2, "b")]]).rows2columnar(["number", "letter"]))
        [defaultdict(<class 'list'>, {'number': [1, 2], 'letter': ['a', 'b']})]
    """

    def __init__(self, source_datapipe: IterPipe[Any], column_names: list[str] | None = None) -> None:
        self.source_datapipe = source_datapipe
        self.column_names = column_names

    def __iter__(self) -> Iterator[Any]:
        for batch in read(self.source_datapipe):
            columns: dict[Any, list[Any]] = defaultdict(list)
            for row in batch:
                for name, value in self._cells(row):
                    columns[name].append(value)
            yield columns

    def _cells(self, row: Any) -> list[tuple[Any, Any]]:
        if isinstance(row, dict):
            return [(name, row[name]) for name in (self.column_names or row)]
        names = self.column_names
        if names is None or len(names) != len(row):
            raise IndexError(f"a row has {len(row)} cells, there are {len(names or ())} column_names")
        return list(zip(names, row, strict=True))
