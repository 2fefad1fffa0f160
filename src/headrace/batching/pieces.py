"""The pieces that batches are made of (whole sequences, or chunks of them, as arrays), and the counts of a plan.

A policy first cuts (drops, or splits) and then groups the rest. Nothing is dropped silently: what a window plan does
not deliver is in its counts, and the counts of the windows of an epoch add up. Invariant: the pieces of a window are in
the order of its sequences, those of one sequence next to each other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.show.card import Card, Shown


@dataclass(frozen=True, slots=True, repr=False)
class PlanCounts(Shown):
    """Counts of one window, or of several that were added with `+` (or `sum(counts, PlanCounts())`).

    Attributes:
        seqs: Sequences that were given to the plan.
        pieces: What the batches hold: sequences, or chunks of them.
        too_long: Sequences dropped because they are too long.
        too_short: Sequences dropped because they are too short.
        last: Pieces dropped because the last batch of a window was not full.
        remainder: Pieces of the last batches of an epoch that no rank gets, because there are fewer batches than ranks.
        alone: Pieces longer than the budget, batched alone.
        chunked: Sequences that were cut.
        chunks: Chunks that they were cut into.
        left_out_frames: Frames of what was dropped, and ends of sequences that were too short for a chunk.
        frames: Frames in the batches, context frames included.
        padded_frames: The same and the padding, if each batch is padded to its longest piece (or its rows filled up).
    """

    seqs: int = 0
    pieces: int = 0
    too_long: int = 0
    too_short: int = 0
    last: int = 0
    alone: int = 0
    chunked: int = 0
    chunks: int = 0
    left_out_frames: int = 0
    frames: int = 0
    padded_frames: int = 0
    remainder: int = 0

    def __add__(self, other: PlanCounts) -> PlanCounts:
        """Add each of the counts."""
        return PlanCounts(*map(operator.add, _all_counts(self), _all_counts(other)))

    @property
    def left_out(self) -> int:
        """How many sequences (or chunks, in a last batch) are in no batch that a rank gets."""
        return self.too_long + self.too_short + self.last + self.remainder

    @property
    def padding_share(self) -> float:
        """Padding as a share of the frames of the padded batches, 0 to 1."""
        return 1 - self.frames / self.padded_frames if self.padded_frames else 0.0

    def __str__(self) -> str:
        """Summarize in one line what happened to the sequences."""
        parts = [f"{self.seqs:,} sequences in batches with {self.padding_share:.1%} padding"]
        if self.left_out:
            reasons = {"too long": self.too_long, "too short": self.too_short, "in a last batch": self.last}
            reasons["in batches too few for all ranks, see remainder="] = self.remainder
            named = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
            parts.append(f"left out: {named}")
        if self.left_out_frames:
            share = self.left_out_frames / max(self.left_out_frames + self.frames, 1)
            parts.append(f"{self.left_out_frames:,} frames left out ({share:.2%})")
        if self.alone:
            parts.append(f"{self.alone:,} over the budget, each alone in a batch")
        if self.chunked:
            parts.append(f"{self.chunked:,} cut into {self.chunks:,} chunks")
        return "; ".join(parts)

    def _card(self) -> Card:
        facts = [("plan", str(self)), ("batches hold", f"{self.pieces:,} pieces, {self.frames:,} frames")]
        return Card(type(self).__name__, facts)


_all_counts = operator.attrgetter(*(field.name for field in fields(PlanCounts)))

TooLong: TypeAlias = Literal["alone", "drop", "chunk", "error"]
_Cut: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]]

MAX_FRAMES = 2**40  # of one sequence; so that the cost of a window fits into 64 bits
_MAX_PIECES = 2**26  # in one window, about 2 GB while it is planned; more are surely a mistake in the options


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of one window.

    Attributes:
        positions: Position of the sequence in its window, `int32[M]`, ascending.
        frames: Length of the piece, context included, `int64[M]`.
        starts: First frame of the piece, `int64[M]`; less than 0 where context reaches out of the sequence. None if all
            pieces are whole sequences.
        counts: What was dropped or cut so far.
    """

    positions: NDArray[np.int32]
    frames: NDArray[np.int64]
    starts: NDArray[np.int64] | None = None
    counts: PlanCounts = field(default_factory=PlanCounts)

    @classmethod
    def of_lengths(cls, lengths: NDArray[Any]) -> Pieces:
        """Return the whole sequences of a window as pieces.

        Args:
            lengths: Frames of each sequence, `int[N]`.

        Raises:
            SourceError: Lengths are not whole numbers in 0..2**40.
        """
        frames = np.asarray(lengths)
        if frames.ndim != 1 or frames.dtype.kind not in "iu":
            raise SourceError(f"lengths must be int[N], got {frames.dtype} of shape {frames.shape}")
        if len(frames) and not (frames.min() >= 0 and frames.max() <= MAX_FRAMES):
            position = int(np.argmax((frames < 0) | (frames > MAX_FRAMES)))
            raise SourceError(f"a length of {frames[position]} frames is not in 0..2**40", where=f"position {position}")
        positions = np.arange(len(frames), dtype=np.int32)
        return cls(positions, frames.astype(np.int64, copy=False), counts=PlanCounts(seqs=len(frames)))

    def keep(self, mask: NDArray[np.bool_], **counts: int) -> Pieces:
        """Return the pieces where `mask` is true, and add to the counts."""
        counts["left_out_frames"] = int(self.frames[~mask].sum())
        starts = None if self.starts is None else self.starts[mask]
        return Pieces(self.positions[mask], self.frames[mask], starts, self.counts + PlanCounts(**counts))

    def split(self, num_chunks: NDArray[np.int64], cut: _Cut, *, rest: int = 0) -> Pieces:
        """Cut each piece into chunks.

        Args:
            num_chunks: `int64[M]`, each at least 1.
            cut: Gets the piece `int64[K]` and the number in its piece, 0, 1, ..., `int64[K]`, of each of the K chunks;
                returns their first frame in the piece and their length, `int64[K]`.
            rest: Frames that are in no chunk, for the counts.

        Raises:
            ConfigError: There would be far too many chunks.
        """
        total = int(np.minimum(num_chunks, _MAX_PIECES + 1).sum())
        if total > _MAX_PIECES:
            raise ConfigError(
                f"{len(self.frames)} sequences of up to {self.frames.max()} frames would be cut into more than "
                f"{_MAX_PIECES} chunks in one window",
                fix="make the chunks longer, or the windows smaller",
            )
        parents = np.repeat(np.arange(len(num_chunks)), num_chunks)
        numbers = np.arange(total) - (np.cumsum(num_chunks) - num_chunks)[parents]
        offsets, frames = cut(parents, numbers)
        starts = offsets if self.starts is None else offsets + self.starts[parents]
        is_cut = num_chunks > 1
        counts = PlanCounts(chunked=int(is_cut.sum()), chunks=int(num_chunks[is_cut].sum()), left_out_frames=rest)
        return Pieces(self.positions[parents], frames, starts, self.counts + counts)


def check_too_long(owner: str, too_long: str) -> None:
    """Refuse an unknown policy for sequences that are too long."""
    if too_long not in get_args(TooLong):
        raise ConfigError(f"{owner}: too_long must be one of {', '.join(get_args(TooLong))}, got {too_long!r}")


def apply_too_long(pieces: Pieces, limit: int | NDArray[np.int64], too_long: TooLong, owner: object) -> Pieces:
    """Treat the pieces of more than `limit` frames: batch them alone, drop them, cut them, or raise an error.

    The limit is one for all, or one for each, `int64[M]`.

    Those that are cut give the fewest possible chunks, of equal length (give or take one frame): no short remainder.

    Raises:
        ConfigError: There are some, and `too_long` is "error".
    """
    is_long = pieces.frames > limit
    num_long = int(np.count_nonzero(is_long))
    if num_long == 0:
        return pieces
    if too_long == "alone":
        return replace(pieces, counts=pieces.counts + PlanCounts(alone=num_long))
    if too_long == "drop":
        return pieces.keep(~is_long, too_long=num_long)
    if too_long == "chunk":
        return _cut_evenly(pieces, limit)
    first = int(np.argmax(is_long))
    allowed = np.broadcast_to(limit, is_long.shape)[first]
    raise ConfigError(
        f"a sequence has {pieces.frames[first]} frames, and {owner} allows {allowed} ({num_long} such in this window)",
        where=f"position {pieces.positions[first]}",
        fix='raise the budget, or choose too_long="alone", "drop" or "chunk"',
    )


def _cut_evenly(pieces: Pieces, limit: int | NDArray[np.int64]) -> Pieces:
    num_chunks = np.maximum(-(-pieces.frames // limit), 1)
    sizes, rests = np.divmod(pieces.frames, num_chunks)

    def cut(parents: NDArray[np.int64], numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        size, rest = sizes[parents], rests[parents]
        return numbers * size + np.minimum(numbers, rest), size + (numbers < rest)

    return pieces.split(num_chunks, cut)
