"""A source of the recordings below a folder, whose labels and texts come from the folder itself.

A text is a file of the same name that ends in `.txt` or `.lab`, or a line of a `*.trans.txt` in the same folder, which
begins with the name of the recording, as in LibriSpeech. Which of its bytes are the text of a recording is noted, so
that it is read again with the recording and nothing of it stays in memory. Read `source.py` for how recordings become
arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.features.log_mel import LogMel
from headrace.files.utf8 import decode_utf8
from headrace.index import CorpusIndex

from ..shared.fields import Field
from ..shared.folder import (
    ListedFile,
    Listing,
    all_cases,
    folder_of,
    for_each,
    list_corpus_files,
    listed_path,
    read_part,
)
from ..shared.paths import Files, IndexOption
from .codec import read_header
from .manifest import TEXT_FIELD, AudioOptions, Layout, ScannedRecordings, index_of, require_targets
from .source import RecordingSource

SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif")
LIST_SUFFIX = ".trans.txt"
TEXT_SUFFIXES = (".txt", ".lab")
FOLDER_FIELD, TAG_FIELD = "folder", "tag"
_MAX_NAMED = 5
_NUM_LOOKED_AT = 100  # folders; each is a look at the disk
_COLUMNS = ("num_samples", "sample_rate", "size", "time", "suffix")
_TEXT_COLUMNS = ("text_file", "text_start", "text_bytes", "text_time")


@dataclass
class ScannedFolder(ScannedRecordings):
    """Columns with one entry for each recording.

    Attributes:
        suffixes: The suffixes that there are; `suffix` counts them.
        lists: Name, size and time of each file that lists texts; `text_file` counts them. For a text in a file of its
            own it is -1 - its index in `TEXT_SUFFIXES`.
    """

    size: list[int] = field(default_factory=list)
    time: list[int] = field(default_factory=list)
    suffix: list[int] = field(default_factory=list)
    text_file: list[int] = field(default_factory=list)
    text_start: list[int] = field(default_factory=list)
    text_bytes: list[int] = field(default_factory=list)
    text_time: list[int] = field(default_factory=list)
    suffixes: list[str] = field(default_factory=list)
    lists: list[tuple[str, int, int]] = field(default_factory=list)

    def locators(self) -> dict[str, NDArray[np.int64]]:
        """Return what it takes to find and check a recording and its text, `int64[N]` by name."""
        names = (*_COLUMNS, *(_TEXT_COLUMNS if self.text_file or not self.tags else ()))
        return {name: np.array(getattr(self, name), np.int64) for name in names}


@dataclass(frozen=True, slots=True)
class Texts:
    """Where the text of each recording is.

    Attributes:
        listing: The files that hold texts.
        spans: Tag -> number of the file, first byte, number of bytes.
    """

    listing: Listing
    spans: dict[str, tuple[int, int, int]]


def list_texts(root: str, folders: Iterable[str] | None) -> Listing:
    """List the files that may hold texts: in some folders, or, if `None`, in all below the root."""
    if folders is None:
        return list_corpus_files(root, TEXT_SUFFIXES, "AudioFolderSource")
    found = []
    for folder in sorted(set(folders)):
        with os.scandir(os.path.join(root, folder)) as entries:
            found += [os.path.join(folder, entry.name) for entry in entries if entry.name.endswith(TEXT_SUFFIXES)]
    names = sorted(found)
    return Listing.of(root, names, {name: os.stat(os.path.join(root, name)) for name in names})


def _has_text(listing: Listing) -> bool:
    """Tell whether there is a text for a recording, by a look at the first folders. No list of texts is read."""
    folders = (folder for folder, _ in groupby(map(os.path.dirname, listing.names)))
    for folder in islice(folders, _NUM_LOOKED_AT):
        with os.scandir(os.path.join(listing.root, folder)) as entries:
            parts = [os.path.splitext(entry.name) for entry in entries]
        stems = {stem for stem, end in parts if end not in TEXT_SUFFIXES}
        if any(f"{stem}{end}".endswith(LIST_SUFFIX) or (end in TEXT_SUFFIXES and stem in stems) for stem, end in parts):
            return True
    return False


def find_texts(listing: Listing) -> Texts:
    """Find where every text is, by reading the lists.

    Raises:
        SourceError: A list is not UTF-8, or has a name twice.
    """
    spans: dict[str, tuple[int, int, int]] = {}
    for number, name in enumerate(listing.names):
        if name.endswith(LIST_SUFFIX):
            continue
        tag = os.path.splitext(name)[0]
        spans.setdefault(tag, (number, 0, listing.sizes[number]))  # .lab comes before .txt
    for number, name in enumerate(listing.names):
        if name.endswith(LIST_SUFFIX):
            spans.update(_read_list(listing, number))
    return Texts(listing, spans)


def _read_list(listing: Listing, number: int) -> dict[str, tuple[int, int, int]]:
    """Return the spans of the texts in a list: lines of a name, blanks, and the text."""
    path, folder = listing.path(number), os.path.dirname(listing.names[number])
    content = read_part(path, listing.sizes[number], listing.times[number], listing.sizes[number])
    spans: dict[str, tuple[int, int, int]] = {}
    start = 0
    for line_number, line in enumerate(io.BytesIO(content), start=1):
        name, text = (*line.split(None, 1), b"", b"")[:2]
        if name:
            where = f"{path}, line {line_number}"
            tag = os.path.join(folder, decode_utf8(name, where))
            if tag in spans:
                raise SourceError(f"the list has {tag!r} twice", where=where, fix="remove one of the lines")
            spans[tag] = number, start + len(line) - len(text), len(text.rstrip())
        start += len(line)
    return spans


def text_of(content: bytes, where: str) -> str:
    """Return the text of a recording from its bytes: without blanks around it.

    Raises:
        SourceError: They are not UTF-8.
    """
    return decode_utf8(content, where).strip()


def scan_folder(listing: Listing, texts: Texts | None, fields: Mapping[str, Field]) -> ScannedFolder:
    """Read the headers of all recordings, several at a time, and their texts; the fields learn their labels.

    Raises:
        SourceError: A recording is truncated or damaged, has no text, or no label; or two have the same tag.
    """
    scanned = ScannedFolder(target_lengths={key: [] for key in fields})
    tags, suffixes = listing.split()
    if texts is not None:
        _require_transcripts(tags, texts, listing.root)
    headers = for_each(_read_listed, listing.files())
    scanned.suffixes = sorted(set(suffixes))
    scanned.tags, scanned.size, scanned.time = tags, listing.sizes, listing.times
    scanned.suffix = [scanned.suffixes.index(suffix) for suffix in suffixes]
    scanned.num_samples = [num_samples for num_samples, _ in headers]
    scanned.sample_rate = [rate for _, rate in headers]
    lists: dict[int, int] = {}
    for number, tag in enumerate(tags):
        where = listing.path(number)
        record: dict[str, Any] = {TAG_FIELD: tag}
        if any(target.name == FOLDER_FIELD for target in fields.values()):
            record[FOLDER_FIELD] = folder_of(tag, where)
        if texts is not None:
            record[TEXT_FIELD] = _take_text(scanned, texts, tag, lists)
        for key, target in fields.items():
            scanned.target_lengths[key].append(target.scan(record[target.name], where))
    for target in fields.values():
        target.end_scan()
    return scanned


def _read_listed(file: ListedFile) -> tuple[int, int]:
    header = read_header(file.path)
    read_part(*file, 0)
    return header


def _take_text(scanned: ScannedFolder, texts: Texts, tag: str, lists: dict[int, int]) -> str:
    """Read a text, and record where it is. `lists`: number of a list -> its index in `scanned.lists`."""
    file, start, num_bytes = texts.spans[tag]
    listing = texts.listing
    name, size, time = listing.names[file], listing.sizes[file], listing.times[file]
    if name.endswith(LIST_SUFFIX):
        if file not in lists:
            lists[file] = len(scanned.lists)
            scanned.lists.append((name, size, time))
        code = lists[file]
    else:
        code = -1 - TEXT_SUFFIXES.index(os.path.splitext(name)[1])
    for column, value in zip(_TEXT_COLUMNS, (code, start, num_bytes, time), strict=True):
        getattr(scanned, column).append(value)
    content = read_part(listing.path(file), size, time, num_bytes, start=start)
    return text_of(content, f"{listing.path(file)}, tag {tag!r}")


def _require_transcripts(tags: Sequence[str], texts: Texts, root: str) -> None:
    missing = [tag for tag in tags if tag not in texts.spans]
    if missing:
        more = ", ..." if len(missing) > _MAX_NAMED else ""
        raise SourceError(
            f"{len(missing)} of {len(tags)} recordings have no text: {', '.join(missing[:_MAX_NAMED])}{more}",
            where=root,
            fix="put it beside the recording as .txt or .lab, or into a *.trans.txt of the same folder",
        )


INDEX_KIND = "audio-folder/1"
_FIELDS = (FOLDER_FIELD, TEXT_FIELD, TAG_FIELD)


class AudioFolderSource(RecordingSource):
    """The recordings below a folder: key "data", and a key for each target. Needs `headrace[audio]`.

    The tag is the path without the suffix; sequences come in the order of their tags. Headers are read once, when the
    index is built, several at a time; from then on lengths are known without a look at the recordings.

    Args:
        files: The folder, or a list of recordings, which then come in its order.
        features: "raw" (samples, float32[T, 1]), "log_mel", a `LogMel`, or a dict of its options (float32[T,
            num_mels]); without `sample_rate` there, it is that of the recordings.
        targets: Data key -> field: "folder", the name of the folder that the recording is in; "text", from a `.txt` or
            `.lab` of the same name or from a `*.trans.txt` in its folder; or "tag". As for `AudioSource`, a field
            gives labels, UTF-8 bytes for the key "orth", or what `{"field": "text", "vocab": ...}` says; and where the
            first recording has a text, `targets` is required.
        sample_rate: Recordings of another rate are resampled; if `None`, that of the features, or else of all
            recordings, which must then have the same.
        channel: Which channel, from 0; needed for recordings with several.
        suffixes: Suffixes of recordings, in either case.
        index: `"auto"` keeps the index of a large folder in the cache folder and finds it there the next time, unless
            a file changed; `None` always reads all headers; a path opens the index that `source.index.save(path)`
            wrote.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A recording is truncated or damaged, has no text that is wanted, or the same tag as another; a link
            leads out of the folder; or the given index is not one of these files as they are now.
    """

    _changed_fix = "the folder changed since it was read: build the source again"

    def __init__(
        self,
        files: Files,
        *,
        features: str | LogMel | Mapping[str, Any] = "raw",
        targets: Mapping[str, str | Mapping[str, Any]] | None = None,
        sample_rate: int | None = None,
        channel: int | None = None,
        suffixes: Sequence[str] = SUFFIXES,
        index: IndexOption = "auto",
    ) -> None:
        no_manifest = Layout("", "", TAG_FIELD, TAG_FIELD, "")
        options = AudioOptions.parse(no_manifest, features, targets, sample_rate, channel)
        for key, asked in options.fields.items():
            if asked.name not in _FIELDS:
                fix = did_you_mean(asked.name, _FIELDS)
                raise ConfigError(f"a folder has no field {asked.name!r}", where=f"target {key!r}", fix=fix)
        listing = list_corpus_files(files, all_cases(suffixes, "AudioFolderSource"), "AudioFolderSource")
        if targets is None and listing.names:
            require_targets(None, has_text=_has_text(listing), where=listing.root)
        texts = None
        if any(field.name == TEXT_FIELD for field in options.fields.values()):
            is_folder = isinstance(files, str | os.PathLike)
            texts = list_texts(listing.root, None if is_folder else map(os.path.dirname, listing.names))
        whole = listing if texts is None else dataclasses.replace(listing, digest=f"{listing.digest}-{texts.digest}")
        options = dataclasses.replace(options, layout=dataclasses.replace(no_manifest, root=listing.root))
        gather = functools.partial(_gather, options, listing, texts)
        self._open(options, whole, gather, index=index, kind=_index_kind(options))

    def _prepare(self) -> None:
        super()._prepare()
        meta, self._root = self._index.meta, self._options.layout.root
        self._lists: list[tuple[str, int, int]] = [(name, size, time) for name, size, time in meta["lists"]]

    def _where(self, corpus_idx: int) -> str:
        return f"{self._root}, tag {self._index.tags[corpus_idx]!r}"

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> Mapping[str, str]:
        """Return what the keys need of the fields of a recording."""
        tag = self._index.tags[corpus_idx]
        record = {TAG_FIELD: tag}
        wanted = {self._options.fields[key].name for key in data_keys if key != "data"}
        if FOLDER_FIELD in wanted:
            record[FOLDER_FIELD] = folder_of(tag, self._root)
        if TEXT_FIELD in wanted:
            record[TEXT_FIELD] = self._read_text(corpus_idx)
        return record

    def _recording(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> str:  # noqa: ARG002
        return listed_path(self._index, corpus_idx, self._root)

    def _read_text(self, corpus_idx: int) -> str:
        code, start, num_bytes, time = (int(self._index.locator(column)[corpus_idx]) for column in _TEXT_COLUMNS)
        if code >= len(self._lists) or code < -len(TEXT_SUFFIXES) or min(start, num_bytes) < 0:
            raise self._index.damaged(f"it says that the text of sequence {corpus_idx} is in file {code}")
        tag = self._index.tags[corpus_idx]
        name, size, time = self._lists[code] if code >= 0 else (tag + TEXT_SUFFIXES[-1 - code], num_bytes, time)
        path = os.path.join(self._root, name)
        return text_of(read_part(path, size, time, num_bytes, start=start), f"{path}, tag {tag!r}")


def _gather(options: AudioOptions, listing: Listing, text_files: Listing | None) -> CorpusIndex:
    texts: Texts | None = None if text_files is None else find_texts(text_files)
    scanned = scan_folder(listing, texts, options.fields)
    corpus = index_of(options, scanned, listing.root)
    corpus.meta["suffixes"] = scanned.suffixes
    corpus.meta["lists"] = [list(entry) for entry in scanned.lists]
    return corpus


def _index_kind(options: AudioOptions) -> str:
    return f"{INDEX_KIND} {json.dumps(options.identity, default=repr)}"
