"""Expands patterns to file names, on a disk of this machine or in a store.

Names are sorted by their characters, so that the order is the same on every machine, in every locale.
"""

from __future__ import annotations

import glob
import os
from typing import Any

from headrace.errors import ConfigError

from ..fetch.options import FetchOptions
from ..fetch.ranges import try_often
from ..fetch.reader import BlockingCalls
from ..locations import is_url, shown_url

_OPTIONS = FetchOptions(timeout_seconds=600.0)  # to list a million objects takes a thousand requests


def is_pattern(name: str, full_name: str) -> bool:
    """Tell whether a name is a pattern.

    Args:
        name: The name as written: `*`, `?` and `[` make a pattern. In a URL only `*`, as the others have another
            meaning.
        full_name: The full path or URL. A file that really has this name is not a pattern.
    """
    if is_url(full_name):
        return "*" in name
    return glob.has_magic(name) and not os.path.lexists(full_name)


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
    calls = BlockingCalls()
    try:
        return try_often(lambda: calls.submit(_glob_store, pattern), where, "list it", _OPTIONS, _ignore)
    finally:
        calls.close()


def _glob_store(pattern: str) -> list[str]:
    """Return the matches; in one thread throughout, as some file systems belong to the thread that made them."""
    from ..fetch.remote import file_system_of  # here, as asyncio takes 50 ms to import, and most patterns are local

    store, path = file_system_of(pattern)
    store.invalidate_cache()
    found: dict[str, Any] = store.glob(path, detail=True)
    return sorted(store.unstrip_protocol(name) for name, info in found.items() if info.get("type") != "directory")


def _folders_in(parent: str) -> set[str]:
    try:
        with os.scandir(parent or ".") as entries:
            return {entry.name for entry in entries if entry.is_dir()}
    except OSError:  # it may be entered but not listed: then a folder remains, and is refused when it is measured
        return set()


def _ignore(_num_bytes: int) -> None:
    pass
