"""Bucketing: batches of items of similar length."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import ConfigError

from ..core.base import IterPipe, State, read
from ..core.checks import check_positive, check_takes
from ..core.registry import functional_pipe, register_function
from .batch import Batcher, UnBatcher
from .map import Mapper
from .shuffle import InBatchShuffler, Shuffler


def bucketbatch(
    datapipe: IterPipe[Any],
    batch_size: int,
    drop_last: bool = False,
    batch_num: int = 100,
    bucket_num: int = 1,
    sort_key: Callable[[list[Any]], list[Any]] | None = None,
    use_in_batch_shuffle: bool = True,
) -> IterPipe[Any]:
    """Shuffle pools of items, sort each bucket of a pool, cut buckets into batches, and shuffle the batches.

    A bucket holds `batch_size * batch_num` items, a pool `bucket_num` buckets.

    Args:
        datapipe: The source.
        batch_size: Items in a batch.
        drop_last: Drop the last batch if it is smaller.
        batch_num: Batches in a bucket.
        bucket_num: Buckets in a pool. With 1 and a `sort_key`, pools are not shuffled, because sorting would undo it.
        sort_key: Gets all items of a bucket as a list, and returns it sorted. `None`: batches are random.
        use_in_batch_shuffle: Shuffle the items within each pool, and the batches within groups of `bucket_num`, as
            torchdata 0.7 did: with one bucket the batches keep their order. False: shuffle both with a buffer, of the
            size of a pool for items and of a bucket for batches.

    Raises:
        ConfigError: A number is less than 1.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> texts = IterableWrapper(["ccc", "a", "bb", "dddd"])
        >>> batches = texts.bucketbatch(batch_size=2, bucket_num=1, sort_key=lambda bucket: sorted(bucket, key=len))
        >>> sorted(sorted(batch, key=len) for batch in batches)
        [['a', 'bb'], ['ccc', 'dddd']]
    """
    bucket_size = check_positive("batch_size", batch_size) * check_positive("batch_num", batch_num)
    pool_size = bucket_size * check_positive("bucket_num", bucket_num)
    pipe = datapipe
    if bucket_num > 1 or sort_key is None:
        pipe = _shuffle(pipe, pool_size, use_in_batch_shuffle)
    if sort_key is not None:
        pipe = UnBatcher(Mapper(Batcher(pipe, bucket_size, wrapper_class=list), sort_key))
    pipe = Batcher(pipe, batch_size, drop_last)
    if sort_key is None:
        return pipe
    return _shuffle(pipe, bucket_num if use_in_batch_shuffle else bucket_size, use_in_batch_shuffle)


def _shuffle(pipe: IterPipe[Any], num_items: int, in_batches: bool) -> IterPipe[Any]:
    return UnBatcher(InBatchShuffler(Batcher(pipe, num_items))) if in_batches else Shuffler(pipe, buffer_size=num_items)


register_function(IterPipe, "bucketbatch", bucketbatch)


@functional_pipe("max_token_bucketize")
class MaxTokenBucketizer(IterPipe[Any]):
    """Make batches of items of similar length, each as large as a budget of tokens allows.

    Items wait in a heap. When it is full, the shortest is added to the current batch; if the batch would become too
    large, it is yielded and a new one begins. The order depends on the items only; items of equal length keep theirs.

    Args:
        datapipe: The source.
        max_token_count: The maximum number of tokens in a batch.
        len_fn: Returns the number of tokens of an item.
        min_len: Shorter items are dropped.
        max_len: Longer items are dropped; `None`: those longer than `max_token_count`.
        buffer_size: How many items the heap holds.
        include_padding: Count padded tokens: the number of items times the length of the longest.

    Raises:
        ConfigError: The limits contradict each other.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> texts = IterableWrapper(["a", "bb", "cccc", "d"])
        >>> list(texts.max_token_bucketize(max_token_count=4))
        [['a', 'd', 'bb'], ['cccc']]
    """

    _not_shipped = ("_buffer", "_pending")

    def __init__(
        self,
        datapipe: IterPipe[Any],
        max_token_count: int,
        len_fn: Callable[[Any], int] = len,
        min_len: int = 0,
        max_len: int | None = None,
        buffer_size: int = 1000,
        include_padding: bool = False,
    ) -> None:
        check_takes(len_fn, 1)
        max_len = max_token_count if max_len is None else max_len
        if min_len < 0 or min_len > max_len:
            raise ConfigError(
                "``min_len`` should be larger than 0 and equal to or smaller than ``max_len``, "
                f"got {min_len} and {max_len}"
            )
        if max_len > max_token_count:
            raise ConfigError(
                f"``max_token_count`` must be equal to or greater than ``max_len``, got {max_token_count} and {max_len}"
            )
        self.datapipe = datapipe
        self.max_token_count = max_token_count
        self.len_fn = len_fn
        self.min_len = min_len
        self.max_len = max_len
        self.buffer_size = check_positive("buffer_size", buffer_size)
        self.include_padding = include_padding
        self.reset()

    def reset(self) -> None:
        self._buffer: list[tuple[int, int, Any]] = []  # a heap of (length, number, item)
        self._pending: list[Any] = []  # the current batch
        self._num_tokens = self._num_seen = 0
        self._has_ended = False

    def __iter__(self) -> Iterator[Any]:
        buffer, length_of = self._buffer, self.len_fn
        for item in () if self._has_ended else read(self.datapipe):
            length = length_of(item)
            if not self.min_len <= length <= self.max_len:
                continue
            heapq.heappush(buffer, (length, self._num_seen, item))
            self._num_seen += 1
            if len(buffer) == self.buffer_size and (batch := self._take()):
                yield batch
        self._has_ended = True
        while buffer:
            if batch := self._take():
                yield batch
        if batch := self._pending:
            self._pending = []
            yield batch

    def _take(self) -> list[Any]:
        """Add the shortest item to the current batch; if it does not fit, begin a new batch and return the full one."""
        length, _, item = heapq.heappop(self._buffer)
        num_tokens = (len(self._pending) + 1) * length if self.include_padding else self._num_tokens + length
        if num_tokens <= self.max_token_count or not self._pending:
            self._pending.append(item)
            self._num_tokens = num_tokens
            return []
        batch, self._pending, self._num_tokens = self._pending, [item], length
        return batch

    def state(self) -> State:
        return {
            "heap": list(self._buffer),
            "batch": list(self._pending),
            "num_tokens": self._num_tokens,
            "num_seen": self._num_seen,
            "has_ended": self._has_ended,
        }

    def restore(self, state: State) -> None:
        self._buffer = [(length, number, item) for length, number, item in state["heap"]]
        self._pending = list(state["batch"])
        self._num_tokens, self._num_seen = state["num_tokens"], state["num_seen"]
        self._has_ended = state["has_ended"]
