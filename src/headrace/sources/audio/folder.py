"""Recordings below a folder, whose labels and texts come from the folder itself.

A text is a file of the same name that ends in `.txt` or `.lab`, or a line of a `*.trans.txt` in the same folder, which
begins with the name of the recording, as in LibriSpeech.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.errors import SourceError
from headrace.features.log_mel import LogMel
from headrace.files import open_regular, resolve_inside
from headrace.files.utf8 import decode_utf8

from ..shared.folder import Listing, list_corpus_files
from ..shared.listed import FOLDER_FIELD, TAG_FIELD, Entry, Listed, entries_of, parse_targets
from ..shared.paths import Files, IndexOption
from .codec import RecordingCodec
from .source import TEXT_FIELD, RecordingSource, require_targets

SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif")
_LIST_SUFFIX, _TEXT_SUFFIXES = ".trans.txt", (".txt", ".lab")
_MAX_NAMED = 5


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
        fields = parse_targets(targets, (FOLDER_FIELD, TEXT_FIELD, TAG_FIELD))
        audio = RecordingCodec(features, sample_rate, channel)
        listing = whole = list_corpus_files(files, suffixes, "AudioFolderSource")
        listed = Listed(listing.root, listing.root, audio, fields)
        texts: Listing | None = None
        if targets is None:
            stems = {os.path.splitext(name)[0] for name in listing.names}
            found = (name for name in _list_texts(listing).names)
            has_text = any(name.endswith(_LIST_SUFFIX) or os.path.splitext(name)[0] in stems for name in found)
            require_targets(None, has_text=has_text, where=listing.root)
        elif any(field.name == TEXT_FIELD for field in fields.values()):
            texts = _list_texts(listing)
            whole = replace(listing, digest=f"{listing.digest}-{texts.digest}")

        def entries() -> Iterator[Entry]:
            text_of = {} if texts is None else {TEXT_FIELD: _read_texts(texts, listing.tags())}
            return entries_of(listing, listed, text_of)

        self._open_listed(listed, whole, entries, index=index, kind="audio-folder/4")


def _list_texts(listing: Listing) -> Listing:
    """List the files beside recordings that may hold texts."""
    found: dict[str, os.stat_result] = {}
    for folder in sorted({os.path.dirname(name) for name in listing.names}):
        with os.scandir(os.path.join(listing.root, folder)) as entries:
            for entry in entries:
                if entry.name.endswith(_TEXT_SUFFIXES):
                    name = os.path.join(folder, entry.name)
                    found[name] = (resolve_inside(listing.root, name) if entry.is_symlink() else entry).stat()
    return Listing.of(listing.root, sorted(found), found)


def _read_texts(listing: Listing, tags: Sequence[str]) -> dict[str, str]:
    """Return the texts of recordings by tag; what a list says counts most, then what is in a `.lab`.

    Raises:
        SourceError: A text is not UTF-8, a list has a name twice, or a recording has no text.
    """
    wanted, own, said = set(tags), dict[str, str](), dict[str, str]()
    for number, name in enumerate(listing.names):
        path, tag = listing.path(number), os.path.splitext(name)[0]
        is_list = name.endswith(_LIST_SUFFIX)
        if not is_list and (tag in own or tag not in wanted):  # .lab comes before .txt
            continue
        with open_regular(path) as file:
            content = decode_utf8(file.read(), path)
        if not is_list:
            own[tag] = content.strip()
            continue
        for line_number, line in enumerate(content.split("\n"), start=1):
            if parts := line.split(None, 1):
                tag = os.path.join(os.path.dirname(name), parts[0])
                if tag in said:
                    raise SourceError(
                        f"the text of {tag!r} is there twice", where=f"{path}, line {line_number}", fix="remove one"
                    )
                said[tag] = parts[1].strip() if len(parts) == 2 else ""
    texts = own | said
    missing = [tag for tag in tags if tag not in texts]
    if missing:
        raise SourceError(
            f"{len(missing)} of {len(tags)} recordings have no text: {', '.join(missing[:_MAX_NAMED])}",
            where=listing.root,
            fix="put it beside the recording as .txt or .lab, or into a *.trans.txt of the same folder",
        )
    return texts
