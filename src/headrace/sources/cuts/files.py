"""Files of cuts, which are manifests or the shards of lhotse's Shar format, and where each record in them is.

A compressed manifest can only be read from its start. So its text is kept: in memory if all texts together are small,
else unpacked once into the cache folder of the user, where all processes share it. If that folder cannot be written to,
some texts stay in memory, and others are unpacked again when they are needed.

Of the tar files of a Shar nothing is extracted: data are read from their position. A shard holds two members for each
cut, in the order of the cuts: the data, named by the cut's id with an ending that says the format, and its manifest as
JSON. A cut without the field has two empty members, `.nodata` and `.nometa`.
"""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import xxhash

from headrace.errors import CacheError, ConfigError, SourceError, did_you_mean
from headrace.files import FileStamp, KeepLimit, atomic_path, kept_folder, note_use, open_regular, remove_unused

from ..shared.lines import scan_lines as scan_blocks
from ..shared.open_files import check_stamp
from ..shared.plain_files import PlainFiles
from ..tar import archive as tar_archive
from ..tar.archive import TarBytes, scan_members

_MANIFESTS = (".jsonl", ".jsonl.gz")
_DATA = (".tar", *_MANIFESTS)
CUTS = "cuts"


@dataclass(frozen=True, slots=True)
class CutFiles:
    """Absolute paths of all files of a corpus.

    Attributes:
        cuts: Manifests of cuts, one a shard.
        fields: Field of Shar -> its files, one a shard.
    """

    cuts: tuple[str, ...]
    fields: dict[str, tuple[str, ...]]

    @property
    def all(self) -> list[str]:
        """All files: the manifests, then the fields, one after the other."""
        return [*self.cuts, *(path for paths in self.fields.values() for path in paths)]

    def file_idx(self, field: str, shard: int) -> int:
        """Return the index of a field's shard in `all`."""
        return len(self.cuts) * (1 + list(self.fields).index(field)) + shard


def is_gzipped(path: str) -> bool:
    """Tell whether a manifest is compressed, by its name, as lhotse does."""
    return path.endswith(".gz")


def find_cut_files(files: Any) -> CutFiles:
    """Return the files that the user's options name.

    Args:
        files: The path of a manifest (`.jsonl`, `.jsonl.gz`) or of a Shar folder, a list of such, or a dict field ->
            shards as lhotse's `CutSet.from_shar(fields=...)` takes it, with "cuts" among the fields.

    Raises:
        ConfigError: It has another form.
        SourceError: A folder is no Shar, or the fields have not as many shards as there are manifests.
    """
    if isinstance(files, Mapping):
        return _of_fields(files)
    given = [files] if isinstance(files, str | os.PathLike) or not isinstance(files, Iterable) else list(files)
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(
                f"cuts are in files, and this is a {type(path).__name__}: {path!r}",
                where="CutSource",
                fix="give the path of a manifest or of a Shar folder, a list of such, or a dict of Shar fields",
            )
    paths = [os.path.abspath(path) for path in given]
    folders = [path for path in paths if os.path.isdir(path)]
    if not folders:
        return CutFiles(tuple(_checked_manifest(path) for path in paths), {})
    if len(folders) < len(paths):
        raise ConfigError("Shar folders and manifests cannot be mixed", where=", ".join(paths), fix="make two sources")
    parts = [_in_folder(folder) for folder in folders]
    for folder, part in zip(folders[1:], parts[1:], strict=True):
        if part.fields.keys() != parts[0].fields.keys():
            raise SourceError(
                f"the Shar folder has the fields {sorted(part.fields)}, the first one {sorted(parts[0].fields)}",
                where=folder,
                fix='give a dict with the fields that all of them have: {"cuts": [...], "recording": [...]}',
            )
    fields = {name: tuple(path for part in parts for path in part.fields[name]) for name in parts[0].fields}
    return CutFiles(tuple(path for part in parts for path in part.cuts), fields)


def _checked_manifest(path: str) -> str:
    if not path.endswith(_MANIFESTS):
        raise ConfigError(
            "this is not a manifest of cuts that can be read line by line",
            where=path,
            fix=f"write it by cuts.to_file(...) with one of the endings {', '.join(_MANIFESTS)}",
        )
    return path


def _in_folder(folder: str) -> CutFiles:
    """List a Shar folder: `cuts.000000.jsonl.gz`, `recording.000000.tar`, ..."""
    found: dict[str, list[str]] = {}
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise SourceError(f"the folder cannot be read: {error.strerror}", where=folder) from error
    for name in names:
        field = name.partition(".")[0]
        if field and name.endswith(_DATA):
            found.setdefault(field, []).append(os.path.join(folder, name))
    cuts = found.pop(CUTS, None)
    if cuts is None:
        raise SourceError(
            "this is not a Shar folder: it has no cuts.*.jsonl or cuts.*.jsonl.gz",
            where=folder,
            fix="give the folder that lhotse's SharWriter wrote, or the path of a manifest",
        )
    return _checked(cuts, found)


def _of_fields(files: Mapping[Any, Any]) -> CutFiles:
    shards: dict[str, list[str]] = {}
    for name, paths in files.items():
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        shards[str(name)] = [os.path.abspath(path) for path in given]
        for path in shards[str(name)]:
            if not path.endswith(_DATA if name != CUTS else _MANIFESTS):
                raise ConfigError(
                    f"a shard of {name!r} has an ending that cannot be read at any position",
                    where=path,
                    fix=f"shards end in {', '.join(_DATA)}; pipes, URLs and compressed tars must be fetched first",
                )
    cuts = shards.pop(CUTS, None)
    if cuts is None:
        raise ConfigError("the dict of Shar fields has no 'cuts'", fix=did_you_mean(CUTS, map(str, files)))
    return _checked(cuts, shards)


def _checked(cuts: Sequence[str], fields: Mapping[str, Sequence[str]]) -> CutFiles:
    for name, paths in fields.items():
        if len(paths) != len(cuts):
            raise SourceError(
                f"the field {name!r} has {len(paths)} shards, and there are {len(cuts)} of cuts",
                where=os.path.dirname((paths or cuts)[0]),
                fix="complete the field, or give a dict of the fields to read",
            )
    return CutFiles(tuple(cuts), {name: tuple(paths) for name, paths in fields.items()})


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
    for block in scan_blocks(path, _unpacked):
        yield from block.records()


@contextmanager
def _unpacked(path: str) -> Iterator[IO[bytes]]:
    """Open a manifest; what goes wrong while it is unpacked, is a `SourceError`."""
    try:
        with open_regular(path) as stored, gzip.open(stored) if is_gzipped(path) else stored as file:
            yield file  # type: ignore[misc] # it reads like one
    except _BAD_GZIP as error:
        raise _truncated(path, error) from error


class LineFiles:
    """Reads lines of manifests by position. Not thread-safe.

    Args:
        stamps: The manifests as they were when they were scanned.
        text_bytes: Bytes of the text of each, unpacked, up to the end of its last line that is not blank.
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
        """Unpack a manifest into the cache folder, unless it is there already or the folder is not writable."""
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
            raise _truncated(stamp.path, error) from error
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
            raise _truncated(stamp.path, error) from error
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


def _truncated(path: str, error: Exception) -> SourceError:
    return SourceError(
        f"the manifest cannot be unpacked: {error}", where=path, fix="it is truncated or not gzip: write it again"
    )
