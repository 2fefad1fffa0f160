"""A source of the recordings below a folder, whose labels and texts come from the folder itself.

A text is a file of the same name that ends in `.txt` or `.lab`, or a line of a `*.trans.txt` in the same folder, which
begins with the name of the recording, as in LibriSpeech. Read `records.py` first.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Any

from headrace.errors import SourceError
from headrace.features.log_mel import LogMel
from headrace.files.utf8 import decode_utf8
from headrace.index import CorpusIndex

from ..shared.folder import (
    FOLDER_FIELD,
    TAG_FIELD,
    Listing,
    all_cases,
    folder_values,
    list_corpus_files,
    parse_targets,
    read_part,
)
from ..shared.paths import Files, IndexOption
from .codec import RecordingCodec
from .records import TEXT_FIELD, Entry, RecordingOptions, RecordingSource, gather_recordings, require_targets

SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif")
LIST_SUFFIX = ".trans.txt"
TEXT_SUFFIXES = (".txt", ".lab")
INDEX_KIND = "audio-folder/3"
_FIELDS = (FOLDER_FIELD, TEXT_FIELD, TAG_FIELD)
_MAX_NAMED = 5
_NUM_LOOKED_AT = 100  # folders; each is a look at the disk


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


def _read_texts(listing: Listing, tags: Sequence[str]) -> dict[str, str]:
    """Return the texts of recordings by tag; what a list says counts most, then what is in a `.lab`.

    Raises:
        SourceError: A text is not UTF-8, a list has a name twice, or a recording has no text.
    """
    wanted, own, listed = set(tags), dict[str, str](), dict[str, str]()
    for number, name in enumerate(listing.names):
        path, tag = listing.path(number), os.path.splitext(name)[0]
        is_list = name.endswith(LIST_SUFFIX)
        if not is_list and (tag in own or tag not in wanted):  # .lab comes before .txt
            continue
        content = read_part(path, listing.sizes[number], listing.times[number], listing.sizes[number])
        if not is_list:
            own[tag] = decode_utf8(content, f"{path}, tag {tag!r}").strip()
            continue
        seen: set[bytes] = set()
        for line_number, line in enumerate(io.BytesIO(content), start=1):
            first, text = (*line.split(None, 1), b"", b"")[:2]
            where = f"{path}, line {line_number}"
            if first in seen:
                raise SourceError(f"the list has {first.decode()!r} twice", where=where, fix="remove one of the lines")
            if first:
                seen.add(first)
                tag = os.path.join(os.path.dirname(name), decode_utf8(first, where))
                listed[tag] = decode_utf8(text, where).strip()
    texts = own | listed
    missing = [tag for tag in tags if tag not in texts]
    if missing:
        more = ", ..." if len(missing) > _MAX_NAMED else ""
        raise SourceError(
            f"{len(missing)} of {len(tags)} recordings have no text: {', '.join(missing[:_MAX_NAMED])}{more}",
            where=listing.root,
            fix="put it beside the recording as .txt or .lab, or into a *.trans.txt of the same folder",
        )
    return texts


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
        fields = parse_targets(targets, _FIELDS)
        audio = RecordingCodec(features, sample_rate, channel)
        listing = list_corpus_files(files, all_cases(suffixes, "AudioFolderSource"), "AudioFolderSource")
        options = RecordingOptions(listing.root, listing.root, audio, fields)
        names = {field.name for field in fields.values()}
        if targets is None and listing.names:
            require_targets(None, has_text=_has_text(listing), where=listing.root)
        texts, whole = None, listing
        if TEXT_FIELD in names:
            is_folder = isinstance(files, str | os.PathLike)
            texts = list_texts(listing.root, None if is_folder else map(os.path.dirname, listing.names))
            whole = replace(listing, digest=f"{listing.digest}-{texts.digest}")

        def gather() -> CorpusIndex:
            return gather_recordings(options, _entries(listing, texts, names))

        self._open(options, whole, gather, index=index, kind=f"{INDEX_KIND} {options.identity}")


def _entries(listing: Listing, texts: Listing | None, names: set[str]) -> Iterator[Entry]:
    tags = listing.tags()
    text_of = {} if texts is None else _read_texts(texts, tags)
    for number, tag in enumerate(tags):
        path = listing.path(number)
        values = folder_values(tag, names, path)
        if texts is not None:
            values[TEXT_FIELD] = text_of[tag]
        stamp = {"size": listing.sizes[number], "time": listing.times[number]}
        yield Entry(tag, listing.names[number], values, path, **stamp)
