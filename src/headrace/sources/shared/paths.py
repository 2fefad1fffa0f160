"""Paths as users give them: one or several, patterns, folders, URLs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from headrace.errors import ConfigError
from headrace.files.cache.local_copies import local_copies
from headrace.files.lists.patterns import is_pattern, list_matches
from headrace.files.locations import is_remote, local_path, shown_url

from ..formats import FORMATS, Format, files_of, format_of_name, without_side_files

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
    entry = next((entry for entry in FORMATS.values() if entry.source == owner), None)
    return tuple(files_below(expand_paths(files, entry, f"{owner}(files=...)", may_be_empty=may_be_empty), entry))


def files_below(names: Iterable[str], entry: Format | None) -> list[str]:
    """Return paths with the files of its folders in the place of each folder, if the format wants single files."""
    if entry is None or entry.takes_folder:
        return list(names)
    return [file for name in names for file in (files_of(name, entry) if os.path.isdir(name) else [name])]


def expand_paths(
    paths: Any, entry: Format | None = None, where: str | None = None, *, may_be_empty: bool = False
) -> list[str]:
    """Return absolute paths: patterns become what matches them, by name, and URLs local copies, see `local_files`.

    Args:
        paths: Files, folders, patterns or URLs.
        entry: Their format; None: not known yet.
        where: The option, for errors.
        may_be_empty: Whether an empty list is an empty corpus.

    Raises:
        ConfigError: There is none; or files are given by URLs that are named by their paths.
        SourceError: A pattern matches nothing, or a store refuses.
    """
    given = [paths] if isinstance(paths, str | bytes) or not isinstance(paths, Iterable) else paths
    names = without_side_files(name for path in given for name in expand_path(path, where))
    if not names and not may_be_empty:
        raise ConfigError("no files are named: this is an empty list", where=where, fix="name at least one file")
    return local_files(names, entry)


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
        entry: Their format; None: the one that each name tells.

    Raises:
        ConfigError: One that is named by its path is given by a URL; nothing is fetched.
        SourceError: What a URL names is missing, or its store refuses.
    """
    for name in filter(is_remote, names):
        told = entry or format_of_name(name)
        if told is not None and told.named_by_paths:
            raise named_by_path_error(told.source, name)
    return local_copies(names)


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
        is_name = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half of a surrogate pair
        is_name = False
    if not is_name:
        raise ConfigError(f"no file can have the name {path!r}", where=where, fix="check where it comes from")
    return text
