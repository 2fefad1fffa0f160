"""`init_source` and `open_source`: open a source from a dict, as configs write it, or from files.

A dict names a class and its options; nothing that it says is evaluated. From a path alone, the format is detected
(`formats.py`), and the class of that format opens it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError

from .base import Source
from .formats import FORMATS, Format, find_format, format_of_source
from .naming import NamedClasses, first_option_of, options_of
from .shared.paths import PathLike, expand_paths, files_below
from .shared.writer import Writer

_IN_MEMORY = ("MapSource", "MemorySource")
_SOURCES = NamedClasses(
    "source",
    Source,  # type: ignore[type-abstract]
    __package__,
    dict.fromkeys([*(entry.source for entry in FORMATS.values()), *_IN_MEMORY], __package__),
)
_WRITERS = NamedClasses(
    "writer",
    Writer,  # type: ignore[type-abstract]
    __package__,
    dict.fromkeys([entry.writer for entry in FORMATS.values() if entry.writer], __package__),
)

SourceConfig = Source | Mapping[str, Any] | PathLike | Sequence[PathLike]


def init_source(config: SourceConfig, **options: Any) -> Source:
    """Make a source.

    Args:
        config: A source, which is returned; a dict whose key "class" is a name, a class, or "package.module:Class" for
            one of your own; or one path or several, see `open_source`.
        **options: Options that a dict or a path leaves out.

    Raises:
        ConfigError: An unknown class or option; the nearest valid name is given.
        SourceError: The data cannot be read.
    """
    if isinstance(config, Source):
        if options:
            raise ConfigError(
                f"a {type(config).__name__} that is built already takes no options: {sorted(options)}",
                fix="describe it by a dict, or give the options to its class",
            )
        return config
    if not isinstance(config, Mapping):
        return open_source(config, **options)
    merged = {**options, **config}
    if "class" not in merged:
        raise ConfigError(
            f"a source config needs the key 'class'; it has {sorted(map(str, merged))}",
            fix=f"one of {', '.join(_SOURCES.module_of)}",
        )
    return _SOURCES.make(_SOURCES.resolve(merged.pop("class")), **merged)


def open_source(paths: PathLike | Sequence[PathLike], *, source_class: str | None = None, **options: Any) -> Source:
    """Open files or folders as one corpus, by the format that they have.

    Args:
        paths: One, or several of the same format, one after the other. Patterns (`train-*.tar`, `{train,dev}.hdf`,
            `{000..099}.tar`) stand for the files that match, in the order of their names, folders for the files in
            them. URLs (`s3://`, `gs://`, `https://`, `hf://`) are copied by the file cache, patterns in them too.
        source_class: Source class or format; default: detected.
        **options: For the class.

    Raises:
        ConfigError: They are of different formats, or an option is wrong.
        SourceError: A file is missing, or of no format that is known; or its source refuses it.
    """
    cls, given = resolve_files(paths, source_class)
    first = first_option_of(cls)
    if first in options:
        raise ConfigError(f"the option {first!r} is what the paths are for", fix="leave it out")
    entry = format_of_source(cls)
    return _SOURCES.make(cls, given, **(options if entry is None else entry.completed(options)))


def resolve_files(
    paths: PathLike | Iterable[PathLike], source_class: str | None = None
) -> tuple[type[Source], str | list[str]]:
    """Return the class that opens files or folders, and its argument: one path, or several.

    Args:
        paths: Files, folders, patterns or URLs.
        source_class: Source class or format; default: detected.

    Raises:
        ConfigError: They are of different formats, or no one corpus, or there is no such class.
        SourceError: A file is missing, or of no format that is known.
    """
    cls, entry = None, None
    if source_class is not None:
        cls = _SOURCES.resolve(FORMATS[source_class].source if source_class in FORMATS else source_class)
        entry = format_of_source(cls)
    names = expand_paths(paths, entry)
    if cls is None:
        entry = _common_format(names)
        cls = _SOURCES.resolve(entry.source)
    names = files_below(names, entry)
    are_files = entry is not None and entry.named_by_paths and os.path.isfile(names[0])
    if len(names) > 1 and entry is not None and not entry.takes_many and not are_files:
        raise ConfigError(
            f"{len(names)} files, and {cls.__name__} opens one",
            where=names[1],
            fix="open each by itself, and join them by a ConcatDataset",
        )
    return cls, names if are_files or len(names) > 1 else names[0]


def _common_format(names: Sequence[str]) -> Format:
    entry, suffix = find_format(names[0]), os.path.splitext(names[0])[1]
    for name in names[1:]:
        # Of a hundred thousand files on a network disk, only those with another ending are looked into.
        other = entry if suffix and os.path.splitext(name)[1] == suffix else find_format(name)
        if other != entry:
            raise ConfigError(
                f"files of different formats cannot be one corpus: {entry.title} ({names[0]}) and {other.title} "
                f"({name})",
                fix="open each by itself",
            )
    return entry


def source_class_of(config: Mapping[str, Any]) -> type[Source]:
    """Return the class that a source config names.

    Raises:
        ConfigError: There is no such class.
    """
    return _SOURCES.resolve(config.get("class"))


def keeps_index(config: Any) -> bool:
    """Tell whether a dict describes a source that takes the option `index`. An unknown class takes none."""
    try:
        return isinstance(config, Mapping) and "index" in options_of(source_class_of(config))
    except ConfigError:
        return False


def open_writer(target: Format, path: PathLike, **options: Any) -> Writer:
    """Open the writer of a format.

    Args:
        target: The format.
        path: What to write.
        **options: For its class: `specs`, `labels`, `overwrite`, and what the format needs.

    Raises:
        ConfigError: The format cannot be written, or an option is wrong, or it cannot hold such sequences.
        SourceError: The folder cannot be written to.
    """
    return _WRITERS.make(writer_class_of(target), path, **options)


def writer_class_of(target: Format) -> type[Writer]:
    """Return the class that writes a format.

    Raises:
        ConfigError: There is none.
    """
    if target.writer is None:
        written = ", ".join(sorted(entry.name for entry in FORMATS.values() if entry.writer))
        raise ConfigError(f"{target.title} can be read, but not written", fix=f"choose one of {written}")
    return _WRITERS.resolve(target.writer)
