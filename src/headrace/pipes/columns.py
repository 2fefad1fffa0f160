"""Functions of columns: which parts of an item a function gets, and where its result goes.

An item with columns is a list, a tuple or a dict. It is never changed: who needs another one gets a shallow copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from headrace.errors import ConfigError

from .arguments import check_takes


def column_reader(function: Callable[..., Any], input_col: Any) -> Callable[[Any], Any]:
    """Return a function of an item that calls `function` with the columns it wants.

    Args:
        function: The user's.
        input_col: `None`: it gets the item; a list or tuple: it gets these columns, each as an argument; else one.

    Raises:
        ConfigError: The function takes another number of arguments.
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
    """Return a function of an item whose result is the item with a column changed, see `Mapper`.

    Raises:
        ConfigError: The columns do not fit to each other or to the function.
    """
    compute = column_reader(function, input_col)
    place = column_writer(input_col, output_col)
    return compute if place is None else lambda item: place(item, compute(item))


def column_writer(input_col: Any, output_col: Any) -> Callable[[Any, Any], Any] | None:
    """Return what puts a result into an item; `None`: the result is the new item.

    Raises:
        ConfigError: The columns do not fit to each other.
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

    def place(item: Any, result: Any) -> Any:
        changed = list(item) if isinstance(item, tuple) else copy.copy(item)
        if output_col == -1 and isinstance(changed, list):
            changed.append(result)
        else:
            changed[output_col] = result
        for column in sorted(dropped, reverse=True):
            del changed[column]
        return tuple(changed) if isinstance(item, tuple) else changed

    return place
