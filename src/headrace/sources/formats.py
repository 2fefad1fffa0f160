"""The formats: one table, and which of them a file or folder has.

A file is recognized by its first bytes where the format has a mark, else by its name; a table or JSON lines whose first
line names an `audio` is a manifest. A folder has the format of its files. The result is a guess that the source of the
format checks in full when it opens.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, open_regular
from headrace.files.packed import PACKED_SUFFIXES, is_damage, open_packed

_HEAD_BYTES = 512  # a block of a tar, whose mark stands at its end
_MAX_LINE_BYTES = 1 << 20  # of a first line; a longer one is a document, not a recording
_GZIP, _ARROW_STREAM = b"\x1f\x8b", b"\xff\xff\xff\xff"
_UNREAD = (".zstd", ".lz4", ".br", ".z", ".zip", ".7z")  # compressions that are not read
_MAX_NAMES = 10_000  # of a folder: if none of this many names tells the format, none will
_HUGGING_FACE_MEMBER = "state.json"  # of a folder as `save_to_disk` leaves it


@dataclass(frozen=True)
class Format:
    """One storage format.

    Attributes:
        name: As in `--to`.
        title: For people.
        source: The class of `headrace.sources` that reads it. Its first argument takes the files.
        suffixes: Endings of its files, in lower case. The first one is that of what is written.
        writer: The class of `headrace.sources` that writes it, if there is one.
        magic: First bytes that no other files have, at the position `magic_at`.
        is_last: Whether it counts last in a folder: such files lie beside others.
        takes_many: Whether several files are one corpus.
        takes_folder: Whether the source takes a folder as it is; of another format a folder is the files in it.
        named_by_paths: Whether each file is a sequence that its path names. Even one has to come in a list, since a
            path alone is taken for a folder. URLs are refused before anything is fetched: a copy has another path.
        unique_tags: Whether a tag may come only once in a file.
        defaults: Default options for the source: the whole of each file, in its natural form.
        unless: An option that says something else in the place of all of these.
        key_option: Option of the source for the name of the only data key, where the file does not say it.
        beside: Endings of the files that may lie beside a written one, in the place of the suffix.
    """

    name: str
    title: str
    source: str
    suffixes: tuple[str, ...] = ()
    writer: str | None = None
    magic: tuple[bytes, ...] = ()
    magic_at: int = 0
    is_last: bool = False
    takes_many: bool = True
    takes_folder: bool = False
    named_by_paths: bool = False
    unique_tags: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unless: str | None = None
    key_option: str | None = None
    beside: tuple[str, ...] = ()

    @property
    def suffix(self) -> str:
        """Ending of what is written; "" if there is none."""
        return self.suffixes[0] if self.suffixes else ""

    def completed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options for the source, with the defaults that they leave room for."""
        return dict(options) if self.unless in options else {**self.defaults, **options}

    def files_beside(self, path: str) -> list[str]:
        """Return the names that files beside a written one may have."""
        return [path.removesuffix(self.suffix) + ending for ending in self.beside]


_AUDIO = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff")
_IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
_LINES = (".jsonl", ".ndjson")
_OF_FILES: Any = {"takes_folder": True, "takes_many": False, "named_by_paths": True}
_RAW: Any = {"audio": {"features": "raw", "peak_normalization": False}}
_TOKENS: Any = {
    "defaults": {"by": "document"},
    "unless": "block_length",
    "key_option": "data_key",
    "beside": (".idx", ".tags.txt", ".specs.json"),
}
_ALL = (
    Format("hdf", "HDF5", "HDFSource", (".hdf", ".hdf5", ".h5"), "HDFWriter", (b"\x89HDF\r\n\x1a\n",)),
    Format("tar", "tar", "TarSource", (".tar", ".tgz"), "TarWriter", (b"ustar",), 257, unique_tags=True),
    Format("parquet", "Parquet", "ParquetSource", (".parquet",), "ParquetWriter", (b"PAR1",)),
    Format("arrow", "Arrow", "ArrowSource", (".arrow", ".feather"), "ArrowWriter", (b"ARROW1",)),
    Format("huggingface", "Hugging Face", "HuggingFaceSource", takes_many=False, takes_folder=True),
    Format("jsonl", "JSON lines", "JsonlSource", _LINES),
    Format("manifest", "manifest", "AudioSource", _LINES, takes_many=False),
    Format("csv", "CSV", "CsvSource", (".csv", ".tsv"), is_last=True),
    Format("tokens", "tokens", "TokenSource", (".bin",), "TokenWriter", (b"MMIDIDX\x00\x00",), **_TOKENS),
    Format("text", "text", "TextSource", (".txt",), is_last=True),
    Format("audio", "audio folder", "AudioFolderSource", _AUDIO, magic=(b"fLaC", b"OggS"), **_OF_FILES),
    Format("images", "image folder", "ImageFolderSource", _IMAGES, is_last=True, **_OF_FILES),
    Format("ogg_zip", "OggZip", "OggZipSource", (".zip",), takes_folder=True, defaults=_RAW),
)
FORMATS: Mapping[str, Format] = {entry.name: entry for entry in _ALL}


def format_named(name: str) -> Format:
    """Return a format by its name, or by that of its source or writer.

    Raises:
        ConfigError: There is none of that name.
    """
    for entry in _ALL:
        if name in (entry.name, entry.source, entry.writer):
            return entry
    raise ConfigError(f"unknown format {name!r}", fix=did_you_mean(name, FORMATS))


def format_of_source(cls: type) -> Format | None:
    """Return the format that a class reads."""
    is_ours = cls.__module__.startswith(f"{__package__}.")
    return next((entry for entry in _ALL if is_ours and entry.source == cls.__name__), None)


def format_of_target(path: str | os.PathLike[str]) -> Format | None:
    """Return the writable format that the name of a file to be written implies, if there is one."""
    name = os.fspath(path).lower()
    return next((entry for entry in _ALL if entry.writer and name.endswith(entry.suffixes)), None)


def format_of_name(name: str) -> Format | None:
    """Return the format whose suffix the name of a file has, if there is one; that of a compression may follow."""
    for text in (name.lower(), _unpacked(name)):
        for entry in _ALL:
            if text.endswith(entry.suffixes):
                return entry
    return None


def _unpacked(name: str) -> str:
    lower = name.lower()
    return os.path.splitext(lower)[0] if lower.endswith((*PACKED_SUFFIXES, *_UNREAD)) else lower


def find_format(path: str | os.PathLike[str]) -> Format:
    """Return the format of a file or folder.

    Raises:
        SourceError: There is nothing of this name, or it fits no format: those there are, are listed.
    """
    name = os.fspath(path)
    is_folder = os.path.isdir(name)
    try:
        found = _format_of_folder(name) if is_folder else _format_of_file(name)
    except OSError as error:
        what = "no such file or folder" if isinstance(error, FileNotFoundError) else f"cannot read: {error.strerror}"
        fix = TOO_MANY_OPEN_FIX if error.errno in TOO_MANY_OPEN else "check the path"
        raise SourceError(what, where=error.filename or name, fix=fix) from error
    if found is None:
        titles = ", ".join(f"{entry.title} ({entry.source})" for entry in _ALL)
        raise SourceError(
            "no file in the folder tells its format"
            if is_folder
            else "neither bytes nor name of the file tell a format",
            where=name,
            fix=f"name the class of the source, also 'module:Class' of your own; formats: {titles}; files of NumPy or "
            "safetensors are read by a map-style dataset over np.load(path, mmap_mode='r')",
        )
    return found


def _format_of_file(path: str) -> Format | None:
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
    for entry in _ALL:
        if entry.magic and head.startswith(entry.magic, entry.magic_at):
            return entry
    found = format_of_name(path)
    if found is None and head.startswith(_ARROW_STREAM):
        return FORMATS["arrow"]
    if found is None and _unpacked(path).endswith(".json"):
        found = FORMATS["jsonl"]
    if found in (FORMATS["jsonl"], FORMATS["csv"]) and _names_audio(path, head, found.name):
        return FORMATS["manifest"]
    return found


def _names_audio(path: str, head: bytes, name: str) -> bool:
    """Tell whether the first line of JSON lines or of a table is that of a manifest; a damaged one is none."""
    try:
        with gzip.open(path) if head.startswith(_GZIP) else open_packed(path) as file:
            line = file.read(_MAX_LINE_BYTES).partition(b"\n")[0].decode("utf-8-sig")
        if name == "csv":
            return "audio" in [column.strip().strip('"') for column in line.replace("\t", ",").split(",")]
        first = json.loads(line)
    except (ValueError, RecursionError):
        return False
    except Exception as error:
        if is_damage(error):
            return False
        raise
    return isinstance(first, dict) and "audio" in first


def _format_of_folder(path: str) -> Format | None:
    """Detect the format of a folder by its files, or else by those of its first non-empty sub-folder."""
    num_names, last = 0, None
    unread: list[OSError] = []
    for folder, folders, names in os.walk(path, onerror=unread.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if _HUGGING_FACE_MEMBER in names:
            return FORMATS["huggingface"]
        for name in sorted(names):
            found = None if name.startswith(".") else format_of_name(name)
            if found is FORMATS["jsonl"]:
                found = _format_of_file(os.path.join(folder, name))
            if found is not None and not found.is_last:
                return found
            last = last or found
        num_names += len(names)
        if num_names > _MAX_NAMES:
            break
    if last is None and unread:
        raise unread[0]
    return last


def files_of(folder: str, entry: Format) -> list[str]:
    """Return the files of a format in a folder by name, without those of sub-folders, hidden ones, and side files.

    Raises:
        SourceError: The folder cannot be read, has none, or has one that is compressed in a way that is not read.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise SourceError(f"cannot read the folder: {error.strerror}", where=folder, fix="check the path") from error
    shown = [name for name in names if not name.startswith(".")]
    found = [
        name for name in shown if name.lower().endswith(entry.suffixes) or _unpacked(name).endswith(entry.suffixes)
    ]
    for name in found:
        if name.lower().endswith(_UNREAD):  # without it, a part of the corpus would be missing
            what = f"the file is compressed in a way that {entry.source} does not read"
            raise SourceError(
                what, where=os.path.join(folder, name), fix="decompress it, or name the others by a pattern"
            )
    if not found:
        raise SourceError(
            f"the folder itself has no {entry.title} files",
            where=folder,
            fix="name those of its sub-folders, by a pattern such as 'folder/*/*'",
        )
    return without_side_files(os.path.join(folder, name) for name in found)


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
    owners = [(entry, name) for entry in _ALL if entry.beside for name in names if name.endswith(entry.suffix)]
    beside = {side for entry, name in owners for side in entry.files_beside(name)}
    return [name for name in names if name not in beside]
