"""Recordings and texts in OggZip archives, as RETURNN reads them.

Read `archives.py` for what an archive and its text are, `samples.py` for what becomes of samples.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import open_regular
from headrace.files.utf8 import decode_utf8
from headrace.index import CorpusIndex
from headrace.specs import DataSpec
from headrace.vocabularies.base import Vocabulary, init_vocabulary

from ..audio.codec import read_header, read_samples
from ..base import SORT_LENGTHS, check_corpus_idx
from ..shared.folder import for_each
from ..shared.paths import IndexOption
from ..shared.source import IndexedSource
from .archives import Archive, TextEntry, ZipMember, find_archives, open_archive, read_member, read_whole, scan_entries
from .samples import OggZipSamples


@dataclass(frozen=True, slots=True)
class OggZipOptions:
    """Checked options of a corpus. See `OggZipSource` for what each means."""

    archives: list[Archive]
    features: OggZipSamples | None
    vocabulary: Vocabulary | None
    post_process: Callable[[str], str] | None
    segment_file: str | None
    has_prefix: bool
    subset: float | int | None
    subset_seed: int
    data_lengths: str | None

    def __post_init__(self) -> None:
        """Refuse options that contradict each other."""
        subset, rate = self.subset, None if self.features is None else self.features.sample_rate
        is_count, is_share = type(subset) is int and subset >= 1, isinstance(subset, float) and 0 < subset < 1
        if subset is not None and not (is_count or is_share):
            raise ConfigError(f"fixed_random_subset is a share in 0..1 or a number of sequences, not {subset!r}")
        if self.data_lengths not in (None, "duration", "header"):
            raise ConfigError(f'data_lengths is one of None, "duration" and "header", not {self.data_lengths!r}')
        if self.data_lengths == "duration" and rate is None:
            fix = 'give audio={"sample_rate": ...}'
            raise ConfigError('data_lengths="duration" counts samples, and needs to know their rate', fix=fix)

    @property
    def files(self) -> list[str]:
        """All files that the index is built from."""
        return [path for archive in self.archives for path in archive.files]

    @property
    def kind(self) -> str:
        """Identify all options that change the index: the same text in every process."""
        said = [
            [[archive.name, archive.is_folder] for archive in self.archives],
            None if self.features is None else [self.data_lengths, self.features.identity if self.data_lengths else 0],
            None if self.vocabulary is None else self.vocabulary.identity,
            sorted(_read_segments(self.segment_file)) if self.segment_file else None,
            [self.has_prefix, self.subset, self.subset_seed],
        ]
        return f"ogg-zip/4 {xxhash.xxh3_128_hexdigest(json.dumps(said, default=repr).encode())}"

    def encode(self, text: str, where: str) -> NDArray[np.int32]:
        """Return the classes of a text.

        Raises:
            SourceError: It has none.
        """
        assert self.vocabulary is not None
        try:
            return self.vocabulary.encode(text if self.post_process is None else self.post_process(text))
        except SourceError as error:
            raise SourceError(error.what, where=where, fix=error.fix) from error


class OggZipSource(IndexedSource):
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
        self._file_of = [file_idx_of[archive.files[0]] for archive in options.archives]
        self._archive_of = index.locator("archive")

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
        return self._index.text("text", check_corpus_idx(corpus_idx, self._num_seqs))

    def seq_lengths(self, corpus_idx: int) -> dict[str, int]:
        """Return data key -> number of frames; decodes the recording if `data_lengths` is `None`."""
        index = self._index
        check_corpus_idx(corpus_idx, self._num_seqs)
        return {
            key: int(index.lengths(key)[corpus_idx]) if index.has_lengths(key) else len(self.read(corpus_idx, key))
            for key in self.specs
        }

    def _load(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return "data" as float32[T, D], the others as integers [T]."""
        where = self._where(corpus_idx)
        if data_key == "data":
            return self._read_audio(corpus_idx, where)
        text = self._index.text("text", corpus_idx)
        if data_key == "classes":
            return np.array(self._options.encode(text, where), dtype=np.int32)
        return np.frombuffer(text.encode(), dtype=np.uint8).copy()

    def _archive(self, corpus_idx: int) -> int:
        number = int(self._archive_of[corpus_idx])
        if not 0 <= number < len(self._options.archives):
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in archive {number}")
        return number

    def _where(self, corpus_idx: int) -> str:
        return f"{self._options.archives[self._archive(corpus_idx)].path}, tag {self._index.tags[corpus_idx]!r}"

    def _read_audio(self, corpus_idx: int, where: str) -> NDArray[np.float32]:
        options, number = self._options, self._archive(corpus_idx)
        features, archive = options.features, options.archives[number]
        assert features is not None
        if archive.is_folder:
            recording: str | bytes = archive.path_of(
                archive.recording(self._index.text("file", corpus_idx), options.has_prefix)
            )
        else:
            member = ZipMember(*(int(self._index.locator(name)[corpus_idx]) for name in ZipMember._fields))
            recording = read_member(partial(self._files.read, self._file_of[number]), member, where)
        samples, rate = read_samples(recording, None, where)
        return features(samples, rate, where)


class _OggZipRow(NamedTuple):
    """One sequence: its archive, its entry, and the member that is its recording."""

    archive: int
    entry: TextEntry
    member: ZipMember | None


def gather_index(options: OggZipOptions) -> CorpusIndex:
    """Read texts and directories: about 30 us a sequence, and what encoding its text takes.

    Raises:
        SourceError: An archive is damaged or has a member that leads out of it, a text cannot be read, or a recording
            is missing.
    """
    rows: list[_OggZipRow] = []
    for number, archive in enumerate(options.archives):
        text, members = open_archive(archive)
        entries = scan_entries(text, archive.text_name)
        rows += [_OggZipRow(number, entry, _member_of(options, archive, members, entry)) for entry in entries]
    if options.segment_file:
        wanted = _read_segments(options.segment_file)
        rows = [row for row in rows if row.entry.tag in wanted]
    if options.subset is not None:  # RETURNN's: the first ones of a shuffle by NumPy's legacy generator
        num_seqs = options.subset if isinstance(options.subset, int) else int(len(rows) * options.subset)
        order = list(range(len(rows)))
        np.random.RandomState(options.subset_seed).shuffle(order)
        rows = [rows[i] for i in order[:num_seqs]]
    locators = {"archive": np.array([row.archive for row in rows], np.int64)}
    texts = {"text": [row.entry.text for row in rows]}
    if options.features is not None and options.archives[0].is_folder:
        texts["file"] = [row.entry.file or "" for row in rows]
    elif options.features is not None:
        for name in ZipMember._fields:
            locators[name] = np.array([getattr(row.member, name) for row in rows], np.int64)
    return CorpusIndex.from_columns(
        tags=[row.entry.tag for row in rows],
        lengths={key: np.array(column, np.int64) for key, column in _lengths(options, rows).items()},
        locators=locators,
        texts=texts,
    )


def _member_of(
    options: OggZipOptions, archive: Archive, members: dict[str, ZipMember], entry: TextEntry
) -> ZipMember | None:
    """Return the member that is the recording of an entry; `None` without audio, and of a folder."""
    if options.features is None:
        return None
    if entry.file is None:
        what = f"the sequence {entry.tag!r} names no 'file'"
        raise SourceError(what, where=archive.text_name, fix="audio=None reads only the text")
    name = archive.recording(entry.file, options.has_prefix)
    if name not in members and not (archive.is_folder and os.path.isfile(archive.path_of(name))):
        raise SourceError(
            f"the recording {name!r} is missing; the archive has {list(members)[:2]}, for example",
            where=archive.path,
            fix="check content_name and zip_audio_files_have_name_as_prefix",
        )
    return members.get(name)


def _lengths(options: OggZipOptions, rows: Sequence[_OggZipRow]) -> dict[str, list[int]]:
    features = options.features
    lengths = {
        SORT_LENGTHS: [int(row.entry.duration * 100) for row in rows],
        "orth": [len(row.entry.text.encode()) for row in rows],
    }
    if options.vocabulary is not None:
        wheres = (f"{options.archives[row.archive].text_name}, tag {row.entry.tag!r}" for row in rows)
        lengths["classes"] = [
            len(options.encode(row.entry.text, where)) for row, where in zip(rows, wheres, strict=False)
        ]
    if features is not None and options.data_lengths == "duration":
        rate = features.sample_rate or 0
        lengths["data"] = [features.num_frames(round(row.entry.duration * rate)) for row in rows]
    elif features is not None and options.data_lengths is not None:
        measure = partial(_measure, options.archives, options.has_prefix)
        lengths["data"] = [features.num_frames(num_samples) for num_samples in for_each(measure, rows)]
    return lengths


def _measure(archives: Sequence[Archive], has_prefix: bool, row: _OggZipRow) -> int:
    """Return the number of samples of a recording, by its header."""
    archive = archives[row.archive]
    where = f"{archive.path}, tag {row.entry.tag!r}"
    if row.member is None:
        return read_header(archive.path_of(archive.recording(row.entry.file or "", has_prefix)), where)[0]
    with open_regular(archive.path) as file:

        def read(position: int, num_bytes: int) -> bytes:
            file.seek(position)
            return file.read(num_bytes)

        return read_header(read_member(read, row.member, where), where)[0]


def _read_segments(path: str) -> set[str]:
    """Return the tags in a text file, one a line."""
    return set(decode_utf8(read_whole(path), path).splitlines())
