"""What a plan did: how many sequences came, were left out, cut or over the budget, and how much is padding.

Nothing is left out silently: what a window plan does not deliver is in its counts, and those of the windows of an epoch
add up.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """Counts of one window, or of several that were added with `+` (or `sum(counts, PlanCounts())`).

    Attributes:
        seqs: Sequences that were given to the plan.
        pieces: What the batches hold: sequences, or chunks of them.
        too_long: Sequences left out because they are too long.
        too_short: Sequences left out because they are too short.
        last: Pieces left out because the last batch of a window was not full.
        remainder: Pieces of the last batches of an epoch that no rank gets, because there are fewer batches than ranks.
        alone: Pieces that are over the budget all by themselves, each in a batch of its own.
        chunked: Sequences that were cut.
        chunks: Chunks that came of them.
        left_out_frames: Frames of what was left out, and ends of sequences that were too short for a chunk.
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
        sums = (getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        return PlanCounts(*sums)

    @property
    def left_out(self) -> int:
        """How many sequences (or chunks, in a last batch) are in no batch that a rank gets."""
        return self.too_long + self.too_short + self.last + self.remainder

    @property
    def padding_share(self) -> float:
        """Padding as a share of the frames of the padded batches, 0 to 1."""
        return 1 - self.frames / self.padded_frames if self.padded_frames else 0.0

    def __str__(self) -> str:
        """Say in one line what happened to the sequences."""
        parts = [f"{self.seqs:,} sequences in batches with {self.padding_share:.1%} padding"]
        if self.left_out:
            reasons = {"too long": self.too_long, "too short": self.too_short, "in a last batch": self.last}
            reasons["in batches too few for all ranks"] = self.remainder
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
