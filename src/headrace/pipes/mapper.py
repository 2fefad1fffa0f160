"""A function of each item."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .base import IterPipe, State, read
from .columns import column_mapper
from .registry import functional_pipe


@functional_pipe("map")
class Mapper(IterPipe[Any]):
    """Apply a function to each item, or to columns of it.

    Args:
        datapipe: The source.
        fn: The function.
        input_col: `None`: it gets the item. An index or key: it gets that column. A list: each column is an argument.
        output_col: Where the result goes. `None`: it replaces the column that went in (of several the first; the
            others are dropped). -1: it is appended. Else this column is set.

    Raises:
        ConfigError: The function cannot be called with so many columns, or `output_col` makes no sense.
    """

    def __init__(
        self, datapipe: IterPipe[Any], fn: Callable[..., Any], input_col: Any = None, output_col: Any = None
    ) -> None:
        column_mapper(fn, input_col, output_col)  # to refuse what is wrong before anything runs
        self.datapipe = datapipe
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col

    def __iter__(self) -> Iterator[Any]:
        function = column_mapper(self.fn, self.input_col, self.output_col)
        for item in read(self.datapipe):
            yield function(item)

    def state(self) -> State:
        return {}

    def __len__(self) -> int:
        return len(self.datapipe)
