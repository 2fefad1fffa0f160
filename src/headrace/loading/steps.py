"""The steps of a rank: which batch each is, whether it is a repeat, how many there are, and which are in flight.

Where ranks cannot know how many steps the others have (a stream that shares itself out), they find out together: one
flag is exchanged every k steps. Each rank knows its own next k steps, since it reads that far ahead. Before every block
of k steps the ranks ask each other whether all of them have the whole block (`remainder="drop"`), or whether none of
them has it (`"pad"`). At the end they halve the block until they know to the step where the epoch ends: after the
shortest rank, or after the longest. So the steps of an epoch depend neither on k nor on where it was resumed.
Invariants: all ranks exchange the same number of flags, at the same points between their steps, whatever each of them
finds; all exchanges are made in the consumer's thread, when it asks for a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.engine import Delivered
from headrace.errors import ConfigError, HeadraceError, ResumeError

from .work import CarriedTask, Task

Agree = Callable[[bool], bool]


@dataclass(frozen=True, slots=True)
class EpochRun:
    """The part of an epoch to run: the steps of one rank, from a position on.

    Attributes:
        epoch: The epoch number.
        position: Where to begin: batches that all ranks are done with.
        window: The window of the next batch, and the number of its first batch.
        rank: The rank whose batches to make.
        world_size: Number of ranks.
        remainder: See `DataLoader`.
        max_steps: Steps of a whole epoch that every rank has to have; None: as many as there are.
        agree_every: How many steps to look ahead, where ranks agree on how many there are; None: they do not.
        num_shards: Into how many shards the dataset divides itself.
    """

    epoch: int
    position: int
    window: tuple[int, int]
    rank: int
    world_size: int
    remainder: str
    max_steps: int | None
    agree_every: int | None
    num_shards: int

    @property
    def may_repeat(self) -> bool:
        """Whether ranks that have no more batches of their own repeat others, so that a position may lie past the end.

        Then the ranks find out together where the epoch ends.
        """
        return self.agree_every is not None and self.remainder == "pad"


class Step(NamedTuple):
    """One step of one rank.

    Attributes:
        number: The batch of this rank.
        step: Number of the step in the epoch, the same on all ranks.
        is_repeat: Whether the batch only fills up the last step.
        position: Batches that all ranks are done with after it.
        window: The window of the next batch, and the number of the window's first batch.
        num_left: Steps that this rank has from this one on, as far as it looked ahead; see `Agreement`.
    """

    number: int
    step: int
    is_repeat: bool
    position: int
    window: tuple[int, int]
    num_left: int = 0


_step = partial(tuple.__new__, Step)  # in half the time of a call of the class


class Plan(Protocol):
    """What a run needs of a plan, whether of a known order or of a stream."""

    @property
    def end(self) -> int:
        """See `EpochPlan`."""

    def has(self, number: int) -> bool:
        """See `EpochPlan`."""

    def locate(self, number: int) -> tuple[int, int]:
        """See `EpochPlan`."""

    def task(self, number: int) -> tuple[Task, NDArray[np.int64]]:
        """See `EpochPlan`."""

    def leave_out(self, first: int) -> None:
        """See `EpochPlan`."""


def check_position(run: EpochRun, plan: Plan) -> None:
    """Refuse a position that the epoch does not have.

    Raises:
        ResumeError: The position lies after the end of the epoch.
    """
    if not run.may_repeat and run.position > run.window[1] and not plan.has(run.position - 1):
        raise ResumeError(
            f"the state is at batch {run.position}, and epoch {run.epoch} has {plan.end} batches",
            fix="give the state as it was saved, and the data that it was saved with",
        )


def steps_of(run: EpochRun, plan: Plan) -> Iterator[Step]:
    """Return the steps of a run, whose position is in the plan.

    Raises:
        HeadraceError: From the iterator: there are fewer steps than were promised.
    """
    if run.max_steps is not None:
        return _exactly(run, plan, run.max_steps)
    if run.agree_every is None:
        return plan_steps(plan, run.rank, run.world_size, run.position, run.remainder)
    return _agreed_steps(plan, run.rank, run.world_size, run.position, every=run.agree_every, may_repeat=run.may_repeat)


def checked_steps(run: EpochRun, plan: Plan) -> Iterator[Step]:
    """Yield the steps of a run, whose position is checked when the first one is asked for: a stream is read for it.

    Raises:
        ResumeError: The stream has no such position.
        HeadraceError: There are fewer steps than were promised.
    """
    if run.max_steps is None:
        check_position(run, plan)
    yield from steps_of(run, plan)


def plan_steps(plan: Plan, rank: int, world_size: int, position: int, remainder: str) -> Iterator[Step]:
    """Yield the steps of one rank from a position on; plans no more windows than the next step needs.

    Args:
        plan: Plan of the epoch.
        rank: Which rank, from 0.
        world_size: How many there are.
        position: Batches of the epoch that are done, on all ranks.
        remainder: `"drop"`, `"pad"` or `"keep"`, see `Steps`, whose arithmetic this is.
    """
    # A step has a batch for each rank, from `position` on. Which of them must exist for this rank to take the step,
    # and which one for any rank to take it, says the remainder: the last one, the first one, or the rank's own.
    needed, needed_by_any = {"drop": (world_size - 1, world_size - 1), "pad": (0, 0), "keep": (rank, 0)}[remainder]
    step, done = position // world_size, position
    while position + needed < plan.end or plan.has(position + needed):
        number, position = position + rank, position + world_size
        done = position
        if position + needed_by_any >= plan.end and not plan.has(position + needed_by_any):
            position = plan.end  # no rank has a further step: the epoch is over, also if batches are left out
        is_repeat = number >= plan.end and not plan.has(number)
        yield _step((number % plan.end if is_repeat else number, step, is_repeat, position, plan.locate(position), 0))
        step += 1
    plan.leave_out(done if remainder == "drop" else plan.end)


def _exactly(run: EpochRun, plan: Plan, max_steps: int) -> Iterator[Step]:
    """Yield the steps of an epoch of a given length; with `"pad"`, batches come again where there are too few.

    Raises:
        HeadraceError: There are fewer.
    """
    position, may_repeat = run.position, run.remainder == "pad"
    for step in range(position // run.world_size, max_steps):
        number = position + run.rank
        is_there = plan.has(position + run.world_size - 1 if run.remainder == "drop" else number)
        if not is_there and not (may_repeat and plan.end):
            raise HeadraceError(
                f"epoch {run.epoch} ended after {step} of steps_per_epoch={max_steps} steps on this rank",
                fix='lower steps_per_epoch, give ranks equal shares of the data, or let remainder="pad" repeat batches',
            )
        position += run.world_size
        yield Step(number if is_there else number % plan.end, step, not is_there, position, plan.locate(position))


def _agreed_steps(
    plan: Plan, rank: int, world_size: int, position: int, *, every: int, may_repeat: bool
) -> Iterator[Step]:
    """Yield the steps of one rank from a position on, each with how many are left; with repeats there is no end.

    Reads `every` steps ahead.

    Args:
        plan: Plan of the epoch.
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


class Arrived(msgspec.Struct):
    """A batch that has arrived from the engine.

    Attributes:
        step: Which it is.
        seq_idx: Positions of its members in the order of the epoch, `int64[n]`.
        corpus_idx: Their corpus indices, `int64[n]`.
        chunk_starts: First frame of each, `int64[n]`; None if all are whole.
        value: What `pack_made` returned, or what the user's collate returned.
    """

    step: Step
    seq_idx: NDArray[np.int64]
    corpus_idx: NDArray[np.int64]
    chunk_starts: NDArray[np.int64] | None
    value: Any


class Arrivals(Protocol):
    """What the trainer knows about the batches of a run before they arrive.

    Attributes:
        next_ticket: The ticket that comes next, if none is left out.
    """

    next_ticket: int

    def take(self, delivered: Delivered) -> Arrived | None:
        """Return the batch of a result; None stands for the end of the epoch.

        Raises:
            BaseException: What was delivered stands for an error.
        """

    def num_skipped(self, delivered: Delivered | None) -> int:
        """Return how many batches were skipped just before this one (None: before the end), and forget them."""


class PlannedArrivals:
    """Batches that the trainer has planned, in the order of their tickets.

    Attributes:
        asked: What is known of them, without their values, from the next ticket on.
    """

    def __init__(self) -> None:
        self.asked: deque[Arrived] = deque()
        self.next_ticket = 0

    def tasks(self, plan: Plan, steps: Iterator[Step]) -> Iterator[CarriedTask]:
        """Return the tasks of the steps, each of which is remembered when it is asked for."""
        return _tasks(plan, steps, self.asked)

    def take(self, delivered: Delivered) -> Arrived:
        """Return the batch of a ticket."""
        arrived = self.asked.popleft()
        self.next_ticket = delivered.ticket + 1
        arrived.value = delivered.value
        return arrived

    def num_skipped(self, delivered: Delivered | None) -> int:
        """Return how many tickets were skipped."""
        num = len(self.asked) if delivered is None else delivered.ticket - self.next_ticket
        for _ in range(num):
            self.asked.popleft()
        self.next_ticket += num
        return num


def _tasks(plan: Plan, steps: Iterator[Step], asked: deque[Arrived]) -> Iterator[CarriedTask]:
    """Yield the tasks of the steps, and remember them. A function, so that a dropped iterator is no garbage cycle."""
    for step in steps:
        task, seq_idx = plan.task(step.number)
        corpus_idx = task.indices if task.seqs is None else np.full(len(seq_idx), -1)
        asked.append(Arrived(step, seq_idx, corpus_idx, task.chunk_starts, None))
        yield task.carried()


class Agreement:
    """How many more steps all ranks have agreed to take in an epoch. Not thread-safe.

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
        """Tell whether all ranks take the next step; ask them where it is time.

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
        """Count a step."""
        self._num_granted -= 1

    def _ask(self, flag: bool) -> bool:
        answer = self._agree(flag)
        if not isinstance(answer, bool | np.bool_):
            raise ConfigError(
                f"agree must return True or False, and returned {answer!r}",
                fix="return whether all ranks gave it True, as headrace.adapters.torch_ranks.all_agree does",
            )
        return bool(answer)
