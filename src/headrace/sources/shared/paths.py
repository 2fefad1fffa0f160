"""Paths as users give them: one or several, patterns, folders, URLs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from headrace.errors import ConfigError, SourceError
from headrace.files.cache.local_copies import local_copies
from headrace.files.lists.patterns import is_pattern, list_matches
from headrace.files.locations import local_path

from ..formats import FORMATS, files_of

PathLike = str | os.PathLike[str]
Files = PathLike | Sequence[PathLike]
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
    names = local_copies([name for path in paths for name in expand_path(path, where)])
    entry = next((entry for entry in FORMATS.values() if entry.source_name == owner), None)
    if entry is None or entry.takes_folder:
        return tuple(names)
    found: list[str] = []
    for name in names:
        inside = files_of(name, entry) if os.path.isdir(name) else [name]
        if not inside:
            raise SourceError(
                f"the folder itself has no {entry.title} files",
                where=name,
                fix="name those of its sub-folders, by a pattern such as 'folder/*/*'",
            )
        found += inside
    return tuple(found)


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
