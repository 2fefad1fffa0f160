"""Expands patterns to file names, on a disk of this machine or in a store: `list_matches`, for every entrance.

Names are sorted by their characters, so that the order is the same on every machine, in every locale.
"""

from __future__ import annotations

import glob
import os
from typing import Any

from headrace.errors import ConfigError, SourceError

from ..fetch import FetchOptions, file_system_of, try_often
from ..locations import is_url, shown_url, what_is_near
from .braces import has_braces, list_braces


def is_pattern(name: str, full_name: str) -> bool:
    """Tell whether a name is a pattern.

    Args:
        name: The name as written: `*`, `?`, `[` and braces (see `list_braces`) make a pattern. In a URL only `*` and
            braces, as the others have another meaning.
        full_name: The full path or URL. A file that really has this name is not a pattern.
    """
    if is_url(full_name):
        return "*" in name or has_braces(name)
    return (glob.has_magic(name) or has_braces(name)) and not os.path.lexists(full_name)


def list_matches(pattern: str, root: str = "", where: str | None = None, *, folders: bool = False) -> list[str]:
    """Return the files that a pattern stands for.

    Braces are spelt out first, in their order. What has a `*` then (or `?`, `[...]` on a disk) becomes the names that
    exist, sorted; what has none is a name, whether there is such a file or not.

    Args:
        pattern: An absolute path or a URL, or relative to the root.
        root: A folder, with a slash, or the URL of one; nothing in its name makes a pattern.
        where: What errors name beside the pattern.
        folders: Whether folders count where no file matches.

    Raises:
        SourceError: Nothing matches; it names the nearest folder that exists. Or a store refuses.
        ConfigError: Too many names, or the URL is of an unknown kind.
    """
    found: list[str] = []
    for name in list_braces(pattern):
        full_name = root + name
        if is_url(full_name):
            matches = glob_url(full_name) if "*" in name else [full_name]
        elif glob.has_magic(name) and not os.path.lexists(full_name):
            escaped = glob.escape(root) + name
            matches = glob_local(escaped) or (sorted(glob.glob(escaped)) if folders else [])
        else:
            matches = [full_name]
        if not matches:
            what = f"no file matches the pattern {shown_url(full_name)!r}"
            by_store = "check the URL; a folder of it can be listed by the tools of the store"
            raise SourceError(what, where=where, fix=by_store if is_url(full_name) else what_is_near(full_name))
        found += matches
    return found


def glob_local(pattern: str) -> list[str]:
    """Return the files that a pattern matches (`**`: folders of any depth), sorted. No folders, no hidden files.

    Folders are told from files by listing their parents: a system call for each name would be slow on a network disk.
    """
    folders: dict[str, set[str]] = {}
    found = []
    for path in glob.glob(pattern, recursive=True):
        parent, name = os.path.split(path)
        if parent not in folders:
            folders[parent] = _folders_in(parent)
        if name and name not in folders[parent]:
            found.append(path)
    return sorted(found)


def glob_url(pattern: str) -> list[str]:
    """Return the URLs of the files that a pattern matches in a store, sorted. Transient failures are tried again.

    Raises:
        ConfigError: The URL is of an unknown kind or chained, or its package is not installed.
        SourceError: The store refuses, or does not answer.
    """
    where = shown_url(pattern)
    if "::" in pattern:
        raise ConfigError("a pattern in a chained URL is not expanded", where=where, fix="name the files one by one")

    def find() -> list[str]:
        store, path = file_system_of(pattern)
        store.invalidate_cache()
        found: dict[str, Any] = store.glob(path, detail=True)
        return sorted(store.unstrip_protocol(name) for name, info in found.items() if info.get("type") != "directory")

    return try_often(find, pattern, "list it", FetchOptions())


def _folders_in(parent: str) -> set[str]:
    try:
        with os.scandir(parent or ".") as entries:
            return {entry.name for entry in entries if entry.is_dir()}
    except OSError:  # it may be entered but not listed: then a folder remains, and is refused when it is measured
        return set()
