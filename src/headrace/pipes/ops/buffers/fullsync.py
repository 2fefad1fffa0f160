"""Ends the epoch on all ranks together."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from headrace.errors import ConfigError

from ...core.base import IterPipe, read
from ...core.registry import functional_pipe
from .read_ahead import NothingYetError, ReadAhead, ReadAheadPipe

_GRACE_SECONDS = 10  # so that a rank whose source is too slow can report it before the others time out
_MAX_SECONDS = 10**9  # fits into a `timedelta`
_HAS_ITEM, _HAS_ENDED, _HAS_FAILED = 2, 1, 0  # the minimum over all ranks decides


class PrefetchTimeoutError(RuntimeError):
    """The source gave no item within the timeout.

    Args:
        timeout: Seconds.

    Examples:
        >>> from headrace.pipes.iter import PrefetchTimeoutError
        >>> raise PrefetchTimeoutError(60)
        Traceback (most recent call last):
            ...
        headrace.pipes.ops.buffers.fullsync.PrefetchTimeoutError: Fail to fetch data within 60 seconds
    """

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.timeout = timeout

    def __str__(self) -> str:
        return f"Fail to fetch data within {self.timeout} seconds"


def initialized_distributed() -> Any:
    """Return the module `torch.distributed`.

    Raises:
        RuntimeError: It is not initialised.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        raise RuntimeError(
            "Torch Distributed is required to be initialized: call torch.distributed.init_process_group() first"
        )
    return distributed


class GlooGroup:
    """A gloo process group of all ranks, which is destroyed with this object.

    Args:
        timeout: Seconds that a rank waits for the others in each call.

    Raises:
        RuntimeError: torch.distributed is not initialised.
    """

    def __init__(self, timeout: float) -> None:
        self._group: Any = None
        self._distributed = initialized_distributed()
        self._torch: Any = sys.modules["torch"]
        self._pid = os.getpid()
        self._group = self._distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout))

    def minimum(self, number: int) -> int:
        """Return the minimum of a number over all ranks."""
        tensor = self._torch.tensor([number], dtype=self._torch.int64)
        self._distributed.all_reduce(tensor, op=self._distributed.ReduceOp.MIN, group=self._group)
        return int(tensor.item())

    def broadcast(self, numbers: list[int]) -> list[int]:
        """Return the numbers of rank 0; each is less than 2**63."""
        tensor = self._torch.tensor(numbers, dtype=self._torch.int64)
        self._distributed.broadcast(tensor, src=0, group=self._group)
        return list(map(int, tensor.tolist()))

    def close(self) -> None:
        """Destroy the group, unless all groups were destroyed before. A second call does nothing."""
        group, self._group = self._group, None
        # The threads of the group exist only in the process that made it: in a forked child they cannot be ended.
        if group is not None and os.getpid() == self._pid and self._distributed.is_initialized():
            self._distributed.destroy_process_group(group)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # never made, or torch is gone: the interpreter ends
            self.close()


@functional_pipe("fullsync")
class FullSync(ReadAheadPipe, source="datapipe"):
    """End the epoch on all ranks when one has no more items, so that none waits for it in a collective.

    One item is read ahead, and before each item is yielded, the ranks agree in a small all-reduce of a gloo group of
    their own. An error on one rank ends the epoch on all. Items that other ranks have read ahead by then are dropped.

    Args:
        datapipe: The source.
        timeout: Seconds to wait for an item of the source, and for the other ranks.

    Raises:
        ConfigError: The timeout is not positive.
        RuntimeError: torch.distributed is not initialised, or another rank has failed (while iterating).
        PrefetchTimeoutError: The source gave no item within the timeout (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(4)).batch(2).fullsync(timeout=60)  # on each rank of a training
    """

    _not_shipped = (*ReadAheadPipe._not_shipped, "_group")
    _group: GlooGroup | None = None

    def __init__(self, datapipe: IterPipe[Any], timeout: float = 1800) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < _MAX_SECONDS:
            raise ConfigError(f"timeout must be a positive number of seconds, got {timeout!r}")
        self.datapipe = datapipe
        self.timeout = timeout

    def is_replicable(self) -> bool:
        """Return that it runs in the main process only."""
        return False

    def __iter__(self) -> Iterator[Any]:
        agree = self._agreement()
        with self._reading_ahead(iter(()) if self._has_ended else read(self.datapipe), 1) as ahead:
            while True:
                least = agree(_HAS_ITEM if self._wait(ahead, agree) else _HAS_ENDED)
                if least == _HAS_FAILED:
                    raise RuntimeError("another rank has failed to read its data: see its own error")
                if least == _HAS_ENDED:
                    return
                item = ahead.buffer.popleft()
                ahead.wake()
                yield item

    def _wait(self, ahead: ReadAhead, agree: Callable[[int], int]) -> bool:
        try:
            return ahead.wait(self.timeout)
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # a failure to tell the others must not hide the error itself
                agree(_HAS_FAILED)
            if isinstance(error, NothingYetError):
                raise PrefetchTimeoutError(self.timeout) from None
            raise

    def _agreement(self) -> Callable[[int], int]:
        """Return a function that returns the minimum of a number over all ranks."""
        if initialized_distributed().get_world_size() == 1:
            return lambda number: number
        if self._group is None:
            self._group = GlooGroup(self.timeout + _GRACE_SECONDS)
        return self._group.minimum
