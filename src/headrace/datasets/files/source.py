"""`SourceDataset`: the epoch API over any source."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError
from headrace.sources import Source
from headrace.sources.formats import format_of_source
from headrace.sources.naming import first_option_of, options_of
from headrace.sources.registry import init_source, keeps_index, resolve_files, source_class_of

from ..cached import CachedDataset
from ..checks import absolute_name

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class SourceDataset(CachedDataset):
    """Sequences of any source: of files in any format that Headrace reads, or of a source of your own.

    Sorting orders use the length of the first data key.

    Args:
        source: A `Source`; a dict `{"class": "TarSource", ...}`; or a file, folder, pattern or list of them, whose
            format is found by what lies there, see `open_source`.
        files: The files, where `source` is a dict without them, or is left out: for configs in which the files come
            from somewhere else, such as those of a sub-epoch.
        index: `"auto"` keeps the index of large files in the user's cache folder, `None` only in memory, a path names
            one that `headrace index` wrote; for sources that have one.
        **kwargs: See `CachedDataset` and `Dataset`.

    Raises:
        ConfigError: An option is wrong.
        SourceError: The source cannot read its files.
    """

    def __init__(
        self,
        source: Source | Mapping[str, Any] | Files | None = None,
        *,
        files: Files | None = None,
        index: str | os.PathLike[str] | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_source(self._make(source, files, index))

    def _make(self, source: Any, files: Files | None, index: Any) -> Source:
        where = f"dataset {self.name!r}"
        if isinstance(source, Source):
            if files is not None or index != "auto":
                raise ConfigError(
                    f"files and index are options of a source, and this {type(source).__name__} is built already",
                    where=where,
                    fix="give them to its class",
                )
            return source
        if not isinstance(source, Mapping):
            given = files if source is None else source
            if given is None or (source is not None and files is not None):
                raise ConfigError(
                    "the data are named twice, by source and by files, or not at all",
                    where=where,
                    fix="give one of them",
                )
            cls, names = resolve_files(given)
            entry = format_of_source(cls)
            config: dict[str, Any] = {"class": cls, first_option_of(cls) or "files": names}
            config.update({} if entry is None else entry.defaults)
        else:
            config = dict(source)
            if files is not None:
                _place_files(config, files, where)
        if keeps_index(config):
            config.setdefault("index", index if index in ("auto", None) else absolute_name(index))
        elif index not in ("auto", None):
            raise ConfigError(
                f"{config.get('class')} has no index that could be kept", where=where, fix="leave index at 'auto'"
            )
        return init_source(config)


def _place_files(config: dict[str, Any], files: Files, where: str) -> None:
    """Give files to a source config, under the name that its class has for them."""
    cls = source_class_of(config)
    name = first_option_of(cls)
    if name is None or name in config or name not in options_of(cls):
        raise ConfigError(
            f"files are named twice: by files and by {name!r} of the source"
            if name in config
            else f"{cls.__name__} takes no files",
            where=where,
            fix="leave files out",
        )
    names = [files] if isinstance(files, str | os.PathLike) else list(files)
    config[name] = names[0] if len(names) == 1 else names
