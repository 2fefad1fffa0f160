"""`AudioDataset`: recordings listed in a manifest or a table, or those of a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError
from headrace.sources import AudioFolderSource, AudioSource, AudioTableSource
from headrace.sources.audio.source import is_table
from headrace.sources.naming import first_option_of, options_of

from ..cached import CachedDataset
from ..checks import absolute_index, absolute_name, check_source_options


class AudioDataset(CachedDataset):
    """Recordings listed in a manifest or table, or those of a folder, as raw samples or features, with labels and text.

    Needs `headrace[audio]`.

    Args:
        manifest: JSONL, CSV or TSV file: one object a line with tag, audio path (relative to the manifest's folder),
            labels, length. Or pairs (path, text), dicts, or a `DataFrame`, see `AudioTableSource`; their paths are
            absolute, or relative to the working directory. Or a folder, all recordings of which are taken, see
            `AudioFolderSource`; `targets` and `source_options` are then its own.
        root: Folder that audio paths are relative to, in place of these.
        features: "raw" (float32[T, 1]), "log_mel", a dict of options for `LogMel`, or a `LogMel`.
        targets: Data key -> field of the manifest, or {"field": ..., "vocab": ...}, see `AudioSource`; `{}` leaves
            out the texts of a manifest that has some.
        source_options: More options of the source, such as `sample_rate`.
        index: "auto" keeps the index of a large manifest in the user's cache folder, `None` reads the manifest each
            time; a path names an index that was saved with the same options, see `AudioSource`.
        **kwargs: See `CachedDataset` and `Dataset`.

    Raises:
        ConfigError: An option of the source is unknown.
        SourceError: The manifest is not valid, or audio is missing or outside its root.
    """

    _content_options = ("features", "targets", "source_options")

    def __init__(
        self,
        manifest: str | os.PathLike[str] | Any,
        *,
        root: str | os.PathLike[str] | None = None,
        features: Any = "raw",
        targets: Mapping[str, Any] | None = None,
        source_options: Mapping[str, Any] | None = None,
        index: str | os.PathLike[str] | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        where = f"dataset {self.name!r}"
        cls: type[AudioSource | AudioTableSource | AudioFolderSource] = AudioTableSource
        if not is_table(manifest):
            manifest = absolute_name(manifest)
            cls = AudioFolderSource if os.path.isdir(manifest) else AudioSource
        valid = options_of(cls) - {"features", "targets", "index", first_option_of(cls)}
        options = check_source_options(source_options, valid, cls.__name__, where)
        if root is not None and cls is AudioFolderSource:
            fix = "leave root out: the recordings of a folder are below it"
            raise ConfigError("root is given, and so is a folder", where=where, fix=fix)
        root = options.get("root") if root is None else root
        if root is not None:
            options["root"] = absolute_name(root)
        if cls is not AudioTableSource:
            options["index"] = absolute_index(index)
        self._set_source(cls(manifest, features=features, targets=targets, **options))
