"""`OggZipDataset`: recordings and texts in OggZip archives."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Literal

import numpy as np

from headrace.errors import ConfigError
from headrace.sources import SORT_LENGTHS
from headrace.sources.ogg_zip.source import OggZipSource
from headrace.vocabularies.base import Vocabulary, init_vocabulary

from ..cached import CachedDataset, SourceCorpus
from ..checks import absolute_index, absolute_name, refuse_cache_manager
from ..reading.reader import Features

PathLike = str | os.PathLike[str]


class OggZipDataset(CachedDataset):
    """Recordings and texts in zip archives, with RETURNN's parameters; see `OggZipSource` for what an archive is.

    Keys are "data" (if `audio`), "classes" (if `targets`) and "orth", the UTF-8 bytes of the text. `get_data` also
    answers "raw", the text itself as an array of one string, which is not part of batches, and which the functions of
    a `PostprocessingDataset` get. Orders that sort use
    `int(duration * 100)`.

    Args:
        path: The zip file or several, or a folder of them; `name.txt.gz` replaces the text of `name.zip`; or a folder
            beside its `.txt`.
        audio: `{"features": "raw"}`, with "sample_rate", "peak_normalization", ...; `None` for no audio. Other features
            are for `transform`, for example by `LogMel`. So is what RETURNN draws at random (`random_permute`), which
            depends on the order of reading there.
        targets: A vocabulary: a dict such as `{"class": "CharacterTargets", ...}` or a `Vocabulary`; `None` for none.
        content_name: Name inside the archive, if it is not that of the file.
        resolve_symlink_for_name: Whether that is the name of the file that a link points to.
        targets_post_process: A function from text to text, or a list of such, applied before `targets`.
        use_cache_manager: Not offered: only `False` is accepted.
        segment_file: Tags to use, one a line; also `.gz`.
        zip_audio_files_have_name_as_prefix: Whether recordings are below a folder with the name of the archive.
        fixed_random_subset: A share of the sequences or a number of them, the same in all epochs.
        fixed_random_subset_seed: For that.
        data_lengths: How lengths of "data" are known without reading, for batches by length: "header", "duration" or
            `None` (they are not), see `OggZipSource`.
        index: "auto" keeps the index of large archives in the user's cache folder, `None` reads all texts each time.
        **kwargs: See `CachedDataset` and `Dataset`; "name" is by default that of the first archive.

    Raises:
        ConfigError: An option is wrong, or not offered.
        SourceError: An archive is damaged, its text is broken, or recordings are missing.
    """

    _content_options = ("audio", "targets", "targets_post_process")

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        *,
        content_name: str | Sequence[str] | None = None,
        resolve_symlink_for_name: bool = False,
        audio: Mapping[str, Any] | None,
        targets: Any,
        targets_post_process: Callable[[str], str] | Sequence[Callable[[str], str]] | None = None,
        use_cache_manager: bool = False,
        segment_file: PathLike | None = None,
        zip_audio_files_have_name_as_prefix: bool = True,
        fixed_random_subset: float | int | None = None,
        fixed_random_subset_seed: int = 42,
        data_lengths: Literal["duration", "header"] | None = None,
        index: PathLike | None = "auto",
        **kwargs: Any,
    ) -> None:
        paths = [absolute_name(one) for one in path] if isinstance(path, list | tuple) else absolute_name(path)
        first = paths[0] if isinstance(paths, list) and paths else str(paths)
        kwargs.setdefault("name", os.path.splitext(os.path.basename(first))[0])
        super().__init__(**kwargs)
        refuse_cache_manager(use_cache_manager, f"dataset {self.name!r}")
        source = OggZipSource(
            paths,
            audio=audio,
            targets=None if targets is None else init_vocabulary(targets),
            content_name=content_name,
            resolve_symlink_for_name=resolve_symlink_for_name,
            targets_post_process=_joined(targets_post_process),
            segment_file=segment_file,
            zip_audio_files_have_name_as_prefix=zip_audio_files_have_name_as_prefix,
            fixed_random_subset=fixed_random_subset,
            fixed_random_subset_seed=fixed_random_subset_seed,
            data_lengths=data_lengths,
            index=absolute_index(index),
        )
        self._set_source(source, OggZipCorpus, sort_key=SORT_LENGTHS)

    @property
    def targets(self) -> Vocabulary | None:
        """The vocabulary of "classes"."""
        assert isinstance(self.source, OggZipSource)
        return self.source.vocabulary


class OggZipCorpus(SourceCorpus):
    """The sequences of OggZip archives, with their texts."""

    text_keys = ("raw",)

    def texts(self, corpus_idx: int) -> Features:
        """Return the text itself."""
        assert isinstance(self.source, OggZipSource)
        return {"raw": np.array(self.source.read_text(corpus_idx))}


def _joined(post_process: Any) -> Callable[[str], str] | None:
    """Return the option as one function: a list of functions is applied in order; `None` for none."""
    steps = post_process if isinstance(post_process, list | tuple) else [post_process]
    if post_process is None or not steps:
        return None
    if not all(map(callable, steps)):
        raise ConfigError(
            f"targets_post_process={post_process!r} is not known",
            where="OggZipDataset",
            fix='give a function from text to text, in a config as "package.module:function"',
        )
    return partial(_call_all, tuple(steps))


def _call_all(functions: Sequence[Callable[[str], str]], text: str) -> str:
    return reduce(lambda text, function: function(text), functions, text)
