"""What is known of a dataset's corpus without reading it, and the tags and lengths that an order needs.

A dataset answers `get_corpus()`; one that is made of others combines the answers of its parts. The tags and lengths, of
the corpus or of files, are taken only when they are asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import InternalError, SourceError
from headrace.files import read_seq_lens, read_tag_list
from headrace.index import CorpusIndex
from headrace.sources import MapSource, Source
from headrace.specs import DataSpec

if TYPE_CHECKING:
    from headrace.files.lists.tree import FileTree

LengthsOf = Callable[[NDArray[np.int64]], NDArray[Any]]
"""Returns the lengths of sequences, `int[n]`, by corpus index, `int64[n]`."""


def _not_indexed(*_: Any) -> Any:
    raise InternalError("a corpus without an index was asked for its columns")


def _no_lengths(key: str, may_cost: bool) -> LengthsOf | None:  # noqa: ARG001
    return None


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class IndexedFiles:
    """A fingerprint of the files of a source as they were indexed. Paths and times do not count: a copy is equal.

    Attributes:
        path: The first file.
        num_bytes: Size of all files.
        num_seqs: How many sequences they hold.
        digest: Digest of tags, lengths, and samples of their bytes.
    """

    path: str = field(compare=False)
    num_bytes: int
    num_seqs: int
    digest: str

    @classmethod
    def of(cls, source: Source) -> IndexedFiles | None:
        """Return the fingerprint of the files of a source; `None` if it has none. O(N) once for an index in memory."""
        if isinstance(source, MapSource) or not source.index.files:
            return None
        index, files = source.index, source.index.files
        digest = xxhash.xxh3_128_hexdigest(" ".join([index.digest, *(stamp.digest for stamp in files)]).encode())
        return cls(files[0].path, sum(stamp.size for stamp in files), len(index), digest)


@dataclass(frozen=True, slots=True)
class StoredCounts:
    """What files hold, whatever options make of it.

    Attributes:
        files: Their names.
        num_seqs: How many sequences.
        num_frames: How many frames of the first data key.
    """

    files: Sequence[str]
    num_seqs: int
    num_frames: int


def check_files(now: Sequence[IndexedFiles], before: Sequence[IndexedFiles]) -> None:
    """Refuse files that were changed between two constructions of a dataset.

    Args:
        now: What its files are, see `Dataset.indexed_files`.
        before: What they were.

    Raises:
        SourceError: They hold something else.
    """
    for found, known in zip(now, before, strict=False):
        if found != known:
            raise SourceError(
                f"the files were changed since the dataset was made: {known.num_seqs} sequences in {known.num_bytes} "
                f"bytes then, {found.num_seqs} in {found.num_bytes} bytes now, with another content",
                where=known.path,
                fix="make the dataset again, and leave its files as they are while it is read",
            )


class DistributesFiles(Protocol):
    """A dataset whose epochs are made of files, see `DistributeFilesDataset`."""

    @property
    def files(self) -> list[FileTree]:
        """All files."""

    def get_files(self, epoch: int, rank: int | None = None) -> list[FileTree]:
        """Return the files of a sub-epoch, of one rank."""

    def num_seqs_of(self, epoch: int, rank: int | None = None) -> int | None:
        """Return how many sequences the files of a sub-epoch have, if they were counted."""

    def count_files(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Count the sequences of all files."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What is known of the sequences of a dataset without reading them.

    It is worked out when a function is called, and no sooner: an index may have to be gathered first, lengths may have
    to be asked of a user's object.

    Attributes:
        digest_text: Returns a text that tells this corpus from others. O(N) at most once, where the index is kept.
        knows_order: Returns whether an epoch's sequences and their order are known before it is read.
        size: Returns how many corpus indices there are, `None` if that is not known.
        is_indexed: Whether it is known under which corpus index each tag is. The order of each epoch is then known,
            too, and any sequence is read by its corpus index.
        index: Returns the tags by corpus index, if it is indexed.
        tags_of: Returns the tags of corpus indices, `int64[n]`, if it is indexed; no others need be known for it.
        specs: Layout by data key, as far as it is that of the arrays and not a guess.
        knows_dtypes: Whether the dtypes that the dataset names are those of its arrays, and not the guess of RETURNN's
            API.
        lengths: Returns the lengths of a data key by corpus index, `None` if they are not known without reading. The
            second argument is whether it may cost something: to ask a user's object.
        has_fixed_lengths: Whether lengths, of all data keys and for sorting, are the same in all epochs, and a part of
            what `digest_text` tells.
        may_change_lengths: Whether sequences may come out with other lengths, after a transform.
        sort_lengths: Returns `int[N]`, what sequences are sorted by, if it is indexed.
        kept: Returns `bool[N]`, what filters keep, `None` without one, if it is indexed.
        num_filtered: Returns how many sequences a tag filter leaves out, here or in a part, and of how many; `None`
            without one, and then nothing is read to answer it.
        draws_by_occurrence: Whether what is read depends on how often a sequence came before in the epoch.
        encodes_texts: Whether reading encodes texts by a vocabulary, which a conversion would store.
    """

    digest_text: Callable[[], str]
    knows_order: Callable[[], bool]
    size: Callable[[], int | None]
    is_indexed: bool = False
    index: Callable[[], CorpusIndex] = _not_indexed
    tags_of: Callable[[NDArray[np.int64]], list[str]] = _not_indexed
    specs: Mapping[str, DataSpec] = field(default_factory=dict)
    knows_dtypes: bool = False
    lengths: Callable[[str, bool], LengthsOf | None] = _no_lengths
    has_fixed_lengths: bool = False
    may_change_lengths: bool = False
    sort_lengths: Callable[[], NDArray[Any]] = _not_indexed
    kept: Callable[[], NDArray[np.bool_] | None] = _nothing
    num_filtered: Callable[[], tuple[int, int] | None] = _nothing
    draws_by_occurrence: bool = False
    encodes_texts: bool = False

    def without_index(self) -> Corpus:
        """Return the same without the index: without anything that is found by tags and corpus indices."""
        known = {name: getattr(self, name) for name in _KNOWN_WITHOUT_INDEX}
        return Corpus(digest_text=self.digest_text, knows_order=self.knows_order, size=self.size, **known)


_KNOWN_WITHOUT_INDEX = (
    "specs",
    "knows_dtypes",
    "lengths",
    "has_fixed_lengths",
    "may_change_lengths",
    "num_filtered",
    "encodes_texts",
)


def num_left_out(kept: NDArray[np.bool_] | None, parts: Sequence[Corpus] = ()) -> tuple[int, int] | None:
    """Return how many sequences filters leave out, and of how many; `None` if there is no filter.

    Args:
        kept: Which sequences of a corpus are kept, `bool[N]`; `None`: all.
        parts: What that corpus is made of. Those that a user-defined dataset leaves out are not in its corpus at all.
    """
    if kept is None:
        return sum_left_out(parts)
    counts = [(found[1], part.size()) for part in parts if (found := part.num_filtered()) is not None]
    num_hidden = sum(total - size for total, size in counts if size is not None)
    return len(kept) - int(np.count_nonzero(kept)) + num_hidden, len(kept) + num_hidden


def sum_left_out(corpora: Sequence[Corpus]) -> tuple[int, int] | None:
    """Return how many sequences filters of parts leave out; parts without one count among all, if their size is known.

    `None` if no part has a filter. O(N) otherwise.
    """
    found = [corpus.num_filtered() for corpus in corpora]
    if all(counts is None for counts in found):
        return None
    known = [counts or (0, corpus.size() or 0) for corpus, counts in zip(corpora, found, strict=True)]
    return sum(left_out for left_out, _ in known), sum(total for _, total in known)


_LOGGER = logging.getLogger("headrace.datasets")
_filters_warned_of: set[str] = set()  # so that each is said once in a process


def read_wanted_tags(filter_file: str | Path) -> frozenset[str]:
    """Return the tags of a filter file."""
    return frozenset(read_tag_list(filter_file))


def mask_of_tags(tags: Sequence[str], wanted: frozenset[str], *, where: str) -> NDArray[np.bool_]:
    """Return `bool[N]`: whether each tag is wanted. Wanted tags that the corpus lacks are legal, and logged once."""
    mask = np.fromiter((tag in wanted for tag in tags), dtype=bool, count=len(tags))
    num_kept = int(np.count_nonzero(mask))
    if num_kept < len(wanted) and where not in _filters_warned_of:
        _filters_warned_of.add(where)
        _LOGGER.warning(
            "the filter names %d tags, and keeps %d of %d sequences: %s", len(wanted), num_kept, len(tags), where
        )
    return mask


def lengths_of_tags(tags: Sequence[str], lens_file: str | Path) -> NDArray[Any]:
    """Return `int[N]` or `float[N]`: the length that the file gives for each tag.

    Raises:
        SourceError: A tag of the corpus is not in the file.
    """
    lens = read_seq_lens(lens_file)
    try:
        return np.array([lens[tag] for tag in tags]) if len(tags) else np.zeros(0, dtype=np.int64)
    except KeyError as error:
        raise SourceError(
            f"no length for the tag {error.args[0]!r}",
            where=f"{lens_file} ({len(lens)} lengths, the corpus has {len(tags)} sequences)",
            fix="give a length for each tag of the corpus in seq_order_seq_lens_file",
        ) from None


def first_of_tag(tags: Sequence[str]) -> NDArray[np.int64]:
    """Return `int64[N]`: for each sequence the smallest corpus index with the same tag."""
    seen: dict[str, int] = {}
    return np.fromiter((seen.setdefault(tag, i) for i, tag in enumerate(tags)), dtype=np.int64, count=len(tags))


def as_lengths(get_seq_len: Any, num_seqs: int) -> NDArray[Any]:
    """Return `int[N]` or `float[N]` from a function corpus index -> length, or from an array of lengths."""
    if not callable(get_seq_len):
        return np.asarray(get_seq_len)
    return np.array([get_seq_len(i) for i in range(num_seqs)]) if num_seqs else np.zeros(0, dtype=np.int64)
