"""The items that pass a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headrace.errors import ConfigError

from .base import IterPipe, State, read
from .columns import column_reader
from .registry import functional_pipe
from .streams import close_streams


@functional_pipe("filter")
class Filter(IterPipe[Any]):
    """Keep the items for which a function is true. Open files in the others are closed.

    Args:
        datapipe: The source.
        filter_fn: Returns a bool, of Python's or NumPy's.
        input_col: Which columns it gets, see `Mapper`.

    Raises:
        ConfigError: The function cannot be called so, or returns something else (while iterating; a `ValueError` too).
    """

    def __init__(self, datapipe: IterPipe[Any], filter_fn: Callable[..., Any], input_col: Any = None) -> None:
        column_reader(filter_fn, input_col)
        self.datapipe = datapipe
        self.filter_fn = filter_fn
        self.input_col = input_col

    def __iter__(self) -> Iterator[Any]:
        function = column_reader(self.filter_fn, self.input_col)
        for item in read(self.datapipe):
            keeps = function(item)
            if keeps is True:
                yield item
            elif keeps is False:
                close_streams(item)
            elif not isinstance(keeps, np.bool_):
                raise ConfigError(
                    f"Boolean output is required for `filter_fn` of Filter, got {keeps!r} ({type(keeps).__name__})",
                    fix="return bool(...)",
                )
            elif keeps:
                yield item
            else:
                close_streams(item)

    def state(self) -> State:
        return {}
