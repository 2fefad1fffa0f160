"""Registered formats, and detection of the format of a file or folder.

A format is registered once, by `register_format`, or by another package under the entry point "headrace.formats", which
is looked at only when a name or a file is not known otherwise. A file is told by its first bytes where they have a
mark, else by its name, or its first line; a folder by what is in it. What is found is a guess that the source of the
format checks in full when it opens.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, open_regular
from headrace.files.atomic.together import settle

from .built_in import BUILT_IN
from .entry import HEAD_BYTES, Format, Head

__all__ = ["FORMATS", "Format", "Head", "register_format"]

ENTRY_POINTS = "headrace.formats"
_MAX_NAMES = 10_000  # of a folder: where none of so many says something, nothing does
_formats: dict[str, Format] = {}
FORMATS: Mapping[str, Format] = MappingProxyType(_formats)


def register_format(entry: Format) -> Format:
    """Make a format known to `open_source`, configs, `headrace convert` and `headrace inspect`.

    Args:
        entry: The format. Registered again as it was, nothing changes.

    Returns:
        The same.

    Raises:
        ConfigError: Another format has its name, or one of its suffixes.
    """
    if _formats.get(entry.name) == entry:
        return entry
    names = {entry.name, entry.source_name, entry.writer_name} - {None}
    for other in _formats.values():
        if entry.source == other.source:
            raise ConfigError(
                f"the format {entry.name!r} is read by {entry.source_name}, as the format {other.name!r} is",
                fix="register a class once; for another variant of the files, another class",
            )
        taken = names & {other.name, other.source_name, other.writer_name}
        # Formats that look at what is in a file may share a suffix.
        taken |= set() if entry.recognizes or entry.magic else set(entry.suffixes) & set(other.suffixes)
        if taken:
            raise ConfigError(
                f"the format {entry.name!r} has {min(map(str, taken))!r}, as the format {other.name!r} has",
                fix="choose another name; files that share a suffix are told apart by magic= or recognizes=",
            )
    _formats[entry.name] = entry
    return entry


for _entry in BUILT_IN:
    register_format(_entry)


def formats_of_others() -> list[tuple[Format, list[Any]]]:
    """Return the formats that are not built in, each with those of its classes that only this process can import."""
    main = vars(sys.modules["__main__"])
    return [
        (entry, [main.get(name.partition(".")[0]) for name in entry.names_of("__main__")])
        for entry in FORMATS.values()
        if entry not in BUILT_IN
    ]


@cache
def load_entry_points() -> bool:
    """Register the formats of other packages, once; return whether there are some.

    Raises:
        ConfigError: One of them cannot be imported, or is no format.
    """
    found = entry_points(group=ENTRY_POINTS)
    for point in found:
        try:
            entry = point.load()
        except Exception as error:
            raise ConfigError(
                f"the format {point.name!r} of another package cannot be loaded: {error}",
                where=f"entry point {point.value!r} of {ENTRY_POINTS}",
                fix="repair or uninstall the package",
            ) from error
        if not isinstance(entry, Format):
            raise ConfigError(f"{point.value!r} is {entry!r}, not a Format", where=f"entry point of {ENTRY_POINTS}")
        register_format(entry)
    return bool(found)


def format_named(name: str) -> Format:
    """Return a format by its name, or by that of its source or writer.

    Raises:
        ConfigError: There is none of that name.
    """
    for _ in range(2):
        for entry in FORMATS.values():
            if name in (entry.name, entry.source, entry.writer, entry.source_name, entry.writer_name):
                return entry
        if not load_entry_points():
            break
    raise ConfigError(
        f"unknown format {name!r}", fix=f"{did_you_mean(name, FORMATS)}; or 'module:NAME' of a Format of your own"
    )


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
        if found is None and load_entry_points():
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
            fix=f"name the class of the source; formats: {titles}; a format of your own is known where its module was "
            "imported, and everywhere by an entry point headrace.formats",
        )
    return found


def format_of_target(path: str | os.PathLike[str]) -> Format | None:
    """Return the format that the name of a file to be written asks for, if it asks for one that can be written."""
    name = os.path.basename(os.fspath(path))
    for _ in range(2):
        written = [entry for entry in FORMATS.values() if entry.writer and entry.suffix and name.endswith(entry.suffix)]
        if written:
            return max(written, key=lambda entry: len(entry.suffix))
        found = _by_suffix(name)
        if found is not None or not load_entry_points():
            break
    return found if found is not None and found.writer else None


def files_of(folder: str, entry: Format) -> list[str]:
    """Return the files of a format in a folder, in the order of their names; sub-folders and hidden files are left out.

    Raises:
        SourceError: The folder cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise SourceError(f"cannot read the folder: {error.strerror}", where=folder, fix="check the path") from error
    known: dict[str, Format | None] = {}  # by ending: of a hundred thousand files, one is looked into
    found = []
    for name in names:
        if name[0] != ".":
            ending = os.path.splitext(name)[1]
            if ending not in known or not _has_looked_suffix(name):
                known[ending] = _format_in_folder(folder, name)
            if known[ending] is entry:
                found.append(os.path.join(folder, name))
    return found


def _format_in_folder(folder: str, name: str) -> Format | None:
    """Return the format that the name of a file in a folder says, or what is in it, where the name leaves that open."""
    found = _by_suffix(name)
    if found is None and _has_looked_suffix(name) and os.path.isfile(path := os.path.join(folder, name)):
        return _format_of_file(path)
    return found


def _has_looked_suffix(name: str) -> bool:
    """Tell whether a name ends as that of a format which has no marks, but looks at what is in a file."""
    suffixes = tuple(
        one for entry in FORMATS.values() if entry.recognizes and not entry.magic for one in entry.suffixes
    )
    return name.lower().endswith(suffixes)


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
    members = [(re.compile(entry.member), entry) for entry in FORMATS.values() if entry.member is not None]
    for folder, folders, names in os.walk(path, onerror=unread.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for pattern, entry in members:  # whatever else it holds
            if any(pattern.fullmatch(name) for name in names):
                return entry
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
