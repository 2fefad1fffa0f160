"""Bytes from a file of this machine, or of a network disk that it has mounted.

The kernel copies where it can: `copy_file_range`, which may share blocks or let the server copy, then `sendfile`, then
reading and writing. Each block is copied by a thread of its own, which opens the source anew: so a disk that hangs
stops only that thread, and each block is checked to be of the requested version.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stat_modes
from concurrent.futures import Future

import xxhash

from headrace.errors import SourceError

from ..locations import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX
from .options import MIB, FetchOptions, SourceChangedError, SourceStat, difference_text
from .part import PartFile
from .plan import ByteRange
from .reader import BlockingCalls, Piece, Reader
from .retry import TransientError, is_transient

_BLOCK_BYTES = 32 * MIB  # large: opening the source again costs a round trip on a network disk
_STEP_BYTES = 4 * MIB  # a block is stopped between two steps

# Errors of a file system that cannot copy in this way; the next way is tried.
_NO_SUCH_WAY = frozenset(
    {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.ETXTBSY}
)


class LocalReader(Reader):
    """The reader of a local path.

    Args:
        path: The file.
        options: Whether digests are kept.
    """

    def __init__(self, path: str, options: FetchOptions) -> None:
        super().__init__(path, range_bytes=_BLOCK_BYTES, num_streams=1)  # a disk is fastest in order
        self._with_digests = options.checksum is not None
        self._calls = BlockingCalls()

    def submit_stat(self) -> Future[SourceStat]:
        """Start to look at the file."""
        return self._calls.submit(stat_local, self.name)

    def submit(self, byte_range: ByteRange, stat: SourceStat, part: PartFile) -> Future[Piece]:
        """Start to copy a block into the part."""
        target = part.reopen()
        try:
            return self._calls.submit(self._copy, byte_range, stat, target)
        except BaseException:
            os.close(target)
            raise

    def close(self) -> bool:
        """Stop the thread, if it can be stopped."""
        return self._calls.close()

    def _copy(self, byte_range: ByteRange, stat: SourceStat, target: int) -> Piece:
        source = -1
        try:
            source = _open_source(self.name)
            _check_version(self.name, os.fstat(source), stat)
            with contextlib.suppress(OSError, AttributeError):  # macOS has none
                os.posix_fadvise(source, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            if self._with_digests:
                digest = xxhash.xxh3_128()
                self._copy_by_hand(source, target, byte_range, digest)
                return Piece(len(byte_range), digest=digest.hexdigest())
            self._copy_in_kernel(source, target, byte_range)
            return Piece(len(byte_range))
        finally:
            for descriptor in (source, target):
                if descriptor >= 0:
                    os.close(descriptor)

    def _copy_in_kernel(self, source: int, target: int, byte_range: ByteRange) -> None:
        position = byte_range.start
        for copy in (_copy_file_range, _send_file):
            try:
                while position < byte_range.stop:
                    self._check_stopped()
                    num_copied = copy(source, target, position, min(_STEP_BYTES, byte_range.stop - position))
                    if not num_copied:
                        break  # some file systems report 0 bytes where they cannot copy; reading decides
                    position += num_copied
            except OSError as error:
                if error.errno not in _NO_SUCH_WAY:
                    raise
        self._copy_by_hand(source, target, ByteRange(position, byte_range.stop), None)

    def _copy_by_hand(self, source: int, target: int, byte_range: ByteRange, digest: xxhash.xxh3_128 | None) -> None:
        position = byte_range.start
        while position < byte_range.stop:
            self._check_stopped()
            data = os.pread(source, min(_STEP_BYTES, byte_range.stop - position), position)
            if not data:
                raise SourceChangedError(f"the file ends at byte {position}: it has become shorter", where=self.name)
            if digest is not None:
                digest.update(data)
            view = memoryview(data)
            while view:
                num_written = os.pwrite(target, view, position)
                view, position = view[num_written:], position + num_written

    def _check_stopped(self) -> None:
        if self._calls.stopped.is_set():
            raise TransientError("the copy was stopped")


def stat_local(path: str) -> SourceStat:
    """Look at a local file.

    Raises:
        SourceError: It is missing, may not be read, or is no regular file.
    """
    try:
        return _stat_of(path, os.stat(path))
    except OSError as error:
        raise local_error(path, error) from error
    except ValueError as error:  # a null character
        raise SourceError(f"this is not a usable path: {error}", where=path) from error


def local_error(path: str, error: OSError) -> SourceError:
    """Return the error for a failed system call on a local source."""
    if isinstance(error, FileNotFoundError):
        return SourceError("the file does not exist", where=path, fix="check the path")
    fix = TOO_MANY_OPEN_FIX if error.errno in TOO_MANY_OPEN else None
    return SourceError(f"cannot read the file: {error.strerror or error}", where=path, fix=fix)


def _open_source(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if is_transient(error):
            raise
        raise local_error(path, error) from error


def _stat_of(path: str, status: os.stat_result) -> SourceStat:
    if not stat_modes.S_ISREG(status.st_mode):
        raise SourceError("this is not a regular file", where=path, fix="give the path of a file")
    return SourceStat(status.st_size, str(status.st_mtime_ns))


def _check_version(path: str, status: os.stat_result, stat: SourceStat) -> None:
    now = _stat_of(path, status)
    if now != stat:
        raise SourceChangedError(difference_text(stat, now), where=path)


def _copy_file_range(source: int, target: int, position: int, num_bytes: int) -> int:
    return os.copy_file_range(source, target, num_bytes, position, position)


def _send_file(source: int, target: int, position: int, num_bytes: int) -> int:
    os.lseek(target, position, os.SEEK_SET)
    return os.sendfile(target, source, position, num_bytes)
