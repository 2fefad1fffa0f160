"""Recordings and texts in OggZip archives, as RETURNN reads them.

Read `ogg_zip_archives.py` for what an archive is, `ogg_zip_text.py` for its text, `ogg_zip_gather.py` for what is
indexed, `extracted_features.py` for features.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.features.extracted import ExtractedFeatures
from headrace.files import resolve_inside
from headrace.index import CorpusIndex, open_or_build
from headrace.specs import DataSpec
from headrace.vocabularies.base import Vocabulary, init_vocabulary

from ..audio.decode import read_samples, refuse_truncated
from ..base import Source, check_corpus_idx, check_data_key, slice_frames
from ..shared.paths import IndexOption
from ..shared.plain_files import PlainFiles
from ..shared.zip_members import read_member
from .archives import EntryTexts, TextEntry, find_archives, parse_entry
from .gather import OggZipOptions, gather_index, member_at


class _Place(NamedTuple):
    """Which sequence is meant, the number of its archive, its tag, and what errors name."""

    corpus_idx: int
    archive: int
    tag: str
    where: str


class OggZipSource(Source):
    """The sequences of OggZip archives: keys "data" (audio), "classes" (targets), "orth" (UTF-8 bytes of the text).

    An archive `name.zip` has a text `name.txt`, a Python list of dicts `{"text": "...", "duration": 2.3, "file":
    "a.ogg"}`, and the recordings `name/a.ogg`. The tag is "seq_name" of an entry, else "file". Sequences are sorted by
    `int(duration * 100)`, which is in the index as the lengths of "seq_len". The text is data: nothing in it is
    executed. Reading audio needs `headrace[audio]`.

    Args:
        path: The zip file, or a list of them, and of `name.txt.gz`, which replace the text of `name.zip`; or a folder
            with a `.txt` of the same name beside it.
        audio: Options of features, see `ExtractedFeatures.parse`; `{}` for those of RETURNN; `None` for no audio.
        targets: A `Vocabulary`, or a dict for `init_vocabulary`; `None` for no classes.
        may_draw: See `init_vocabulary`.
        content_name: The name inside, where it is not that of the file; one for all or a list.
        resolve_symlink_for_name: Whether the name is that of the file behind a link.
        targets_post_process: Called with the text before the vocabulary gets it. The index is then not kept.
        segment_file: A text file (also `.gz`) with the tags to use, one a line.
        zip_audio_files_have_name_as_prefix: Whether recordings are below a folder with the name of the archive.
        fixed_random_subset: Only a share of the sequences (0 < x < 1), or so many: the documented ones of RETURNN.
        fixed_random_subset_seed: For that.
        data_lengths: How the lengths of "data" are known without reading: `None`: they are not; "header": all
            recordings are looked at when the index is built; "duration": as the durations say, which is compared with
            each recording when it is read.
        index: `"auto"` keeps the index of a large corpus in the cache folder; `None` always reads all texts; a path
            opens the index that `source.index.save(path)` wrote.

    Raises:
        ConfigError: An option is wrong, or not offered.
        SourceError: An archive is damaged, has a member twice or one that leads out of it, a text is broken (the line
            is named), or recordings are missing; or the given index is not one of these files as they are now.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        audio: Mapping[str, Any] | None,
        targets: Vocabulary | Mapping[str, Any] | None = None,
        content_name: str | Sequence[str] | None = None,
        resolve_symlink_for_name: bool = False,
        targets_post_process: Callable[[str], str] | None = None,
        segment_file: str | os.PathLike[str] | None = None,
        zip_audio_files_have_name_as_prefix: bool = True,
        fixed_random_subset: float | int | None = None,
        fixed_random_subset_seed: int = 42,
        data_lengths: Literal["duration", "header"] | None = None,
        may_draw: bool = False,
        index: IndexOption = "auto",
    ) -> None:
        if targets_post_process is not None and not callable(targets_post_process):
            raise ConfigError(
                f"targets_post_process={targets_post_process!r} is not a function", where="OggZip", fix="text -> text"
            )
        options = OggZipOptions(
            find_archives(path, content_name, resolve_symlink_for_name),
            None if audio is None else ExtractedFeatures.parse(audio),
            None if targets is None else init_vocabulary(targets, may_draw=may_draw),
            targets_post_process,
            None if segment_file is None else os.path.abspath(segment_file),
            zip_audio_files_have_name_as_prefix,
            fixed_random_subset,
            fixed_random_subset_seed,
            data_lengths,
        )
        if targets_post_process is not None and index == "auto":
            index = None  # what a function does cannot be named
        corpus = open_or_build(options.files, lambda: gather_index(options), index=index, kind=options.kind)
        self._attach(options, corpus)

    def _attach(self, options: OggZipOptions, index: CorpusIndex) -> None:
        """Work out everything that follows from the options and the index."""
        self._options, self._index = options, index
        self.specs: dict[str, DataSpec] = {}
        self.labels: dict[str, Sequence[str]] = {}
        if options.features is not None:
            self.specs["data"] = DataSpec("float32", (options.features.dim,), dim=options.features.dim)
        if options.vocabulary is not None:
            self.specs["classes"] = DataSpec("int32", sparse=True, dim=options.vocabulary.dim)
            self.labels["classes"] = options.vocabulary.labels
        self.specs["orth"] = DataSpec("uint8", sparse=True, dim=256)
        self.labels["orth"] = [chr(code) for code in range(256)]
        places = {path: number for number, path in enumerate(options.files)}
        stamps = [index.files[places[archive.files[-1]]] for archive in options.archives]
        self._texts = EntryTexts(options.archives, index.meta["text_bytes"], stamps)
        self._files = PlainFiles(index.files)
        self._file_of = [places[archive.files[0]] for archive in options.archives]

    @property
    def vocabulary(self) -> Vocabulary | None:
        """What makes "classes" of texts."""
        return self._options.vocabulary

    @property
    def index(self) -> CorpusIndex:
        """Tags, lengths, and where texts and recordings are."""
        return self._index

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one sequence: "data" as float32[T, D], the others as integers [T]."""
        check_data_key(data_key, self.specs)
        place = self._place(corpus_idx)
        needs_text = data_key != "data" or self._options.archives[0].is_folder
        return self._read_key(place, data_key, self._entry(place) if needs_text else None)

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one sequence."""
        place = self._place(corpus_idx)
        entry = self._entry(place)
        return {data_key: self._read_key(place, data_key, entry) for data_key in self.specs}

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames start..end of one data key; recordings are decoded whole."""
        return slice_frames(self.read(corpus_idx, data_key), self.specs[data_key], start, end).copy()

    def read_text(self, corpus_idx: int) -> str:
        """Return the text of a sequence: what the documented key "raw" holds."""
        return self._entry(self._place(corpus_idx)).text

    def seq_lengths(self, corpus_idx: int) -> dict[str, int]:
        """Return data key -> number of frames; decodes the recording if `data_lengths` is `None`."""
        index = self._index
        check_corpus_idx(corpus_idx, len(self))
        return {
            key: int(index.lengths(key)[corpus_idx]) if index.has_lengths(key) else len(self.read(corpus_idx, key))
            for key in self.specs
        }

    def _place(self, corpus_idx: int) -> _Place:
        check_corpus_idx(corpus_idx, len(self))
        number, tag = int(self._index.locator("archive")[corpus_idx]), self._index.tags[corpus_idx]
        if not 0 <= number < len(self._options.archives):
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in archive {number}")
        return _Place(corpus_idx, number, tag, f"{self._options.archives[number].path}, tag {tag!r}")

    def _entry(self, place: _Place) -> TextEntry:
        """Read what the text says of a sequence again."""
        start, num_bytes = (int(self._index.locator(name)[place.corpus_idx]) for name in ("text_start", "text_bytes"))
        if start < 0 or num_bytes < 0:
            raise self._index.damaged(f"it says that sequence {place.corpus_idx} is at byte {start} of its text")
        entry = parse_entry(self._texts.read(place.archive, start, num_bytes), place.where)
        if entry.tag != place.tag:
            what = f"the text changed since it was indexed: the tag is {entry.tag!r}"
            raise SourceError(what, where=place.where, fix="open it again")
        return entry

    def _read_key(self, place: _Place, data_key: str, entry: TextEntry | None) -> NDArray[Any]:
        if data_key == "data":
            array: NDArray[Any] = self._read_audio(place, entry)
        else:
            assert entry is not None
            if data_key == "classes":
                array = np.array(self._options.encode(entry.text, place.where), dtype=np.int32)
            else:
                array = np.frombuffer(entry.text.encode(), dtype=np.uint8).copy()
        if self._index.has_lengths(data_key):
            expected = int(self._index.lengths(data_key)[place.corpus_idx])
            if len(array) != expected:
                by_header = 'data_lengths="header" measures recordings whose durations are wrong'
                raise SourceError(
                    f"{data_key!r} has {len(array)} frames, but {expected} are expected",
                    where=place.where,
                    fix=by_header if data_key == "data" else "open the corpus again: it changed",
                )
        return array

    def _read_audio(self, place: _Place, entry: TextEntry | None) -> NDArray[np.float32]:
        options, where = self._options, place.where
        features, archive = options.features, options.archives[place.archive]
        assert features is not None
        if archive.is_folder:
            assert entry is not None
            name = archive.recording(entry.file or "", options.has_prefix)
            recording: str | bytes = str(resolve_inside(os.path.dirname(archive.path), name))
        else:
            member = member_at(self._index, place.corpus_idx)
            recording = read_member(self._files, self._file_of[place.archive], member, where)
        if not self._index.has_lengths("data"):  # else a truncated recording is known by its length
            refuse_truncated(recording, where)
        samples, rate = read_samples(recording, None, where)
        return features(samples, rate, where)

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        self._texts.close()
        self._files.close()

    def __getstate__(self) -> tuple[OggZipOptions, CorpusIndex]:
        return self._options, self._index

    def __setstate__(self, state: tuple[OggZipOptions, CorpusIndex]) -> None:
        self._attach(*state)
