"""Recordings and texts in OggZip archives, as RETURNN reads them.

Read `archives.py` for what an archive and its text are, `gather.py` for what is indexed, and what becomes of samples.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import resolve_inside
from headrace.specs import DataSpec
from headrace.vocabularies.base import Vocabulary, init_vocabulary

from ..audio.codec import read_samples
from ..base import check_corpus_idx
from ..shared.paths import IndexOption
from ..shared.records import RecordSource
from ..shared.zip_members import read_member
from .archives import EntryTexts, TextEntry, find_archives, parse_entry
from .gather import OggZipOptions, OggZipSamples, gather_index, member_at


class OggZipSource(RecordSource):
    """The sequences of OggZip archives: keys "data" (audio), "classes" (targets), "orth" (UTF-8 bytes of the text).

    An archive `name.zip` has a text `name.txt`, a Python list of dicts `{"text": "...", "duration": 2.3, "file":
    "a.ogg"}`, and the recordings `name/a.ogg`. The tag is "seq_name" of an entry, else "file". Sequences are sorted by
    `int(duration * 100)`, which is in the index as the lengths of "seq_len". The text is data: nothing in it is
    executed. Reading audio needs `headrace[audio]`.

    Args:
        path: The zip file, or a list of them, and of `name.txt.gz`, which replace the text of `name.zip`; or a folder
            of these; or an unpacked archive: a folder with a `.txt` of the same name beside it.
        audio: Options of RETURNN, with `"features": "raw"`: "sample_rate", "peak_normalization", ...; `None` for no
            audio. Other features are for a transform, for example by `LogMel`.
        targets: What `init_vocabulary` takes; `None` for no classes.
        content_name: The name inside, where it is not that of the file; one for all or a list.
        resolve_symlink_for_name: Whether the name is that of the file that a link points to.
        targets_post_process: Called with the text before the vocabulary gets it. The index is then not kept.
        segment_file: A text file (also `.gz`) with the tags to use, one a line.
        zip_audio_files_have_name_as_prefix: Whether recordings are below a folder with the name of the archive.
        fixed_random_subset: Use only a share of the sequences (0 < x < 1), or this many: the same as in RETURNN.
        fixed_random_subset_seed: The seed of that choice.
        data_lengths: How the lengths of "data" are known without reading: `None`: they are not; "header": all
            recordings are looked at when the index is built; "duration": as the durations say, which is compared with
            each recording when it is read.
        index: `"auto"` keeps the index of a large corpus in the cache folder; `None` always reads all texts; a path
            opens the index that `source.index.save(path)` wrote.

    Raises:
        ConfigError: An option is wrong, or not offered.
        SourceError: An archive is damaged, has a member twice or one that leads out of it, a text is broken (the line
            is named), or recordings are missing; or the given index is not one of these files as they are now.

    Examples:
        >>> import tempfile, zipfile
        >>> import headrace as hr
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with zipfile.ZipFile(f"{folder}/words.zip", "w") as archive:
        ...         archive.writestr("words.txt", "[{'text': 'one', 'duration': 0.9, 'file': 'a.ogg'}]")
        ...     source = hr.OggZipSource(f"{folder}/words.zip", audio=None, targets={"class": "Utf8ByteTargets"})
        ...     print(source.tag(0), source.read(0, "classes").tolist())
        ...     source.close()
        a.ogg [111, 110, 101]
    """

    _options: OggZipOptions
    _changed_fix = 'data_lengths="header" measures recordings whose durations are wrong; else open the corpus again'

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        audio: Mapping[str, Any] | None,
        targets: Any = None,
        content_name: str | Sequence[str] | None = None,
        resolve_symlink_for_name: bool = False,
        targets_post_process: Callable[[str], str] | None = None,
        segment_file: str | os.PathLike[str] | None = None,
        zip_audio_files_have_name_as_prefix: bool = True,
        fixed_random_subset: float | int | None = None,
        fixed_random_subset_seed: int = 42,
        data_lengths: Literal["duration", "header"] | None = None,
        index: IndexOption = "auto",
    ) -> None:
        if targets_post_process is not None and not callable(targets_post_process):
            raise ConfigError(
                f"targets_post_process={targets_post_process!r} is not a function", where="OggZip", fix="text -> text"
            )
        options = OggZipOptions(
            find_archives(path, content_name, resolve_symlink_for_name),
            None if audio is None else OggZipSamples.parse(audio),
            None if targets is None else init_vocabulary(targets),
            targets_post_process,
            None if segment_file is None else os.path.abspath(segment_file),
            zip_audio_files_have_name_as_prefix,
            fixed_random_subset,
            fixed_random_subset_seed,
            data_lengths,
        )
        if targets_post_process is not None and index == "auto":
            index = None  # what a function does cannot be named
        self._open(options, options.files, lambda: gather_index(options), index=index, kind=options.kind)

    def _prepare(self) -> None:
        options, index = self._options, self._index
        if options.features is not None:
            self.specs["data"] = DataSpec("float32", (options.features.dim,), dim=options.features.dim)
        if options.vocabulary is not None:
            self.specs["classes"] = DataSpec("int32", sparse=True, dim=options.vocabulary.dim)
            self.labels["classes"] = options.vocabulary.labels
        self.specs["orth"] = DataSpec("uint8", sparse=True, dim=256, is_text=True)
        self.labels["orth"] = [chr(code) for code in range(256)]
        file_idx_of = {path: number for number, path in enumerate(options.files)}
        self._stamps_of_texts = [index.files[file_idx_of[archive.files[-1]]] for archive in options.archives]
        self._file_of = [file_idx_of[archive.files[0]] for archive in options.archives]
        self._archive_of = index.locator("archive")

    def _prepare_files(self) -> None:
        super()._prepare_files()
        sizes = self._index.meta["text_bytes"]
        self._texts = EntryTexts(self._options.archives, sizes, self._stamps_of_texts)

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary that makes "classes" of texts."""
        return self._options.vocabulary

    @property
    def vocabularies_text(self) -> str:
        """A text that tells the vocabulary from others."""
        return "" if self.vocabulary is None else json.dumps(self.vocabulary.identity, default=repr)

    def read_text(self, corpus_idx: int) -> str:
        """Return the text of a sequence: what the key "raw" of RETURNN holds."""
        return self._entry(check_corpus_idx(corpus_idx, self._num_seqs)).text

    def seq_lengths(self, corpus_idx: int) -> dict[str, int]:
        """Return data key -> number of frames; decodes the recording if `data_lengths` is `None`."""
        index = self._index
        check_corpus_idx(corpus_idx, self._num_seqs)
        return {
            key: int(index.lengths(key)[corpus_idx]) if index.has_lengths(key) else len(self.read(corpus_idx, key))
            for key in self.specs
        }

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> TextEntry | None:
        needs_text = set(data_keys) != {"data"} or self._options.archives[0].is_folder
        return self._entry(corpus_idx) if needs_text else None

    def _encode(self, record: TextEntry | None, corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:
        """Return "data" as float32[T, D], the others as integers [T]."""
        if data_key == "data":
            return self._read_audio(corpus_idx, record, where)
        assert record is not None
        if data_key == "classes":
            return np.array(self._options.encode(record.text, where), dtype=np.int32)
        return np.frombuffer(record.text.encode(), dtype=np.uint8).copy()

    def _archive(self, corpus_idx: int) -> int:
        number = int(self._archive_of[corpus_idx])
        if not 0 <= number < len(self._options.archives):
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in archive {number}")
        return number

    def _where(self, corpus_idx: int) -> str:
        return f"{self._options.archives[self._archive(corpus_idx)].path}, tag {self._index.tags[corpus_idx]!r}"

    def _entry(self, corpus_idx: int) -> TextEntry:
        """Read what the text says of a sequence again."""
        where, tag = self._where(corpus_idx), self._index.tags[corpus_idx]
        start, num_bytes = (int(self._index.locator(name)[corpus_idx]) for name in ("text_start", "text_bytes"))
        if start < 0 or num_bytes < 0:
            raise self._index.damaged(f"it says that sequence {corpus_idx} is at byte {start} of its text")
        entry = parse_entry(self._texts.read(self._archive(corpus_idx), start, num_bytes), where)
        if entry.tag != tag:
            what = f"the text changed since it was indexed: the tag is {entry.tag!r}"
            raise SourceError(what, where=where, fix="open it again")
        return entry

    def _read_audio(self, corpus_idx: int, entry: TextEntry | None, where: str) -> NDArray[np.float32]:
        options, number = self._options, self._archive(corpus_idx)
        features, archive = options.features, options.archives[number]
        assert features is not None
        if archive.is_folder:
            assert entry is not None
            name = archive.recording(entry.file or "", options.has_prefix)
            recording: str | bytes = str(resolve_inside(os.path.dirname(archive.path), name))
        else:
            recording = read_member(self._files.read, self._file_of[number], member_at(self._index, corpus_idx), where)
        samples, rate = read_samples(recording, None, where)
        return features(samples, rate, where)

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        self._texts.close()
        super().close()
