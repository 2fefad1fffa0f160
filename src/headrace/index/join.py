"""Joins two corpora by their tags: for each sequence of one, the sequence of the other with the same tag.

Both indices hold their hashes sorted, so candidates are found by one walk through both tables; what the hashes propose
is checked against the tags themselves, byte by byte and many at once. No tag becomes a Python object unless the hashes
of several tags are equal, or one side makes its tags by a rule.

`open_or_join` remembers joins: mapped from the cache folder, shared by all processes of a machine. A join is named by
the digests of both indices, so a file that is found is never out of date. It is stored in the format of an index, whose
one column holds corpus indices.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import CacheError, SourceError
from headrace.files import kept_folder, kept_path, note_use, remove_unused, warn_once_of_folder

from .corpus import CorpusIndex
from .lookup import TagTable
from .storage import FORMAT_VERSION
from .tags import BLOCK, GeneratedTags, PackedTags

MISSING = -1  # no sequence of the other corpus has the tag
AMBIGUOUS = -2  # several have it

_HASH_BLOCK = 1 << 20  # hashes matched at a time: some 30 MiB of temporaries
_COMPARE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class TagJoin:
    """Maps the sequences of one corpus to those of another.

    Attributes:
        others: `int[N]`: the corpus index in the other one, `MISSING` or `AMBIGUOUS`; `None` if each sequence has the
            same corpus index in both.
        num_seqs: N.
        num_others: Number of sequences of the other corpus.
        num_missing: How many of the N have no counterpart.
        num_ambiguous: How many of the N have several.
        num_unused: How many sequences of the other corpus are no counterpart.
        where: For errors: the file that `others` comes from.
    """

    others: NDArray[Any] | None
    num_seqs: int
    num_others: int
    num_missing: int = 0
    num_ambiguous: int = 0
    num_unused: int = 0
    where: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether each sequence has exactly one counterpart."""
        return not self.num_missing and not self.num_ambiguous

    def of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counterparts of corpus indices, `int64[n]`; `MISSING` or `AMBIGUOUS` where there is not just one.

        Raises:
            SourceError: A stored index is outside of the other corpus.
        """
        if self.others is None:
            return indices
        found = self.others[indices].astype(np.int64)
        if found.size and not AMBIGUOUS <= found.min() <= found.max() < self.num_others:
            what = f"a join leads to sequences {found.min()}..{found.max()} of {self.num_others}: it is damaged"
            raise SourceError(what, where=self.where, fix="remove the file")
        return found


def join_tags(left: CorpusIndex, right: CorpusIndex) -> TagJoin:
    """Find for each sequence of `left` the sequence of `right` with the same tag.

    Tags that repeat in `left` are legal; one that repeats in `right` is ambiguous. About 0.3 us a sequence,
    next to nothing if both have the same tags in the same order.

    Raises:
        SourceError: An index is damaged.
    """
    if _are_same(left, right) and not right.num_duplicates:
        return TagJoin(None, len(left), len(right))
    others = np.full(len(left), MISSING, dtype=np.int32 if len(right) <= np.iinfo(np.int32).max else np.int64)
    if isinstance(left.tags, PackedTags) and isinstance(right.tags, PackedTags):
        several = _match_hashes(left, right, others)
        for start in range(0, len(left), BLOCK):
            _drop_other_tags(left, right, others, start)
        for start in range(0, len(several), BLOCK):
            part = several[start : start + BLOCK]
            others[part] = _find_one(right.tag_table, left.tags.take(part))
    else:
        _look_up(left, right, others)
    return _counted(others, len(right))


def _are_same(left: CorpusIndex, right: CorpusIndex) -> bool:
    """Whether both have the same tags in the same order."""
    if len(left) != len(right):
        return False
    one, other = left.tags, right.tags
    if isinstance(one, GeneratedTags) and isinstance(other, GeneratedTags):
        return one.prefix == other.prefix
    if not isinstance(one, PackedTags) or not isinstance(other, PackedTags):
        return False
    pairs: list[tuple[NDArray[Any], NDArray[Any]]] = [(one.offsets, other.offsets), (one.blob, other.blob)]
    return all(len(a) == len(b) and _are_equal(a, b) for a, b in pairs)


def _are_equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Compare two columns of one size in pieces: a mapped one may be larger than the memory for the comparison."""
    size = _COMPARE_BYTES // one.itemsize
    return all(np.array_equal(one[i : i + size], other[i : i + size]) for i in range(0, len(one), size))


def _match_hashes(left: CorpusIndex, right: CorpusIndex, others: NDArray[Any]) -> NDArray[np.int64]:
    """Write the first candidate of each sequence; return the sequences that have several, `int64[n]`."""
    mine, theirs = left.tag_table, right.tag_table
    several = [np.zeros(0, dtype=np.int64)]
    for start in range(0, len(left), _HASH_BLOCK):
        hashes = mine.hashes[start : start + _HASH_BLOCK]
        # Both are sorted: only this stretch of the other table can hold them.
        first = int(np.searchsorted(theirs.hashes, hashes[0], side="left"))
        stop = int(np.searchsorted(theirs.hashes, hashes[-1], side="right"))
        stretch = theirs.hashes[first:stop]
        lows = np.searchsorted(stretch, hashes, side="left") + first
        counts = np.searchsorted(stretch, hashes, side="right") + first - lows
        found = np.flatnonzero(counts > 0)
        own = _checked(left, mine.indices[start : start + _HASH_BLOCK])
        others[own[found]] = _checked(right, theirs.indices[lows[found]])
        several.append(own[counts > 1].astype(np.int64))
    return np.concatenate(several)


def _checked(index: CorpusIndex, indices: NDArray[Any]) -> NDArray[Any]:
    if indices.size and not 0 <= indices.min() <= indices.max() < len(index):
        raise index.damaged(f"its look-up table points to sequences {indices.min()}..{indices.max()} of {len(index)}")
    return indices


def _drop_other_tags(left: CorpusIndex, right: CorpusIndex, others: NDArray[Any], start: int) -> None:
    """Write `MISSING` where the candidate of a block of sequences has another tag with the same hash."""
    block = others[start : start + BLOCK]
    with_one = np.flatnonzero(block >= 0)
    mine = _TagTexts.at(left, start + with_one)
    theirs = _TagTexts.at(right, block[with_one])
    same_size = mine.sizes == theirs.sizes
    block[with_one[~same_size]] = MISSING
    with_one = with_one[same_size]
    mine, theirs = mine.only(same_size), theirs.only(same_size)
    differing = np.flatnonzero(mine.joined() != theirs.joined())
    if differing.size:
        block[with_one[np.searchsorted(np.cumsum(mine.sizes), differing, side="right")]] = MISSING


@dataclass(frozen=True, slots=True, eq=False)
class _TagTexts:
    """Some tags of an index, as slices of its block of text.

    Attributes:
        blob: `uint8[B]`.
        starts: `int64[n]`: where each begins.
        sizes: `int64[n]`: the bytes of each.
    """

    blob: NDArray[np.uint8]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def at(cls, index: CorpusIndex, indices: NDArray[Any]) -> _TagTexts:
        tags = index.tags
        assert isinstance(tags, PackedTags)
        starts = tags.offsets[indices]
        sizes = tags.offsets[indices + 1] - starts
        if sizes.size and (sizes.min() < 0 or starts.min() < 0 or (starts + sizes).max() > len(tags.blob)):
            raise index.damaged("a tag reaches beyond the text of the tags")
        return cls(tags.blob, starts, sizes)

    def only(self, mask: NDArray[np.bool_]) -> _TagTexts:
        return self if mask.all() else _TagTexts(self.blob, self.starts[mask], self.sizes[mask])

    def joined(self) -> NDArray[np.uint8]:
        """Return the bytes of all of them, one after the other."""
        ends = np.cumsum(self.sizes)
        if not ends.size:
            return self.blob[:0]
        if np.array_equal(self.starts[1:], (self.starts + self.sizes)[:-1]):  # they are contiguous already
            return self.blob[self.starts[0] : self.starts[0] + ends[-1]]
        offsets = np.repeat(self.starts - (ends - self.sizes), self.sizes) + np.arange(ends[-1])
        return np.take(self.blob, offsets)


def _find_one(table: TagTable, tags: list[str]) -> NDArray[np.int64]:
    """Return the one corpus index of each tag, `MISSING` or `AMBIGUOUS`."""
    firsts, lasts = table.find(tags)
    return np.where(firsts == lasts, firsts, AMBIGUOUS)  # both are -1 where there is none


def _look_up(left: CorpusIndex, right: CorpusIndex, others: NDArray[Any]) -> None:
    """Find tags one by one, where one side has no table of hashes: its tags are made by a rule."""
    for start, block in left.tags.blocks():
        if isinstance(right.tags, GeneratedTags):
            found = [right.tags.find(tag) for tag in block]
            others[start : start + len(block)] = [MISSING if corpus_idx is None else corpus_idx for corpus_idx in found]
        else:
            others[start : start + len(block)] = _find_one(right.tag_table, block)


def _counted(others: NDArray[Any], num_others: int) -> TagJoin:
    is_used = np.zeros(num_others, dtype=bool)
    is_used[others[others >= 0]] = True
    others.flags.writeable = False
    return TagJoin(
        others,
        len(others),
        num_others,
        num_missing=int(np.count_nonzero(others == MISSING)),
        num_ambiguous=int(np.count_nonzero(others == AMBIGUOUS)),
        num_unused=num_others - int(np.count_nonzero(is_used)),
    )


_LOGGER = logging.getLogger("headrace.index")
_KIND = "join 1"
_COLUMN = "places"  # the name in the files
_MIN_KEPT_SEQS = 500_000  # below, joining again takes some 0.2 s at most
_FOLDER = "joins"  # in the user's cache folder
_MAX_KEPT_FILES = 32  # a corpus that changes from day to day must not fill the disk
_NOT_KEPT = "a join stays in memory and will be made again, as it cannot be stored"


class _About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header of a stored join, see `TagJoin`.

    Attributes:
        is_same: Whether each sequence has the same corpus index in both corpora, so that there is no column.
    """

    is_same: bool
    num_others: int
    num_missing: int
    num_ambiguous: int
    num_unused: int


def open_or_join(left: CorpusIndex, right: CorpusIndex) -> TagJoin:
    """Return the join of two indices; that of large indices which are files is kept in the cache folder.

    Several processes may make it at once: each writes its own, and the last one remains. A cache folder that cannot be
    used is not an error: it is logged once, and the join stays in memory.
    """
    if left.path is None or right.path is None or len(left) < _MIN_KEPT_SEQS:
        return join_tags(left, right)
    name = _file_name(left, right)
    try:
        folder = kept_path(_FOLDER)
    except CacheError as error:
        warn_once_of_folder(_LOGGER, "", _NOT_KEPT, error)
        return join_tags(left, right)
    try:
        return _opened(folder / name, left, right)
    except SourceError as error:  # there is none yet, or it is truncated
        _LOGGER.debug("joining: %s", error)
    join = join_tags(left, right)
    try:
        folder = kept_folder(_FOLDER)
        _save(join, folder / name)
        kept = _opened(folder / name, left, right)
        remove_unused(folder, "*.hrindex", max_files=_MAX_KEPT_FILES)
    except (OSError, SourceError, CacheError) as error:
        warn_once_of_folder(_LOGGER, str(folder), _NOT_KEPT, error)
        return join
    return kept


def _file_name(left: CorpusIndex, right: CorpusIndex) -> str:
    name = xxhash.xxh3_128_hexdigest(f"{FORMAT_VERSION} {_KIND} {left.digest} {right.digest}".encode())
    return f"{name}.hrindex"


def _opened(path: Path, left: CorpusIndex, right: CorpusIndex) -> TagJoin:
    stored = CorpusIndex.open(path, check_files=False)
    try:
        about = msgspec.convert(stored.meta, _About)
    except msgspec.ValidationError as error:
        raise stored.damaged(f"it is no join: {error}") from error
    if stored.kind != _KIND or stored.num_seqs != len(left) or about.num_others != len(right):
        raise stored.damaged(f"it joins {stored.num_seqs} to {about.num_others}, not {len(left)} to {len(right)}")
    note_use(path)
    return TagJoin(
        None if about.is_same else stored.locator(_COLUMN),
        stored.num_seqs,
        about.num_others,
        about.num_missing,
        about.num_ambiguous,
        about.num_unused,
        where=str(path),
    )


def _save(join: TagJoin, path: Path) -> None:
    about = _About(join.others is None, join.num_others, join.num_missing, join.num_ambiguous, join.num_unused)
    index = CorpusIndex.from_columns(
        tags=GeneratedTags(join.num_seqs),
        lengths={},
        locators={} if join.others is None else {_COLUMN: join.others},
        meta=msgspec.to_builtins(about),
    )
    index.built_from((), _KIND).save(path, follow_links=False)
