"""`CorpusIndex` has tags, lengths and locators of all sequences of a corpus, in memory or mapped from a file.

Columns of numbers are checked and made read-only when they enter an index.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import msgspec
import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from headrace.errors import ConfigError, OptionalNotImplementedError, SourceError, did_you_mean
from headrace.files import FileStamp
from headrace.show.card import Card, Shown, layout_of
from headrace.show.drawing import format_bytes
from headrace.specs import DataSpec

from .lookup import TagTable, find_tags
from .storage import (
    COLUMN_DTYPES,
    LENGTH_DTYPES,
    REBUILD,
    About,
    IndexHeader,
    Stored,
    check_checksums,
    describe_columns,
    open_stored,
    stored_column,
    write_index,
)
from .tags import GeneratedTags, PackedTags, Tags, pack_tags, pack_texts

_LOCATOR_KINDS = "iuf"


def check_lengths(lengths: Mapping[str, ArrayLike], tags: Tags) -> dict[str, NDArray[Any]]:
    """Return own read-only copies of columns of lengths, `int32[N]` where the values fit, else `int64[N]`.

    Raises:
        SourceError: A column has not one number per sequence, or a length is negative, not finite or not whole.
    """
    return {data_key: _length_column(data_key, values, tags) for data_key, values in lengths.items()}


def check_locators(locators: Mapping[str, ArrayLike], num_seqs: int) -> dict[str, NDArray[Any]]:
    """Return own read-only copies of columns of locators, numbers of any dtype.

    Raises:
        SourceError: A column has not one number per sequence.
    """
    columns = {}
    for name, values in locators.items():
        column = _one_per_seq(f"locator {name!r}", values, num_seqs)
        if column.dtype.kind not in _LOCATOR_KINDS or column.dtype.itemsize > 8:
            raise SourceError(f"locator {name!r} has dtype {column.dtype}", fix="use numbers of up to 64 bits")
        columns[name] = _frozen(column.astype(column.dtype.newbyteorder("<"), copy=True))
    return columns


def _one_per_seq(name: str, values: ArrayLike, num_seqs: int) -> NDArray[Any]:
    column = np.asarray(values)
    if not column.size and column.ndim == 1 and column.dtype == np.float64:
        column = column.astype(np.int64)  # what NumPy makes of an empty list
    if column.ndim != 1 or len(column) != num_seqs:
        raise SourceError(
            f"the column {name} has shape {column.shape}, but the corpus has {num_seqs} tags",
            fix="give one number per sequence",
        )
    return column


def _length_column(data_key: str, values: ArrayLike, tags: Tags) -> NDArray[Any]:
    column = _one_per_seq(f"lengths of {data_key!r}", values, len(tags))
    if column.dtype.kind not in "iuf":
        raise SourceError(f"the lengths of {data_key!r} have dtype {column.dtype}", fix="use integers")
    if column.dtype.kind == "f":
        column = column.astype(np.float64)
        # Not `column % 1`: that warns about infinity.
        good = np.isfinite(column) & (column >= 0) & (column < 2**63)
        good[good] = np.floor(column[good]) == column[good]
    else:
        good = (column >= 0) & (column <= np.iinfo(np.int64).max)
    if not good.all():
        corpus_idx = int(np.argmin(good))
        raise SourceError(
            f"the length of {data_key!r} is {column[corpus_idx]}",
            where=f"sequence {corpus_idx}, tag {tags[corpus_idx]!r}",
            fix="a length is a whole number of frames, 0 or more",
        )
    fits = not column.size or column.max() <= np.iinfo(np.int32).max
    return _frozen(column.astype("<i4" if fits else "<i8", copy=True))


def _frozen(column: NDArray[Any]) -> NDArray[Any]:
    column.flags.writeable = False
    return column


class CorpusIndex(Shown):
    """What is known of every sequence without reading it. Immutable.

    Made by `from_columns` or `open`. Opened from a file, all columns are views of one read-only mapping, which the
    processes of a machine share; pickled, it is the path and the digest. In memory, it is pickled with its columns.

    Attributes:
        tags: Tag of each sequence, a sequence of str.
        meta: JSON data of the source that built it, such as dtypes and labels; do not write to it.
        files: The files it was built from, as they were.
        kind: What built it, and with which options; empty if unknown.
        path: The file it was opened from, or None.

    Examples:
        >>> import headrace as hr
        >>> index = hr.CorpusIndex.from_columns(tags=["a", "b"], lengths={"data": [120, 80]})
        >>> index.num_seqs, index.lengths("data").tolist(), index.find_tags(["b"]).tolist()
        (2, [120, 80], [1])
    """

    def __init__(
        self,
        tags: Tags,
        lengths: Mapping[str, NDArray[Any]],
        locators: Mapping[str, NDArray[Any]],
        *,
        about: About,
        texts: Mapping[str, PackedTags] | None = None,
        stored: Stored | None = None,
    ) -> None:
        """Take columns that were checked: use `from_columns` or `open`."""
        self.tags = tags
        self._texts = dict(texts or {})
        self._lengths = dict(lengths)
        self._locators = dict(locators)
        self._about = about
        self._stored = stored
        self.meta: dict[str, Any] = about.meta
        self.files: tuple[FileStamp, ...] = about.files
        self.kind: str = about.kind
        self.path: str | None = stored.path if stored else None

    @classmethod
    def from_columns(
        cls,
        *,
        tags: Tags | Sequence[str] | Sequence[bytes] | NDArray[Any],
        lengths: Mapping[str, ArrayLike],
        locators: Mapping[str, ArrayLike] | None = None,
        texts: Mapping[str, Sequence[str]] | None = None,
        meta: Mapping[str, Any] | None = None,
        files: Sequence[FileStamp] = (),
    ) -> Self:
        """Build an index in memory. The columns are copied.

        Args:
            tags: Tag of each sequence: a list of str or UTF-8 bytes, a NumPy array of dtype S, U or object, or
                `GeneratedTags`. May be empty strings, and may repeat.
            lengths: Data key -> number of frames of each sequence, `int[N]`. Keys of unknown lengths are omitted.
            locators: Name -> number that tells the source where each sequence is, `int[N]` or `float[N]`.
            texts: Name -> text that the source needs of each sequence, such as the path of its file.
            meta: JSON data for the source.
            files: Stamps of the files it is built from, taken *before* they were read.

        Raises:
            SourceError: A column has not one value per sequence, a tag is not text, or a length is negative, not
                finite or not whole.
            ConfigError: `meta` is not JSON data.
        """
        packed = pack_tags(tags)
        try:
            # Encoded and decoded, so that it is the same in memory and in a file (a tuple becomes a list).
            own_meta = msgspec.json.decode(msgspec.json.encode(dict(meta or {})), type=dict[str, Any])
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise ConfigError(f"meta is not JSON data: {error}", where="CorpusIndex.from_columns") from error
        return cls(
            packed,
            check_lengths(lengths, packed),
            check_locators(locators or {}, len(packed)),
            about=About("", own_meta, tuple(files)),
            texts={name: pack_texts(column) for name, column in (texts or {}).items()},
        )

    @classmethod
    def open(cls, path: str | os.PathLike[str], check_files: bool = True) -> Self:
        """Map an index file: O(1) in the number of sequences, unless it was written to since `save`.

        Args:
            path: What `save` or `headrace index` wrote.
            check_files: Whether to compare the files it was built from with their stamps: some 0.1 ms a file.

        Raises:
            SourceError: The index is missing, truncated, damaged or of another version, or a file changed since.
        """
        index = cls._of_stored(open_stored(path))
        if check_files:
            index._check_files()
        return index

    @classmethod
    def _of_stored(cls, stored: Stored) -> Self:
        header = stored.header
        if header.tag_prefix is not None:
            tags: Tags = GeneratedTags(header.num_seqs, header.tag_prefix)
        else:
            offsets = stored_column(stored, "tags/offsets", ("<i8",), header.num_seqs + 1)
            tags = PackedTags(offsets, stored_column(stored, "tags/blob", ("|u1",)))
        lengths, locators = (
            {
                name.removeprefix(role): stored_column(stored, name, dtypes, header.num_seqs)
                for name in stored.columns
                if name.startswith(role)
            }
            for role, dtypes in (("lengths/", LENGTH_DTYPES), ("locators/", COLUMN_DTYPES))
        )
        texts = {
            name: PackedTags(
                stored_column(stored, f"texts/{name}/offsets", ("<i8",), header.num_seqs + 1),
                stored_column(stored, f"texts/{name}/blob", ("|u1",)),
            )
            for name in (name.removeprefix("texts/").removesuffix("/offsets") for name in stored.columns)
            if f"texts/{name}/offsets" in stored.columns
        }
        return cls(tags, lengths, locators, about=stored.about, texts=texts, stored=stored)

    @property
    def num_seqs(self) -> int:
        """Number of sequences."""
        return len(self.tags)

    def __len__(self) -> int:
        return len(self.tags)

    @property
    def data_keys(self) -> tuple[str, ...]:
        """The data keys whose lengths are known."""
        return tuple(self._lengths)

    def has_lengths(self, data_key: str) -> bool:
        """Tell whether the lengths of a data key are known."""
        return data_key in self._lengths

    def lengths(self, data_key: str) -> NDArray[Any]:
        """Return the number of frames of each sequence, `int32[N]` or `int64[N]`, read-only.

        Raises:
            OptionalNotImplementedError: The corpus has no lengths for this key.
        """
        try:
            return self._lengths[data_key]
        except KeyError:
            what = f"the corpus has no lengths for the data key {data_key!r}"
            raise OptionalNotImplementedError(
                what, where=self._where, fix=did_you_mean(data_key, self._lengths)
            ) from None

    def has_locator(self, name: str) -> bool:
        """Tell whether there is a column of locators of this name."""
        return name in self._locators

    def locator(self, name: str) -> NDArray[Any]:
        """Return a column of locators, `number[N]`, read-only.

        Raises:
            SourceError: There is no such column: the index was built by another source or version.
        """
        try:
            return self._locators[name]
        except KeyError:
            what = f"the index has no locator {name!r}, it has {sorted(self._locators)}"
            raise SourceError(what, where=self._where, fix=REBUILD) from None

    def text(self, name: str, corpus_idx: int) -> str:
        """Return a text of one sequence.

        Raises:
            SourceError: There is no such column: the index was built by another source or version.
        """
        if name not in self._texts:
            what = f"the index has no texts {name!r}, it has {sorted(self._texts)}"
            raise SourceError(what, where=self._where, fix=REBUILD)
        return self._texts[name][corpus_idx]

    def find_tags(self, tags: Sequence[str]) -> NDArray[np.int64]:
        """Return the corpus index of each tag, `int64[n]`; O(n log N) in a file, which holds a look-up table.

        In memory the table is built by the first call, O(N log N).

        Raises:
            SourceError: A tag is unknown, or more than one sequence has it.
        """
        return find_tags(self.tags, lambda: self.tag_table, tags, self._where)

    def tag_groups(self) -> NDArray[np.int64]:
        """Return for each sequence the smallest corpus index with the same tag, `int64[N]`. O(N)."""
        if not self.num_duplicates:
            return np.arange(self.num_seqs, dtype=np.int64)
        return self.tag_table.groups()

    @cached_property
    def num_duplicates(self) -> int:
        """Number of sequences whose tag an earlier sequence has. In memory, the first access is O(N log N)."""
        if self._stored:
            return self._stored.header.num_duplicates
        if isinstance(self.tags, GeneratedTags):
            return 0
        groups = self.tag_table.groups()
        return int(np.count_nonzero(groups != np.arange(len(groups))))

    @cached_property
    def digest(self) -> str:
        """XXH3-128 over tags and lengths as 32 hex digits; locators, meta, files and dtypes do not count.

        In memory the first access is O(N), in a file it is stored.
        """
        return self._stored.header.digest if self._stored else self._computed_digest()

    def save(self, path: str | os.PathLike[str], *, follow_links: bool = True) -> None:
        """Write an index file, atomically. Its folder must exist; the usual suffix is `.hrindex`.

        Files below the folder of the index are named relative to it, so that both can be moved together.

        Args:
            path: The target.
            follow_links: If it is a symbolic link, replace the file that it points to; else the link.

        Raises:
            SourceError: The file cannot be written; nothing is left of it.
        """
        columns: dict[str, NDArray[Any]] = {}
        if isinstance(self.tags, PackedTags):
            columns["tags/offsets"] = self.tags.offsets
            columns["tags/blob"] = self.tags.blob
            columns["table/hashes"] = self.tag_table.hashes
            columns["table/indices"] = self.tag_table.indices
        columns |= {f"lengths/{data_key}": column for data_key, column in self._lengths.items()}
        columns |= {f"locators/{name}": column for name, column in self._locators.items()}
        for name, texts in self._texts.items():
            columns |= {f"texts/{name}/offsets": texts.offsets, f"texts/{name}/blob": texts.blob}
        columns = {name: column.astype(column.dtype.newbyteorder("<"), copy=False) for name, column in columns.items()}
        folder = os.path.dirname(os.path.abspath(path))
        header = IndexHeader(
            num_seqs=self.num_seqs,
            num_duplicates=self.num_duplicates,
            tag_prefix=self.tags.prefix if isinstance(self.tags, GeneratedTags) else None,
            digest=self.digest,
            written_ns=int(time.time()) * 10**9,
            about=About(self.kind, self.meta, tuple(stamp.relative_to(folder) for stamp in self.files)),
            columns=describe_columns(columns),
        )
        write_index(path, header, columns, follow_links=follow_links)

    def built_from(self, files: Sequence[FileStamp], kind: str) -> Self:
        """Return the same index in memory, marked as built from these files by this kind of source."""
        about = About(kind, self.meta, tuple(files))
        return type(self)(self.tags, self._lengths, self._locators, about=about, texts=self._texts)

    def _check_files(self) -> None:
        for stamp in self.files:
            difference = stamp.difference()
            if difference is not None:
                where = f"{stamp.path}, index {self.path}" if self.path else stamp.path
                what = f"a file has changed since it was indexed: {difference}"
                raise SourceError(what, where=where, fix=REBUILD)

    def verify(self) -> None:
        """Check everything: stamps of files, checksums of columns, tags, look-up table and digest. O(N).

        Raises:
            SourceError: A check failed; the first failure is named.
        """
        self._check_files()
        if self._stored:
            check_checksums(self._stored)
        if isinstance(self.tags, PackedTags):
            offsets = self.tags.offsets
            if offsets[0] != 0 or offsets[-1] != len(self.tags.blob) or (np.diff(offsets) < 0).any():
                raise self.damaged("the offsets of the tags do not ascend from 0 to the size of their text")
            table = TagTable.build(self.tags)
            if not (
                np.array_equal(table.hashes, self.tag_table.hashes)
                and np.array_equal(table.indices, self.tag_table.indices)
            ):
                raise self.damaged("the look-up table does not fit the tags")
            num_duplicates = int(np.count_nonzero(table.groups() != np.arange(self.num_seqs)))
            if num_duplicates != self.num_duplicates:
                raise self.damaged(f"{num_duplicates} tags are repeated, not {self.num_duplicates}")
        check_lengths(self._lengths, self.tags)
        digest = self._computed_digest()
        if digest != self.digest:
            raise self.damaged(f"the digest over tags and lengths is {digest}, not {self.digest}")

    def damaged(self, what: str) -> SourceError:
        """Return the error for a column with impossible values, for sources that find it while reading."""
        return SourceError(f"the index is damaged: {what}", where=self._where, fix=REBUILD)

    def _computed_digest(self) -> str:
        digest = xxhash.xxh3_128(b"corpus 1 ")
        self.tags.update_digest(digest)
        for data_key in sorted(self._lengths):
            name = data_key.encode("utf-8", "surrogatepass")
            digest.update(f" lengths {len(name)} ".encode() + name)
            digest.update(np.ascontiguousarray(self._lengths[data_key], dtype="<i8").data)
        return digest.hexdigest()

    @cached_property
    def tag_table(self) -> TagTable:
        """The look-up from a tag to its sequences."""
        if self._stored and isinstance(self.tags, PackedTags):
            hashes = stored_column(self._stored, "table/hashes", ("<u8",), self.num_seqs)
            indices = stored_column(self._stored, "table/indices", ("<i4", "<i8"), self.num_seqs)
            return TagTable(self.tags, hashes, indices, where=self.path)
        return TagTable.build(self.tags)

    @property
    def _where(self) -> str | None:
        if self.path:
            return self.path
        return f"{self.files[0].path} and {len(self.files) - 1} more" if self.files else None

    def card(self, title: str, specs: Mapping[str, DataSpec]) -> Card:
        """Return what is known of the corpus, under the name of what is read by this index.

        Args:
            title: That name.
            specs: Data key -> layout.
        """
        facts = [("size", f"{self.num_seqs:,} sequences")]
        if self.files:
            name, others = self.files[0].path, len(self.files) - 1
            more = f" and {others:,} more files" if others else ""
            facts.append(("files", f"{name}{more} ({format_bytes(sum(file.size for file in self.files))})"))
        keys = {key: layout_of(spec) for key, spec in specs.items()} or dict.fromkeys(self._lengths, "")
        return Card(title, facts, keys, {key: self._lengths[key] for key in keys if key in self._lengths})

    def _card(self) -> Card:
        card = self.card("CorpusIndex", {})
        return replace(card, facts=[*card.facts, ("index", self.path or "in memory")])

    def __reduce__(self) -> tuple[Any, ...]:
        if self._stored:
            return _reopen, (type(self), self._stored.path, self.digest, self._stored.checksum)
        return _rebuild, (type(self), self.tags, self._lengths, self._locators, self._about, self._texts)


def _reopen(cls: type[CorpusIndex], path: str, digest: str, checksum: bytes) -> CorpusIndex:
    index = cls._of_stored(open_stored(path, known=checksum))
    if index.digest != digest:
        what = f"the index was replaced: its digest was {digest} and is {index.digest} now"
        raise SourceError(what, where=path, fix="start the program again")
    return index


def _rebuild(
    cls: type[CorpusIndex],
    tags: Tags,
    lengths: dict[str, NDArray[Any]],
    locators: dict[str, NDArray[Any]],
    about: About,
    texts: dict[str, PackedTags],
) -> CorpusIndex:
    for column in [*lengths.values(), *locators.values()]:
        column.flags.writeable = False  # pickling loses it
    return cls(tags, lengths, locators, about=about, texts=texts)
