"""Where the members of a Shar's tar files are. Nothing is extracted: data are read from their place.

A shard holds two members for each cut, in the order of the cuts: the data, named by the cut's id with an ending that
says the format, and its manifest as JSON. A cut without the field has two empty members, `.nodata` and `.nometa`.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from headrace.errors import SourceError

_MAX_META_BYTES = 16 << 20  # a manifest of one field of one cut has some hundred bytes


class Member(NamedTuple):
    """The data of one field of one cut, and its manifest.

    Attributes:
        cut_id: Whose they are.
        suffix: Ending of the data's name, with the dot.
        start: First byte of the data in the file; -1 if the cut does not have the field.
        num_bytes: Of the data.
        meta_start: First byte of the manifest.
        meta_bytes: Of the manifest.
        meta: The manifest as JSON.
    """

    cut_id: str
    suffix: str
    start: int
    num_bytes: int
    meta_start: int
    meta_bytes: int
    meta: bytes


def scan_tar(path: str) -> Iterator[Member]:
    """Yield what a shard holds, in its order: some 50 us a member.

    Raises:
        SourceError: It is torn, compressed, or not of this layout.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            while (data := _next_member(tar, path)) is not None:
                meta = _next_member(tar, path)
                if meta is None:
                    raise _odd(f"{data.name!r} has no manifest beside it", path)
                yield _pair(tar, data, meta, path)
    except tarfile.TarError as error:
        raise SourceError(
            f"the shard cannot be read as a tar file: {error}",
            where=path,
            fix="write it again if it is torn; compressed ones must be unpacked, to be read at any place",
        ) from error
    except OSError as error:
        raise SourceError(f"the shard cannot be read: {error.strerror or error}", where=path) from error


def _next_member(tar: tarfile.TarFile, path: str) -> tarfile.TarInfo | None:
    member = tar.next()
    tar.members.clear()  # type: ignore[attr-defined] # it would remember all of them
    if member is not None and (not member.isreg() or member.issparse()):
        raise _odd(f"the member {member.name!r} is not a plain file", path)
    return member


def _pair(tar: tarfile.TarFile, data: tarfile.TarInfo, meta: tarfile.TarInfo, path: str) -> Member:
    data_name, meta_name = PurePosixPath(data.name), PurePosixPath(meta.name)
    cut_id = str(data_name.parent / data_name.stem)
    is_empty = data_name.suffix == ".nodata"
    if meta_name != data_name.with_suffix(".nometa" if is_empty else ".json"):
        raise _odd(f"the member after {data.name!r} is {meta.name!r}, and should be its manifest", path)
    if is_empty:
        return Member(cut_id, "", -1, 0, -1, 0, b"")
    if meta.size > _MAX_META_BYTES:
        raise _odd(f"the manifest {meta.name!r} has {meta.size} bytes", path)
    file = tar.extractfile(meta)
    assert file is not None
    content = file.read()
    place = (data.offset_data, data.size, meta.offset_data, meta.size)
    return Member(cut_id, data_name.suffix, *place, content)


def _odd(what: str, path: str) -> SourceError:
    return SourceError(
        f"this is no shard of lhotse's Shar: {what}", where=path, fix="write it by lhotse's SharWriter; nothing else"
    )
