"""The column of tags: text packed into one block of bytes, or a rule that needs no memory.

Invariant: equal tags have equal representations, whatever they were given as, so that digests can be taken from the
representation. Tags of the form prefix + "0", prefix + "1", ... are always held as a rule (see `pack_tags`).
"""

from __future__ import annotations

import reprlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from operator import index as as_index
from typing import Any, overload

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from headrace.errors import ConfigError, SourceError

from .storage import REBUILD

_NUM_SHOWN = 3  # in a text for people
BLOCK = 65_536  # tags that exist as Python objects at a time in bulk work: a few MiB, and NumPy's overhead is hidden


class Tags(Sequence[str]):
    """Tag of each sequence, read-only; the strings are made when asked for.

    It reads like a list of str: it equals lists, tuples and other tags of the same strings, a slice of it is a list,
    and so is what `+` makes. Walking through all of it makes a block of strings at a time. Membership (`in`), `index`
    and `==` are linear: to look tags up, use `CorpusIndex.find_tags`.

    Examples:
        >>> import headrace as hr
        >>> index = hr.CorpusIndex.from_columns(tags=["a", "b"], lengths={"data": [2, 3]})
        >>> index.tags[1], list(index.tags), index.tags == ["a", "b"]
        ('b', ['a', 'b'], True)
    """

    @abstractmethod
    def block(self, start: int, stop: int) -> list[str]:
        """Return the tags of corpus indices `start <= i < stop`, both bounds within 0..len(self)."""

    @abstractmethod
    def take(self, indices: ArrayLike) -> list[str]:
        """Return the tags at the given corpus indices, `int[n]`; negative ones count from the end."""

    @abstractmethod
    def update_digest(self, digest: xxhash.xxh3_128) -> None:
        """Feed these tags into a digest."""

    def blocks(self) -> Iterator[tuple[int, list[str]]]:
        """Walk through all tags as pairs of first corpus index and list."""
        for start in range(0, len(self), BLOCK):
            yield start, self.block(start, min(start + BLOCK, len(self)))

    def __iter__(self) -> Iterator[str]:
        for _, block in self.blocks():
            yield from block

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Return one tag, or the list of tags of a slice."""
        if not isinstance(index, slice):
            corpus_idx = check_index(as_index(index), len(self))
            return self.block(corpus_idx, corpus_idx + 1)[0]
        start, stop, step = index.indices(len(self))
        if step == 1:
            return self.block(start, max(start, stop))
        return self.take(np.arange(start, stop, step, dtype=np.int64))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, str | bytes) or not isinstance(other, Sequence):
            return NotImplemented
        if len(self) != len(other):
            return False
        others = iter(other)
        return all(block == list(islice(others, len(block))) for _, block in self.blocks())

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __add__(self, other: Sequence[str]) -> list[str]:
        """Return a list of these tags and more, of a list, a tuple or other tags."""
        return [*self, *other] if isinstance(other, list | tuple | Tags) else NotImplemented

    def __radd__(self, other: Sequence[str]) -> list[str]:
        """Return a list of other tags and these."""
        return [*other, *self] if isinstance(other, list | tuple) else NotImplemented

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """Return the first corpus index of a tag.

        Raises:
            ValueError: There is none.
        """
        start, stop, _ = slice(start, stop).indices(len(self))
        for first in range(start, stop, BLOCK):
            block = self.block(first, min(first + BLOCK, stop))
            if value in block:
                return first + block.index(value)
        raise ValueError(f"{value!r} is not one of these tags")

    def __repr__(self) -> str:
        shown = ", ".join(map(reprlib.repr, self.block(0, min(len(self), _NUM_SHOWN))))
        return f"<{len(self)} tags{': ' if shown else ''}{shown}{', ...' if len(self) > _NUM_SHOWN else ''}>"


class GeneratedTags(Tags):
    """Tags made by a rule: `prefix + str(corpus_idx)`. Takes no memory and is looked up by arithmetic.

    Args:
        num_seqs: How many.
        prefix: Text before the number.
    """

    def __init__(self, num_seqs: int, prefix: str = "seq-") -> None:
        if num_seqs < 0:
            raise ConfigError(f"num_seqs is {num_seqs}", where="GeneratedTags", fix="give a number >= 0")
        try:
            prefix.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"the prefix {prefix!r} cannot be written as UTF-8", where="GeneratedTags") from error
        self.num_seqs = num_seqs
        self.prefix = prefix

    def __eq__(self, other: object) -> bool:
        if isinstance(other, GeneratedTags):
            return self.num_seqs == other.num_seqs and (self.prefix == other.prefix or not self.num_seqs)
        return super().__eq__(other)

    __hash__ = None

    def __len__(self) -> int:
        return self.num_seqs

    def block(self, start: int, stop: int) -> list[str]:
        """Return the tags of corpus indices start..stop."""
        prefix = self.prefix
        return [f"{prefix}{corpus_idx}" for corpus_idx in range(start, stop)]

    def take(self, indices: ArrayLike) -> list[str]:
        """Return the tags at the given corpus indices."""
        prefix = self.prefix
        return [f"{prefix}{corpus_idx}" for corpus_idx in check_indices(indices, self.num_seqs).tolist()]

    def update_digest(self, digest: xxhash.xxh3_128) -> None:
        """Feed the rule, which stands for the tags: O(1)."""
        prefix = self.prefix.encode()
        digest.update(f"generated {self.num_seqs} {len(prefix)} ".encode() + prefix)

    def find(self, tag: str) -> int | None:
        """Return the corpus index of a tag, or None."""
        number = tag[len(self.prefix) :]
        # The length comes first: Python refuses to read a number of thousands of digits.
        if not tag.startswith(self.prefix) or len(number) > 19 or not (number.isascii() and number.isdecimal()):
            return None
        corpus_idx = int(number)
        return corpus_idx if corpus_idx < self.num_seqs and str(corpus_idx) == number else None


class PackedTags(Tags):
    """Tags as UTF-8 in one block of bytes, in memory or mapped from a file.

    Args:
        offsets: `int64[N + 1]`: tag i is `blob[offsets[i]:offsets[i + 1]]`.
        blob: `uint8[B]`.
    """

    def __init__(self, offsets: NDArray[np.int64], blob: NDArray[np.uint8]) -> None:
        offsets.flags.writeable = False
        blob.flags.writeable = False
        self.offsets = offsets
        self.blob = blob

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedTags, (self.offsets, self.blob)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedTags):
            return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.blob, other.blob)
        return super().__eq__(other)

    __hash__ = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def block(self, start: int, stop: int) -> list[str]:
        """Return the tags of corpus indices start..stop."""
        offsets = self.offsets[start : stop + 1]
        data = self.blob[offsets[0] : offsets[-1]].tobytes()
        cuts = (offsets - offsets[0]).tolist()
        try:
            if data.isascii():
                text = data.decode("ascii")
                return [text[a:b] for a, b in pairwise(cuts)]
            return [data[a:b].decode() for a, b in pairwise(cuts)]
        except UnicodeDecodeError as error:
            raise self._not_text(error) from error

    def take(self, indices: ArrayLike) -> list[str]:
        """Return the tags at the given corpus indices."""
        corpus_indices = check_indices(indices, len(self))
        starts, stops = self.offsets[corpus_indices].tolist(), self.offsets[corpus_indices + 1].tolist()
        data = self.blob.data
        try:
            return [str(data[a:b], "utf-8") for a, b in zip(starts, stops, strict=True)]
        except UnicodeDecodeError as error:
            raise self._not_text(error) from error

    def update_digest(self, digest: xxhash.xxh3_128) -> None:
        """Feed number, lengths and text of the tags."""
        digest.update(f"packed {len(self)} ".encode())
        for start in range(0, len(self), BLOCK):
            # In pieces: the column may be stored in another byte order or not be contiguous.
            digest.update(np.ascontiguousarray(self.offsets[start + 1 : start + 1 + BLOCK], dtype="<i8").data)
        digest.update(np.ascontiguousarray(self.blob).data)

    @property
    def num_bytes(self) -> int:
        """How much memory they take."""
        return self.offsets.nbytes + self.blob.nbytes

    def _not_text(self, error: UnicodeDecodeError) -> SourceError:
        return SourceError(f"a stored tag is not UTF-8 ({error}): the index is damaged", fix=REBUILD)


def check_index(index: int, size: int) -> int:
    """Return an index, with negative ones counted from the end; IndexError names the size."""
    if not -size <= index < size:
        raise IndexError(f"corpus index {index} is outside a corpus of {size} sequences")
    return int(index) + (size if index < 0 else 0)


def check_indices(indices: ArrayLike, size: int) -> NDArray[np.int64]:
    """Return indices as `int64[n]`, negative ones counted from the end; IndexError names the first out of range."""
    array = np.asarray(indices)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"corpus indices must be integers, got {array.dtype}")
    array = array.astype(np.int64)
    outside = (array < -size) | (array >= size)
    if outside.any():
        check_index(int(array[outside][0]), size)
    return np.where(array < 0, array + size, array)


def pack_tags(tags: Any) -> Tags:
    """Return tags as a column.

    Args:
        tags: `Tags`; a list, tuple or other sequence of str or of UTF-8 bytes; or a NumPy array of dtype S, U or
            object of these. Trailing null characters are lost in a NumPy array of S or U: NumPy does not keep them.

    Raises:
        SourceError: A tag is not text, or cannot be written as UTF-8.
    """
    if isinstance(tags, PackedTags) or (isinstance(tags, GeneratedTags) and len(tags)):
        return tags  # an empty rule is packed, so that an empty corpus always has the same digest
    if isinstance(tags, str | bytes) or not hasattr(tags, "__getitem__") or not hasattr(tags, "__len__"):
        raise SourceError(f"tags are a {type(tags).__name__}, not a sequence of strings", fix="give a list of str")
    if isinstance(tags, np.ndarray) and tags.ndim != 1:
        raise SourceError(f"the array of tags has {tags.ndim} axes, not 1", fix="give one tag per sequence")
    packed = pack_texts(tags)
    return _as_rule(packed) or packed


def pack_texts(tags: Any) -> PackedTags:
    """Return strings of text or bytes as a packed column, also where there is a rule for them: to be chained."""
    num_seqs = len(tags)
    lengths = np.empty(num_seqs, dtype=np.int64)
    pieces = []
    for start in range(0, num_seqs, BLOCK):
        block = tags[start : start + BLOCK]
        lengths[start : start + BLOCK], piece = _pack_block(block, start)
        pieces.append(piece)
    offsets = np.zeros(num_seqs + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    blob = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    return PackedTags(offsets, blob)


def chain_tags(parts: Sequence[PackedTags]) -> Tags:
    """Return the tags of several corpora, one after the other, as one column; no string is made."""
    num_bytes = np.cumsum([0, *(len(part.blob) for part in parts)], dtype=np.int64)
    stops = [part.offsets[1:] + before for part, before in zip(parts, num_bytes[:-1], strict=True)]
    offsets = np.concatenate([np.zeros(1, np.int64), *stops])
    joined = PackedTags(offsets, np.concatenate([np.zeros(0, np.uint8), *(part.blob for part in parts)]))
    return _as_rule(joined) or joined


def _pack_block(block: Any, start: int) -> tuple[NDArray[np.int64], bytes]:
    """Return byte lengths `int64[n]` and joined UTF-8 of a block of tags whose first one has corpus index `start`."""
    if isinstance(block, np.ndarray) and block.dtype.kind == "S" and block.dtype.itemsize:
        return _pack_fixed_width(block, start)
    tags: list[Any] = block.tolist() if isinstance(block, np.ndarray) else list(block)
    try:
        data = b"".join(tags) if isinstance(tags[0], bytes) else "".join(tags).encode()
    except (TypeError, UnicodeEncodeError):
        return _pack_one_by_one(tags, start)
    lengths = np.fromiter(map(len, tags), dtype=np.int64, count=len(tags))
    # Only in ASCII a character is a byte, and any bytes are text.
    return (lengths, data) if data.isascii() and lengths.sum() == len(data) else _pack_one_by_one(tags, start)


def _pack_fixed_width(block: NDArray[np.bytes_], start: int) -> tuple[NDArray[np.int64], bytes]:
    lengths = np.char.str_len(block).astype(np.int64)
    width = block.dtype.itemsize
    matrix = np.ascontiguousarray(block).view(np.uint8).reshape(len(block), width)
    data = matrix[np.arange(width) < lengths[:, None]].tobytes()
    if not data.isascii():
        return _pack_one_by_one(block.tolist(), start)
    return lengths, data


def _pack_one_by_one(tags: list[Any], start: int) -> tuple[NDArray[np.int64], bytes]:
    encoded = [_encode_tag(tag, start + position) for position, tag in enumerate(tags)]
    return np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), b"".join(encoded)


def _encode_tag(tag: object, corpus_idx: int) -> bytes:
    where, fix = f"sequence {corpus_idx}", "give each sequence a tag of UTF-8 text"
    try:
        if isinstance(tag, str):
            return tag.encode()
        if isinstance(tag, bytes):
            tag.decode()
            return bytes(tag)
    except UnicodeError as error:
        raise SourceError(f"the tag {tag!r} is not UTF-8 text: {error}", where=where, fix=fix) from error
    raise SourceError(f"the tag {tag!r} is a {type(tag).__name__}, not a string", where=where, fix=fix)


def _as_rule(tags: PackedTags) -> GeneratedTags | None:
    """Return the rule that makes exactly these tags, if there is one; stops at the first block that differs."""
    if not len(tags) or not tags[0].endswith("0"):
        return None
    rule = GeneratedTags(len(tags), tags[0][:-1])
    if tags[-1] == rule[-1] and all(rule.block(start, start + len(block)) == block for start, block in tags.blocks()):
        return rule
    return None
