"""Plain copies of compressed files, for sources that read at any position.

A compressed file cannot be read from its middle: for its last line, all of it must be decompressed. So that is done
once, into the user's cache folder, for all processes and runs. The copy is named by the file and by what is in it
(`FileStamp`), appears whole or not at all, and has the time of the original, so that one made again is the same file to
`FileStamp`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

import xxhash

from headrace.errors import SourceError
from headrace.files import FileStamp, PendingFile, kept_folder, note_use, remove_unused
from headrace.files.packed import damaged, is_damage, is_packed, open_packed

_MAX_KEPT_BYTES, _IDLE_DAYS = 256 << 30, 7.0  # a run that lasts longer reads its copies, or holds them open


def plain_copy(path: str, convert: Callable[[IO[bytes], IO[bytes]], None] | None = None, *, kind: str = "plain") -> str:
    """Return the path of the decompressed copy of a file; that of the file itself, if it is not compressed.

    The first call takes as long as decompressing takes, and room on the disk. Copies that nothing opened for a week are
    removed, and so are those that have not been opened longest where there are 256 GB. They are in the folder `plain`
    of the user's cache folder, and may be deleted when nothing reads them.

    Args:
        path: `.gz`, `.bz2`, `.xz` or `.zst`, else any other name.
        convert: Writes the copy of an open file in some other form, in place of its bytes; then also a file that is
            not compressed has a copy.
        kind: Names the form that `convert` makes.

    Raises:
        SourceError: The file is missing or damaged, or there is no room for the copy.
        CacheError: There is no folder for copies.
    """
    if convert is None and not is_packed(path):
        return path
    stamp, folder = FileStamp.of(path), kept_folder("plain")
    name = xxhash.xxh3_64_hexdigest(os.fsencode(f"{kind} {stamp.path}"))
    copy = folder / f"{name}-{stamp.digest}-{stamp.mtime_ns:x}"
    is_new = not copy.is_file()
    if is_new:
        _make_copy(stamp, copy, convert or shutil.copyfileobj)
    note_use(copy)
    if is_new:
        remove_unused(folder, "*-*", max_bytes=_MAX_KEPT_BYTES, idle_days=_IDLE_DAYS)
    return str(copy)


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
        if difference := stamp.difference():
            what = f"the file changed while it was read: {difference}"
            raise SourceError(what, where=stamp.path, fix="wait until the file is complete")
