"""Paths and URLs of files: what a name refers to, whether it stays inside its root, and the user's cache folder.

Names come from users and from data, so none is trusted: a path must not lead out of its root, a pipe is never waited
for, and secrets in a URL are not shown. No request is sent to a store.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from pathlib import Path
from typing import IO

from headrace.errors import CacheError, SourceError

_MAX_NAMED = 5  # files of a folder that an error names

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:://|::)")
_LOCAL = re.compile(r"(?:file|local)://", re.IGNORECASE)
_SECRETS = re.compile(r"(?<=://)[^/@\s]*@")
_QUERIES = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]+", re.IGNORECASE)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is a URL, `"s3://..."` or chained as `"zip://a.hdf::s3://..."`."""
    text = os.fspath(path)
    return _URL.match(text) is not None and "://" in text


def local_path(path: str | os.PathLike[str]) -> str | None:
    """Return a local path, without `file://`; None for a URL of another kind."""
    text = os.fspath(path)
    if not is_url(text):
        return text
    if _LOCAL.match(text) and "::" not in text:
        return _LOCAL.sub("", text)
    return None


def is_remote(path: str) -> bool:
    """Tell whether a path is a URL that has to be fetched."""
    return local_path(path) is None


def shown_url(text: str) -> str:
    """Return a URL, or a text with URLs, for messages: without user, password and query, which may be a signature."""
    return _QUERIES.sub(r"\1?...", _SECRETS.sub("", text))


def resolve_inside(root: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Return the real path of `path`, read relative to `root`, if it lies inside `root`.

    For paths that come from data (a manifest, an archive). Links are followed: their target counts. The file need not
    exist.

    Raises:
        SourceError: The path leads outside, by being absolute, by `..` or through a link, or is not a path.
    """
    try:
        real_root = Path(root).resolve()
        real_path = (real_root / path).resolve()
        if real_path.is_symlink():
            real_path.stat()  # raises: it is a loop, of which `resolve` itself says so before Python 3.13
    except (OSError, RuntimeError, ValueError) as error:  # too long; a loop of links; a null character
        raise SourceError(f"{os.fspath(path)!r} is not a usable path: {error}", where=str(root)) from error
    if not real_path.is_relative_to(real_root):
        raise SourceError(
            f"the path {os.fspath(path)!r} leads to {real_path}, outside its root {real_root}",
            where=str(real_root),
            fix="name files by paths inside the root, or choose a root that holds them all",
        )
    return real_path


def user_cache_dir() -> Path:
    """Return the cache folder: `$HEADRACE_CACHE`, `$XDG_CACHE_HOME/headrace` or `~/.cache/headrace`.

    The folder may not exist yet. An empty variable counts as unset, and so does a relative `$XDG_CACHE_HOME` (as the
    XDG Base Directory Specification demands).

    Raises:
        CacheError: There is no home folder either.
    """
    own = os.environ.get("HEADRACE_CACHE")
    if own:
        return Path(os.path.abspath(own))
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg and os.path.isabs(xdg):
        return Path(xdg) / "headrace"
    try:
        return Path.home() / ".cache" / "headrace"
    except RuntimeError as error:
        raise CacheError("this user has no home folder", fix="set HEADRACE_CACHE to a folder") from error


def what_is_near(path: str) -> str:
    """Say which folder above a local path or pattern exists, and what is in it."""
    folder = os.path.dirname(os.path.abspath(path))
    while glob.has_magic(folder) or not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return f"check the path: the nearest folder that exists is {folder}, which cannot be read ({error.strerror})"
    more = f", and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    inside = f"has {', '.join(names[:_MAX_NAMED])}{more}" if names else "is empty"
    return f"check the path: the nearest folder that exists, {folder}, {inside}"


# Errors of the system when no more files can be opened: by this process, or by all.
TOO_MANY_OPEN = frozenset({errno.EMFILE, errno.ENFILE})
TOO_MANY_OPEN_FIX = "raise the limit with `ulimit -n`, or close what this process has open"


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading; a pipe or a device is refused without waiting.

    Raises:
        OSError: It is missing or cannot be opened.
        SourceError: It is not a regular file, its name has a NUL in it, or no more files can be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:
        raise SourceError("no file has a NUL in its name", where=repr(path), fix="check the path") from error
    except OSError as error:
        if error.errno in TOO_MANY_OPEN:
            what = f"cannot open the file: {error.strerror}"
            raise SourceError(what, where=os.fspath(path), fix=TOO_MANY_OPEN_FIX) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError("this is not a regular file", where=os.fspath(path), fix="give the path of a file")
    return os.fdopen(descriptor, "rb")
