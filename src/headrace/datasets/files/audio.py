"""`AudioDataset`: recordings listed in a manifest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headrace.sources import AudioSource

from ..cached import CachedDataset
from ..checks import absolute_name


class AudioDataset(CachedDataset):
    """Recordings listed in a JSONL manifest, as raw samples or features, with labels and text. Needs `headrace[audio]`.

    Args:
        manifest: JSONL file: one object a line with tag, audio path (relative to the manifest's folder), labels,
            length.
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
        manifest: str | os.PathLike[str],
        *,
        features: Any = "raw",
        targets: Mapping[str, Any] | None = None,
        source_options: Mapping[str, Any] | None = None,
        index: str | os.PathLike[str] | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        manifest = absolute_name(manifest)
        index = index if index in ("auto", None) else absolute_name(index)
        options = dict(source_options or {})
        if "root" in options:
            options["root"] = absolute_name(options["root"])
        if type(self).__init__ is AudioDataset.__init__:  # as in HDFDataset: a copy may be made in another folder
            own = {"features": features, "targets": targets, "source_options": options, "index": index}
            self._ctor_args = ((), {**kwargs, "manifest": manifest, **own})
        self._set_source(AudioSource(manifest, features=features, targets=targets or {}, index=index, **options))
