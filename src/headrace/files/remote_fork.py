"""What a process that is forked off must not do to the connections of its parent.

fsspec's event loop waits by an epoll, and a fork shares it: the child has no thread that runs the loop, but what the
child takes off the epoll is off for the parent too. It does so when a session of the parent is closed in the child, by
the garbage collector or at exit; the parent then waits for answers on a connection that it is deaf to, and a TLS
connection gets a goodbye that the parent never said. So in the child the descriptors of the epoll and of what it
watches stand for nothing any more, and the file systems live on, because closing them would wait for the loop.

Invariants: only what the epoll really watches is replaced, in the child alone; the parent notices nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import selectors
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

# A line of /proc/self/fdinfo for a descriptor that an epoll watches: the descriptor, the inode of what it was.
_WATCHED = re.compile(r"^tfd:\s*(\d+).*\bino:([0-9a-f]+)", re.MULTILINE)

_used: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by their ids
_at_fork = threading.local()  # of the thread that forks: `loop` and `file_systems`
_inherited: list[Any] = []


def keep_over_fork(file_system: Any) -> None:
    """Let a file system of fsspec, as long as it lives, not be closed in a process that is forked off this one."""
    _used[id(file_system)] = file_system


def _take_hold() -> None:
    # Before the fork: in the child fsspec's own handlers, which drop loop and file systems, may come before ours.
    module = sys.modules.get("fsspec.asyn")
    _at_fork.loop = None if module is None else module.loop[0]
    _at_fork.file_systems = [ref() for ref in _used.valuerefs()]  # a list at once: other threads go on


def _let_go() -> None:
    _at_fork.__dict__.clear()


def _cut_off() -> None:
    _inherited.append((_at_fork.loop, _at_fork.file_systems))
    selector = getattr(_at_fork.loop, "_selector", None)  # asyncio has no other name for it
    _let_go()
    if isinstance(_inherited[-1][0], asyncio.AbstractEventLoop) and isinstance(selector, selectors.EpollSelector):
        with contextlib.suppress(OSError, ValueError):  # closed, or no descriptor is free
            _replace(selector.fileno())


def _replace(epoll_fd: int) -> None:
    """Put an epoll that watches nothing in the place of one, and sockets that are not connected for what it watched."""
    # A datagram socket: whoever writes to it gets an error, and no SIGPIPE.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nothing:
        for fd in list(_watched_by(epoll_fd)):
            os.dup2(nothing.fileno(), fd, inheritable=False)
    with select.epoll() as empty:
        os.dup2(empty.fileno(), epoll_fd, inheritable=False)


def _watched_by(epoll_fd: int) -> Iterator[int]:
    try:
        with open(f"/proc/self/fdinfo/{epoll_fd}") as file:
            text = file.read()
    except OSError:
        return
    for fd, inode in _WATCHED.findall(text):
        with contextlib.suppress(OSError):  # closed here, and open elsewhere
            if os.fstat(int(fd)).st_ino == int(inode, 16):
                yield int(fd)


os.register_at_fork(before=_take_hold, after_in_parent=_let_go, after_in_child=_cut_off)
