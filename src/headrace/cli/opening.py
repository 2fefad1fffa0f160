"""Opens the files that a command names as one corpus: the same options in every command."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.files.locations import is_url, shown_url
from headrace.sources import Source, open_source
from headrace.sources.formats import without_side_files
from headrace.sources.registry import keeps_index, resolve_files
from headrace.sources.shared.paths import expand_path, local_files

from .configs import extend_import_path


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file or folder that a command line names, or a pattern there.

    Attributes:
        path: Where it is on this machine: for a URL the copy in the file cache.
        name: What to call it: the URL, or the path, relative if the argument is.
    """

    path: str
    name: str


def find_data_files(arguments: Iterable[str]) -> list[DataFile]:
    """Return the files that the arguments of a command name: paths, patterns, folders, URLs.

    Whether there is a file of a name that is no pattern, who opens it finds out.

    Raises:
        ConfigError: An argument is no path, a URL of an unknown kind, or that of a file that is named by its path.
        SourceError: A pattern matches nothing, a URL names nothing, or its store refuses.
    """
    called: dict[str, str] = {}  # by path or URL
    names: list[str] = []
    for argument in arguments:
        for name in expand_path(argument):
            is_relative = not is_url(argument) and not os.path.isabs(argument)
            called.setdefault(name, shown_url(os.path.relpath(name) if is_relative else name))
            names.append(name)
    names = without_side_files(names)
    return [DataFile(path, called[name]) for path, name in zip(local_files(names), names, strict=True)]


def class_of(files: Sequence[str], source_class: str | None) -> type[Source]:
    """Return the class that opens files: the one that was named, or that of their format.

    Raises:
        ConfigError: There is no such class, or the files are of different formats.
        SourceError: A file is missing, or of an unknown format.
    """
    if source_class is not None:
        import_from_here(source_class)
    return resolve_files(files, source_class)[0]


def import_from_here(name: str) -> None:
    """Let "module:Name" name a module of the current folder, as `python -m` does and an installed command does not."""
    if ":" in name:
        extend_import_path(Path.cwd(), front=False)


def open_corpus(
    files: Sequence[str],
    source_class: str | None,
    options: Mapping[str, Any],
    index: str | os.PathLike[str] | None = None,
) -> Source:
    """Open files as one corpus.

    Args:
        files: Paths, see `find_data_files`.
        source_class: Source class or format; default: detected.
        options: Options of the class.
        index: `None`, `"auto"` or a path, for a class that keeps an index, unless given in `options`.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A file is missing or wrong.
    """
    kept = {"index": index} if keeps_index({"class": class_of(files, source_class)}) else {}
    return open_source(list(files), source_class=source_class, **{**kept, **options})
