"""Objects that this process shares with its workers: pickled once, read once by each worker.

A ticket carries a reference. In this process (threads, inline) the reference is the object itself. For worker processes
the object lies in an unnamed memory file of this process, which a worker opens through `/proc`; so a worker that is
started again finds it too, and a process that is killed leaves nothing. Invariant: the file lives as long as
the `Shared` object, which must live as long as tickets that refer to it. Workers on other machines get the object with
each ticket, and read it once, too.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from headrace.engine.process.channel import read_memfd, write_memfd
from headrace.engine.user.ship import ship, unship
from headrace.errors import HeadraceError


class Shared:
    """The owner's side; unpickled in a worker it is a `Reference` with the same members, but for the owner's.

    Args:
        number: Tells this object from others of the same owner.
        value: What is shared; it must not change.
        what: What the user calls it, in an error about something that cannot be carried to a worker.
    """

    def __init__(self, number: int, value: Any, what: str) -> None:
        self.number = number
        self._value = value
        self._what = what
        self._fd = -1
        self._parcel: bytes | None = None  # what goes with each ticket
        self._pid = os.getpid()
        self._is_retired = False

    @property
    def is_current(self) -> bool:
        """Whether the results of tickets that refer to it are still wanted."""
        return not self._is_retired

    def retire(self) -> None:
        """Mark tickets that refer to it as no longer wanted: workers may give them up."""
        self._is_retired = True
        self._close()

    def load(self) -> Any:
        """Return the object."""
        return self._value

    def put_into_memory_file(self) -> None:
        """Pickle it now, so that what cannot be carried is said at once; otherwise with the first ticket.

        Raises:
            ConfigError: Something in it cannot be carried to a worker.
        """
        if self._fd < 0:
            self._fd = write_memfd("headrace-shared", ship(self._value, what=self._what))

    def put_into_tickets(self) -> None:
        """Do as `put_into_memory_file`, but have each ticket carry it: for workers on other machines.

        Raises:
            ConfigError: Something in it cannot be carried to a worker.
        """
        self._parcel = ship(self._value, what=self._what)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._parcel is not None:
            return Carried, (self.number, self._parcel)
        self.put_into_memory_file()
        status = os.fstat(self._fd)
        return Reference, (self.number, f"/proc/{self._pid}/fd/{self._fd}", (status.st_dev, status.st_ino))

    def __deepcopy__(self, memo: Any) -> Shared:
        return self

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0 and self._pid == os.getpid():
            os.close(fd)


class Carried:
    """The side of a worker on another machine, perhaps: the object came with the ticket.

    Args:
        number: See `Shared`.
        parcel: The object.
    """

    is_current = True  # as far as can be seen

    def __init__(self, number: int, parcel: bytes) -> None:
        self.number = number
        self._parcel = parcel

    def load(self) -> Any:
        """Read the object anew."""
        return unship(self._parcel)


class Reference:
    """The side of a worker on the same machine.

    Args:
        number: See `Shared`.
        path: Where the memory file can be opened.
        identity: Device and inode of it: the owner may have closed it and opened something else under its number.
    """

    def __init__(self, number: int, path: str, identity: tuple[int, int]) -> None:
        self.number = number
        self._path = path
        self._identity = identity

    @property
    def is_current(self) -> bool:
        """Whether the owner lives and waits for tickets that refer to it, as far as can be seen. One system call."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return (status.st_dev, status.st_ino) == self._identity

    def load(self) -> Any:
        """Read the object anew.

        Raises:
            HeadraceError: Its owner is gone, or is done with it: the result of this ticket is not wanted any more.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise HeadraceError(
                f"a worker cannot read what its trainer shares: {error.strerror}",
                where=self._path,
                fix="if the trainer lives: its /proc may be closed to others (PR_SET_DUMPABLE); use executor='thread'",
            ) from error
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != self._identity or not stat.S_ISREG(status.st_mode):
                raise HeadraceError(f"this ticket is stale: {self._path} is something else now")
            return unship(read_memfd(fd))
        finally:
            os.close(fd)
