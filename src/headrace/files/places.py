"""Where files may be: inside their root, and in the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import CacheError, SourceError


def resolve_inside(root: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Return the real path of `path`, read relative to `root`, if it lies inside `root`.

    For paths that come from data (a manifest, an archive). Links are followed, and where they lead counts. The file
    need not exist.

    Raises:
        SourceError: The path leads outside, by being absolute, by `..` or through a link, or is no path at all.
    """
    try:
        real_root = Path(root).resolve()
        real_path = (real_root / path).resolve()
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
