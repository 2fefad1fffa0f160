"""The formats by name, and detection of the format of a file or folder.

A file is recognized by its first bytes where the format has a mark, else by its name, or its first line; a folder by
its files. What is found is a guess that the source of the format checks in full when it opens.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, open_regular
from headrace.files.packed import PACKED_SUFFIXES, damaged, is_damage, is_packed, open_packed

_LOGGER = logging.getLogger("headrace.sources")
_HEAD_BYTES = 512  # a block of a tar, whose mark stands at its end
_MAX_LINE_BYTES = 1 << 20  # of a first line; of a longer one, that it is long
_PART_BYTES = 1 << 16  # of a compressed file at a time
_GZIP = b"\x1f\x8b"
_ARROW_STREAM = b"\xff\xff\xff\xff"
_PACKED = (*PACKED_SUFFIXES, ".zstd", ".lz4", ".br", ".z", ".zip", ".7z")
_MAX_LOOKED = 20  # files and sub-folders beside those of a folder that are read
_MAX_NAMES = 10_000  # of a folder: if none of this many names tells the format, none will


class Head:
    """First bytes of a file, for detecting its format.

    Attributes:
        path: Path of the file.
        data: Its first bytes, at most `_HEAD_BYTES`.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open_regular(path) as file:
            self.data = file.read(_HEAD_BYTES)

    @cached_property
    def first_line(self) -> bytes:
        """The first line, also in a compressed file, as far as it counts."""
        if self.data.startswith(_GZIP) or is_packed(self.path):
            return _first_line_of_packed(self.path, gzip.open if self.data.startswith(_GZIP) else open_packed)
        with open_regular(self.path) as stored:
            return stored.readline(_MAX_LINE_BYTES)

    def is_named(self, suffixes: tuple[str, ...]) -> bool:
        """Whether the name has one of these endings."""
        return self.path.lower().endswith(suffixes)


def _first_line_of_packed(path: str, open_file: Callable[[str], Any]) -> bytes:
    start = b""
    try:
        with open_file(path) as file:  # pyarrow's files know no lines
            while b"\n" not in start and len(start) < _MAX_LINE_BYTES and (part := file.read(_PART_BYTES)):
                start += part
    except Exception as error:
        if not is_damage(error):
            raise
        raise damaged(path, error) from error
    return start.partition(b"\n")[0]


@dataclass(frozen=True)
class Format:
    """One storage format.

    Attributes:
        name: As in `--to`.
        title: For people.
        source: The class that reads it, "package.module:Class". Its first argument takes the files. Its module is
            imported when it is needed.
        writer: The class that writes it, if there is one.
        suffixes: Endings of its files, in lower case. The first one is that of what is written.
        magic: First bytes that no other files have, each with its position.
        recognizes: Tells by the first bytes, or the first line, whether a file is of this format, where neither magic
            nor the name alone says it.
        member: Name of a file by which a folder is known as one of this format.
        is_last: Whether it counts last in a folder: such files lie beside others.
        takes_many: Whether several files are one corpus.
        takes_folder: Whether the source takes a folder as it is; of another format a folder is the files in it.
        in_list: Whether even one file has to come in a list, since a path alone is taken for a folder.
        unique_tags: Whether a tag may come only once in a file.
        defaults: Default options for the source: the whole of each file, in its natural form.
        unless: An option that says something else in the place of all of these.
        key_option: Option of the source for the name of the only data key, where the file does not say it.
        beside: Endings of the files that may lie beside a written one, in the place of the suffix.
        named_by_paths: Whether sequences are named by the paths of their files. The copy of a URL has another path, so
            URLs are refused, before anything is fetched.
    """

    name: str
    title: str
    source: str
    writer: str | None = None
    suffixes: tuple[str, ...] = ()
    magic: tuple[tuple[int, bytes], ...] = ()
    recognizes: Callable[[Head], bool] | None = None
    member: str | None = None
    is_last: bool = False
    takes_many: bool = True
    takes_folder: bool = False
    in_list: bool = False
    unique_tags: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unless: str | None = None
    key_option: str | None = None
    beside: tuple[str, ...] = ()
    named_by_paths: bool = False

    @property
    def suffix(self) -> str:
        """Ending of what is written; "" if there is none."""
        return self.suffixes[0] if self.suffixes else ""

    @property
    def source_name(self) -> str:
        """The name of the class that reads it."""
        return self.source.rpartition(":")[2]

    @property
    def writer_name(self) -> str | None:
        """The name of the class that writes it."""
        return None if self.writer is None else self.writer.rpartition(":")[2]

    def completed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options for the source, with the defaults that they leave room for."""
        return dict(options) if self.unless in options else {**self.defaults, **options}

    def files_beside(self, path: str) -> list[str]:
        """Return the names that files beside a written one may have."""
        return [path.removesuffix(self.suffix) + ending for ending in self.beside]


def _also_packed(*suffixes: str) -> tuple[str, ...]:
    return tuple(suffix + packed for packed in ("", *PACKED_SUFFIXES) for suffix in suffixes)


_TABLE_SUFFIXES = _also_packed(".csv", ".tsv")
_JSON_SUFFIXES = _also_packed(".jsonl", ".ndjson")
_LINE_SUFFIXES = (*_JSON_SUFFIXES, *_also_packed(".json"))


def _is_arrow_stream(head: Head) -> bool:
    return head.data.startswith(_ARROW_STREAM) and not head.path.endswith(".bin")  # of tokens, which may be 65535


def _is_other_lines(head: Head) -> bool:
    """Tell whether a file is JSON lines that list no recordings."""
    if not head.is_named(_LINE_SUFFIXES):
        return False
    line = head.first_line if head.data else b""
    is_long_object = len(line) >= _MAX_LINE_BYTES and line.lstrip().startswith(b"{")  # a document, and no row
    if not head.data or is_long_object:  # an empty file may be anything; among others it changes nothing
        return True
    try:
        first = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return False  # the source says what is wrong
    return isinstance(first, dict) and "audio" not in first


def _is_manifest(head: Head) -> bool:
    """Tell whether a file lists recordings; other JSON lines, too: the source says best what is wrong with a line."""
    if not head.is_named(_TABLE_SUFFIXES):
        return head.is_named(_LINE_SUFFIXES)
    text = head.first_line.decode("utf-8-sig", errors="replace")
    return "audio" in [field.strip().strip('"') for field in text.replace("\t", ",").split(",")]


def _of(name: str, title: str, source: str, suffixes: str | tuple[str, ...] = (), **options: Any) -> Format:
    """Return a format whose classes are in modules of this package."""
    writer = options.pop("writer", None)
    classes = f"{__package__}.{source}", writer and f"{__package__}.{writer}"
    return Format(name, title, *classes, tuple(suffixes.split() if isinstance(suffixes, str) else suffixes), **options)


_FILES_THEMSELVES = {"takes_folder": True, "takes_many": False, "in_list": True, "named_by_paths": True}
_AUDIO, _IMAGES = ".wav .flac .ogg .opus .mp3 .aif .aiff", ".png .jpg .jpeg .webp .gif .bmp .tif .tiff .ppm .pgm"
_RAW = {"audio": {"features": "raw", "peak_normalization": False}}
_TOKENS: dict[str, Any] = {
    "writer": "tokens.writer:TokenWriter",
    "magic": ((0, b"MMIDIDX\x00\x00"),),  # of an .idx; a lone .idx of another program says nothing of tokens
    "defaults": {"by": "document"},
    "unless": "block_length",
    "key_option": "data_key",
    "beside": (".idx", ".tags.txt", ".specs.json"),
}
_HDF = {"writer": "hdf.writer:HDFWriter", "magic": ((0, b"\x89HDF\r\n\x1a\n"),)}
_TAR = {"writer": "tar.writer:TarWriter", "magic": ((257, b"ustar"),), "unique_tags": True}
_PARQUET = {"writer": "tables.writer:ParquetWriter", "magic": ((0, b"PAR1"),)}
_ARROW = {"writer": "tables.writer:ArrowWriter", "magic": ((0, b"ARROW1"),), "recognizes": _is_arrow_stream}
_HUGGING_FACE: dict[str, Any] = {
    "member": "state.json",
    "takes_many": False,
    "takes_folder": True,
}  # as `save_to_disk` leaves it
_ALL = (
    _of("hdf", "HDF5", "hdf.source:HDFSource", ".hdf .hdf5 .h5", **_HDF),
    _of("tar", "tar", "tar.source:TarSource", ".tar .tar.gz .tgz", **_TAR),  # compressed ones are refused there
    _of("parquet", "Parquet", "tables.source:ParquetSource", ".parquet", **_PARQUET),
    _of("arrow", "Arrow", "tables.source:ArrowSource", ".arrow .feather", **_ARROW),
    _of("huggingface", "Hugging Face", "tables.hugging_face:HuggingFaceSource", **_HUGGING_FACE),
    _of(
        "jsonl", "JSON lines", "lines.jsonl:JsonlSource", _also_packed(".jsonl", ".ndjson"), recognizes=_is_other_lines
    ),
    _of("manifest", "manifest", "audio.source:AudioSource", recognizes=_is_manifest, takes_many=False),
    _of("csv", "CSV", "lines.delimited:CsvSource", _TABLE_SUFFIXES, is_last=True),
    _of("tokens", "tokens", "tokens.source:TokenSource", ".bin", **_TOKENS),
    _of("text", "text", "lines.text:TextSource", _also_packed(".txt"), is_last=True),
    _of(
        "audio",
        "audio folder",
        "audio.folder:AudioFolderSource",
        _AUDIO,
        magic=((0, b"fLaC"), (0, b"OggS")),
        **_FILES_THEMSELVES,
    ),
    _of("images", "image folder", "images:ImageFolderSource", _IMAGES, is_last=True, **_FILES_THEMSELVES),
    _of("ogg_zip", "OggZip", "ogg_zip.source:OggZipSource", ".zip", takes_folder=True, defaults=_RAW),
)
FORMATS: Mapping[str, Format] = {entry.name: entry for entry in _ALL}


def format_named(name: str) -> Format:
    """Return a format by its name, or by that of its source or writer.

    Raises:
        ConfigError: There is none of that name.
    """
    for entry in FORMATS.values():
        if name in (entry.name, entry.source, entry.writer, entry.source_name, entry.writer_name):
            return entry
    raise ConfigError(f"unknown format {name!r}", fix=did_you_mean(name, FORMATS))


def format_of_source(cls: type) -> Format | None:
    """Return the format that a class reads."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    return next((entry for entry in FORMATS.values() if entry.source == name), None)


def find_format(path: str | os.PathLike[str]) -> Format:
    """Return the format of a file or folder.

    Raises:
        SourceError: There is nothing of this name, or it fits no format: those there are, are listed.
    """
    name = os.fspath(path)
    look = _format_of_folder if os.path.isdir(name) else _format_of_file
    try:
        found = look(name)
    except ValueError as error:
        raise SourceError("no file has a NUL in its name", where=repr(name), fix="check the path") from error
    except OSError as error:
        what = "no such file or folder" if isinstance(error, FileNotFoundError) else f"cannot read: {error.strerror}"
        fix = TOO_MANY_OPEN_FIX if error.errno in TOO_MANY_OPEN else "check the path"
        raise SourceError(what, where=error.filename or name, fix=fix) from error
    if found is None and look is _format_of_folder and not os.listdir(name):
        raise SourceError("the folder is empty", where=name, fix="check the path")
    if found is None:
        titles = ", ".join(f"{entry.title} ({entry.source_name})" for entry in FORMATS.values())
        of_file, of_folder = "neither the first bytes nor the name of the file tell", "no file in the folder tells"
        raise SourceError(
            f"{of_file if look is _format_of_file else of_folder} its format",
            where=name,
            fix=f"name the class of the source, also 'module:Class' of your own; formats: {titles}; files of NumPy or "
            "safetensors are read by a map-style dataset over np.load(path, mmap_mode='r')",
        )
    return found


def format_of_target(path: str | os.PathLike[str]) -> Format | None:
    """Return the writable format that the name of a file to be written implies, if there is one."""
    found = _by_suffix(os.path.basename(os.fspath(path)))
    return found if found is not None and found.writer else None


def formats_of_name(name: str) -> list[Format]:
    """Return the formats one of whose suffixes the name of a file has."""
    lower = name.lower()
    return [entry for entry in FORMATS.values() if lower.endswith(tuple(entry.suffixes))]


def files_of(folder: str, entry: Format) -> list[str]:
    """Return the files of a format in a folder, in the order of their names; sub-folders and hidden files are left out.

    Raises:
        SourceError: The folder cannot be read, or has none.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise SourceError(f"cannot read the folder: {error.strerror}", where=folder, fix="check the path") from error
    known: dict[str, Format | None] = {}  # by suffix: of a hundred thousand files, one is looked into
    found, others = [], []
    for name in names:
        if name[0] != ".":
            suffix = _looked_suffix(name)
            if not suffix or suffix not in known:
                known[suffix] = _format_in_folder(folder, name)
            if known[suffix] is entry:
                found.append(os.path.join(folder, name))
            else:
                others.append(name)
    _refuse_packed(folder, others, entry)
    if found:
        by_path = {os.path.join(folder, name): name for name in others}
        apart = without_side_files([*found, *by_path])
        _tell_left_out(folder, [by_path[path] for path in apart if path in by_path], entry)
    else:
        raise SourceError(
            f"the folder itself has no {entry.title} files",
            where=folder,
            fix="name those of its sub-folders, by a pattern such as 'folder/*/*'",
        )
    return without_side_files(found)


def _refuse_packed(folder: str, names: Iterable[str], entry: Format) -> None:
    """Refuse a folder in which files of the format are compressed in a way that is not read: they would be missing.

    Raises:
        SourceError: There are some.
    """
    packed = [name for name in names if name.lower().endswith(_PACKED) and _has_suffix(name.rpartition(".")[0], entry)]
    if packed:
        raise SourceError(
            f"{len(packed)} {entry.title} files of the folder are compressed in a way that {entry.source_name} does "
            "not read, or damaged",
            where=os.path.join(folder, packed[0]),
            fix="decompress them or get them again, or leave them out by a pattern: "
            f"{os.path.join(folder, f'*{entry.suffix}')!r}",
        )


def _tell_left_out(folder: str, names: Iterable[str], entry: Format) -> None:
    """Log which files of the same format are left out of a folder: in a sub-folder, or with another ending."""
    left_out: list[str] = []
    for name in itertools.islice(names, _MAX_LOOKED):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError, SourceError):
            if os.path.isfile(path):
                left_out += [name] if _format_of_file(path) is entry else []
            else:
                left_out += [f"{name}/{one}" for one in sorted(os.listdir(path)) if _has_suffix(one, entry)][:1]
    if left_out:
        _LOGGER.warning(
            "of the folder %s, %s files are read, and some are left out: %s; name all of them by patterns",
            folder,
            entry.title,
            ", ".join(left_out),
        )


def _has_suffix(name: str, entry: Format) -> bool:
    return name.lower().endswith(entry.suffixes) and name[0] != "."


def files_in(folder: str) -> list[str]:
    """Return the files in a folder, of the format that the folder has, where each file is a corpus by itself.

    Raises:
        ConfigError: The folder as a whole is one corpus.
        SourceError: The folder cannot be read, or there are no files of a known format.
    """
    entry = find_format(folder)
    if entry.takes_folder:
        raise ConfigError(
            f"the folder is one corpus ({entry.title}), and what is wanted here are files that can be read one by one",
            where=folder,
            fix=f"name files by a pattern: {os.path.join(folder, '**', f'*{entry.suffix}')!r}",
        )
    return files_of(folder, entry)


def without_side_files(names: Iterable[str]) -> list[str]:
    """Leave out files that belong to others of the list, such as the `.idx` of a `.bin`, which is read with it."""
    names = list(names)
    beside: set[str] = set()
    for entry in FORMATS.values():
        if entry.beside:
            beside.update(side for name in names if name.endswith(entry.suffix) for side in entry.files_beside(name))
    return [name for name in names if name not in beside] if beside else names


def _format_in_folder(folder: str, name: str) -> Format | None:
    """Return the format that the name of a file in a folder says, or what is in it, where the name leaves that open."""
    found = _by_suffix(name)
    if found is None and _looked_suffix(name) and os.path.isfile(path := os.path.join(folder, name)):
        return _format_of_file(path)
    return found


def _looked_suffix(name: str) -> str:
    """Return the suffix of a format which has no marks, but looks at what is in a file; "" if the name has none."""
    lower = name.lower()
    looked = (entry.suffixes for entry in FORMATS.values() if entry.recognizes and not entry.magic)
    return next((one for suffixes in looked for one in suffixes if lower.endswith(one)), "")


def _by_suffix(name: str) -> Format | None:
    """Return the format of the longest suffix that a name has; formats that look into files are asked there."""
    lower = name.lower()
    found = [
        (len(suffix), entry)
        for entry in FORMATS.values()
        for suffix in (() if entry.recognizes and not entry.magic else entry.suffixes)
        if lower.endswith(suffix) and len(lower) > len(suffix)
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _format_of_file(path: str) -> Format | None:
    head = Head(path)
    for entry in FORMATS.values():
        if any(head.data[at : at + len(mark)] == mark for at, mark in entry.magic):
            return entry
    found = (entry for entry in FORMATS.values() if entry.recognizes is not None and entry.recognizes(head))
    return next(found, None) or _by_suffix(path)


def _format_of_folder(path: str) -> Format | None:
    """Detect the format of a folder by its files, or else by those of its first non-empty sub-folder."""
    num_names, last = 0, None
    unread: list[OSError] = []
    members = {entry.member: entry for entry in FORMATS.values() if entry.member is not None}
    for folder, folders, names in os.walk(path, onerror=unread.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for member in members.keys() & set(names):  # whatever else it holds
            return members[member]
        for name in sorted(names):
            found = None if name.startswith(".") else _format_in_folder(folder, name)
            if found is not None and not found.is_last:
                return found
            last = last or found
        num_names += len(names)
        if num_names > _MAX_NAMES:
            break
    if last is None and unread:
        raise unread[0]
    return last
