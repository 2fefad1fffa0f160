"""A source of the recordings below a folder; their labels and texts come from what the folder says.

Read `audio_folder_scan.py` for texts and what is indexed, `recordings.py` for how recordings become arrays.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError, did_you_mean
from headrace.files import FileStamp
from headrace.index import CorpusIndex

from .arguments import check_corpus_idx
from .audio_folder_scan import (
    FOLDER_FIELD,
    SUFFIXES,
    TAG_FIELD,
    TEXT_FIELD,
    TEXT_SUFFIXES,
    Texts,
    all_cases,
    find_texts,
    folder_of,
    list_texts,
    scan_folder,
    text_of,
)
from .audio_gather import AudioOptions, make_index
from .audio_scan import Layout
from .folder_listing import Files, IndexOption, LazyStamps, Listing, list_corpus_files, open_or_build_listed
from .log_mel import LogMel
from .plain_files import PlainFiles, check_stamp
from .recordings import RecordingSource

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
            gives labels, UTF-8 bytes for the key "orth", or what `{"field": "text", "vocab": ...}` says.
        sample_rate: Recordings of another rate are resampled; if `None`, that of the features, or else of all
            recordings, which must then have the same.
        channel: Which channel, from 0; needed for recordings with several.
        suffixes: Of recordings, in either case.
        index: `"auto"` keeps the index of a large folder in the cache folder and finds it there the next time, unless
            a file changed; `None` always reads all headers; a path opens the index that `source.index.save(path)`
            wrote.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A recording is torn or damaged, has no text that is wanted, or the same tag as another; a link
            leads out of the folder; or the given index is not one of these files as they are now.
    """

    _changed_place = "the folder"

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
        for key, field in options.fields.items():
            if field.name not in _FIELDS:
                fix = did_you_mean(field.name, _FIELDS)
                raise ConfigError(f"a folder has no field {field.name!r}", where=f"target {key!r}", fix=fix)
        if isinstance(suffixes, str) or not all(isinstance(one, str) and one.startswith(".") for one in suffixes):
            raise ConfigError(f"suffixes={suffixes!r}", where="AudioFolderSource", fix='a list such as [".flac"]')
        listing = list_corpus_files(files, all_cases(suffixes), "AudioFolderSource")
        texts = None
        if any(field.name == TEXT_FIELD for field in options.fields.values()):
            is_folder = isinstance(files, str | os.PathLike)
            texts = list_texts(listing.root, None if is_folder else map(os.path.dirname, listing.names))
        corpus = open_or_build_listed(
            listing if texts is None else dataclasses.replace(listing, digest=f"{listing.digest}-{texts.digest}"),
            lambda: _gather(options, listing, texts),
            index=index,
            kind=_index_kind(options),
        )
        self._root = listing.root
        self._attach(options, corpus)

    def _attach(self, options: AudioOptions, index: CorpusIndex) -> None:
        super()._attach(options, index)
        self._suffixes: list[str] = index.meta["suffixes"]
        self._lists: list[tuple[str, int, int]] = [(name, size, time) for name, size, time in index.meta["lists"]]
        # Not a method of this object: a circle of references would keep files open until it is found.
        self._text_stamps = _text_stamps(self._root, self._lists, index)
        self._texts = PlainFiles(self._text_stamps)

    @property
    def _place(self) -> str:
        return self._root

    def _record(self, corpus_idx: int) -> Mapping[str, Any]:
        return _Record(self, check_corpus_idx(corpus_idx, self._index.num_seqs))

    def _recording(self, corpus_idx: int, record: Mapping[str, Any], where: str) -> str:  # noqa: ARG002
        index = self._index
        suffix, size, time = (int(index.locator(name)[corpus_idx]) for name in ("suffix", "size", "time"))
        if not 0 <= suffix < len(self._suffixes):
            raise index.damaged(f"it says that sequence {corpus_idx} has suffix {suffix} of {len(self._suffixes)}")
        path = os.path.join(self._root, index.tags[corpus_idx] + self._suffixes[suffix])
        check_stamp(FileStamp(path, size, time, digest=""))
        return path

    def _read_text(self, corpus_idx: int) -> str:
        columns = ("text_file", "text_start", "text_bytes")
        code, start, size = (int(self._index.locator(column)[corpus_idx]) for column in columns)
        if code >= len(self._lists) or code < -len(TEXT_SUFFIXES) or min(start, size) < 0:
            raise self._index.damaged(f"it says that the text of sequence {corpus_idx} is in file {code}")
        file_idx = code if code >= 0 else len(self._lists) + corpus_idx
        content = self._texts.read(file_idx, start, size)
        return text_of(content, f"{self._text_stamps[file_idx].path}, tag {self._index.tags[corpus_idx]!r}")

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        self._texts.close()

    def __getstate__(self) -> tuple[str, AudioOptions, CorpusIndex]:
        return self._root, self._options, self._index

    def __setstate__(self, state: tuple[str, AudioOptions, CorpusIndex]) -> None:
        self._root, options, index = state
        self._attach(options, index)


class _Record(Mapping[str, Any]):
    """The fields of a recording, each looked up when it is asked for."""

    def __init__(self, source: AudioFolderSource, corpus_idx: int) -> None:
        self._source, self._corpus_idx = source, corpus_idx

    def __getitem__(self, name: str) -> str:
        source, tag = self._source, self._source.tag(self._corpus_idx)
        if name == FOLDER_FIELD:
            return folder_of(tag, source._root)
        if name == TEXT_FIELD:
            return source._read_text(self._corpus_idx)
        if name == TAG_FIELD:
            return tag
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in _FIELDS

    def __iter__(self) -> Iterator[str]:
        return iter(_FIELDS)

    def __len__(self) -> int:
        return len(_FIELDS)


def _text_stamps(root: str, lists: Sequence[tuple[str, int, int]], index: CorpusIndex) -> LazyStamps:
    """Return what the files with texts were: the lists, and after them the own file of each recording."""

    def stamp_of(file_idx: int) -> FileStamp:
        if file_idx < len(lists):
            name, size, time = lists[file_idx]
        else:
            corpus_idx = file_idx - len(lists)
            columns = ("text_file", "text_bytes", "text_time")
            code, size, time = (int(index.locator(column)[corpus_idx]) for column in columns)
            name = index.tags[corpus_idx] + TEXT_SUFFIXES[-1 - code]
        return FileStamp(os.path.join(root, name), size, time, digest="")

    return LazyStamps(len(lists) + index.num_seqs, stamp_of)


def _gather(options: AudioOptions, listing: Listing, text_files: Listing | None) -> CorpusIndex:
    texts: Texts | None = None if text_files is None else find_texts(text_files)
    scanned = scan_folder(listing, texts, options.fields)
    corpus = make_index(options, scanned, listing.root)
    corpus.meta["suffixes"] = scanned.suffixes
    corpus.meta["lists"] = [list(entry) for entry in scanned.lists]
    return corpus


def _index_kind(options: AudioOptions) -> str:
    said = {
        "features": options.features,
        "sample_rate": options.sample_rate,
        "targets": [[key, field.identity] for key, field in options.fields.items()],
    }
    return f"{INDEX_KIND} {json.dumps(said, default=repr)}"
