"""What a folder of recordings says of itself: recordings, their texts, and the folders that they are in.

A text is a file of the same name that ends in `.txt` or `.lab`, or a line of a `*.trans.txt` in the same folder, which
begins with the name of the recording, as in LibriSpeech. Which of its bytes are the text of a recording is noted, so
that it is read again with the recording and nothing of it stays in memory.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError

from .audio_file import read_header
from .folder_listing import Listing, for_each, list_corpus_files, read_part
from .manifest_fields import Field
from .utf8 import decode_utf8

SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif")
LIST_SUFFIX = ".trans.txt"
TEXT_SUFFIXES = (".txt", ".lab")
FOLDER_FIELD, TEXT_FIELD, TAG_FIELD = "folder", "text", "tag"
_MAX_NAMED = 5
_COLUMNS = ("num_samples", "sample_rate", "size", "time", "suffix")
_TEXT_COLUMNS = ("text_file", "text_start", "text_bytes", "text_time")


def all_cases(suffixes: Iterable[str]) -> tuple[str, ...]:
    """Return suffixes in lower and in upper case."""
    return tuple(dict.fromkeys(form for suffix in suffixes for form in (suffix, suffix.lower(), suffix.upper())))


@dataclass
class ScannedFolder:
    """Columns with one entry for each recording.

    Attributes:
        suffixes: The suffixes that there are; `suffix` counts them.
        lists: Name, size and time of each file that lists texts; `text_file` counts them. For a text in a file of its
            own it is -1 - its place in `TEXT_SUFFIXES`.
    """

    tags: list[str] = field(default_factory=list)
    num_samples: list[int] = field(default_factory=list)
    sample_rate: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    time: list[int] = field(default_factory=list)
    suffix: list[int] = field(default_factory=list)
    text_file: list[int] = field(default_factory=list)
    text_start: list[int] = field(default_factory=list)
    text_bytes: list[int] = field(default_factory=list)
    text_time: list[int] = field(default_factory=list)
    target_lengths: dict[str, list[int]] = field(default_factory=dict)
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
        places: Tag -> number of the file, first byte, number of bytes.
    """

    listing: Listing
    places: dict[str, tuple[int, int, int]]


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


def find_texts(listing: Listing) -> Texts:
    """Read the lists, and note the place of every text.

    Raises:
        SourceError: A list is not UTF-8, or has a name twice.
    """
    places: dict[str, tuple[int, int, int]] = {}
    for number, name in enumerate(listing.names):
        if name.endswith(LIST_SUFFIX):
            continue
        tag = os.path.splitext(name)[0]
        places.setdefault(tag, (number, 0, listing.sizes[number]))  # .lab comes before .txt
    for number, name in enumerate(listing.names):
        if name.endswith(LIST_SUFFIX):
            places.update(_read_list(listing, number))
    return Texts(listing, places)


def _read_list(listing: Listing, number: int) -> dict[str, tuple[int, int, int]]:
    """Return the places of the texts in a list: lines of a name, blanks, and the text."""
    path, folder = listing.path(number), os.path.dirname(listing.names[number])
    content = read_part(path, listing.sizes[number], listing.times[number], listing.sizes[number])
    places: dict[str, tuple[int, int, int]] = {}
    start = 0
    for line_number, line in enumerate(io.BytesIO(content), start=1):
        name, text = (*line.split(None, 1), b"", b"")[:2]
        if name:
            where = f"{path}, line {line_number}"
            tag = os.path.join(folder, decode_utf8(name, where))
            if tag in places:
                raise SourceError(f"the list has {tag!r} twice", where=where, fix="remove one of the lines")
            places[tag] = number, start + len(line) - len(text), len(text.rstrip())
        start += len(line)
    return places


def text_of(content: bytes, where: str) -> str:
    """Return the text of a recording from its bytes: without blanks around it.

    Raises:
        SourceError: They are not UTF-8.
    """
    return decode_utf8(content, where).strip()


def folder_of(tag: str, where: str) -> str:
    """Return the name of the folder that a recording is in.

    Raises:
        SourceError: It is in none, but at the top.
    """
    folders = tag.split("/")[:-1]
    if not folders:
        raise SourceError("the recording is in no sub-folder that would be its label", where=where)
    return folders[-1]


def scan_folder(listing: Listing, texts: Texts | None, fields: Mapping[str, Field]) -> ScannedFolder:
    """Read the headers of all recordings, several at a time, and their texts; the fields learn their labels.

    Raises:
        SourceError: A recording is torn or damaged, has no text, or no label; or two have the same tag.
    """
    scanned = ScannedFolder(target_lengths={key: [] for key in fields})
    tags = [os.path.splitext(name)[0] for name in listing.names]
    _refuse_twins(tags, listing)
    if texts is not None:
        _refuse_silence(tags, texts, listing.root)

    def look(number: int) -> tuple[int, int]:
        header = read_header(listing.path(number))
        read_part(listing.path(number), listing.sizes[number], listing.times[number], 0)
        return header

    headers = for_each(look, range(len(tags)))
    suffixes = [os.path.splitext(name)[1] for name in listing.names]
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


def _take_text(scanned: ScannedFolder, texts: Texts, tag: str, lists: dict[int, int]) -> str:
    """Note where a text is, and return it. `lists`: number of a list -> its place in `scanned.lists`."""
    file, start, num_bytes = texts.places[tag]
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


def _refuse_twins(tags: Sequence[str], listing: Listing) -> None:
    if len(set(tags)) < len(tags):
        first: dict[str, int] = {}
        for number, tag in enumerate(tags):
            if first.setdefault(tag, number) != number:
                raise SourceError(
                    f"two recordings have the tag {tag!r}",
                    where=f"{listing.path(first[tag])}, {listing.path(number)}",
                    fix="choose by suffixes=, or remove one",
                )


def _refuse_silence(tags: Sequence[str], texts: Texts, root: str) -> None:
    missing = [tag for tag in tags if tag not in texts.places]
    if missing:
        more = ", ..." if len(missing) > _MAX_NAMED else ""
        raise SourceError(
            f"{len(missing)} of {len(tags)} recordings have no text: {', '.join(missing[:_MAX_NAMED])}{more}",
            where=root,
            fix="put it beside the recording as .txt or .lab, or into a *.trans.txt of the same folder",
        )
