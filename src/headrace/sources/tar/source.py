"""`TarSource`: random access to sequences in tar archives of the WebDataset format.

Each archive is walked through once, for the index; from then on a sequence is read from its position in the file, and
nothing is unpacked to the disk. Read `archive.py` for archives and for what makes a sequence, `members.py` for how
members become arrays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.index import CorpusIndex

from ..shared.paths import Files, IndexOption, list_paths
from ..shared.records import Gathered
from ..shared.source import IndexedSource, PlainKey, column_view
from .archive import METADATA_NAME, MemberFile, TarMember, open_archive, scan_members, split_name, unescape
from .members import (
    MemberKey,
    default_data_key,
    json_of,
    parse_fields,
    parse_members,
    split_field,
    text_of,
    value_in,
)
from .writer import Metadata, merge_metadata, read_metadata

INDEX_KIND = "tar/4"  # with the version of what the columns and `meta` say, and of how lengths are counted
SHARD_AND_KEY = "shard/key"
_LOGGER = logging.getLogger("headrace.sources")
_MISSING = ("error", "skip")


@dataclass(frozen=True, slots=True)
class TarOptions:
    """The user's options.

    Attributes:
        members: Data key -> how its members become arrays; `None`: by the extensions of the first sequence.
        tag: Where tags come from: `None` (the key), `SHARD_AND_KEY`, or extension and names in JSON.
        missing: What is done with a sequence that lacks a member.
    """

    members: dict[str, MemberKey] | None
    tag: tuple[str, tuple[str, ...]] | str | None
    missing: Literal["error", "skip"]

    @property
    def kind(self) -> str:
        """Identify the source and every option that changes its index: the same text in every process."""
        said = self.members and [[key, codec.identity] for key, codec in self.members.items()]
        return f"{INDEX_KIND} {json.dumps([said, self.tag, self.missing], default=repr)}"


class TarSource(IndexedSource):
    """Random access to sequences in tar archives, as WebDataset, Energon and `TarWriter` write them ("shards").

    Consecutive members `<key>.<extension>` with one key are a sequence; the corpus is the sequences of the archives,
    one archive after the other. The key is the tag (where `TarWriter` wrote it, the tag that it was given). It may
    repeat in another archive, but not in one. What an extension makes of a member:

    | extension | array |
    |---|---|
    | `npy` | the array; its first axis is time |
    | `cls`, `cls2`, `class` | a class index: `int32[]`, of a batch `int32[B]` |
    | `count`, `index`, `inx`, `id` | a number: `int64[]`, of a batch `int64[B]` |
    | `wav`, `flac`, `ogg`, `opus`, `mp3`, ... | samples: `float32[T, 1]`, or features. Needs `headrace[audio]` |
    | `txt`, `json` and other text | UTF-8 bytes: `uint8[T]`, 256 classes |
    | any other | the bytes: `uint8[T]` |

    Args:
        files: One path, or several; `train-{000000..000099}.tar` is a hundred.
        fields: A list of extensions, `["jpg", "cls"]`, or data key -> extension. In place of an extension, several of
            images or of recordings (`"jpg;png"`), or a dict `{"field": extension, ...}` with options: "vocab" for text
            and numbers (None: labels, the sorted distinct values; a list of labels; "bytes"; "chars"; a number of
            classes; a vocabulary) and for arrays of class indices (their number, or a list of labels), "features",
            "sample_rate", "channel" for recordings, as `AudioSource` takes them. `"json:name"` is a value in the member
            with the extension `json`, `"npz:name"` an array in `npz`. If `None`, all members of the first sequence are
            data keys; `x.npy` is called `x`.
        tag_field: What the tag is: the key if `None`; `"shard/key"` puts the name of the archive before it; else an
            extension or `"json:name"`, for a text.
        missing: `"skip"` leaves out sequences without one of the members, or of the fields in a JSON member (`null` is
            none); `"error"` refuses them.
        index: `"auto"` keeps the index of a large corpus in the cache folder and finds it there the next time; `None`
            always walks through the archives; a path opens the index that `TarSource(...).index.save(path)` wrote with
            the same options.

    Raises:
        ConfigError: An option is wrong, or does not fit what is there.
        SourceError: An archive is missing, truncated, damaged, compressed, or has members that are no plain files
            inside of it (links, paths that lead out), a member twice, sequences whose members do not follow one
            another, or that have not the same members; or the given index is not one of these files as they are now.
    """

    _options: TarOptions
    _changed_fix = "the archive changed since it was indexed: open it again"

    def __init__(
        self,
        files: Files,
        *,
        fields: Mapping[str, str | Mapping[str, Any]] | Sequence[str] | None = None,
        tag_field: str | None = None,
        missing: Literal["error", "skip"] = "error",
        index: IndexOption = "auto",
    ) -> None:
        paths = list_paths(files, "TarSource", may_be_empty=True)
        if missing not in _MISSING:
            raise ConfigError(f"missing is {missing!r}", where="TarSource", fix=did_you_mean(str(missing), _MISSING))
        if not isinstance(tag_field, str | None):
            raise ConfigError(f"tag_field is a str, not {tag_field!r}", where="TarSource")
        by_name = tag_field is None or tag_field == SHARD_AND_KEY
        options = TarOptions(
            members=None if fields is None else parse_fields(fields),
            tag=tag_field if by_name else split_field(tag_field or "", "TarSource(tag_field=...)"),
            missing=missing,
        )
        self._open(options, paths, lambda: gather_index(paths, options), index=index, kind=options.kind)

    def _prepare(self) -> None:
        index = self._index
        self._file_of = column_view(index.locator("file"))
        self._sizes = [stamp.size for stamp in index.files]
        self._codecs: dict[str, MemberKey] = {}
        self._places: dict[str, tuple[memoryview[int], memoryview[int]]] = {}  # where members end, and their sizes
        for key, spec in self.specs.items():
            member_key = (self._options.members or {}).get(key)
            member_key = member_key or parse_members(key, index.meta["extensions"][key], is_found=True)
            member_key.codec.settle(spec, self.labels.get(key), index.meta.get("learnt", {}).get(key))
            self._codecs[key] = member_key
            ends, sizes = (column_view(index.locator(f"{what}/{member_key.ext}")) for what in ("end", "bytes"))
            self._places[key] = ends, sizes
            if member_key.is_plain:
                self._plain[key] = PlainKey.of(spec, index.lengths(key))

    def _locate(self, corpus_idx: int, data_key: str) -> tuple[int, int, int]:
        ends, sizes = self._places[data_key]
        file_idx, end, num_bytes = self._file_of[corpus_idx], ends[corpus_idx], sizes[corpus_idx]
        plain = self._plain.get(data_key)  # its numbers are at the end of the member, after a header
        size = num_bytes if plain is None else plain.lengths[corpus_idx] * plain.frame_bytes
        # A damaged index must not read other bytes: what it says is compared with the file, here where it is used.
        if not 0 <= file_idx < len(self._sizes) or not 0 <= size <= num_bytes <= end <= self._sizes[file_idx]:
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in {num_bytes} bytes up to {end}")
        return file_idx, end - size, size

    def _decode(self, data: bytes, data_key: str, where: str) -> NDArray[Any]:
        codec = self._codecs[data_key]
        return codec.encode(data, f"{where}, .{codec.ext}")

    def _where(self, corpus_idx: int) -> str:
        return f"{self._index.files[self._file_of[corpus_idx]].path}, tag {self._index.tags[corpus_idx]!r}"


@dataclass
class FoundMembers(Gathered):
    """What is known of one or several archives.

    Attributes:
        metadata: What the writer of each stored.
        num_skipped: Sequences that lack a member.
        nameless: The files whose names are none of a member.
    """

    metadata: list[Metadata | None] = field(default_factory=list)
    num_skipped: int = 0
    nameless: list[str] = field(default_factory=list)

    def add(self, others: Gathered) -> None:
        """Add what is known of the next archives."""
        assert isinstance(others, FoundMembers)
        super().add(others)
        self.metadata += others.metadata
        self.num_skipped += others.num_skipped
        self.nameless += others.nameless


def gather_index(paths: Sequence[str], options: TarOptions) -> CorpusIndex:
    """Walk through archives: some 10 microseconds a sequence of one array, and what it takes to read headers of audio.

    Raises:
        SourceError: An archive is truncated, or not to be trusted, or a sequence is not like the others.
        ConfigError: The options do not fit what is there.
    """
    codecs = _codecs_of_first(paths) if options.members is None else options.members
    places = [f"{what}/{codec.ext}" for codec in codecs.values() for what in ("end", "bytes")]
    found = FoundMembers.of(codecs, [*places, "file"])
    found.add_files(partial(_gather_archive, options, codecs), paths)
    if found.nameless and not found.tags:
        what = f"none of the {len(found.nameless)} files has a name such as `key.extension`"
        fix = "name the members so: what stands before the first dot is the sequence, the rest says what it is"
        raise SourceError(what, where=found.nameless[-1], fix=fix)
    if found.num_skipped:
        what = "%d sequences lack a member or a field of a JSON member, and are left out (missing='skip')"
        _LOGGER.warning(what, found.num_skipped)
    stored = [metadata for metadata in found.metadata if metadata is not None]
    metadata = merge_metadata(stored) if stored and len(stored) == len(found.metadata) else None
    if metadata is not None and options.members is None:
        codecs = _renamed(found, codecs, metadata)
    extensions = {key: codec.ext for key, codec in codecs.items()}
    adopt = None if metadata is None else partial(metadata.adopt, codecs)
    return found.index({key: own.codec for key, own in codecs.items()}, adopt=adopt, extensions=extensions)


def _codecs_of_first(paths: Sequence[str]) -> dict[str, MemberKey]:
    """Return how the members of the first sequence become arrays."""
    codecs: dict[str, MemberKey] = {}
    for path in paths:
        with open_archive(path) as archive:
            for _, parts in _sequences(archive, path, FoundMembers({}, {}, {})):
                for ext in parts:
                    data_key = default_data_key(ext)
                    if data_key in codecs:
                        what = f"the members .{ext} and .{codecs[data_key].ext} would both be the data key {data_key!r}"
                        raise SourceError(what, where=path, fix="name them: fields={data key: extension, ...}")
                    codecs[data_key] = parse_members(data_key, ext, is_found=True)
                return codecs
    return codecs


def _sequences(archive: IO[bytes], path: str, found: FoundMembers) -> Iterator[tuple[str, dict[str, TarMember]]]:
    """Yield key and members of each sequence, by extension; what is no member of one is noted as found."""
    seen: set[str] = set()
    key: str | None = None
    parts: dict[str, TarMember] = {}
    for member in scan_members(archive, path):
        names = None if member.name == METADATA_NAME else split_name(member.name)
        if names is None:
            where = f"{path}, member {member.name!r}"
            if member.name == METADATA_NAME:
                found.metadata = [read_metadata(MemberFile(archive, member).head(member.num_bytes), where)]
            else:
                found.nameless.append(where)
            continue
        if names[0] != key:
            if key is not None:
                yield key, parts
            key, parts = names[0], {}
        if names[1] in parts or (not parts and key in seen):
            raise SourceError(
                f"members of the sequence {key!r} do not follow one another, or one is there twice",
                where=f"{path}, member {member.name!r}",
                fix="sort the names when making the archive (tar --sort=name); two sequences of one archive cannot "
                "have the same key",
            )
        seen.add(names[0])
        parts[names[1]] = member
    if key is not None:
        yield key, parts


def _gather_archive(options: TarOptions, codecs: Mapping[str, MemberKey], path: str) -> FoundMembers:
    """Walk through one archive."""
    known = list(dict.fromkeys(codec.ext for codec in codecs.values()))
    found = FoundMembers.of(codecs, [f"{what}/{ext}" for ext in known for what in ("end", "bytes")])
    found.metadata = [None]
    with open_archive(path) as archive:
        for key, parts in _sequences(archive, path, found):
            members = {ext: _member_of(parts, ext) for ext in known}
            is_whole = None not in members.values()
            has_more = options.members is None and not parts.keys() <= members.keys()
            if (is_whole and has_more) or (not is_whole and options.missing == "error"):
                raise SourceError(
                    f"the sequence {key!r} has the members {sorted(parts)}, not {sorted(known)}",
                    where=path,
                    fix='name the ones to read (fields={data key: extension, ...}), or leave it out: missing="skip"',
                )
            files = {
                ext: (MemberFile(archive, member), f"{path}, member {member.name!r}")
                for ext, member in members.items()
                if member is not None
            }
            if not is_whole or (
                options.missing == "skip" and not all(one.has_value(*files[one.ext]) for one in codecs.values())
            ):
                found.num_skipped += 1
                continue
            for data_key, codec in codecs.items():
                file, where = files[codec.ext]
                found.lengths[data_key].append(codec.note(file, where, found.facts[data_key]))
            for ext, member in members.items():
                assert member is not None
                found.locators[f"end/{ext}"].append(member.position + member.num_bytes)
                found.locators[f"bytes/{ext}"].append(member.num_bytes)
            found.tags.append(_tag_of(options, archive, path, key, parts))
    if found.metadata != [None] and options.tag in (None, SHARD_AND_KEY):
        found.tags = [*map(unescape, found.tags)]
    if options.tag == SHARD_AND_KEY:
        found.tags = [f"{Path(path).stem}/{tag}" for tag in found.tags]
    return found


def _member_of(parts: Mapping[str, TarMember], ext: str) -> TarMember | None:
    """Return the member with an extension, or with one of several; capitals count only where both are there."""
    if ext in parts:
        return parts[ext]
    wanted = ext.split(";")
    found = next((parts[one] for one in wanted if one in parts), None)
    lower = [one.lower() for one in wanted]
    return found or next((member for name, member in parts.items() if name.lower() in lower), None)


def _tag_of(options: TarOptions, archive: IO[bytes], path: str, key: str, parts: Mapping[str, TarMember]) -> str:
    if options.tag is None or isinstance(options.tag, str):
        return key
    ext, steps = options.tag
    member, where = parts.get(ext), f"{path}, sequence {key!r}"
    if member is None:
        raise SourceError(f"there is no member .{ext} for the tag", where=where, fix="choose another tag_field=")
    data = MemberFile(archive, member).head(member.num_bytes)
    value = value_in(json_of(data, where), steps) if steps else text_of(data, where)
    if type(value) not in (str, int):
        raise SourceError(f"the field {'.'.join(steps)!r} has {value!r}, not a text", where=where)
    return str(value)


def _renamed(found: FoundMembers, codecs: dict[str, MemberKey], metadata: Metadata) -> dict[str, MemberKey]:
    """Rename data keys as the writer had them, in its order; members that were added later come last."""
    own_of = {codec.ext: key for key, codec in codecs.items()}
    lacking = metadata.members.values() - own_of.keys()
    if found.tags and lacking:
        what = f"the metadata names members {sorted(metadata.members.values())}, and not all of them are there"
        fix = "members were taken out after it was written: name the others by fields="
        raise SourceError(what, where=metadata.where, fix=fix)
    more = {key: ext for ext, key in own_of.items() if ext not in metadata.members.values()}
    ext_of = metadata.members | {key: ext for key, ext in more.items() if key not in metadata.members}
    none = FoundMembers.of(ext_of, [f"{what}/{ext}" for ext in ext_of.values() for what in ("end", "bytes")])
    found.locators = none.locators | found.locators
    found.lengths = {key: found.lengths.get(own_of.get(ext, ""), none.lengths[key]) for key, ext in ext_of.items()}
    found.facts = {key: found.facts.get(own_of.get(ext, ""), {}) for key, ext in ext_of.items()}
    return {
        key: codecs[own_of[ext]] if ext in own_of else parse_members(key, ext, is_found=True)
        for key, ext in ext_of.items()
    }
