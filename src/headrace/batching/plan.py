"""The plan of one window: which pieces form which batch, and in which order the batches come.

A window is a run of consecutive positions of the order of an epoch. Each is planned on its own, and batches never cross
windows, so that a plan costs the same for any size of the corpus, and any process can plan the windows, in any order.
Invariant: a plan is a pure function of (batching, batch order, lengths of the window, window key); ranks, workers and
    time have no part in it. Golden values pin it, and `PLAN_VERSION` rises if it has to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count
from headrace.order.policy import set_field
from headrace.rng import derive_seed

from .pieces import Pieces, PlanCounts

PLAN_VERSION = 1  # part of the digest of a recipe: a state that was saved under another version is not resumed
WINDOW_SEQS = 65_536  # sequences: enough for full buckets, and the plan of one takes about 10 ms and a few MB

_Arrange = Literal["shuffle", "keep"]


@dataclass(frozen=True, slots=True)
class WindowKey:
    """What the randomness of one window depends on.

    Attributes:
        seed: The user's seed.
        epoch: Number of the epoch, as given to `init_seq_order`.
        window: Number of the window in the epoch, from 0.
    """

    seed: int
    epoch: int
    window: int

    def random_keys(self, purpose: str, num: int) -> NDArray[np.uint64]:
        """Return random 64-bit numbers, `uint64[num]`: sorting by them is a shuffle.

        They are the raw stream of Philox, which NumPy keeps the same for ever (unlike `Generator.permutation`).
        """
        key = derive_seed(self.seed, f"batching:{purpose}", epoch=self.epoch, corpus_idx=self.window, bits=128)
        return np.random.Philox(key=key).random_raw(num)


@dataclass(frozen=True)
class BatchOrder:
    """In which order the batches of a window come; a part of the recipe.

    First they are shuffled or kept. Then groups of consecutive batches are sorted by cost, upwards and downwards in
    turn, so that the batches of one step are alike on all ranks, however many ranks there are. The number of groups in
    a window is even: each window begins and ends with its cheap batches, and a step across two windows is even as well.

    Args:
        arrange: `"shuffle"`, or `"keep"`: by the first position of each batch.
        group_batches: Batches in a group, at most; at least twice the number of ranks is best, 1 switches the sort off.
            Larger groups make costs more alike, smaller ones less regular.

    Raises:
        ConfigError: An option is wrong.
    """

    arrange: _Arrange = "shuffle"
    group_batches: int = 64

    def __post_init__(self) -> None:
        """Check both options."""
        if self.arrange not in get_args(_Arrange):
            raise ConfigError(f'BatchOrder: arrange must be "shuffle" or "keep", got {self.arrange!r}')
        count = check_count("BatchOrder: group_batches", self.group_batches, minimum=1)
        set_field(self, "group_batches", count)

    def permute(
        self, costs: NDArray[np.int64], first_positions: NDArray[np.int32], key: WindowKey
    ) -> NDArray[np.int64]:
        """Return the numbers of the batches in the order in which they come, `int64[B]`.

        Args:
            costs: `int64[B]`.
            first_positions: Smallest position in each batch, `int32[B]`.
            key: Key of the window.
        """
        num_batches = len(costs)
        ranks = key.random_keys("order", num_batches) if self.arrange == "shuffle" else first_positions
        order = np.argsort(ranks, kind="stable")
        if self.group_batches == 1 or num_batches < 2:
            return order
        num_pairs = -(-num_batches // (2 * self.group_batches))
        groups = np.arange(num_batches) * (2 * num_pairs) // num_batches
        signed = np.where(groups % 2 == 0, costs[order], -costs[order])
        return order[np.lexsort((signed, groups))]


@dataclass(frozen=True, slots=True)
class Groups:
    """The result of a policy: pieces in batches, not yet in their final order.

    Attributes:
        pieces: Indices into the pieces, batch after batch, `int64[M]`.
        starts: Where each batch starts in `pieces`, and the end, `int64[B + 1]`. No batch is empty.
        costs: `int64[B]`.
        rows: Row of each piece in its batch, `int32[M]`, where several share a row.
        padded: Frames of each batch with its padding, `int64[B]`; None: each piece is padded to the longest.
    """

    pieces: NDArray[np.int64]
    starts: NDArray[np.int64]
    costs: NDArray[np.int64]
    rows: NDArray[np.int32] | None = None
    padded: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One batch of a plan; the arrays are views of it.

    Attributes:
        members: Positions in the window, `int32[n]`.
        cost: Cost by the policy: frames with their padding.
        rows: Row of each member, `int32[n]`, where several share a row.
        chunk_starts: First frame of each member, `int64[n]`, None if all are whole. May be less than 0, see `Chunks`.
        chunk_frames: Length of each member, `int64[n]`, None if all are whole.
    """

    members: NDArray[np.int32]
    cost: int
    rows: NDArray[np.int32] | None = None
    chunk_starts: NDArray[np.int64] | None = None
    chunk_frames: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.members)


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The batches of one window, in the order in which they come. The arrays are read-only.

    It takes 4 bytes a sequence and 12 a batch; with rows 8 a sequence, with chunks 16 more.

    Attributes:
        members: Positions in the window, batch after batch, `int32[M]`.
        starts: Where each batch starts in `members`, and the end, `int32[B + 1]`.
        costs: Cost of each batch by the policy: frames with their padding, `int64[B]`.
        counts: What was dropped, cut or too long, and how much is padding.
        rows: Row of each member in its batch, `int32[M]`, where several share a row.
        chunk_starts: First frame of each member, `int64[M]`; None if all are whole sequences.
        chunk_frames: Length of each member, `int64[M]`; None if all are whole sequences.
    """

    members: NDArray[np.int32]
    starts: NDArray[np.int32]
    costs: NDArray[np.int64]
    counts: PlanCounts
    rows: NDArray[np.int32] | None = None
    chunk_starts: NDArray[np.int64] | None = None
    chunk_frames: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Make the arrays read-only: plans are shared."""
        for array in self._arrays():
            array.flags.writeable = False

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.costs)

    def __getitem__(self, number: int) -> PlannedBatch:
        """Return a batch of the window, O(1)."""
        if not 0 <= number < len(self.costs):
            raise IndexError(f"batch {number} is outside a window of {len(self.costs)} batches")
        part = slice(int(self.starts[number]), int(self.starts[number + 1]))
        return PlannedBatch(
            self.members[part],
            int(self.costs[number]),
            None if self.rows is None else self.rows[part],
            None if self.chunk_starts is None else self.chunk_starts[part],
            None if self.chunk_frames is None else self.chunk_frames[part],
        )

    def __iter__(self) -> Iterator[PlannedBatch]:
        """Return the batches of the window, in their order."""
        return (self[number] for number in range(len(self)))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._arrays())

    def _arrays(self) -> list[NDArray[Any]]:
        arrays = (self.members, self.starts, self.costs, self.rows, self.chunk_starts, self.chunk_frames)
        return [array for array in arrays if array is not None]


def assemble_plan(pieces: Pieces, groups: Groups, order: BatchOrder, key: WindowKey) -> WindowPlan:
    """Put the batches of a policy into their order, and make a compact plan of them."""
    sizes = np.diff(groups.starts)
    frames = pieces.frames[groups.pieces]
    positions = pieces.positions[groups.pieces]
    if len(sizes):
        padded = np.maximum.reduceat(frames, groups.starts[:-1]) * sizes if groups.padded is None else groups.padded
        permutation = order.permute(groups.costs, np.minimum.reduceat(positions, groups.starts[:-1]), key)
    else:
        padded, permutation = np.zeros(0, np.int64), np.zeros(0, np.int64)
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes[permutation], out=starts[1:])
    # index into `groups.pieces` of each member of the plan
    source = np.repeat(groups.starts[permutation] - starts[:-1], sizes[permutation]) + np.arange(starts[-1])
    counts = PlanCounts(
        pieces=len(source),
        last=len(pieces.frames) - len(source),
        left_out_frames=int(pieces.frames.sum()) - int(frames.sum()),
        frames=int(frames.sum()),
        padded_frames=int(padded.sum()),
    )
    return WindowPlan(
        members=positions[source],
        starts=starts.astype(np.int32),
        costs=groups.costs[permutation],
        counts=pieces.counts + counts,
        rows=None if groups.rows is None else groups.rows[source],
        chunk_starts=None if pieces.starts is None else pieces.starts[groups.pieces[source]],
        chunk_frames=None if pieces.starts is None else frames[source],
    )
