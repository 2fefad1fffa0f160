"""What every test of loaders needs: a check that nothing is left running, and pipes with uneven shares."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.dataloader2 import replica
from headrace.engine.process.proc_tree import descendants_of


@pytest.fixture
def snapshot_each_group() -> Callable[[Any, Any], Any]:
    """A `worker_init_fn` that has snapshots taken after each group, however fast it was made."""

    def take_each(pipe: Any, _: Any) -> Any:
        replica._SNAPSHOT_SECONDS = replica._SNAPSHOT_SHARE = 0  # in the worker's process
        return pipe

    return take_each


@pytest.fixture(autouse=True)
def _nothing_is_left(wait_until: Callable[[Callable[[], bool], str], None]) -> Iterator[None]:
    gc.collect()
    processes, threads, num_fds = set(descendants_of(os.getpid())), set(threading.enumerate()), _num_fds()
    yield
    gc.collect()
    wait_until(lambda: not set(descendants_of(os.getpid())) - processes, "processes are left")
    wait_until(lambda: set(threading.enumerate()) <= threads, "threads are left")
    wait_until(lambda: _num_fds() <= num_fds, "descriptors are left")


def _num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))
