"""What users give as files: one path or several."""

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
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(
                f"{path!r} is not a path", where=f"{owner}(files=...)", fix="give a str or a pathlib.Path"
            )
    if not paths and not may_be_empty:
        raise ConfigError("files is an empty list", where=f"{owner}(files=...)", fix="name at least one file")
    return tuple(os.path.abspath(os.fsdecode(path)) for path in paths)
