"""Computes the shapes of the batches of an epoch from the plan, without reading data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.batching import Batching
from headrace.errors import ConfigError
from headrace.show.card import Card, Shown

from .plan import EpochPlan

MAX_BATCHES = 20_000  # some 10 us each


@dataclass(frozen=True, repr=False)
class BatchShapes(Shown):
    """The batches of an epoch, or the first ones of a long epoch.

    Attributes:
        epoch: The epoch number.
        num_seqs: Sequences (or chunks) of each batch, `int64[B]`.
        frames: Their frames, `int64[B]`.
        padded_frames: The same and the padding, `int64[B]`.
        lengths: Frames of each sequence (or chunk), in the order in which they come, `int64[N]`.
    """

    epoch: int
    num_seqs: NDArray[np.int64]
    frames: NDArray[np.int64]
    padded_frames: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def by_rank(self, world_size: int) -> NDArray[np.int64]:
        """Return the padded frames of each step and rank, `int64[B // world_size, world_size]`: the work of a step."""
        whole = len(self.padded_frames) // world_size * world_size
        return self.padded_frames[:whole].reshape(-1, world_size)

    def _card(self) -> Card:
        padded, frames = int(self.padded_frames.sum()), int(self.frames.sum())
        facts = [
            ("epoch", f"epoch {self.epoch}"),
            ("batches", f"{len(self.num_seqs):,} batches"),
            ("sequences", f"{int(self.num_seqs.sum()):,} sequences"),
            ("padding", f"{(1 - frames / padded if padded else 0):.1%} padding"),
        ]
        columns = {"sequences": self.num_seqs, "frames": self.padded_frames, "lengths": self.lengths}
        layouts = ("of a batch", "of a batch, padded", "of a sequence")
        return Card(type(self).__name__, facts, dict(zip(columns, layouts, strict=True)), columns)


def shapes_of(plan: EpochPlan, batching: Batching, max_batches: int) -> BatchShapes:
    """Return the shapes of an epoch's batches, as `DataLoader.batch_shapes` does.

    Args:
        plan: Plan of an epoch whose lengths are known.
        batching: By which it plans.
        max_batches: At most this many batches, the first ones.
    """
    lengths_of = plan.order.lengths_of
    assert lengths_of is not None
    num_seqs, frames, padded, lengths = [], [], [], []
    for number in range(max_batches):
        if not plan.has(number):
            break
        task, _ = plan.task(number)
        pieces = lengths_of(task.indices) if task.chunk_frames is None else task.chunk_frames
        num_seqs.append(len(pieces))
        frames.append(int(pieces.sum()))
        longest = int(pieces.max(initial=0))
        if task.rows is None:
            padded.append(longest * len(pieces))
        else:
            layout = batching.row_layout(task.rows)
            num_rows = int(task.rows.max(initial=0)) + 1 if layout.num_rows is None else layout.num_rows
            padded.append(num_rows * max(layout.row_tokens, longest))
        lengths.append(np.asarray(pieces, np.int64))
    return BatchShapes(
        plan.epoch,
        np.array(num_seqs, np.int64),
        np.array(frames, np.int64),
        np.array(padded, np.int64),
        np.concatenate([np.zeros(0, np.int64), *lengths]),
    )


def no_shapes_error(why: str, name: str) -> ConfigError:
    """Return the error for a dataset whose batches have shapes that only reading tells, and why that is."""
    return ConfigError(
        f"the shapes of batches are not known before they are read: {why}",
        where=name,
        fix="for a MapDataset give lengths=, or a method get_seq_len; of a stream see padding_share of each batch",
    )
