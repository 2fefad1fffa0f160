"""What ends a worker that has been left alone: a thread that waits for the end of the trainer or of the warden.

The warden ends workers when the trainer is gone, also those whose Python is stuck in C code. This thread is for the
case that the warden itself is killed. It holds no lock and needs none.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Sequence

from .proc_tree import kill_descendants


def start_guard(ends: Sequence[int]) -> None:
    """End this process, its process group and its descendants when one of these processes ends.

    Args:
        ends: Descriptors that tell of the end of the trainer and of the warden, see `ProcessHandle`; they stay open.
    """
    threading.Thread(target=_watch, args=(tuple(ends), os.getpid()), name="headrace-guard", daemon=True).start()


def _watch(ends: tuple[int, ...], pid: int) -> None:
    poll = select.poll()
    for fd in ends:
        poll.register(fd, select.POLLIN)
    while not poll.poll():
        pass
    kill_descendants(pid)
    os.killpg(pid, signal.SIGKILL)
