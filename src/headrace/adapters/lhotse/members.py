"""What a tar file of lhotse's Shar holds, and where; nothing is extracted.

A shard holds two members for each cut, in the order of the cuts: the data, named by the cut's id with an ending that
says the format, and its manifest as JSON. A cut without the field has two empty members, `.nodata` and `.nometa`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from headrace.errors import SourceError
from headrace.sources.tar import archive as tar_archive
from headrace.sources.tar.archive import TarBytes, scan_members

_MAX_META_BYTES = 16 << 20  # a manifest of one field of one cut has some hundred bytes


class Member(NamedTuple):
    """The data of one field of one cut, and its manifest.

    Attributes:
        cut_id: Whose they are.
        suffix: Ending of the data's name, with the dot.
        start: First byte of the data in the file; -1 if the cut does not have the field.
        num_bytes: Bytes of the data.
        meta_start: First byte of the manifest.
        meta_bytes: Bytes of the manifest.
        meta: The manifest as JSON.
        name: Name of the data.
    """

    cut_id: str
    suffix: str
    start: int
    num_bytes: int
    meta_start: int
    meta_bytes: int
    meta: bytes
    name: str = ""


def scan_tar(path: str) -> Iterator[Member]:
    """Yield what a shard holds, in its order: some 8 us a cut, whatever the size of its data.

    Raises:
        SourceError: It is truncated, compressed, or not of this layout.
    """
    with TarBytes(path) as archive:
        members = scan_members(archive)
        for data in members:
            meta = next(members, None)
            if meta is None:
                raise _odd(f"{data.name!r} has no manifest beside it", path)
            yield _pair(archive, data, meta)


def _pair(archive: TarBytes, data: tar_archive.Member, meta: tar_archive.Member) -> Member:
    stem, dot, ending = data.name.rpartition(".")
    if meta.name == f"{stem}.json" and dot and ending.isalnum() and ending != "nodata" and _is_plain(stem):
        cut_id, suffix = stem, f".{ending}"
    else:
        data_name, meta_name = PurePosixPath(data.name), PurePosixPath(meta.name)
        cut_id, suffix = str(data_name.parent / data_name.stem), data_name.suffix
        is_empty = suffix == ".nodata"
        if meta_name != data_name.with_suffix(".nometa" if is_empty else ".json"):
            raise _odd(f"the member after {data.name!r} is {meta.name!r}, and should be its manifest", archive.path)
        if is_empty:
            return Member(cut_id, "", -1, 0, -1, 0, b"", data.name)
    if meta.num_bytes > _MAX_META_BYTES:
        raise _odd(f"the manifest {meta.name!r} has {meta.num_bytes} bytes", archive.path)
    content = archive.read(meta.position, meta.num_bytes)
    return Member(cut_id, suffix, data.position, data.num_bytes, meta.position, meta.num_bytes, content, data.name)


def _is_plain(stem: str) -> bool:
    """Tell whether a path without its ending is what it would be after `pathlib` has read it."""
    return bool(stem) and stem[-1] not in "./" and "//" not in stem and "/." not in stem


def _odd(what: str, path: str) -> SourceError:
    return SourceError(
        f"this is not a shard of lhotse's Shar: {what}", where=path, fix="write it by lhotse's SharWriter; nothing else"
    )
