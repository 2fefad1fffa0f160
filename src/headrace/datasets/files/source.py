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
from ..checks import absolute_index

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
        def error(what: str, fix: str) -> ConfigError:
            return ConfigError(what, where=f"dataset {self.name!r}", fix=fix)

        if isinstance(source, Source):
            if files is not None or index != "auto":
                what = f"files and index are options of a source, and this {type(source).__name__} is built already"
                raise error(what, "give them to its class")
            return source
        if isinstance(source, Mapping):
            config = dict(source)
            if files is not None:
                cls = source_class_of(config)
                name = first_option_of(cls)
                if name in config:
                    raise error(f"files are named twice: by files and by {name!r} of the source", "leave files out")
                if name is None or name not in options_of(cls):
                    raise error(f"{cls.__name__} takes no files", "leave files out")
                names = [files] if isinstance(files, str | os.PathLike) else list(files)
                config[name] = names[0] if len(names) == 1 else names
        elif (source is None) == (files is None):
            raise error("the data are named twice, by source and by files, or not at all", "give one of them")
        else:
            given: Any = files if source is None else source
            cls, found = resolve_files(given)
            entry = format_of_source(cls)
            config = {"class": cls, first_option_of(cls) or "files": found, **(entry.defaults if entry else {})}
        if keeps_index(config):
            config.setdefault("index", absolute_index(index))
        elif index not in ("auto", None):
            raise error(f"{config.get('class')} has no index that could be kept", "leave index at 'auto'")
        return init_source(config)
