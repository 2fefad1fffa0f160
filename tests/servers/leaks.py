"""A check that nothing is left behind, which knows fsspec's thread."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator

_DEADLINE_SECONDS = 120.0
# fsspec runs one event loop in a daemon thread, for as long as the process lives; it looks up host names in others.
_LASTING_THREADS = ("fsspecIO", "asyncio_")


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Fail if threads or descriptors are left at the end; connections may take a moment to close."""
    with contextlib.suppress(ImportError):
        from fsspec.asyn import get_loop

        get_loop()  # its descriptors belong to the process
    gc.collect()
    before = _descriptors(), set(threading.enumerate())
    yield
    gc.collect()
    deadline, pause = time.monotonic() + _DEADLINE_SECONDS, threading.Event()
    while left := _left(*before):
        assert time.monotonic() < deadline, f"left: {left}"
        pause.wait(0.002)


def _left(descriptors: dict[str, str], threads: set[threading.Thread]) -> list[object]:
    now = _descriptors()
    left: list[object] = [target for number, target in now.items() if descriptors.get(number) != target]
    left += [thread for thread in set(threading.enumerate()) - threads if not thread.name.startswith(_LASTING_THREADS)]
    return left


def _descriptors() -> dict[str, str]:
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed them
            found[entry] = os.readlink(f"/proc/self/fd/{entry}")
    return found
