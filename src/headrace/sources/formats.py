"""The formats by name, and detection of the format of a file or folder.

A file is recognized by its first bytes where the format has a mark, else by its name, or its first line; a folder by
its files. What is found is a guess that the source of the format checks in full when it opens.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Iterable, Mapping

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, open_regular
from headrace.files.atomic.together import settle
from headrace.files.packed import PACKED_SUFFIXES

from .built_in import BUILT_IN
from .entry import HEAD_BYTES, Format, Head

__all__ = ["FORMATS", "Format"]

_LOGGER = logging.getLogger("headrace.sources")
_PACKED = (*PACKED_SUFFIXES, ".zstd", ".lz4", ".br", ".z", ".zip", ".7z")
_MAX_LOOKED = 20  # files and sub-folders beside those of a folder that are read
_MAX_NAMES = 10_000  # of a folder: if none of this many names tells the format, none will
FORMATS: Mapping[str, Format] = {entry.name: entry for entry in BUILT_IN}


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
    if not os.path.lexists(name):
        settle(name)
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
    name = os.path.basename(os.fspath(path))
    written = [entry for entry in FORMATS.values() if entry.writer and name.endswith(entry.suffix)]
    if written:
        return max(written, key=lambda entry: len(entry.suffix))
    found = _by_suffix(name)
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
    with open_regular(path) as file:
        head = Head(path, file.read(HEAD_BYTES))
    for entry in FORMATS.values():
        if entry.has_mark(head):
            return entry
    for entry in FORMATS.values():
        if entry.recognizes is not None and entry.recognizes(head):
            return entry
    return _by_suffix(path)


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
