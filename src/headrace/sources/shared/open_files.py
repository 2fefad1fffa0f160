"""Open files of a corpus, and checks that they are still as they were when they were indexed.

A file that is rewritten in place, also while it is open, gives a `SourceError` and no other numbers: its size and
modification time are looked at after it was read, since before the bytes of a file change, its time does. (By a mapping
bytes may change before the time, and what is written within the same tick of the file system's clock as the stamp is
not seen.)

A look takes longer than a short read. So single reads of a file share one: the first read that ends `LOOK_SECONDS` or
more after the last look has the next. `confirm_reads` looks at all that was read since. What a loader delivers was
confirmed: its workers do that at the end of each batch. Code that reads a source directly learns of it by a read a
millisecond later, or by `confirm_reads`.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from time import monotonic
from typing import Any

from headrace.errors import SourceError
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, FileStamp

# Of one reader: an eighth of the descriptors that the process may have (some readers need two for a file).
MAX_OPEN_FILES = 1024
if 0 < (_limit := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < 8 * MAX_OPEN_FILES:  # -1: there is no limit
    MAX_OPEN_FILES = max(_limit // 8, 64)
LOOK_SECONDS = 1e-3  # some hundred reads share a look, which costs 0.6 us where the clock costs 0.04
REREAD = "open the corpus again; make the index again if it was given"


class OpenFile:
    """A descriptor, the expected stamp of the file, and when to check it next.

    Args:
        descriptor: Open; from now on this object's.
        stamp: The file as it was when it was indexed.

    Attributes:
        look_at: A read that ends at this time or later looks at the file.
        is_unsure: Whether it was read since the last look.
    """

    __slots__ = ("descriptor", "is_unsure", "look_at", "size", "stamp")

    def __init__(self, descriptor: int, stamp: FileStamp) -> None:
        self.descriptor, self.stamp, self.size = descriptor, stamp, stamp.size
        self.look_at, self.is_unsure = 0.0, False

    def look(self) -> None:
        """Compare the file with its stamp.

        Raises:
            SourceError: It is not what it was when it was indexed: what was read since the last look may be anything.
        """
        now = os.fstat(self.descriptor)
        if now.st_mtime_ns != self.stamp.mtime_ns or now.st_size != self.size:
            self.look_at = 0.0  # the next read is refused again
            raise _changed(self.stamp, now)
        self.look_at, self.is_unsure = monotonic() + LOOK_SECONDS, False


class OpenFiles:
    """Open files of one reader, which are looked at now and then: see `confirm_reads`.

    Not thread-safe. A thread that goes on with what another one read takes over with its first look.

    Attributes:
        files: Number of the file -> it.
        thread: The thread that read them last, and asks for all of them by `confirm_reads`; 0: none.
    """

    def __init__(self) -> None:
        self.files: dict[int, OpenFile] = {}
        self.thread = 0
        self._late: SourceError | None = None  # what was seen of a file when it was closed

    def note_read(self, file: OpenFile) -> None:
        """Look at one of them that was read, if it was not looked at for some time.

        Raises:
            SourceError: See `look`.
        """
        if monotonic() < file.look_at:
            file.is_unsure = True
        else:
            self.look(file)

    def look(self, file: OpenFile) -> None:
        """Look at one of them.

        Raises:
            SourceError: See `OpenFile.look`; or one that was read and is closed by now had changed.
        """
        file.look()
        if self._late is not None:
            raise self._late
        if self.thread != threading.get_ident():
            self.thread = threading.get_ident()
            known = [reference for reference in _of_thread.open_files if reference() not in (None, self)]
            _of_thread.open_files = [*known, weakref.ref(self)]

    def confirm(self) -> None:
        """Look at all that were read since they were looked at.

        Raises:
            SourceError: See `look`; not again the next time, unless more is read.
        """
        late, self._late = self._late, None
        for file in [*self.files.values()]:
            if file.is_unsure:
                file.is_unsure = False
                file.look()
        if late is not None:
            raise late

    def drop(self, number: int) -> None:
        """Close one of them. If it changed after it was read, the next look or `confirm` says so."""
        file = self.files.pop(number)
        try:
            if file.is_unsure:
                file.look()
        except SourceError as error:
            self._late = error.with_traceback(None)  # which would hold this object
        finally:
            os.close(file.descriptor)

    def __del__(self) -> None:
        while self.files and os is not None:  # at the end of the interpreter, which closes what is open
            os.close(self.files.popitem()[1].descriptor)


class _OfThread(threading.local):
    """Weak references to the open files that a thread reads."""

    def __init__(self) -> None:
        self.open_files: list[weakref.ref[OpenFiles]] = []


_of_thread = _OfThread()


def confirm_reads() -> None:
    """Make sure that nothing that this thread read from a source came from a file that had changed.

    Call it before what was read is passed on or kept, such as at the end of a batch. Loaders do.

    Raises:
        SourceError: A file is not what it was when it was indexed.
    """
    open_files = _of_thread.open_files
    if not open_files:
        return
    thread = threading.get_ident()
    for reference in open_files:
        found = reference()
        if found is not None and found.thread == thread:
            found.confirm()


def older_half(handles: dict[int, Any]) -> list[int]:
    """Return the keys of the half that was opened first."""
    return list(handles)[: (len(handles) + 1) // 2]


def check_stamp(stamp: FileStamp) -> None:
    """Refuse a file whose size or time is not what it was: what it holds may lie elsewhere.

    Raises:
        SourceError: It changed, or is gone.
    """
    try:
        now = os.stat(stamp.path)
    except (OSError, ValueError) as error:
        raise cannot_open(stamp, error) from error
    if (now.st_size, now.st_mtime_ns) != (stamp.size, stamp.mtime_ns):
        raise _changed(stamp, now)


def check_open_file(stamp: FileStamp, descriptor: int) -> None:
    """Refuse an open file whose size or time is not what it was, see `check_stamp`.

    Raises:
        SourceError: It changed.
    """
    now = os.fstat(descriptor)
    if (now.st_size, now.st_mtime_ns) != (stamp.size, stamp.mtime_ns):
        raise _changed(stamp, now)


def _changed(stamp: FileStamp, now: os.stat_result) -> SourceError:
    return SourceError(
        f"the file was changed since it was indexed: {stamp.size} bytes of time {stamp.mtime_ns} then, "
        f"{now.st_size} bytes of time {now.st_mtime_ns} now",
        where=stamp.path,
        fix=REREAD,
    )


def cannot_open(stamp: FileStamp, error: OSError | ValueError) -> SourceError:
    """Return the error for a file that is gone, or that may not be opened."""
    is_limit = isinstance(error, OSError) and error.errno in TOO_MANY_OPEN
    fix = TOO_MANY_OPEN_FIX if is_limit else "restore it, or its folder"
    what = getattr(error, "strerror", None) or error
    return SourceError(f"the file cannot be opened: {what}", where=stamp.path, fix=fix)
