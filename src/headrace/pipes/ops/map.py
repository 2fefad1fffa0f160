"""Operations that call a function for each item: map, here or in threads, and filter."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from headrace.errors import ConfigError

from ..core.base import IterPipe, State, read
from ..core.checks import check_positive
from ..core.registry import functional_pipe
from ..core.skeletons import OneForOne, Positioned, SameLength
from ..core.streams import close_streams
from .columns import column_mapper, column_reader


@functional_pipe("map")
class Mapper(OneForOne[Any], source="datapipe"):
    """Apply a function to each item, or to columns of it.

    Args:
        datapipe: The source.
        fn: The function.
        input_col: `None`: the function gets the item. An index or key: it gets that column. A list: it gets these
            columns, each as an argument.
        output_col: The column that the result goes to. `None`: it replaces the input column (of several, the first; the
            others are dropped). -1: it is appended.

    Raises:
        ConfigError: The function cannot be called with that many arguments, or `output_col` does not go with
            `input_col`.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper([1, 2]).map(lambda number: number * 10))
        [10, 20]
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


@functional_pipe("threadpool_map")
class ThreadPoolMapper(SameLength[Any]):
    """Apply a function to each item as `Mapper` does, in a pool of threads. The order is that of the source.

    The threads live as long as the iteration. They run at the same time where the function waits for files or networks,
    or releases Python's GIL.

    Args:
        source_datapipe: The source.
        fn: The function.
        input_col: The columns that the function gets, see `Mapper`.
        output_col: The column that the result goes to, see `Mapper`.
        scheduled_tasks: How many items may be in progress, or done and not yet yielded.
        max_workers: How many threads; `None`: the default of `concurrent.futures.ThreadPoolExecutor`.
        threadpool_kwargs: Other arguments of `ThreadPoolExecutor`.

    Raises:
        ConfigError: A number is less than 1, or the columns are wrong.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper(["a", "b"]).threadpool_map(str.upper, max_workers=2))
        ['A', 'B']
    """

    maps_each = True
    _not_shipped = ("_pending",)

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        scheduled_tasks: int = 128,
        max_workers: int | None = None,
        **threadpool_kwargs: Any,
    ) -> None:
        column_mapper(fn, input_col, output_col)
        self.source_datapipe = source_datapipe
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col
        self.scheduled_tasks = check_positive("scheduled_tasks", scheduled_tasks)
        self.max_workers = None if max_workers is None else check_positive("max_workers", max_workers)
        self.threadpool_kwargs = threadpool_kwargs
        self.reset()

    def reset(self) -> None:
        self._pending: deque[Any] = deque()  # items whose results were not yielded yet
        self._has_ended = False

    def __iter__(self) -> Iterator[Any]:
        function = column_mapper(self.fn, self.input_col, self.output_col)
        pending, futures = self._pending, deque[Future[Any]]()
        source = iter(()) if self._has_ended else read(self.source_datapipe)
        options = {"thread_name_prefix": "headrace threadpool_map"} | self.threadpool_kwargs
        pool = ThreadPoolExecutor(self.max_workers, **options)
        try:
            futures.extend(pool.submit(function, item) for item in pending)
            while True:
                for item in islice(source, max(0, self.scheduled_tasks - len(pending))):
                    pending.append(item)
                    futures.append(pool.submit(function, item))
                self._has_ended = len(pending) < self.scheduled_tasks
                if not futures:
                    return
                result = futures.popleft().result()
                pending.popleft()
                yield result
        finally:
            with contextlib.suppress(RuntimeError):  # the garbage collector may do it in one of these threads
                pool.shutdown(cancel_futures=True)

    def state(self) -> State:
        return {"pending": list(self._pending), "has_ended": self._has_ended}

    def restore(self, state: State) -> None:
        self._pending, self._has_ended = deque(state["pending"]), state["has_ended"]


@functional_pipe("filter")
class Filter(Positioned[Any]):
    """Keep the items for which a function returns True. Open files in the other items are closed.

    Args:
        datapipe: The source.
        filter_fn: Returns a bool, Python's or NumPy's.
        input_col: The columns that the function gets, see `Mapper`.

    Raises:
        ConfigError: The function cannot be called with that many arguments, or does not return a bool (while
            iterating). A `ValueError` too.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(6)).filter(lambda number: number % 2 == 0))
        [0, 2, 4]
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
