"""Paths as users give them: one or several, patterns, folders, URLs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from headrace.errors import ConfigError, SourceError
from headrace.files.cache.local_copies import local_copies
from headrace.files.lists.patterns import is_pattern, list_matches
from headrace.files.locations import is_remote, local_path, shown_url

from ..formats import FORMATS, Format, files_of, find_format, formats_of_name, without_side_files

PathLike = str | os.PathLike[str]
Files = PathLike | Sequence[PathLike]
PACK_FIX = "pack the files by `headrace convert`, to .tar or .parquet, and read that by its URL"
IndexOption = PathLike | Literal["auto"] | None


def list_paths(files: Any, owner: str, *, may_be_empty: bool = False) -> tuple[str, ...]:
    """Return absolute paths of the files that a source is given.

    Args:
        files: One or several of: a path; a pattern (`*`, `?`, `[...]`, `**`, `{a,b}`, `{000..099}`); a URL (`s3://`,
            `gs://`, `https://`, `hf://`), also as a pattern, which is read through the file cache; or a folder, if
            `owner` reads single files: those of its format in it, by name.
        owner: Name of the class, for the format and for errors.
        may_be_empty: Whether an empty list is an empty corpus.

    Raises:
        ConfigError: It is something else, or an empty list that may not be.
        SourceError: A pattern matches nothing, a folder has no such files, or a store refuses.
    """
    where = f"{owner}(files=...)"
    is_one = isinstance(files, str | bytes | os.PathLike) or not isinstance(files, Iterable)
    paths = [files] if is_one else list(files)
    if not paths and not may_be_empty:
        raise ConfigError("files is an empty list", where=where, fix="name at least one file")
    names = local_copies(without_side_files(name for path in paths for name in expand_path(path, where)))
    entry = next((entry for entry in FORMATS.values() if entry.source_name == owner), None)
    if entry is None or entry.takes_folder:
        return tuple(names)
    return tuple(file for name in names for file in (files_of(name, entry) if os.path.isdir(name) else [name]))


def expand_path(path: Any, where: str | None = None) -> list[str]:
    """Return the absolute paths and URLs that a path, pattern or URL stands for. A URL that ends in `/` is a folder.

    Raises:
        ConfigError: It is no path.
        SourceError: It is a pattern that matches nothing, or a store refuses.
    """
    text = path_text(path, where)
    own = local_path(text)
    if own is None:
        name = text = f"{text}*" if text.endswith("/") else text
    else:
        text, name = own, os.path.abspath(own)
    return list_matches(name, where=where, folders=True) if is_pattern(text, name) else [name]


def local_files(names: Sequence[str], entry: Format | None = None) -> list[str]:
    """Return a local path for each path or URL of data files; what a URL names is copied by the file cache.

    Args:
        names: Absolute paths and URLs.
        entry: Their format; None: the one that each name tells, or else what is in the file.

    Raises:
        ConfigError: One that is named by its path is given by a URL: nothing is fetched, unless only its first bytes
            tell its format.
        SourceError: What a URL names is missing, or its store refuses.
    """
    untold: list[int] = []
    for number, name in enumerate(names):
        if is_remote(name):
            told = formats_of_name(name) if entry is None else [entry]
            if told and all(one.named_by_paths for one in told):
                raise named_by_path_error(told[0].source_name, name)
            if not told:
                untold.append(number)
    copies = local_copies(names)
    for number in untold:
        with contextlib.suppress(SourceError):  # of no format: what opens it says so
            found = find_format(copies[number])
            if found.named_by_paths:
                raise named_by_path_error(found.source_name, names[number])
    return copies


def named_by_path_error(owner: str, url: str) -> ConfigError:
    """Return the error that a file is given by a URL to a class that names sequences by the paths of their files."""
    return ConfigError(
        "sequences are named by the paths of their files, and a URL is read as a copy under another path",
        where=f"{owner}, {shown_url(url)}",
        fix=PACK_FIX,
    )


def local_file(path: Any, where: str | None = None) -> str:
    """Return the absolute path of the one file that a path, pattern or URL stands for; of a URL it is a copy.

    Raises:
        ConfigError: It is no path, or a pattern that several files match.
        SourceError: A pattern matches nothing, a URL names nothing, or its store refuses.
    """
    names = expand_path(path, where)
    if len(names) > 1:
        raise ConfigError(f"{len(names)} files match {os.fspath(path)!r}, and one is wanted", where=where)
    return local_copies(names)[0]


def path_text(path: Any, where: str | None = None) -> str:
    """Return a path as text.

    Args:
        path: What a user gave.
        where: The option, for errors.

    Raises:
        ConfigError: It is none, or no file can have that name.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{path!r} is not a path", where=where, fix="give a str or a pathlib.Path")
    text = os.fsdecode(path)
    try:
        wrong = "a NUL character" if b"\0" in os.fsencode(text) else None
    except UnicodeEncodeError:
        wrong = "half of a surrogate pair"
    if wrong:
        problem = f"no file can have the name {path!r}: it holds {wrong}"
        raise ConfigError(problem, where=where, fix="check where it comes from")
    return text
