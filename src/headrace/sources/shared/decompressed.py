"""Plain copies of compressed files, for sources that read at any position.

A compressed file cannot be read from its middle: for its last line, all of it must be decompressed. So that is done
once, into the user's cache folder, for all processes and runs. The copy is named by the file and by what is in it
(`FileStamp`), appears whole or not at all, and has the time of the original, so that one made again is the same file to
`FileStamp`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

import xxhash

from headrace.errors import CacheError, SourceError
from headrace.files import FileStamp, PendingFile, kept_folder, note_use, remove_unused
from headrace.files.packed import PACKED_SUFFIXES, damaged, is_damage, open_packed

_REFUSED = (".lz4", ".zip", ".7z")
_BLOCK_BYTES = 1 << 20
_MAX_KEPT_BYTES, _IDLE_DAYS = 256 << 30, 7.0  # a run that lasts longer reads its copies, or holds them open


def plain_copy(path: str, convert: Callable[[IO[bytes], IO[bytes]], None] | None = None, *, kind: str = "plain") -> str:
    """Return the path of the decompressed copy of a file; that of the file itself, if it is not compressed.

    The first call takes as long as decompressing takes, and room on the disk. Copies of what the file was before are
    removed, and so are those that nothing opened for 90 days, or that have not been opened longest where there are
    256 GB. They are in the folder `plain` of the user's cache folder, and may be deleted when nothing reads them.

    Args:
        path: `.gz`, `.bz2`, `.xz` or `.zst`, else any other name.
        convert: Writes the copy of an open file in some other form, in place of its bytes; then also a file that is
            not compressed has a copy.
        kind: Names the form that `convert` makes.

    Raises:
        SourceError: The file is missing, damaged, or of another compression; or there is no room for the copy.
    """
    suffix = os.path.splitext(path)[1]
    if suffix in _REFUSED and convert is None:
        raise SourceError(
            f"{suffix} cannot be read at any position, and is not decompressed here",
            where=path,
            fix=f"decompress it, or use one of {', '.join(PACKED_SUFFIXES)}",
        )
    if suffix not in PACKED_SUFFIXES and convert is None:
        return path
    stamp = FileStamp.of(path)
    folder = _cache_folder()
    name = xxhash.xxh3_64_hexdigest(os.fsencode(f"{kind} {stamp.path}"))
    copy = folder / f"{name}-{stamp.digest}-{stamp.mtime_ns:x}"
    if copy.is_file():
        note_use(copy)
    else:
        _make_copy(stamp, copy, convert or _copy_bytes)
        note_use(copy)
        _remove_older(folder, name, stamp.mtime_ns)
        remove_unused(folder, "*-*", max_bytes=_MAX_KEPT_BYTES, idle_days=_IDLE_DAYS)
    return str(copy)


def _remove_older(folder: Path, name: str, mtime_ns: int) -> None:
    """Remove copies of what the file was before; not of what it may have become since, for another process."""
    for copy in folder.glob(f"{name}-*"):
        with contextlib.suppress(FileNotFoundError):
            if copy.stat().st_mtime_ns < mtime_ns:
                copy.unlink()


def _make_copy(stamp: FileStamp, copy: Path, convert: Callable[[IO[bytes], IO[bytes]], None]) -> None:
    with PendingFile(copy, follow_links=False) as pending:
        try:
            with open_packed(stamp.path) as source, open(pending.temporary, "wb") as target:
                convert(source, target)
        except Exception as error:
            if not is_damage(error):
                raise
            raise damaged(stamp.path, error) from error
        os.utime(pending.temporary, ns=(stamp.mtime_ns, stamp.mtime_ns))
        difference = stamp.difference()
        if difference is not None:
            raise SourceError(
                f"the file changed while it was read: {difference}",
                where=stamp.path,
                fix="wait until the file is complete",
            )


def _copy_bytes(source: IO[bytes], target: IO[bytes]) -> None:
    shutil.copyfileobj(source, target, _BLOCK_BYTES)


def _cache_folder() -> Path:
    try:
        return kept_folder("plain")
    except CacheError as error:
        raise SourceError(
            f"there is no folder for decompressed copies: {error}",
            fix="decompress the file, or set HEADRACE_CACHE to a folder that you may write to",
        ) from error
