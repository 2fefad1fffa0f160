"""`AudioDataset`: recordings listed in a manifest or a table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headrace.sources import AudioSource, AudioTableSource
from headrace.sources.audio.table import is_table

from ..cached import CachedDataset
from ..checks import absolute_name


class AudioDataset(CachedDataset):
    """Recordings listed in a manifest or table, as raw samples or features, with labels and text.

    Needs `headrace[audio]`.

    Args:
        manifest: JSONL, CSV or TSV file: one object a line with tag, audio path (relative to the manifest's folder),
            labels, length. Or pairs (path, text), dicts, or a `DataFrame`, see `AudioTableSource`; their paths are
            absolute, or relative to the working directory.
        root: Folder that audio paths are relative to, in place of these.
        features: "raw" (float32[T, 1]), "log_mel", a dict of options for `LogMel`, or a `LogMel`.
        targets: Data key -> field of the manifest, or {"field": ..., "vocab": ...}, see `AudioSource`.
        source_options: More options of `AudioSource`, such as `sample_rate` or `root`.
        index: "auto" keeps the index of a large manifest in the user's cache folder, `None` reads the manifest each
            time; a path names an index that was saved with the same options, see `AudioSource`.
        **kwargs: See `CachedDataset` and `Dataset`.

    Raises:
        SourceError: The manifest is not valid, or audio is missing or outside its root.
    """

    content_options = ("features", "targets", "source_options")

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
        options = dict(source_options or {})
        if root is not None:
            options["root"] = root
        if "root" in options:
            options["root"] = absolute_name(options["root"])
        source: AudioSource | AudioTableSource
        own = {"features": features, "targets": targets, "source_options": options}
        if is_table(manifest):
            source = AudioTableSource(manifest, features=features, targets=targets, **options)
        else:
            manifest = absolute_name(manifest)
            own["index"] = index = index if index in ("auto", None) else absolute_name(index)
            source = AudioSource(manifest, features=features, targets=targets or {}, index=index, **options)
        if type(self).__init__ is AudioDataset.__init__:  # as in HDFDataset: a copy may be made in another folder
            self._ctor_args = ((), {**kwargs, "manifest": manifest, **own})
        self._set_source(source)
