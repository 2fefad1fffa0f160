"""Forked children of this process that may still look at leased memory: what they look at is not written again.

A child that is forked off the trainer has the trainer's views, which its parent cannot count. So each fork counts as
one more view of all that is leased at that moment, until the child, and all that were forked off it, have ended or
executed another program. The end of a pipe tells that: only they have the end that could be written to.

Invariants: a lease costs nothing while no such child lives. What is leased or free, but not yet known to be free, while
a fork is under way counts as leased before it. A child of C code that calls `fork` itself is not known here. No
lock is taken: `living_forks` is changed by single operations, which other threads and forks see as a whole.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import Protocol

from .weak_objects import WeakObjects


class ForkedMemory(Protocol):
    """Memory of which forked children get views."""

    @property
    def is_open(self) -> bool:
        """Whether it is written again when there are no views of it."""

    @property
    def is_leased(self) -> bool:
        """Whether it is open and anybody may have views."""

    def make_private(self) -> None:
        """In a forked child: have what is written here from now on not reach the parent."""


class Fork:
    """One fork, while somebody may live who came from it.

    Attributes:
        number: How many forks there were, with this one; larger than all numbers while it is under way.
    """

    def __init__(self) -> None:
        self.number: float = float("inf")
        self._thread = threading.get_ident()
        self._read_fd = self._write_fd = -1
        with contextlib.suppress(OSError):  # no descriptor is left: what is leased now is never written again
            self._read_fd, self._write_fd = os.pipe()

    @property
    def is_of_this_thread(self) -> bool:
        """Whether this thread forks just now."""
        return self.number == float("inf") and self._thread == threading.get_ident()

    @property
    def end_fd(self) -> int:
        """The descriptor that tells of the end, or -1."""
        return self._read_fd

    def be_parent(self) -> None:
        """In the parent: listen to the end."""
        fd, self._write_fd = self._write_fd, -1
        _close(fd)

    def be_child(self) -> None:
        """In the child: be known as alive from now on."""
        fd, self._read_fd = self._read_fd, -1
        _close(fd)

    def forget(self) -> None:
        """Close everything."""
        self.be_parent()
        self.be_child()


def _close(fd: int) -> None:
    """Close a descriptor that is not recorded any more: another thread may fork meanwhile, and use its number again."""
    if fd >= 0:
        os.close(fd)


living_forks: list[Fork] = []
"""Those of which somebody may live."""

_memories: WeakObjects[ForkedMemory] = WeakObjects()
_own: list[Fork] = []  # that led to this process; kept, because their descriptors tell that it lives
num_forks = 0
"""How many forks are over: only those with a larger number have seen what is leased from now on."""
own_pid = os.getpid()
"""The number of this process, for code that asks for each ticket: the system needs 0.2 us to tell it, and more in a
sandbox. A child of C code that calls `fork` itself is not known here either."""


def watch_forks(memory: ForkedMemory) -> None:
    """Take note of memory that children may get views of, as long as the object lives."""
    _memories.add(memory)


def has_seen(number: int) -> bool:
    """Tell whether somebody may live who saw what was leased when `num_forks` was this."""
    return any(fork.number > number for fork in living_forks)


def forget_ended_forks() -> None:
    """Take note of children that have ended; of all, if nothing that they saw will be written again."""
    poll = select.poll()
    ended = forks = [fork for fork in living_forks if fork.number != float("inf")]
    if _is_anything_leased():
        for fork in forks:
            if fork.end_fd >= 0:
                poll.register(fork.end_fd, 0)  # for the end alone
        fds = {fd for fd, _ in poll.poll(0)}
        ended = [fork for fork in forks if fork.end_fd in fds]
    for fork in ended:
        with contextlib.suppress(ValueError):  # another thread was quicker
            living_forks.remove(fork)
            fork.forget()


def _is_anything_leased() -> bool:
    return any(memory.is_leased for memory in _memories.living())


def _before() -> None:
    if any(memory.is_open for memory in _memories.living()):  # it may be leased by another thread before the fork
        living_forks.append(Fork())


def _after_in_parent() -> None:
    global num_forks
    for fork in [fork for fork in living_forks if fork.is_of_this_thread]:
        fork.be_parent()
        if _is_anything_leased():
            num_forks += 1
            fork.number = num_forks
        else:
            living_forks.remove(fork)
            fork.forget()


def _after_in_child() -> None:
    global own_pid
    own_pid = os.getpid()
    for fork in living_forks:
        if fork.is_of_this_thread:
            fork.be_child()
            _own.append(fork)
        else:
            fork.forget()
    living_forks.clear()
    for memory in _memories.living():
        memory.make_private()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
