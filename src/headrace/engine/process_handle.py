"""A process that we know: wait for its end, and send signals to it and to nobody else.

A pidfd does both. Where the system has none (before Linux 5.3, or forbidden by a sandbox), the end of a pipe tells of
the end of the process, which alone has the other end; signals go by the number of the process then, after a look
whether it lives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal

from .proc_tree import kill_descendants, kill_group

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class ProcessHandle:
    """A process that was started by us or by a process of ours.

    Args:
        pid: Its number.
        fd: Readable, or hung up, when it has ended: owned by the handle.
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
        except (AttributeError, OSError):  # no pidfd, or one that is good for waiting only
            if self.wait_for_end(0):
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
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


def open_pidfd(pid: int) -> int | None:
    """Return a pidfd, or None where the system gives none.

    Raises:
        OSError: There is no such process, or no descriptor is left.
    """
    try:
        return os.pidfd_open(pid)
    except AttributeError:  # not Linux, or a Python for an older one
        return None
    except OSError as error:
        if error.errno in (errno.ESRCH, *_NO_DESCRIPTORS):
            raise
        return None


def wait_readable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor can be read or has come to its end; return whether it has."""
    return wait_for(fd, select.POLLIN, seconds)


def wait_for(fd: int, events: int, seconds: float) -> bool:
    """Wait for events of a descriptor; return whether any came."""
    poll = select.poll()
    poll.register(fd, events)
    return bool(poll.poll(1000 * max(0.0, seconds)))
