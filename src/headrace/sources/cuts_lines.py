"""Lines of manifests, found again by their place; also of manifests that are compressed.

A compressed file can only be read from its start. So its text is kept: in memory if all texts together are small, else
unpacked once into the cache folder of the user, where all processes share it. If that folder cannot be written to, some
texts stay in memory, and others are unpacked again when they are needed.
"""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import xxhash

from headrace.errors import CacheError, SourceError
from headrace.files import FileStamp, KeepLimit, atomic_path, kept_folder, note_use, open_regular, remove_unused

from .cuts_files import is_gzipped
from .plain_files import PlainFiles, check_stamp

_LOGGER = logging.getLogger("headrace.sources")
# Texts of compressed manifests that a process holds: about 50,000 cuts.
MEMORY_BYTES = 32 << 20
_ATTEMPTS = 2
_LIMIT = KeepLimit(max_bytes=64 << 30)  # what is removed too early is unpacked again
_BAD_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)


def scan_lines(path: str) -> Iterator[tuple[int, int, bytes]]:
    """Read a manifest, compressed or not, line by line; blank lines are left out.

    Yields:
        Line number from 1, first byte of the line in the text, and the line.

    Raises:
        SourceError: The file cannot be read or unpacked.
    """
    start = 0
    try:
        with open_regular(path) as stored, gzip.open(stored) if is_gzipped(path) else stored as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, start, line
                start += len(line)
    except _BAD_GZIP as error:
        raise _torn(path, error) from error
    except OSError as error:
        raise SourceError(f"the manifest cannot be read: {error.strerror or error}", where=path) from error


class LineFiles:
    """Reads lines of manifests by their place. Not thread-safe.

    Args:
        stamps: The manifests as they were when they were scanned.
        text_bytes: Of the text of each, unpacked, up to the end of its last line that is not blank.
    """

    def __init__(self, stamps: Sequence[FileStamp], text_bytes: Sequence[int]) -> None:
        self._stamps, self._text_bytes = stamps, text_bytes
        self._is_gzipped = [is_gzipped(stamp.path) for stamp in stamps]
        gzipped_bytes = sum(size for size, is_packed in zip(text_bytes, self._is_gzipped, strict=True) if is_packed)
        self._has_room = gzipped_bytes <= MEMORY_BYTES
        self._texts: dict[int, bytes] = {}
        # Of each file the one that is read: itself, or what it was unpacked to.
        self._read_stamps = list(stamps)
        self._is_unpacked = [False] * len(stamps)
        self._files = PlainFiles(self._read_stamps)
        self._has_warned = False

    def read(self, file_idx: int, start: int, num_bytes: int) -> bytes:
        """Return the bytes start..start + num_bytes of the text of a manifest.

        Raises:
            SourceError: The file is gone, was changed since it was scanned, or cannot be read.
        """
        if not 0 <= start <= start + num_bytes <= self._text_bytes[file_idx]:
            raise SourceError(
                f"bytes {start}..{start + num_bytes} of a text of {self._text_bytes[file_idx]}",
                where=self._stamps[file_idx].path,
                fix="the index is damaged: build it again",
            )
        if not self._is_gzipped[file_idx]:
            return self._files.read(file_idx, start, num_bytes)
        text = self._texts.get(file_idx)
        for _ in range(_ATTEMPTS if text is None and not self._has_room else 0):
            if not self._is_unpacked[file_idx]:
                self._unpack(file_idx)
                if not self._is_unpacked[file_idx]:
                    break
            try:
                return self._files.read(file_idx, start, num_bytes)
            except SourceError:  # the cache folder was emptied, or another process has just replaced the same text
                self._is_unpacked[file_idx] = False
        text = self._load(file_idx) if text is None else text
        return text[start : start + num_bytes]

    def _unpack(self, file_idx: int) -> None:
        """Unpack a manifest into the cache folder, unless it is there or that cannot be written to."""
        stamp = self._stamps[file_idx]
        try:
            path = _place_of(stamp)
            if not path.is_file() or path.stat().st_size < self._text_bytes[file_idx]:
                check_stamp(stamp)
                with (
                    atomic_path(path, follow_links=False) as temporary,
                    gzip.open(stamp.path) as packed,
                    open(temporary, "wb") as text,
                ):
                    shutil.copyfileobj(packed, text, 1 << 20)
                remove_unused(path.parent, "*.*", limit=_LIMIT)
            note_use(path)
            unpacked = FileStamp.of(path)
        except _BAD_GZIP as error:
            raise _torn(stamp.path, error) from error
        except (OSError, CacheError, SourceError) as error:
            check_stamp(stamp)  # the manifest's own fault is an error
            if not self._has_warned:
                self._has_warned = True
                _LOGGER.warning("compressed manifests are unpacked again and again, as texts cannot be kept: %s", error)
            return
        self._check_size(file_idx, unpacked.size)
        self._read_stamps[file_idx], self._is_unpacked[file_idx] = unpacked, True

    def _load(self, file_idx: int) -> bytes:
        stamp = self._stamps[file_idx]
        check_stamp(stamp)
        try:
            with gzip.open(stamp.path) as file:
                text = file.read(self._text_bytes[file_idx])
        except (*_BAD_GZIP, OSError) as error:
            raise _torn(stamp.path, error) from error
        self._check_size(file_idx, len(text))
        while self._texts and sum(map(len, self._texts.values())) + len(text) > MEMORY_BYTES:
            del self._texts[next(iter(self._texts))]
        self._texts[file_idx] = text
        return text

    def _check_size(self, file_idx: int, num_bytes: int) -> None:
        if num_bytes < self._text_bytes[file_idx]:
            raise SourceError(
                f"the text has {num_bytes} bytes, and had {self._text_bytes[file_idx]} when it was indexed",
                where=self._stamps[file_idx].path,
                fix="open the corpus again; make the index again if it was given",
            )

    def close(self) -> None:
        """Release files and texts; a later read opens them again."""
        self._files.close()
        self._texts.clear()


def _place_of(stamp: FileStamp) -> Path:
    what = "\0".join([stamp.path, str(stamp.size), str(stamp.mtime_ns), stamp.digest])
    name = xxhash.xxh3_128_hexdigest(what.encode("utf-8", "surrogateescape"))
    return kept_folder("manifests") / f"{name}{os.path.splitext(stamp.path.removesuffix('.gz'))[1]}"


def _torn(path: str, error: Exception) -> SourceError:
    return SourceError(
        f"the manifest cannot be unpacked: {error}", where=path, fix="it is torn or not gzip: write it again"
    )
