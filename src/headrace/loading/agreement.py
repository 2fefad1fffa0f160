"""Equal steps of ranks that cannot know how many the others have: one flag is exchanged every k steps.

Each rank of a stream that shares itself out knows its own next k steps, since it reads that far ahead. Before every
block of k steps the ranks ask each other whether all of them have the whole block (`remainder="drop"`), or whether none
of them has it (`"pad"`). At the end they halve the block until they know to the step where the epoch ends: after the
shortest rank, or after the longest. So the steps of an epoch depend neither on k nor on where it was resumed.
Invariants: all ranks exchange as many flags, in the same places between their steps, whatever each of them finds; all
exchanges are made in the consumer's thread, when it asks for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from headrace.errors import ConfigError

from .plan import Plan, Step

Agree = Callable[[bool], bool]


class Agreement:
    """How far the ranks go on together, in one epoch. Not thread-safe.

    Args:
        agree: Tells whether all ranks gave it True; waits for all of them.
        every: Steps of a block.
        may_repeat: Whether ranks that have no more steps repeat batches, until no rank has any.
    """

    def __init__(self, agree: Agree, every: int, *, may_repeat: bool) -> None:
        self._agree, self._may_repeat = agree, may_repeat
        self._block = every  # how many steps the ranks ask each other for next; less than `every` at the end only
        self._is_ending = False
        self._num_granted = 0

    def goes_on(self, num_left: int) -> bool:
        """Ask the other ranks, if that is due; tell whether there is a next step on all of them.

        Args:
            num_left: Steps that this rank has itself from here on, or as many as a block if it has more.
        """
        while self._num_granted == 0 and self._block:
            has_block = num_left >= self._block
            is_granted = not self._ask(not has_block) if self._may_repeat else self._ask(has_block)
            if is_granted:
                self._num_granted = self._block
            self._is_ending = self._is_ending or not is_granted
            if self._is_ending:  # what is left on the rank that decides is less than the block was
                self._block = (self._block + 1) // 2 if self._block > 1 else 0
        return self._num_granted > 0

    def take_step(self) -> None:
        """Take note that a step was taken."""
        self._num_granted -= 1

    def _ask(self, flag: bool) -> bool:
        answer = self._agree(flag)
        if not isinstance(answer, bool | np.bool_):
            raise ConfigError(
                f"agree must return True or False, and returned {answer!r}",
                fix="return whether all ranks gave it True, as headrace.adapters.torch_ranks.all_agree does",
            )
        return bool(answer)


def agreed_steps(
    plan: Plan, rank: int, world_size: int, position: int, *, every: int, may_repeat: bool
) -> Iterator[Step]:
    """Yield the steps of one rank from a position on, each with how many are left; with repeats there is no end.

    Reads `every` steps ahead.

    Args:
        plan: Of the epoch.
        rank: Which rank of those that share this plan, from 0.
        world_size: How many these are.
        position: Batches of the epoch that are done, on all of them.
        every: How many steps to look ahead.
        may_repeat: Whether batches are repeated from the start of the epoch once there are no more.
    """
    offset = rank if may_repeat else world_size - 1  # of the batch that must be there for this rank to have a step
    step = position // world_size
    while True:
        plan.has(position + (every - 1) * world_size + offset)  # so that `end` is right, as far as it matters
        num_left = max(-(-(plan.end - position - offset) // world_size), 0)
        if not num_left and not (may_repeat and plan.end):
            return
        number = position + rank
        is_repeat = num_left == 0
        position += world_size
        yield Step(
            number % plan.end if is_repeat else number,
            step,
            is_repeat,
            position,
            plan.locate(position),
            min(num_left, every),
        )
        step += 1
