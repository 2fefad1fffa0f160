"""A source of the recordings below a folder, whose labels and texts come from the folder itself.

A text is a file of the same name that ends in `.txt` or `.lab`, or a line of a `*.trans.txt` in the same folder, which
begins with the name of the recording, as in LibriSpeech. Which bytes of which file are the text of a recording is
noted, so that it is read again with the recording and nothing of it stays in memory. Read `source.py` first.
"""

from __future__ import annotations

import functools
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

from headrace.errors import SourceError
from headrace.features.log_mel import LogMel
from headrace.files.utf8 import decode_utf8
from headrace.index import CorpusIndex

from ..shared.fields import Field
from ..shared.folder import (
    FOLDER_FIELD,
    TAG_FIELD,
    Listing,
    all_cases,
    folder_values,
    list_corpus_files,
    listed_path,
    parse_targets,
    read_part,
)
from ..shared.paths import Files, IndexOption
from ..shared.records import Gathered
from .codec import RecordingCodec
from .source import TEXT_FIELD, Entry, RecordingSource, gather_recordings, require_targets

SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif")
LIST_SUFFIX = ".trans.txt"
TEXT_SUFFIXES = (".txt", ".lab")
INDEX_KIND = "audio-folder/2"
_FIELDS = (FOLDER_FIELD, TEXT_FIELD, TAG_FIELD)
_MAX_NAMED = 5
_NUM_LOOKED_AT = 100  # folders; each is a look at the disk
_TEXT_COLUMNS = ("text_file", "text_start", "text_bytes", "text_time")
_Spans = dict[str, tuple[int, int, int]]  # tag -> number of the file, first byte, number of bytes


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


def find_texts(listing: Listing) -> _Spans:
    """Find where every text is, by reading the lists.

    Raises:
        SourceError: A list is not UTF-8, or has a name twice.
    """
    spans: _Spans = {}
    for number, name in enumerate(listing.names):
        if not name.endswith(LIST_SUFFIX):
            spans.setdefault(os.path.splitext(name)[0], (number, 0, listing.sizes[number]))  # .lab comes before .txt
    for number, name in enumerate(listing.names):
        if name.endswith(LIST_SUFFIX):
            spans.update(_read_list(listing, number))
    return spans


def _read_list(listing: Listing, number: int) -> _Spans:
    """Return the spans of the texts in a list: lines of a name, blanks, and the text."""
    path, folder = listing.path(number), os.path.dirname(listing.names[number])
    content = read_part(path, listing.sizes[number], listing.times[number], listing.sizes[number])
    spans: _Spans = {}
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


@dataclass(frozen=True, slots=True)
class _FolderOptions:
    """How the recordings of a folder become arrays.

    Attributes:
        root: The folder.
        audio: How recordings become arrays.
        fields: Data key -> field of what the folder says.
    """

    root: str
    audio: RecordingCodec
    fields: dict[str, Field]

    @property
    def names(self) -> set[str]:
        """The fields that are needed."""
        return {field.name for field in self.fields.values()}


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
        audio, fields = RecordingCodec(features, sample_rate, channel), parse_targets(targets, _FIELDS)
        listing = list_corpus_files(files, all_cases(suffixes, "AudioFolderSource"), "AudioFolderSource")
        options = _FolderOptions(listing.root, audio, fields)
        if targets is None and listing.names:
            require_targets(None, has_text=_has_text(listing), where=listing.root)
        texts, whole = None, listing
        if TEXT_FIELD in options.names:
            is_folder = isinstance(files, str | os.PathLike)
            texts = list_texts(listing.root, None if is_folder else map(os.path.dirname, listing.names))
            whole = replace(listing, digest=f"{listing.digest}-{texts.digest}")
        said = [["data", audio.identity], *([key, field.identity] for key, field in fields.items())]
        gather = functools.partial(_gather, options, listing, texts)
        self._open(options, whole, gather, index=index, kind=f"{INDEX_KIND} {json.dumps(said, default=repr)}")

    def _where(self, corpus_idx: int) -> str:
        return f"{self._options.root}, tag {self._index.tags[corpus_idx]!r}"

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> int:  # noqa: ARG002 - nothing is read before a key
        return corpus_idx

    def _recording(self, corpus_idx: int, record: int, where: str) -> str:  # noqa: ARG002
        return listed_path(self._index, corpus_idx, self._options.root)

    def _value(self, record: int, name: str, where: str) -> str:
        tag = self._index.tags[record]
        if name != TEXT_FIELD:
            return folder_values(tag, {name}, where)[name]
        code, start, num_bytes, time = (int(self._index.locator(column)[record]) for column in _TEXT_COLUMNS)
        lists = self._index.meta["lists"]
        if not -len(TEXT_SUFFIXES) <= code < len(lists) or min(start, num_bytes) < 0:
            raise self._index.damaged(f"it says that the text of sequence {record} is in file {code}")
        name, size, time = lists[code] if code >= 0 else (tag + TEXT_SUFFIXES[-1 - code], num_bytes, time)
        return _text_at(os.path.join(self._options.root, name), size, time, start, num_bytes, tag)


def _text_at(path: str, size: int, time: int, start: int, num_bytes: int, tag: str) -> str:
    return decode_utf8(read_part(path, size, time, num_bytes, start=start), f"{path}, tag {tag!r}").strip()


def _gather(options: _FolderOptions, listing: Listing, texts: Listing | None) -> CorpusIndex:
    """Read the headers of all recordings, and their texts.

    Raises:
        SourceError: A recording is truncated or damaged, has no text, or no label; or two have the same tag.
    """
    files, suffixes = Gathered.of_files(listing, ())
    spans = {} if texts is None else find_texts(texts)
    if texts is not None:
        _require_transcripts(files.tags, spans, listing.root)

    lists: list[list[Any]] = []  # name, size and time of each file that lists texts
    number_of: dict[int, int] = {}

    def entries() -> Iterator[Entry]:
        for number, tag in enumerate(files.tags):
            path = listing.path(number)
            values, locators = folder_values(tag, options.names, path), {}
            if texts is not None:
                file, start, num_bytes = spans[tag]
                name, size, time = texts.names[file], texts.sizes[file], texts.times[file]
                values[TEXT_FIELD] = _text_at(texts.path(file), size, time, start, num_bytes, tag)
                code = -1 - TEXT_SUFFIXES.index(os.path.splitext(name)[1])  # a file of its own
                if name.endswith(LIST_SUFFIX):
                    code = number_of.setdefault(file, len(lists))
                    lists.extend([[name, size, time]] if code == len(lists) else [])
                locators = dict(zip(_TEXT_COLUMNS, (code, start, num_bytes, time), strict=True))
            yield Entry(tag, path, -1, -1, values, path, locators)

    found = gather_recordings(
        entries(),
        options.audio,
        options.fields,
        root="/",
        listed_in=listing.root,
        locators=() if texts is None else _TEXT_COLUMNS,
    )
    found.locators |= files.locators
    return found.index({"data": options.audio, **options.fields}, suffixes=suffixes, lists=lists)


def _require_transcripts(tags: Sequence[str], spans: _Spans, root: str) -> None:
    missing = [tag for tag in tags if tag not in spans]
    if missing:
        more = ", ..." if len(missing) > _MAX_NAMED else ""
        raise SourceError(
            f"{len(missing)} of {len(tags)} recordings have no text: {', '.join(missing[:_MAX_NAMED])}{more}",
            where=root,
            fix="put it beside the recording as .txt or .lab, or into a *.trans.txt of the same folder",
        )
