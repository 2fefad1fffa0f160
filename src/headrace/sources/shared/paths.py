"""Paths as users give them: one or several."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from headrace.errors import ConfigError

PathLike = str | os.PathLike[str]
Files = PathLike | Sequence[PathLike]
IndexOption = PathLike | Literal["auto"] | None


def list_paths(files: Any, owner: str, *, may_be_empty: bool = False) -> tuple[str, ...]:
    """Return absolute paths of one path or several.

    Args:
        files: The option.
        owner: Name of the class, for errors.
        may_be_empty: Whether an empty list is an empty corpus.

    Raises:
        ConfigError: It is something else, or an empty list that may not be.
    """
    is_one = isinstance(files, str | bytes | os.PathLike) or not isinstance(files, Iterable)
    paths = [files] if is_one else list(files)
    if not paths and not may_be_empty:
        raise ConfigError("files is an empty list", where=f"{owner}(files=...)", fix="name at least one file")
    return tuple(os.path.abspath(path_text(path, f"{owner}(files=...)")) for path in paths)


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
