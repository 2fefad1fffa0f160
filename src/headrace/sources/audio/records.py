"""Recordings that something lists: a manifest, a table or a folder. All are one kind of records.

Whatever lists recordings gives an `Entry` for each: a tag, a path, what is known of its header, and values of fields.
`gather_recordings` makes an index of them, which has all of that; headers are read only where nothing says what they
hold. From then on a `RecordingSource` needs the index and the recordings alone, and nothing is decoded before it is
asked for. Read `source.py` for manifests and tables, and `folder.py` for folders.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import FileStamp, resolve_inside
from headrace.index import CorpusIndex

from ..shared.codec import Codec
from ..shared.fields import Field, IndexField
from ..shared.folder import for_each
from ..shared.open_files import check_stamp
from ..shared.records import Gathered
from ..shared.source import IndexedSource
from .codec import RecordingCodec, read_header, read_part, read_samples

# Of one recording that cannot be sought, as decoded: an hour at 16 kHz has 230 MB. Longer ones are decoded each time.
_MAX_HELD_BYTES = 256 << 20
_MAX_NAMED = 5  # missing files that an error names; the rest is counted
NOT_GIVEN = -1
_HEADER = ("num_samples", "sample_rate")
_STAMP = ("size", "time")
_PATH = "path"  # name of a column of texts; others have the names of fields, after a colon
TEXT_FIELD = "text"


class Entry(NamedTuple):
    """One recording that is listed.

    Attributes:
        tag: Its tag.
        path: Its path, relative to a root.
        values: Field -> value.
        where: What lists it, for errors.
        num_samples: `NOT_GIVEN` if its header has to say it, as for the rate.
        sample_rate: In Hz.
        size: Its bytes and its time, of a file that has to be what it was.
        time: See above.
    """

    tag: str
    path: str
    values: Mapping[str, Any]
    where: str
    num_samples: int = NOT_GIVEN
    sample_rate: int = NOT_GIVEN
    size: int = NOT_GIVEN
    time: int = NOT_GIVEN


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """How recordings become arrays.

    Attributes:
        listed_in: What lists them, for errors.
        root: Absolute path of the folder that their paths are relative to, and must not lead out of.
        audio: How recordings become arrays.
        fields: Data key -> field of an entry.
    """

    listed_in: str
    root: str
    audio: RecordingCodec
    fields: dict[str, Field]

    @property
    def codecs(self) -> dict[str, Codec]:
        """All of them, by data key."""
        return {"data": self.audio, **self.fields}

    @property
    def identity(self) -> str:
        """All that changes an index, whatever lists the recordings."""
        return json.dumps([[key, codec.identity] for key, codec in self.codecs.items()], default=repr)


def gather_recordings(options: RecordingOptions, entries: Iterable[Entry]) -> CorpusIndex:
    """Return the index of recordings, all of which are looked at, several at a time.

    Raises:
        SourceError: A recording or an entry is wrong, or recordings are missing.
    """
    fields, root = options.fields, options.root
    found = Gathered.of(options.codecs, (*_HEADER, *_STAMP))
    names = {field.name: isinstance(field, IndexField) for field in fields.values()}
    texts: dict[str, list[str]] = {_PATH: [], **{f":{name}": [] for name in names}}
    looked_at: list[tuple[str, Entry]] = []
    folders: dict[str, str] = {}
    for entry in entries:
        folder = os.path.dirname(entry.path)
        if folder not in folders:
            folders[folder] = _real_folder(root, folder)
        values = {key: field_of(entry.values, field.name, object, entry.where) for key, field in fields.items()}
        found.note(fields, values, entry.where)
        for name, is_number in names.items():
            texts[f":{name}"].append(json.dumps(entry.values[name]) if is_number else entry.values[name])
        looked_at.append((folders[folder], entry._replace(values={})))
    headers = for_each(partial(_look_at, root), looked_at)
    missing = [entry.path for (_, entry), header in zip(looked_at, headers, strict=True) if header is None]
    if missing:
        more = ", ..." if len(missing) > _MAX_NAMED else ""
        place = "there" if root == "/" else f"below {root}"
        raise SourceError(
            f"{len(missing)} of {len(looked_at)} audio files are missing: {', '.join(missing[:_MAX_NAMED])}{more}",
            where=options.listed_in,
            fix=f"put them {place}, or give root=, the folder that the paths are relative to",
        )
    for (_, entry), header in zip(looked_at, headers, strict=True):
        assert header is not None
        found.tags.append(entry.tag)
        texts[_PATH].append(entry.path)
        found.locate(num_samples=header[0], sample_rate=header[1], size=entry.size, time=entry.time)
        found.lengths["data"].append(options.audio.note_header(*header, entry.where, found.facts["data"]))
    return found.index(options.codecs, texts=texts)


def _real_folder(root: str, folder: str) -> str:
    """Return where a folder is; what is not there, or outside of the root, stays as it is: `_look_at` says so."""
    try:
        return str(resolve_inside(root, folder))
    except (SourceError, OSError, ValueError):  # ValueError: a null character
        return ""


def _look_at(root: str, item: tuple[str, Entry]) -> tuple[int, int] | None:
    """Return number of samples and rate of a recording; read its header if one is not given. `None`: it is missing."""
    folder, entry = item
    given = entry.num_samples, entry.sample_rate
    try:
        path = os.path.join(folder, os.path.basename(entry.path))
        if not folder or os.path.islink(path):  # following links costs much more than a look at one file
            path = str(resolve_inside(root, entry.path))
        if not os.path.isfile(path):
            return None
    except SourceError as error:
        raise SourceError(error.what, where=entry.where, fix=error.fix) from error
    except (OSError, ValueError):  # as above
        return None
    if NOT_GIVEN not in given:
        return given
    header = read_header(path)
    for said, actual, what in zip(given, header, ("samples", "Hz"), strict=True):
        if said not in (NOT_GIVEN, actual):
            raise SourceError(f"the manifest says {said} {what}, {entry.path} has {actual}", where=entry.where)
    return header


def field_of(record: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return a field of a record that must be there and be of some type.

    Raises:
        SourceError: It is not there, or of another type.
    """
    if name not in record:
        raise SourceError(
            f"there is no field {name!r}, only {sorted(record)}",
            where=where,
            fix="say the name that it has: AudioSource(audio_field=, tag_field=, length_field=), of an AudioDataset in "
            "source_options={...}; targets={data key: field}. With tag_field=None, the path of a recording is its tag",
        )
    if not isinstance(record[name], kind):
        raise SourceError(f"the field {name!r} has {record[name]!r}, which has the wrong type", where=where)
    return record[name]


def require_targets(targets: Mapping[str, Any] | None, *, has_text: bool, where: str) -> None:
    """Refuse to leave out the texts of recordings silently, if no targets were given.

    Args:
        targets: As given; a dict says what is read, an empty one that nothing is.
        has_text: Whether the first recording has a text.
        where: What lists them.

    Raises:
        ConfigError: There are texts, and no targets were given.
    """
    if targets is None and has_text:
        raise ConfigError(
            "the recordings have texts, and nothing says how they become numbers",
            where=where,
            fix='give targets={"text": {"field": "text", "vocab": "chars"}}, or "bytes", or a vocabulary; '
            "targets={} leaves the texts out",
        )


class RecordingSource(IndexedSource):
    """Recordings: key "data", and a key for each target."""

    _options: RecordingOptions
    _changed_fix = "the recordings changed since they were indexed: build the source again"
    _wrong_length_fix = "correct the manifest, or touch it to have headers read again; replace a truncated recording"

    def _prepare(self) -> None:
        self._audio = self._options.audio
        self._settle(self._options.codecs)

    def _prepare_files(self) -> None:
        super()._prepare_files()
        self._held: tuple[int, NDArray[Any]] | None = None  # what was read last to take a part of it

    @property
    def sample_rate(self) -> int | None:
        """The rate of the samples that "data" is made of, in Hz; `None` if there are no recordings to have one."""
        return self._audio.rate

    def _load(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return "data" as float32[T, D], targets as integers [T]."""
        where = self._where(corpus_idx)
        if data_key != "data":
            field = self._options.fields[data_key]
            text = self._index.text(f":{field.name}", corpus_idx)
            array: NDArray[Any] = field.encode(json.loads(text) if isinstance(field, IndexField) else text, where)
            return array
        path = self._recording(corpus_idx)
        samples, rate = read_samples(path, self._audio.channel)
        expected = self._numbers(corpus_idx, _HEADER)
        for what, wanted, actual in zip(("samples", "Hz"), expected, (len(samples), rate), strict=True):
            if actual != wanted:
                raise SourceError(
                    f"the recording has {actual} {what}, but {wanted} are expected",
                    where=f"{where}, {path}",
                    fix=self._wrong_length_fix,
                )
        return self._audio.of_samples(samples, rate)

    def _recording(self, corpus_idx: int) -> str:
        """Return the path of a recording, if it is what it was."""
        root, name = self._options.root, self._index.text(_PATH, corpus_idx)
        size, time = self._numbers(corpus_idx, _STAMP)
        if size == NOT_GIVEN:
            return str(resolve_inside(root, name))
        path = os.path.join(root, name)
        check_stamp(FileStamp(path, size, time, digest=""))
        return path

    def _numbers(self, corpus_idx: int, names: tuple[str, str]) -> tuple[int, int]:
        first, second = (int(self._index.locator(name)[corpus_idx]) for name in names)
        return first, second

    def reads_slices(self, data_key: str) -> bool:
        """Yes, of recordings: samples are sought, or a recording is decoded once for parts that follow each other."""
        return data_key == "data"

    def _load_part(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        if data_key != "data":
            return super()._load_part(corpus_idx, data_key, start, end)
        if self._held is not None and self._held[0] == corpus_idx:
            return self._held[1][start:end].copy()
        num_samples, rate = self._numbers(corpus_idx, _HEADER)
        if self._audio.keeps_samples(rate):
            path = self._recording(corpus_idx)
            part = read_part(path, self._audio.channel, start, end, num_samples=num_samples, sample_rate=rate)
            if part is not None:
                return part[:, None]
        whole = self._checked(corpus_idx, data_key, self._load(corpus_idx, data_key))
        self._held = (corpus_idx, whole) if whole.nbytes <= _MAX_HELD_BYTES else None
        return whole[start:end].copy()

    def _where(self, corpus_idx: int) -> str:
        return f"{self._options.listed_in}, tag {self._index.tags[corpus_idx]!r}"

    def close(self) -> None:
        """Drop what is held of a recording."""
        self._held = None
        super().close()
