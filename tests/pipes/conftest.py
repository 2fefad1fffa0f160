"""No pipe leaves a thread or an open file behind."""

import gc
import os
import threading
import time

import pytest

_DEADLINE_SECONDS = 120.0


@pytest.fixture(autouse=True)
def _nothing_is_left():
    gc.collect()
    before, files = set(threading.enumerate()), _open_files()
    yield
    gc.collect()
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while (threads := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        next(iter(threads)).join(0.01)
    assert not threads, f"threads are left: {threads}"
    left = {number: target for number, target in _open_files().items() if files.get(number) != target}
    assert not left, f"files are left open: {left}"


def _open_files():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # the one that listed them
    return found
