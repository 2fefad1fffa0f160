"""Files that something lists (a folder, a manifest, a table), each of which is the "data" of a sequence.

Whatever lists files gives an `Entry` for each: a tag, a path, values of fields, and what is known of the file. Where it
is not known, each file is looked at once, several at a time. From then on a `ListedSource` needs the index and the
files alone: "data" is what a codec makes of a file, a target what a field makes of a value.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import FileStamp, resolve_inside
from headrace.index import CorpusIndex

from .codec import Codec, FileCodec
from .fields import Field, parse_field
from .folder import Listing, for_each
from .json_fields import IndexField
from .open_files import check_stamp
from .paths import IndexOption
from .records import Gathered
from .source import IndexedSource

FOLDER_FIELD, TAG_FIELD = "folder", "tag"  # what the name of a file says of a sequence
_PATH = "path"  # name of a column of texts; others have the names of fields, after a colon


class Entry(NamedTuple):
    """One file that is listed.

    Attributes:
        tag: Its tag.
        path: Its path, relative to the root.
        values: Field -> value.
        where: What lists it, for errors.
        known: What the codec's `look` would return, if the list says it.
        stamp: Its bytes and time, of a file that has to be what it was; else (-1, -1).
    """

    tag: str
    path: str
    values: Mapping[str, Any]
    where: str
    known: Any = None
    stamp: tuple[int, int] = (-1, -1)


@dataclass(frozen=True, slots=True)
class Listed:
    """How listed files become arrays.

    Attributes:
        listed_in: What lists them, for errors.
        root: Absolute path of the folder that their paths are relative to, and must not lead out of.
        data: Makes "data" of a path.
        fields: Data key -> field of an entry.
    """

    listed_in: str
    root: str
    data: FileCodec
    fields: dict[str, Field]

    @property
    def codecs(self) -> dict[str, Codec]:
        """All of them, by data key."""
        return {"data": self.data, **self.fields}


class ListedSource(IndexedSource):
    """Listed files: key "data", and a key for each target."""

    _options: Listed
    _changed_fix = "correct what lists the files; or open the corpus again, if they changed since they were indexed"

    def _open_listed(
        self,
        listed: Listed,
        files: Listing | Sequence[str],
        entries: Callable[[], Iterable[Entry]],
        *,
        index: IndexOption,
        kind: str,
    ) -> None:
        identity = json.dumps([[key, codec.identity] for key, codec in listed.codecs.items()], default=repr)
        self._open(listed, files, lambda: _gather(listed, entries()), index=index, kind=f"{kind} {identity}")

    def _prepare(self) -> None:
        self._settle(self._options.codecs)

    def _load(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        where, codecs = self._where(corpus_idx), self._options.codecs
        if data_key == "data":
            path = self._path(corpus_idx)
            return codecs[data_key].encode(path, f"{path}, tag {self._index.tags[corpus_idx]!r}")
        field = self._options.fields[data_key]
        text = self._index.text(f":{field.name}", corpus_idx)
        return field.encode(json.loads(text) if isinstance(field, IndexField) else text, where)

    def _path(self, corpus_idx: int) -> str:
        """Return the path of a file, if it is what it was."""
        root, name = self._options.root, self._index.text(_PATH, corpus_idx)
        size, time = (int(self._index.locator(column)[corpus_idx]) for column in ("size", "time"))
        if size < 0:
            return str(resolve_inside(root, name))
        path = os.path.join(root, name)
        check_stamp(FileStamp(path, size, time, digest=""))
        return path

    def _where(self, corpus_idx: int) -> str:
        return f"{self._options.listed_in}, tag {self._index.tags[corpus_idx]!r}"


def _gather(listed: Listed, entries: Iterable[Entry]) -> CorpusIndex:
    """Return the index of files, all of which are looked at, several at a time."""
    fields = listed.fields
    found = Gathered.of(listed.codecs, ("size", "time"))
    texts: dict[str, list[str]] = {_PATH: [], **{f":{field.name}": [] for field in fields.values()}}
    is_number = {field.name: isinstance(field, IndexField) for field in fields.values()}
    items: list[tuple[str, Entry]] = []
    folders: dict[str, str] = {}
    for entry in entries:
        folder = os.path.dirname(entry.path)
        if folder not in folders:
            folders[folder] = _real(listed.root, folder, entry.where)
        found.note(
            fields,
            {key: value_of(entry.values, field.name, object, entry.where) for key, field in fields.items()},
            entry.where,
        )
        for name in is_number:
            texts[f":{name}"].append(json.dumps(entry.values[name]) if is_number[name] else entry.values[name])
        found.tags.append(entry.tag)
        texts[_PATH].append(entry.path)
        found.locate(size=entry.stamp[0], time=entry.stamp[1])
        items.append((folders[folder], entry._replace(values={})))
    looks = for_each(partial(_look, listed.root, listed.data), items)
    for (_, entry), look in zip(items, looks, strict=True):
        found.lengths["data"].append(listed.data.note_look(look, entry.where, found.facts["data"]))
    return found.index(listed.codecs, texts=texts)


def _real(root: str, path: str, where: str) -> str:
    try:
        return str(resolve_inside(root, path))
    except SourceError as error:
        raise SourceError(error.what, where=where, fix=error.fix) from error


def _look(root: str, data: FileCodec, item: tuple[str, Entry]) -> Any:
    """Return what is known of a file, or a look at it."""
    folder, entry = item
    path = os.path.join(folder, os.path.basename(entry.path))
    if os.path.islink(path):  # following links costs much more than a look at one file
        path = _real(root, entry.path, entry.where)
    if not os.path.isfile(path):
        fix = "put it there, or give root=, the folder that paths are relative to"
        raise SourceError(f"the file {entry.path!r} is missing: there is no {path}", where=entry.where, fix=fix)
    return data.look(path, path) if entry.known is None else entry.known


def value_of(record: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
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


def parse_targets(targets: Mapping[str, Any] | None, names: Sequence[str] | None) -> dict[str, Field]:
    """Return the fields that targets of files name; `names` are those that there are, if that is known.

    Raises:
        ConfigError: A target cannot be read, or is named "data", or its field is none of the names.
    """
    fields = {key: parse_field(key, target) for key, target in (targets or {}).items()}
    for key, field in fields.items():
        if key == "data":
            raise ConfigError('a target cannot be named "data": that is what the file holds')
        if names is not None and field.name not in names:
            fix = did_you_mean(field.name, names)
            raise ConfigError(f"a folder has no field {field.name!r}", where=f"target {key!r}", fix=fix)
    return fields


def entries_of(
    listing: Listing, listed: Listed, texts: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[Entry]:
    """Yield the files of a folder. Their names say tag and folder; `texts` are more fields, of each tag."""
    needs_folder = any(field.name == FOLDER_FIELD for field in listed.fields.values())
    for number, tag in enumerate(listing.tags()):
        path = listing.path(number)
        values = {TAG_FIELD: tag, **{name: text_of[tag] for name, text_of in (texts or {}).items()}}
        if needs_folder:
            if "/" not in tag:
                raise SourceError("the file is in no sub-folder that would be its label", where=path)
            values[FOLDER_FIELD] = tag.split("/")[-2]
        yield Entry(tag, listing.names[number], values, path, stamp=(listing.sizes[number], listing.times[number]))
