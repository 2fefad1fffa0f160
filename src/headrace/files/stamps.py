"""Stamps of files: size, time and a sampled digest, to notice later changes.

A stamp is a sample, not a proof: its digest covers the size and 16 blocks of 4 KiB, which is cheap on files of any
size, and misses a change that keeps size and modification time and touches no sampled block.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from headrace.errors import SourceError

from .locations import open_regular, what_is_near

_NUM_BLOCKS = 16
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Size, time and sampled digest of one file.

    Attributes:
        path: Absolute path; relative to the folder of the index file only inside an index file.
        size: Bytes.
        mtime_ns: Modification time in nanoseconds.
        digest: XXH3-128 over the size and 16 evenly spaced blocks of 4 KiB, the first and the last included (the whole
            of a file of up to 64 KiB), as 32 hex digits.
    """

    path: str
    size: int
    mtime_ns: int
    digest: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileStamp:
        """Stamp a file as it is now; reads at most 64 KiB of it.

        Raises:
            SourceError: The file is missing, unreadable or not a regular file.
        """
        absolute = os.path.abspath(path)
        try:
            with open_regular(absolute) as file:
                status = os.fstat(file.fileno())
                digest = _sampled_digest(file.fileno(), status.st_size)
        except FileNotFoundError as error:
            raise SourceError("the file does not exist", where=absolute, fix=what_is_near(absolute)) from error
        except OSError as error:
            raise SourceError(f"cannot read the file: {error.strerror}", where=absolute) from error
        return cls(absolute, status.st_size, status.st_mtime_ns, digest)

    def difference(self) -> str | None:
        """Compare with the file on disk now: return how it differs, or None if no difference is noticed.

        Any difference counts, also a modification time alone: the sample cannot prove that the content is the same.
        """
        try:
            now = FileStamp.of(self.path)
        except SourceError as error:
            return error.what
        if now.size != self.size:
            return f"its size was {self.size} bytes and is {now.size} now"
        if now.mtime_ns != self.mtime_ns:
            return f"its modification time was {self.mtime_ns} ns and is {now.mtime_ns} ns now"
        if now.digest != self.digest:
            return f"its sampled digest was {self.digest} and is {now.digest} now"
        return None

    def relative_to(self, folder: str | os.PathLike[str]) -> FileStamp:
        """Return the stamp with its path relative to `folder` if the file lies below it, else as it is."""
        path, root = Path(os.path.abspath(self.path)), os.path.abspath(folder)
        return replace(self, path=str(path.relative_to(root)) if path.is_relative_to(root) else str(path))

    def resolved(self, folder: str | os.PathLike[str]) -> FileStamp:
        """Return the stamp with an absolute path: undo `relative_to`, perhaps in another location of the folder."""
        return replace(self, path=os.path.abspath(os.path.join(folder, self.path)))


def _sampled_digest(descriptor: int, size: int) -> str:
    digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
    last = size - _BLOCK_BYTES
    if size <= _NUM_BLOCKS * _BLOCK_BYTES:
        starts = list(range(0, size, _BLOCK_BYTES))
    else:
        starts = [last * block // (_NUM_BLOCKS - 1) for block in range(_NUM_BLOCKS)]
    for start in starts:
        digest.update(os.pread(descriptor, _BLOCK_BYTES, start))
    return digest.hexdigest()
