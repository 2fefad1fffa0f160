"""A function of each item, several at once in threads."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

from .arguments import check_positive
from .base import IterPipe, State, read
from .columns import column_mapper
from .registry import functional_pipe


@functional_pipe("threadpool_map")
class ThreadPoolMapper(IterPipe[Any]):
    """Apply a function to each item as `Mapper` does, in a pool of threads. The order is that of the source.

    The threads live as long as the iteration. Where the function waits for files or networks, or releases Python's
    lock, several run at once.

    Args:
        source_datapipe: The source.
        fn: The function.
        input_col: Which columns it gets, see `Mapper`.
        output_col: Where the result goes, see `Mapper`.
        scheduled_tasks: How many items may be worked on or finished before they are wanted.
        max_workers: How many threads; `None`: as many as `ThreadPoolExecutor` thinks right.
        threadpool_kwargs: Its other arguments.

    Raises:
        ConfigError: A number is less than 1, or the columns are wrong.
    """

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
        self._pending: deque[Any] = deque()  # items whose results are not given yet
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

    def __len__(self) -> int:
        return len(self.source_datapipe)
