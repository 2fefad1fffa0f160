"""What the batches of an epoch will be like, by the plan: nothing is read for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError

from .epochs import PlannedEpochs, Recipe
from .inputs import Subject
from .plan import EpochPlan

MAX_BATCHES = 20_000  # some 10 us each


@dataclass(frozen=True)
class BatchShapes:
    """The batches of an epoch, or the first ones of a long epoch.

    Attributes:
        epoch: Its number.
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


def shapes_of(runs: Any, subject: Subject, recipe: Recipe, epoch: int, max_batches: int) -> BatchShapes:
    """Return the shapes of an epoch's batches, as `DataLoader.batch_shapes` does.

    Raises:
        ConfigError: It is a stream, or the lengths are not known without reading.
    """
    key = recipe.needs.data_key
    if not isinstance(runs, PlannedEpochs) or not subject.knows_lengths(key):
        why = "a stream is planned while it is read" if subject.is_stream else "the lengths are not known"
        raise ConfigError(
            f"nobody knows what the batches will be like: {why}",
            where=subject.name,
            fix="for a MapDataset give lengths=, or a method get_seq_len; of a stream see padding_share of each batch",
        )
    with recipe.ordering(subject, epoch):
        order = subject.start(epoch, replace(recipe.needs, lengths=True))
    assert order.lengths_of is not None
    plan = EpochPlan(order, recipe.plan)
    num_seqs, frames, padded, lengths = [], [], [], []
    for number in range(max_batches):
        if not plan.has(number):
            break
        task, _ = plan.task(number)
        pieces = order.lengths_of(task.indices) if task.chunk_frames is None else task.chunk_frames
        num_seqs.append(len(pieces))
        frames.append(int(pieces.sum()))
        longest = int(pieces.max(initial=0))
        if task.rows is None:
            padded.append(longest * len(pieces))
        else:
            layout = recipe.plan.batching.row_layout(task.rows)
            num_rows = int(task.rows.max(initial=0)) + 1 if layout.num_rows is None else layout.num_rows
            padded.append(num_rows * max(layout.row_tokens, longest))
        lengths.append(np.asarray(pieces, np.int64))
    return BatchShapes(
        epoch,
        np.array(num_seqs, np.int64),
        np.array(frames, np.int64),
        np.array(padded, np.int64),
        np.concatenate([np.zeros(0, np.int64), *lengths]),
    )
