"""From tar archives and the options of a source to one index of the corpus.

`gather_index` walks through the headers of all archives once, joins consecutive members of one key to a sequence, and
lets each data key look at its members. What `TarWriter` stores about an archive (layouts, labels, how tags are written)
is taken from there; archives of others do without.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.index import CorpusIndex

from ..shared.codec import found_by
from ..shared.parts import are_large, count_workers, scan_parts
from ..shared.source import make_index
from .archive import METADATA_NAME, Member, TarBytes, scan_members, split_name, unescape
from .members import MemberDecoder, default_data_key, parse_members, text_of
from .writer import Metadata, adopt_layout, merge_metadata, read_metadata

INDEX_KIND = "tar/2"  # with the version of what the columns and `meta` say, and of how lengths are counted
SHARD_AND_KEY = "shard/key"
_LOGGER = logging.getLogger("headrace.sources")


@dataclass(frozen=True, slots=True)
class TarOptions:
    """The user's options.

    Attributes:
        members: Data key -> how its members become arrays; `None`: by the extensions of the first sequence.
        tag: Where tags come from: `None` (the key), `SHARD_AND_KEY`, or extension and names in JSON.
        missing: What is done with a sequence that lacks a member.
    """

    members: dict[str, MemberDecoder] | None
    tag: tuple[str, tuple[str, ...]] | str | None
    missing: Literal["error", "skip"]

    @property
    def kind(self) -> str:
        """Identify the source and every option that changes its index: the same text in every process."""
        said = self.members and [[key, decoder.identity] for key, decoder in self.members.items()]
        return f"{INDEX_KIND} {json.dumps([said, self.tag, self.missing], default=repr)}"


@dataclass
class _Column:
    """One data key, for each sequence: length of its array, and where its member ends and how large it is."""

    lengths: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))


@dataclass
class _Found:
    """What is known of one or several archives.

    Attributes:
        tags: Tags of the sequences.
        columns: Data key -> its column.
        metadata: What the writers stored.
        all_have_metadata: Whether each archive has such.
        num_skipped: Sequences that lack a member.
        num_nameless: Files whose names are none of a member.
        example: The last one of them.
    """

    columns: dict[str, _Column] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)
    all_have_metadata: bool = True
    num_skipped: int = 0
    num_nameless: int = 0
    example: str = ""

    def add(self, other: _Found) -> None:
        """Add what is known of the next archives."""
        for key, column in other.columns.items():
            own = self.columns.setdefault(key, _Column())
            own.lengths += column.lengths
            own.ends += column.ends
            own.sizes += column.sizes
        self.tags += other.tags
        self.metadata += other.metadata
        self.all_have_metadata &= other.all_have_metadata
        self.num_skipped += other.num_skipped
        self.num_nameless += other.num_nameless
        self.example = other.example or self.example


def gather_index(paths: Sequence[str], options: TarOptions) -> CorpusIndex:
    """Walk through archives: some 10 microseconds a sequence of one array, and what it takes to read headers of audio.

    Raises:
        SourceError: An archive is truncated, or not to be trusted, or a sequence is not like the others.
        ConfigError: The options do not fit what is there.
    """
    walk, found, file_of = _Walk(options, options.members), _Found(), array("i")
    num_alone = 0  # archives up to the first sequence, which says what there is in all of them
    while num_alone < len(paths) and (walk.decoders is None or not found.tags):
        found.add(walk(paths[num_alone]))
        file_of += array("i", [num_alone]) * (len(found.tags) - len(file_of))
        num_alone += 1
    rest = paths[num_alone:]
    codecs = [decoder.codec for decoder in (walk.decoders or {}).values()]
    num_workers = count_workers(len(rest), pays=are_large(rest))
    for file_idx, part in enumerate(scan_parts(walk, rest, codecs, num_workers=num_workers), num_alone):
        found.add(part)
        file_of += array("i", [file_idx]) * len(part.tags)
    return _Gathered(options, walk.decoders or {}, found, file_of).index()


class _Walk:
    """Walks through one archive after the other.

    Args:
        options: What the user said.
        decoders: Data key -> how its members become arrays; `None`: the first sequence says it.

    Attributes:
        decoders: Data key -> how its members become arrays, as far as it is known.
    """

    def __init__(self, options: TarOptions, decoders: dict[str, MemberDecoder] | None) -> None:
        self._options, self.decoders = options, decoders

    def __call__(self, path: str) -> _Found:
        """Walk through one archive."""
        seen: set[str] = set()
        key: str | None = None
        parts: dict[str, Member] = {}
        found = _Found({data_key: _Column() for data_key in self.decoders or {}})
        with TarBytes(path) as archive:
            for member in scan_members(archive):
                if member.name == METADATA_NAME:
                    data = archive.read(member.position, member.num_bytes)
                    found.metadata.append(read_metadata(data, f"{path}, member {METADATA_NAME!r}"))
                    continue
                names = split_name(member.name)
                if names is None:
                    found.num_nameless += 1
                    found.example = f"{path}, member {member.name!r}"
                    continue
                if names[0] != key:
                    if key is not None:
                        self._add_seq(found, archive, key, parts)
                    key, parts = names[0], {}
                    if key in seen:
                        raise SourceError(
                            f"members of the sequence {key!r} do not follow one another",
                            where=f"{path}, member {member.name!r}, byte {member.start}",
                            fix="sort the names when making the archive (tar --sort=name); two sequences of one "
                            "archive cannot have the same key",
                        )
                    seen.add(key)
                if names[1] in parts:
                    raise SourceError(
                        "the archive has this member twice",
                        where=f"{path}, member {member.name!r}, byte {member.start}",
                        fix="make the archive again, with one of them",
                    )
                parts[names[1]] = member
            if key is not None:
                self._add_seq(found, archive, key, parts)
        found.all_have_metadata = bool(found.metadata)
        if found.metadata and self._options.tag in (None, SHARD_AND_KEY):
            found.tags = [*map(unescape, found.tags)]
        if self._options.tag == SHARD_AND_KEY:
            shard = Path(path).stem
            found.tags = [f"{shard}/{tag}" for tag in found.tags]
        return found

    def _add_seq(self, found: _Found, archive: TarBytes, key: str, parts: dict[str, Member]) -> None:
        if self.decoders is None:
            self.decoders = self._decoders_of(archive, parts)
            found.columns = {data_key: _Column() for data_key in self.decoders}
        elif self._options.members is None and len(parts) > len(self.decoders):
            known = {decoder.ext for decoder in self.decoders.values()}
            unknown = sorted(set(parts) - known)
            there = ", ".join("." + ext for ext in unknown)
            raise SourceError(
                f"the sequence {key!r} has the members {there}, which the first has not",
                where=archive.path,
                fix="name the ones to read: fields={data key: extension, ...}",
            )
        chosen = {data_key: _member_of(parts, decoder.ext) for data_key, decoder in self.decoders.items()}
        for data_key, decoder in self.decoders.items():
            if chosen[data_key] is None:
                if self._options.missing == "skip":
                    found.num_skipped += 1
                    return
                there = ", ".join("." + ext for ext in parts)
                raise SourceError(
                    f"the sequence {key!r} has no member .{decoder.ext}, only {there}",
                    where=archive.path,
                    fix='name the ones to read (fields={data key: extension, ...}), or leave it out: missing="skip"',
                )
        if self._options.missing == "skip" and not self._has_values(archive, chosen):
            found.num_skipped += 1
            return
        found.tags.append(self._tag_of(archive, key, parts))
        for data_key, decoder in self.decoders.items():
            member, column = chosen[data_key], found.columns[data_key]
            assert member is not None
            column.lengths.append(decoder.scan(archive, member, f"{archive.path}, member {member.name!r}"))
            column.ends.append(member.position + member.num_bytes)
            column.sizes.append(member.num_bytes)

    def _has_values(self, archive: TarBytes, chosen: Mapping[str, Member | None]) -> bool:
        """Tell whether a sequence has all fields: before any of its members is scanned, which teaches the layouts."""
        assert self.decoders is not None
        for data_key, decoder in self.decoders.items():
            member = chosen[data_key]
            assert member is not None
            if not decoder.has_value(archive, member, f"{archive.path}, member {member.name!r}"):
                return False
        return True

    def _tag_of(self, archive: TarBytes, key: str, parts: dict[str, Member]) -> str:
        tag = self._options.tag
        if tag is None or isinstance(tag, str):
            return key
        ext, steps = tag
        member = parts.get(ext)
        where = f"{archive.path}, sequence {key!r}"
        if member is None:
            raise SourceError(f"there is no member .{ext} for the tag", where=where, fix="choose another tag_field=")
        return text_of(archive.read(member.position, member.num_bytes), steps or None, where)

    def _decoders_of(self, archive: TarBytes, parts: dict[str, Member]) -> dict[str, MemberDecoder]:
        """Make data keys of the extensions of the first sequence."""
        found: dict[str, MemberDecoder] = {}
        for ext in parts:
            data_key = default_data_key(ext)
            if data_key in found:
                raise SourceError(
                    f"the members .{ext} and .{found[data_key].ext} would both be the data key {data_key!r}",
                    where=archive.path,
                    fix="name them: fields={data key: extension, ...}",
                )
            found[data_key] = parse_members(data_key, ext, is_found=True)
        return found


def _member_of(parts: Mapping[str, Member], ext: str) -> Member | None:
    """Return the member with an extension, or with one of several; capitals count only where both are there."""
    wanted = ext.split(";")
    for one in (ext, *wanted):
        if one in parts:
            return parts[one]
    wanted = [one.lower() for one in wanted]
    return next((member for name, member in parts.items() if name.lower() in wanted), None)


class _Gathered:
    """What is known of all archives, to be made an index."""

    def __init__(
        self, options: TarOptions, decoders: dict[str, MemberDecoder], found: _Found, file_of: array[int]
    ) -> None:
        self._options, self._decoders, self._found, self._file_of = options, decoders, found, file_of
        self._columns = {key: found.columns.get(key) or _Column() for key in decoders}

    def index(self) -> CorpusIndex:
        """Return the index of all archives."""
        if self._found.num_nameless and not self._found.tags:
            raise SourceError(
                f"none of the {self._found.num_nameless} files has a name such as `key.extension`",
                where=self._found.example,
                fix="name the members so: what stands before the first dot is the sequence, the rest says what it is",
            )
        if self._found.num_skipped:
            _LOGGER.warning(
                "%d sequences lack a member or a field of a JSON member, and are left out (missing='skip')",
                self._found.num_skipped,
            )
        for decoder in self._decoders.values():
            if self._found.tags:
                decoder.codec.end_scan()
        lengths = self._lengths_by_metadata()
        locators: dict[str, NDArray[Any]] = {"file": np.array(self._file_of, np.int32)}
        for key, column in self._columns.items():
            locators[f"end/{key}"] = np.array(column.ends, np.int64)
            locators[f"bytes/{key}"] = np.array(column.sizes, np.int64)
        return make_index(
            **found_by({key: decoder.codec for key, decoder in self._decoders.items()}),
            tags=self._found.tags,
            lengths=lengths,
            locators=locators,
            learnt={key: decoder.codec.learnt for key, decoder in self._decoders.items()},
            extensions={key: decoder.ext for key, decoder in self._decoders.items()},
        )

    def _lengths_by_metadata(self) -> dict[str, NDArray[np.int64]]:
        """Use names and layouts that the writer stored, if all archives have them; return the lengths."""
        found = self._found
        metadata = merge_metadata(found.metadata) if found.metadata and found.all_have_metadata else None
        if metadata is not None and self._options.members is None:
            self._rename_keys(metadata)
        lengths = {key: np.array(column.lengths, np.int64) for key, column in self._columns.items()}
        keys = {} if metadata is None else {ext: key for key, ext in metadata.members.items()}
        for key, decoder in self._decoders.items():
            if metadata is not None and decoder.ext in keys and decoder.has_stored_layout:
                lengths[key] = adopt_layout(metadata, keys[decoder.ext], decoder, lengths[key])
        return lengths

    def _rename_keys(self, metadata: Metadata) -> None:
        """Rename data keys as the writer had them, in its order; members that were added later come last."""
        ours = {decoder.ext: key for key, decoder in self._decoders.items()}
        names = {key: ours.pop(ext, None) for key, ext in metadata.members.items()}
        for key, own in names.items() if self._found.tags else ():
            if own is None:
                raise SourceError(
                    f"the metadata names the data key {key!r}, but there are no members .{metadata.members[key]}",
                    where=metadata.where,
                    fix="members were taken out after it was written: name the others by fields=",
                )
        names |= {key: key for key in ours.values() if key not in names}
        found, columns = self._decoders, self._columns
        self._decoders = {
            key: parse_members(key, metadata.members[key], is_found=True) if own is None else found[own]
            for key, own in names.items()
        }
        self._columns = {key: _Column() if own is None else columns[own] for key, own in names.items()}
