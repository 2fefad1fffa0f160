"""Opens the files that a command names as one corpus: the same options in every command."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.sources import Source, open_source
from headrace.sources.registry import keeps_index, resolve_files

from .configs import apply_setting


def parse_settings(settings: Iterable[str] | None) -> dict[str, Any]:
    """Return the options that "key=value" texts give.

    Raises:
        ConfigError: One has another form.
    """
    options: dict[str, Any] = {}
    for setting in settings or ():
        apply_setting(options, setting)
    return options


def class_of(files: Sequence[Path], source_class: str | None) -> type[Source]:
    """Return the class that opens files: the one that was named, or that of their format.

    Raises:
        ConfigError: There is no such class, or the files are of different formats.
        SourceError: A file is missing, or of an unknown format.
    """
    return resolve_files(files, source_class)[0]


def open_corpus(
    files: Sequence[Path],
    source_class: str | None,
    options: Mapping[str, Any],
    index: str | os.PathLike[str] | None = None,
) -> Source:
    """Open files as one corpus.

    Args:
        files: Files, folders or patterns.
        source_class: Source class or format; default: detected.
        options: Options of the class.
        index: `None`, `"auto"` or a path, for a class that keeps an index, unless given in `options`.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A file is missing or wrong.
    """
    kept = {"index": index} if keeps_index({"class": class_of(files, source_class)}) else {}
    return open_source(list(files), source_class=source_class, **{**kept, **options})
