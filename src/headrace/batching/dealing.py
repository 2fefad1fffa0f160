"""Deals the sequences of an epoch, rather than its batches, to the ranks: for an evaluation in which each counts once.

Of as many consecutive sequences (or chunks) as there are ranks, each rank gets one: that is a round. The batching
groups rounds as it would group sequences, each as long as its longest. So a step has equally many sequences on all
ranks, and no batch exceeds the budget. Only the last round may be too short for all ranks; it is a step of its own.
Invariant: the plans of all ranks have the same steps, and each sequence is in one of them, once, repeats aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from headrace.errors import ConfigError

from .base import Batching
from .pieces import Pieces, PlanCounts
from .plan import BatchOrder, WindowKey, WindowPlan
from .wrappers import Around

LastStep: TypeAlias = Literal["repeat", "split"]
"""What a rank gets in the last step if no sequence is left for it: a repeat, or one of its own from another batch."""


@dataclass(frozen=True)
class Dealt(Around):
    """The share of a rank in the batches of another batching. Its counts are those of all ranks.

    Args:
        batching: The batching of the rounds.
        rank: Which rank, from 0.
        world_size: How many there are.
        last_step: See `LastStep`.
    """

    batching: Batching
    rank: int
    world_size: int
    last_step: LastStep

    @property
    def needs_lengths(self) -> bool:
        """Delegate to the other batching."""
        return self.batching.needs_lengths

    def cut(self, pieces: Pieces) -> Pieces:
        """Cut as the other batching does."""
        return self.batching.cut(pieces)

    def plan_pieces(self, pieces: Pieces, order: BatchOrder, key: WindowKey) -> WindowPlan:
        """Plan rounds, and take what this rank gets of each.

        Raises:
            ConfigError: A batch has to be split, and each has only one sequence.
        """
        num_pieces, num_full = len(pieces.frames), len(pieces.frames) // self.world_size
        slots = np.arange(-(-num_pieces // self.world_size) * self.world_size)
        rounds = np.minimum(slots, num_pieces - 1).reshape(-1, self.world_size)
        longest = pieces.frames[rounds].max(axis=1)
        numbers = np.arange(len(rounds), dtype=np.int32)
        full, last = (
            self.batching.plan_pieces(Pieces(numbers[part], longest[part]), order, key)
            for part in (slice(num_full), slice(num_full, None))
        )
        dealt = rounds[np.concatenate([full.members, last.members])]
        own, starts = dealt[:, self.rank], np.concatenate([full.starts, full.starts[-1] + last.starts[1:]])
        rows = None if full.rows is None or last.rows is None else np.concatenate([full.rows, last.rows])
        if len(last) and self.last_step == "split":
            donor = self._find_donor(full, num_pieces)
            if self.rank >= num_pieces % self.world_size:
                moved = starts[donor + 1] - 1
                own[-1] = own[moved]
                own, rows = np.delete(own, moved), None if rows is None else np.delete(rows, moved)
                starts[donor + 1 :] -= 1
        found = np.unique(dealt)
        frames = int(pieces.frames[found].sum())
        counts = PlanCounts(
            pieces=len(found),
            last=num_pieces - len(found),
            left_out_frames=int(pieces.frames.sum()) - frames,
            frames=frames,
            padded_frames=(full.counts.padded_frames + last.counts.padded_frames) * self.world_size,
        )
        return WindowPlan(
            pieces.positions[own],
            starts,
            np.concatenate([full.costs, last.costs]),
            pieces.counts + counts,
            rows,
            None if pieces.starts is None else pieces.starts[own],
            None if pieces.starts is None else pieces.frames[own],
        )

    def _find_donor(self, full: WindowPlan, num_pieces: int) -> int:
        """Return the last batch that can do without one of its sequences."""
        donors = np.flatnonzero(np.diff(full.starts) > 1)
        if not len(donors):
            raise ConfigError(
                f"{num_pieces} sequences cannot be shared equally among {self.world_size} ranks: no batch has two, one "
                "of which could be a batch of its own in the last step",
                where=str(self.batching),
                fix=f"make batches of at least 2 sequences, or evaluate on a multiple of {self.world_size} sequences",
            )
        return int(donors[-1])
