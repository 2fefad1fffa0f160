"""The mark of a file that is to be read through the file cache, and how marks are replaced in a dataset's dict."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .cache_entry import plain_source


@dataclass(frozen=True)
class CachedFile:
    """Marks a file in a dataset's dict that is to be read through the file cache.

    It may stand wherever a file name may, in dicts, lists and tuples. It is no path on purpose: what opens paths would
    read the source and pass the cache by without a word.

    Args:
        filename: Absolute path or URL.

    Raises:
        ConfigError: The path is relative, or no name at all.
    """

    filename: str

    def __post_init__(self) -> None:
        """Check the name."""
        object.__setattr__(self, "filename", plain_source(self.filename))


def replace_cached_files(value: Any, get: Callable[[CachedFile], Any]) -> Any:
    """Return a structure of dicts, lists and tuples with `get(file)` in the place of each `CachedFile`.

    What has none in it stays the same object; the rest is new, of the same types, and what was given is not changed.
    """
    if isinstance(value, CachedFile):
        return get(value)
    if isinstance(value, dict):
        changed = {key: replace_cached_files(part, get) for key, part in value.items()}
        if all(changed[key] is part for key, part in value.items()):
            return value
        replaced = copy.copy(value)  # of its own type: an OrderedDict stays one
        replaced.update(changed)
        return replaced
    if isinstance(value, (list, tuple)):
        parts = [replace_cached_files(part, get) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
