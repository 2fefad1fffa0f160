"""Which format a file or folder has: by its first bytes where it has a mark, else by its name, or what it says.

Nothing is read but the first bytes, one line, or the names in a folder. What is found is a guess that the source of the
format checks in full when it opens.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, open_regular
from headrace.files.atomic.together import settle

_HEAD_BYTES = 512  # a block of a tar, whose mark stands at its end
_MAX_LINE_BYTES = 1 << 20  # of a first line; a longer one says nothing
_MAX_NAMES = 10_000  # of a folder: where none of so many says something, nothing does
_TAR_MARK = slice(257, 262)
_ARROW_STREAM = b"\xff\xff\xff\xff"
_KIND_SCHEMA = 1  # in a message of Arrow: version, kind, what it is, in the order of its fields
_SCHEMA_FIELD = 2
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Format:
    """One storage format.

    Attributes:
        name: As in `--to`.
        title: For people.
        source: The class that reads it.
        writer: The class that writes it, if there is one.
        suffix: Of what is written.
        takes_many: Whether several files are one corpus.
        takes_folder: Whether the source takes a folder as it is; of another format a folder is the files in it.
        in_list: Whether even one file has to come in a list, since a path alone is taken for a folder.
        unique_tags: Whether a tag may come only once in a file.
        defaults: Options for the source that nobody has to give: the whole of each file, in its natural form.
        unless: An option that says something else in the place of all of these.
        key_option: Option of the source for the name of the only data key, where the file does not say it.
        beside: Endings of the files that may lie beside a written one, in the place of `suffix`.
    """

    name: str
    title: str
    source: str
    writer: str | None = None
    suffix: str = ""
    takes_many: bool = True
    takes_folder: bool = False
    in_list: bool = False
    unique_tags: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unless: str | None = None
    key_option: str | None = None
    beside: tuple[str, ...] = ()

    def completed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options for the source, with the defaults that they leave room for."""
        return dict(options) if self.unless in options else {**self.defaults, **options}

    def files_beside(self, path: str) -> list[str]:
        """Return the names that files beside a written one may have."""
        return [path.removesuffix(self.suffix) + ending for ending in self.beside]


_ALL = (
    Format("hdf", "HDF5", "HDFSource", "HDFWriter", ".hdf"),
    Format("tar", "tar", "TarSource", "TarWriter", ".tar", unique_tags=True),
    Format("parquet", "Parquet", "ParquetSource", "ParquetWriter", ".parquet"),
    Format("arrow", "Arrow", "ArrowSource", "ArrowWriter", ".arrow"),
    Format(
        "numpy",
        "NumPy folder",
        "NumpyFolderSource",
        "NumpyFolderWriter",
        ".npys",
        takes_many=False,
        takes_folder=True,
        in_list=True,
        unique_tags=True,
    ),
    Format(
        "safetensors",
        "safetensors",
        "SafetensorsSource",
        "SafetensorsWriter",
        ".safetensors",
        takes_folder=True,
        unique_tags=True,
    ),
    Format("huggingface", "Hugging Face", "HuggingFaceSource", takes_many=False, takes_folder=True),
    Format("jsonl", "JSON lines", "JsonlSource", "JsonlWriter", ".jsonl", beside=(".jsonl.specs.json",)),
    Format(
        "tokens",
        "tokens",
        "TokenSource",
        "TokenWriter",
        ".bin",
        defaults={"by": "document"},
        unless="block_length",
        key_option="data_key",
        beside=(".idx", ".tags.txt", ".specs.json"),
    ),
    Format("text", "text", "TextSource"),
    Format("audio", "audio folder", "AudioFolderSource", takes_folder=True, takes_many=False, in_list=True),
    Format(
        "ogg_zip",
        "OggZip",
        "OggZipSource",
        "OggZipWriter",
        ".zip",
        takes_folder=True,
        defaults={"audio": {"features": "raw", "peak_normalization": False}},
    ),
    Format("cuts", "lhotse cuts", "CutSource", takes_folder=True),
    Format("manifest", "manifest", "AudioSource", takes_many=False),
)
FORMATS: Mapping[str, Format] = {entry.name: entry for entry in _ALL}

_BY_MAGIC: Mapping[bytes, str] = {
    b"\x89HDF\r\n\x1a\n": "hdf",
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\x93NUMPY": "numpy",
    b"fLaC": "audio",
    b"OggS": "audio",
}
# Names say it where there is no mark: a truncated or an empty file, a text.
_BY_SUFFIX: Mapping[str, str] = {
    ".hdf": "hdf",
    ".hdf5": "hdf",
    ".h5": "hdf",
    ".tar": "tar",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".safetensors": "safetensors",
    ".npy": "numpy",
    ".npz": "numpy",
    ".tar.gz": "tar",  # refused there, with the way out
    ".tgz": "tar",
    ".bin": "tokens",
    ".idx": "tokens",
    ".wav": "audio",
    ".flac": "audio",
    ".ogg": "audio",
    ".opus": "audio",
    ".mp3": "audio",
    ".aif": "audio",
    ".aiff": "audio",
    ".zip": "ogg_zip",
    ".txt": "text",
    ".txt.gz": "text",
    ".txt.bz2": "text",
    ".txt.xz": "text",
}
_LINE_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".ndjson")
# What a folder is by a file in it, whatever else it holds; the first that is there counts.
_BY_MEMBER: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"cuts\.\d+\.jsonl(\.gz)?"), "cuts"),
    (re.compile(r"headrace\.json"), "numpy"),
    (re.compile(r"state\.json"), "huggingface"),  # beside data-*-of-*.arrow, as `save_to_disk` leaves it
)


def format_named(name: str) -> Format:
    """Return a format by its name, or by that of its source or writer.

    Raises:
        ConfigError: There is none of that name.
    """
    for entry in FORMATS.values():
        if name in (entry.name, entry.source, entry.writer):
            return entry
    raise ConfigError(f"unknown format {name!r}", fix=did_you_mean(name, FORMATS))


def format_of_source(cls: type) -> Format | None:
    """Return the format that a class of ours reads."""
    return next((entry for entry in FORMATS.values() if entry.source == cls.__name__), None)


def find_format(path: str | os.PathLike[str]) -> Format:
    """Return the format of a file or folder.

    Raises:
        SourceError: There is nothing of this name, or it fits no format: those there are, are listed.
    """
    name = os.fspath(path)
    if not os.path.lexists(name):
        settle(name)
    try:
        found = _format_of_folder(name) if os.path.isdir(name) else _format_of_file(name)
    except ValueError as error:
        raise SourceError("no file has a NUL in its name", where=repr(name), fix="check the path") from error
    except OSError as error:
        what = "no such file or folder" if isinstance(error, FileNotFoundError) else f"cannot read: {error.strerror}"
        fix = TOO_MANY_OPEN_FIX if error.errno in TOO_MANY_OPEN else "check the path"
        raise SourceError(what, where=error.filename or name, fix=fix) from error
    if found is None:
        raise SourceError(
            "neither the first bytes nor the name say what this is",
            where=name,
            fix=f"name the class of the source; formats: {_list_formats()}",
        )
    return FORMATS[found]


def format_of_target(path: str | os.PathLike[str]) -> Format | None:
    """Return the format that the name of a file to be written asks for, if it asks for one that can be written."""
    name = os.path.basename(os.fspath(path))
    written = [entry for entry in FORMATS.values() if entry.writer and entry.suffix and name.endswith(entry.suffix)]
    if written:
        return max(written, key=lambda entry: len(entry.suffix))
    found = _by_suffix(name)
    return FORMATS[found] if found is not None and FORMATS[found].writer else None


def files_of(folder: str, entry: Format) -> list[str]:
    """Return the files of a format in a folder, in the order of their names; sub-folders and hidden files are left out.

    Raises:
        SourceError: The folder cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise SourceError(f"cannot read the folder: {error.strerror}", where=folder, fix="check the path") from error
    return [os.path.join(folder, name) for name in names if name[0] != "." and _by_suffix(name) == entry.name]


def _by_suffix(name: str) -> str | None:
    lower = name.lower()
    stem, suffix = os.path.splitext(lower)
    return _BY_SUFFIX.get(os.path.splitext(stem)[1] + suffix) or _BY_SUFFIX.get(suffix)


def _format_of_file(path: str) -> str | None:
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
    for mark, name in _BY_MAGIC.items():
        if head.startswith(mark):
            return name
    if head[_TAR_MARK] == b"ustar":
        return "tar"
    if _begins_arrow_stream(head, os.path.getsize(path)):
        return "arrow"
    lower = path.lower()
    if lower.endswith(_LINE_SUFFIXES):
        return _format_of_lines(path, is_packed=head.startswith(_GZIP))
    return _by_suffix(path)


def _begins_arrow_stream(head: bytes, num_bytes: int) -> bool:
    """Tell whether a file begins as a stream of Arrow does. Its mark alone says little: tokens may be 65535, 65535.

    After the mark come the size of a message, a multiple of 8, and the message, a table of FlatBuffers: it begins with
    the offset of its root, which begins with the offset of a list of fields, the second of which says "schema".
    """
    size, root = (int.from_bytes(head[start : start + 4], "little") for start in (4, 8))
    if not head.startswith(_ARROW_STREAM) or size % 8 or not 8 <= root < size <= num_bytes - 8:
        return False
    table = 8 + root
    vtable = table - int.from_bytes(head[table : table + 4], "little", signed=True)
    num_fields = int.from_bytes(head[vtable : vtable + 2], "little") // 2 - 2 if 8 <= vtable <= len(head) - 8 else 0
    if num_fields < _SCHEMA_FIELD + 1 or vtable + 4 + 2 * num_fields > len(head):
        return False
    kind = table + int.from_bytes(head[vtable + 6 : vtable + 8], "little")
    return head[kind : kind + 1] == bytes([_KIND_SCHEMA])


def _format_of_lines(path: str, *, is_packed: bool) -> str | None:
    """Tell manifests of different kinds apart by their first line."""
    line = b""
    with (
        contextlib.suppress(EOFError, gzip.BadGzipFile, zlib.error),
        open_regular(path) as stored,
        gzip.open(stored) if is_packed else stored as file,
    ):
        line = file.readline(_MAX_LINE_BYTES)
    try:
        first = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        first = None  # not an object a line: the source of manifests says what is wrong
    if os.path.exists(f"{path}.specs.json"):
        return "jsonl"  # ours
    if isinstance(first, dict):
        if "recording" in first or str(first.get("type", "")).endswith("Cut"):
            return "cuts"
        if "audio" not in first:
            return "jsonl"
    return "manifest"


def _format_of_folder(path: str) -> str | None:
    """Tell what a folder is by what is in it, or else in the first of its sub-folders that holds something.

    Texts count last: they are beside other things.
    """
    num_names, has_text = 0, False
    unread: list[OSError] = []
    for _, folders, names in os.walk(path, onerror=unread.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for pattern, found in _BY_MEMBER:
            if any(pattern.fullmatch(name) for name in names):
                return found
        known = [_by_suffix(name) for name in sorted(names) if not name.startswith(".")]
        found_here = next((name for name in known if name not in (None, "text")), None)
        if found_here is not None:
            return found_here
        has_text = has_text or "text" in known
        num_names += len(names)
        if num_names > _MAX_NAMES:
            break
    if not has_text and unread:
        raise unread[0]
    return "text" if has_text else None


def _list_formats() -> str:
    return ", ".join(f"{entry.title} ({entry.source})" for entry in FORMATS.values())
