"""Operations that apply a function to a batch of items, or await a coroutine for each item of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from headrace.errors import ConfigError

from ..core.base import IterPipe, read
from ..core.checks import check_positive, check_takes
from ..core.registry import functional_pipe
from ..core.skeletons import PendingPipe
from .batch import DataChunk, count_batches
from .columns import column_reader, column_writer


@functional_pipe("map_batches")
class BatchMapper(PendingPipe[Any]):
    """Apply a function to lists of items, and yield the items that it returns one by one.

    Args:
        datapipe: The source.
        fn: Gets a list and returns an iterable of any length.
        batch_size: How many items the list has. The last one may be shorter.
        input_col: `None`: the list holds items. An index or key: that column of each item. A list: tuples of these
            columns.

    Raises:
        ConfigError: `batch_size` is less than 1, or the function cannot be called with one argument.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(4)).map_batches(lambda batch: [sum(batch)], batch_size=2))
        [1, 5]
    """

    def __init__(
        self, datapipe: IterPipe[Any], fn: Callable[[list[Any]], Iterable[Any]], batch_size: int, input_col: Any = None
    ) -> None:
        check_takes(fn, 1)
        self.datapipe = datapipe
        self.fn = fn
        self.batch_size = check_positive("batch_size", batch_size)
        self.input_col = input_col

    def _groups(self) -> Iterator[list[Any]]:
        source = read(self.datapipe)
        while batch := list(islice(source, self.batch_size)):
            yield list(self.fn(self._columns(batch)))

    def _columns(self, batch: list[Any]) -> list[Any]:
        column = self.input_col
        if column is None:
            return batch
        if isinstance(column, (list, tuple)):
            return [tuple(item[each] for each in column) for item in batch]
        return [item[column] for item in batch]

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__}'s length relies on the output of its function.")


@functional_pipe("async_map_batches")
class BatchAsyncMapper(PendingPipe[Any]):
    """Await a coroutine for each item, those of a batch together. The order is that of the source.

    One event loop serves the whole iteration, so that sessions bound to a loop can be kept. Not for use in a thread in
    which another event loop is running.

    Args:
        source_datapipe: The source.
        async_fn: Returns an awaitable.
        batch_size: How many items are awaited together.
        input_col: The columns that the function gets, see `Mapper`.
        output_col: The column that the result goes to, see `Mapper`.
        max_concurrency: How many coroutines run at once.
        flatten: Yield results one by one; False: in batches.

    Raises:
        ConfigError: A number is less than 1, or the columns are wrong.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> async def fetch(number):
        ...     return number * 10
        >>> list(IterableWrapper(range(3)).async_map_batches(fetch, batch_size=2))
        [0, 10, 20]
    """

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        async_fn: Callable[..., Awaitable[Any]],
        batch_size: int,
        input_col: Any = None,
        output_col: Any = None,
        max_concurrency: int = 32,
        flatten: bool = True,
    ) -> None:
        check_takes(async_fn, len(input_col) if isinstance(input_col, (list, tuple)) else 1)
        column_writer(input_col, output_col)
        self.source_datapipe = source_datapipe
        self.async_fn = async_fn
        self.batch_size = check_positive("batch_size", batch_size)
        self.input_col = input_col
        self.output_col = output_col
        self.max_concurrency = check_positive("max_concurrency", max_concurrency)
        self._flattens = flatten

    def _groups(self) -> Iterator[list[Any]]:
        source = read(self.source_datapipe)
        with asyncio.Runner() as runner:
            while batch := list(islice(source, self.batch_size)):
                results = runner.run(self._map(batch))
                yield results if self._flattens else [DataChunk(results)]

    async def _map(self, batch: list[Any]) -> list[Any]:
        call = column_reader(self.async_fn, self.input_col)
        put = column_writer(self.input_col, self.output_col)
        free = asyncio.Semaphore(self.max_concurrency)

        async def work(item: Any) -> Any:
            async with free:
                awaitable = call(item)
                if not isinstance(awaitable, Awaitable):
                    raise ConfigError(
                        f"async_fn must return an awaitable, got {type(awaitable).__name__}",
                        fix="define it with `async def`, or use map",
                    )
                result = await awaitable
            return result if put is None else put(item, result)

        return list(await asyncio.gather(*map(work, batch)))  # after an error the runner cancels the others

    def __len__(self) -> int:
        length = len(self.source_datapipe)
        return length if self._flattens else count_batches(length, self.batch_size)
