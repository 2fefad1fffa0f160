"""Processes: one that we know, and its descendants, as Linux shows them in `/proc`.

A `ProcessHandle` waits for the end of a process, and signals only it: a pidfd does both.

Invariant: only descendants of a living process that we know are ended, or of ourselves. As a subreaper (see
`become_subreaper`) a process inherits the orphans among its descendants, so nothing below it ever escapes the walk.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NAME = 15
# Each pass ends all that the one before found, so only a process that starts others all the time needs many.
_MAX_PASSES = 100


def become_subreaper() -> None:
    """Inherit the orphans among all descendants of this process from now on.

    Raises:
        OSError: The kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Set what `ps` and `top` show as the command of this process: up to 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def _prctl(option: int, value: int | ctypes.c_char_p) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def children_of(pid: int) -> list[int]:
    """Return the children of a process; of one that is gone, none. Zombies count."""
    if not _kernel_lists_children():
        return [child for child, parent in _all_parents() if parent == pid]
    pids: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), os.scandir(f"/proc/{pid}/task") as tasks:
        for task in tasks:
            pids += map(int, Path(task.path, "children").read_bytes().split())
    return pids


def descendants_of(pid: int) -> list[int]:
    """Return all processes below a process, parents before their children."""
    found: list[int] = []
    queue = [pid]
    while queue:
        below = [child for child in children_of(queue.pop()) if child not in found]
        found += below
        queue += below
    return found


def kill_tree(pid: int) -> None:
    """Send SIGKILL to all descendants of a process, then to its process group, then to itself.

    The descendants first, and until there are none: they are found through their parents, as long as these live. It is
    stopped before, so that it neither starts more of them nor complains about their end.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)
    kill_descendants(pid)
    kill_group(pid)
    kill_quietly(pid)


def kill_descendants(pid: int) -> None:
    """Send SIGKILL to all descendants of a process, those included that they start meanwhile."""
    for _ in range(_MAX_PASSES):
        living = [descendant for descendant in descendants_of(pid) if _is_alive(descendant)]
        if not living:
            return
        for descendant in living:
            kill_quietly(descendant)


def kill_group(pid: int) -> None:
    """Send SIGKILL to the process group that a process leads or led, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_quietly(pid: int) -> None:
    """Send SIGKILL to a process, if it is there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def state_of(pid: int) -> str | None:
    """Return the state of a process in the words of the kernel ("T (stopped)"), or None if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("State:")), None)


def _is_alive(pid: int) -> bool:
    state = state_of(pid)
    return state is not None and state[0] not in "ZX"


def _kernel_lists_children() -> bool:
    me = os.getpid()
    return os.path.exists(f"/proc/{me}/task/{me}/children")


def _all_parents() -> Iterator[tuple[int, int]]:
    """Yield each process with its parent: for kernels without lists of children."""
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    # The command, in parentheses, may hold anything; the state and the parent follow the last one.
                    yield int(entry.name), int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])


class ProcessHandle:
    """A process that was started by us or by a Headrace process.

    Args:
        pid: Its number.
        fd: Its pidfd, owned by the handle.
    """

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd = fd

    def wait_for_end(self, seconds: float) -> bool:
        """Wait until it has ended; return whether it has."""
        return wait_readable(self._fd, seconds)

    def send(self, number: int) -> bool:
        """Send a signal; return False if the process has ended."""
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            return False
        return True

    def kill_tree(self) -> None:
        """End it with all of its descendants, which are found as long as it lives.

        It is stopped before, so that it neither starts more of them, nor complains about their end, nor makes room for
        another process of its number.
        """
        if self.send(signal.SIGSTOP):
            kill_descendants(self.pid)
            if self.send(0):
                kill_group(self.pid)
            self.send(signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


def wait_readable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor can be read or has come to its end; return whether it has."""
    return wait_for(fd, select.POLLIN, seconds)


def wait_for(fd: int, events: int, seconds: float) -> bool:
    """Wait for events of a descriptor; return whether any came."""
    poll = select.poll()
    poll.register(fd, events)
    return bool(poll.poll(1000 * max(0.0, seconds)))
