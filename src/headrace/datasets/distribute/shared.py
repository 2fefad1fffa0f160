"""An object that this process shares with its workers: pickled once, read once by each worker.

Each ticket carries it. In this process (threads, inline) that is the object itself. For worker processes it lies in an
unnamed memory file of this process, which a worker opens through `/proc`; so a worker that is started again finds it
too, and a process that is killed leaves nothing. Invariant: the file lives as long as the object that was not pickled,
which must live as long as tickets that carry it. Workers on other machines get it with each ticket, and read it once,
too.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from headrace.engine.process.channel import read_memfd, write_memfd
from headrace.engine.user.ship import ship, unship
from headrace.errors import HeadraceError


class Shared:
    """What is shared, or in another process where it can be read.

    Args:
        number: Tells this object from others of the same owner.
        value: What is shared; it must not change. `None` in another process.
        parcel: What was pickled, if it goes with each ticket.
        file: Where the memory file can be opened, its device and its inode: the owner may have closed it and opened
            something else under its number.
    """

    def __init__(
        self, number: int, value: Any, parcel: bytes | None = None, file: tuple[str, int, int] | None = None
    ) -> None:
        self.number = number
        self._value, self._parcel, self._file = value, parcel, file
        self._fd, self._pid = -1, os.getpid()
        self._is_retired = False

    def put_into_memory_file(self, what: str) -> None:
        """Pickle it for processes on this machine.

        Args:
            what: What the user calls it, in an error.

        Raises:
            ConfigError: Something in it cannot be carried to a worker.
        """
        self._fd = write_memfd("headrace-shared", ship(self._value, what=what))
        status = os.fstat(self._fd)
        self._file = f"/proc/{self._pid}/fd/{self._fd}", status.st_dev, status.st_ino

    def put_into_tickets(self, what: str) -> None:
        """Do as `put_into_memory_file`, but have each ticket carry it: for workers on other machines."""
        self._parcel = ship(self._value, what=what)

    def __reduce__(self) -> tuple[Any, ...]:
        return Shared, (self.number, None, self._parcel, self._file)

    def __deepcopy__(self, memo: Any) -> Shared:  # of a ticket for another thread
        return self

    def retire(self) -> None:
        """Mark tickets that carry it as no longer wanted: workers may give them up."""
        self._is_retired = True
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._pid == os.getpid():
            os.close(fd)

    def __del__(self) -> None:
        self.retire()

    @property
    def is_current(self) -> bool:
        """Whether results of tickets that carry it are still wanted, as far as can be seen. One system call."""
        if self._value is not None or self._file is None:
            return not self._is_retired
        try:
            status = os.stat(self._file[0])
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return (status.st_dev, status.st_ino) == self._file[1:]

    def load(self) -> Any:
        """Return the object; in another process it is read anew.

        Raises:
            HeadraceError: Its owner is gone, or is done with it: the result of this ticket is not wanted any more.
        """
        if self._value is not None:
            return self._value
        if self._parcel is not None:
            return unship(self._parcel)
        assert self._file is not None
        path, *identity = self._file
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise HeadraceError(
                f"a worker cannot read what its trainer shares: {error.strerror}",
                where=path,
                fix="if the trainer lives: its /proc may be closed to others (PR_SET_DUMPABLE); use executor='thread'",
            ) from error
        try:
            status = os.fstat(fd)
            if [status.st_dev, status.st_ino] != identity or not stat.S_ISREG(status.st_mode):
                raise HeadraceError(f"this ticket is stale: {path} is something else now")
            return unship(read_memfd(fd))
        finally:
            os.close(fd)
