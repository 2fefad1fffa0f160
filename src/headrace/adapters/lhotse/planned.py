"""`PlannedCutSampler`: Headrace's plan of batches as a lhotse sampler over a `CutSet`.

The batches of an epoch are numbered over all ranks, and a window of 65536 cuts is planned at a time, from the durations
alone. So every rank knows its batches without drawing those of the others, all have as many steps, no cut is lost at
the end, and a position is one number, from which any number of ranks can continue without replay.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import xxhash

from headrace.batching import WINDOW_SEQS, BatchOrder, Buckets, FixedCount, FrameBudget, PlanCounts
from headrace.batching.plan import PLAN_VERSION
from headrace.errors import ConfigError, ResumeError, check_count
from headrace.loading.inputs import EpochOrder
from headrace.loading.plan import EpochPlan, PlanRecipe
from headrace.loading.steps import Step, plan_steps
from headrace.order import RangeOrder
from headrace.order.permutation import Permutation
from headrace.order.plain import PermutedOrder
from headrace.ranks import LateRanks, find_ranks
from headrace.rng import derive_seed

from .state import check, checksum_of

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what lhotse imports
        from lhotse import CutSet
        from lhotse.dataset.sampling.base import CutSampler
except ImportError as error:
    raise ConfigError("PlannedCutSampler needs lhotse", fix="pip install 'headrace[lhotse]'") from error

_FORMAT = "headrace.PlannedCutSampler"
# The plan counts in whole numbers: this many units are a second, fewer where a budget would not fit into 31 bits.
_UNITS, _COARSE_UNITS, _MAX_FINE_SECONDS = 100_000, 1000, 20_000


class PlannedCutSampler(CutSampler):  # type: ignore[misc]
    """Batches of cuts of similar duration, planned for all ranks at once.

    A batch costs its number of cuts times the longest of them, at most `max_duration`, as in lhotse; nothing exceeds it
    but a cut that is longer by itself, which makes a batch of its own. With fewer batches left than ranks, batches from
    the start of the epoch are repeated, so that all ranks have equally many steps (`drop_last=True` drops the
    remainder). The time to begin or resume an epoch does not depend on the position.

    Args:
        cuts: In memory (eager): durations are read once, O(N), and cuts by their number.
        max_duration: Seconds of a batch with its padding.
        max_cuts: Most cuts of a batch.
        quadratic_duration: Seconds at which what is quadratic in the duration costs as much as what is linear: a cut
            counts `d + d**2 / quadratic_duration`.
        num_buckets: How many buckets of similar duration; None: 64.
        shuffle: Whether cuts and batches are shuffled, by (seed, epoch).
        drop_last: Whether the last batches, fewer than ranks, are left out.
        world_size: How many ranks; found as `headrace.find_ranks` does if not given, when an epoch begins.
        rank: Which one.
        seed: Seed of the shuffles.
        window_cuts: Cuts that are planned at a time.

    Attributes:
        is_elastic: The state is of all ranks, whatever their number.
        position: Batches of the epoch that all ranks are done with.

    Raises:
        ConfigError: An option is wrong, or the cuts are lazy.
    """

    is_elastic = True
    epoch: int

    def __init__(
        self,
        cuts: Any,
        *,
        max_duration: float | None = None,
        max_cuts: int | None = None,
        quadratic_duration: float | None = None,
        num_buckets: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int = 0,
        window_cuts: int = WINDOW_SEQS,
    ) -> None:
        seed = check_count("seed", seed, minimum=-(2**62), maximum=2**62)
        self._ranks = LateRanks(partial(find_ranks, rank, world_size), type(self).__name__)
        super().__init__(shuffle, drop_last, seed=seed)
        self._functions: list[Callable[[Any], Any]] = []
        self._is_restored = False
        self.max_duration = _checked_seconds("max_duration", max_duration)
        self.max_cuts = None if max_cuts is None else check_count("max_cuts", max_cuts, minimum=1)
        self.quadratic_duration = _checked_seconds("quadratic_duration", quadratic_duration)
        self.num_buckets = num_buckets
        self._window_cuts = check_count("window_cuts", window_cuts, minimum=1)
        self._cuts = _checked_cuts(cuts)
        self._prepare()
        self.position, self._window = 0, (0, 0)
        self._plan: EpochPlan | None = None
        self._steps: Iterator[Step] = iter(())

    @property
    def rank(self) -> int:
        """Which rank this is: as far as it is known now, until an epoch begins."""
        return self._ranks.look_up().rank

    @rank.setter
    def rank(self, rank: int) -> None:
        """Ignore what lhotse looks up when the sampler is made, before the training is distributed."""

    @property
    def world_size(self) -> int:
        """How many ranks there are; the same."""
        return self._ranks.look_up().world_size

    @world_size.setter
    def world_size(self, world_size: int) -> None:
        """Ignore it likewise."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickle with the rank: a worker process cannot look it up."""
        return {**self.__dict__, "_ranks": (os.getpid(), self._ranks, self._ranks.look_up())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        pid, late, found = state["_ranks"]
        if pid != os.getpid():
            late = LateRanks(partial(find_ranks, found.rank, found.world_size), type(self).__name__)
        self.__dict__.update(state, _ranks=late)

    def _prepare(self) -> None:
        """Compute what depends on the cuts."""
        units = _COARSE_UNITS if (self.max_duration or 0) > _MAX_FINE_SECONDS else _UNITS
        durations = np.fromiter((cut.duration for cut in self._cuts), np.float64, count=len(self._cuts))
        if self.quadratic_duration is not None:
            durations = durations + durations**2 / self.quadratic_duration
        self._lengths = np.ceil(np.round(durations * units, 3)).astype(np.int64)
        budget: FrameBudget | FixedCount
        if self.max_duration is not None:
            budget = FrameBudget(max(1, int(self.max_duration * units)), max_seqs=self.max_cuts)
        elif self.max_cuts is not None:
            budget = FixedCount(self.max_cuts)
        else:
            raise ConfigError("the size of a batch is not given", fix="give max_duration=, max_cuts=, or both")
        order = BatchOrder("shuffle") if self.shuffle else BatchOrder("keep", group_batches=1)
        self._recipe = PlanRecipe(Buckets(budget, num_buckets=self.num_buckets), order, self._window_cuts, self.seed)
        digest = xxhash.xxh3_128(self._lengths.tobytes())
        digest.update(f"{self._recipe}, {self.shuffle}, {self.drop_last}, version {PLAN_VERSION}".encode())
        self._digest = digest.hexdigest()

    @property
    def num_cuts(self) -> int:
        """How many cuts there are."""
        return len(self._cuts)

    @property
    def remaining_cuts(self) -> None:
        """Nothing: what is left is counted in batches, see `position`."""
        return

    @property
    def remaining_duration(self) -> None:
        """Nothing: what is left is counted in batches, see `position`."""
        return

    def filter(self, predicate: Callable[[Any], bool]) -> PlannedCutSampler:
        """Remove the cuts for which the predicate is false, permanently. O(N)."""
        self._cuts = [cut for cut in self._cuts if predicate(cut)]
        self._prepare()
        return self

    def map(self, fn: Callable[[Any], Any]) -> PlannedCutSampler:
        """Apply a function to each batch."""
        self._functions.append(fn)
        return self

    # --- iteration ---

    def allow_iter_to_reset_state(self) -> None:
        """Let the next `iter` begin the epoch, whatever was loaded."""
        self._is_restored = False

    def __iter__(self) -> PlannedCutSampler:
        """Begin the epoch, or continue from a loaded state.

        Raises:
            ConfigError: Which rank this is is not known, or has changed since the first epoch began.
        """
        if not self._is_restored:
            self.position, self._window = 0, (0, 0)
        ranks = self._ranks.settle()
        self._plan = self._make_plan(self._window)
        remainder = "drop" if self.drop_last else "pad"
        self._steps = plan_steps(self._plan, ranks.rank, ranks.world_size, self.position, remainder)
        return self

    def __next__(self) -> Any:
        """Return the next batch of this rank, a `CutSet`."""
        self.allow_iter_to_reset_state()
        step = next(self._steps)
        assert self._plan is not None
        task, _ = self._plan.task(step.number)
        batch = CutSet.from_cuts([self._cuts[index] for index in task.indices.tolist()])
        for function in self._functions:
            batch = function(batch)
        self.position, self._window = step.position, step.window
        return batch

    def __len__(self) -> int:
        """Return the number of steps of the whole epoch, the same on all ranks. Plans all windows, O(N)."""
        num_batches: int = self._make_plan((0, 0)).num_batches()
        return num_batches // self.world_size if self.drop_last else -(-num_batches // self.world_size)

    def count(self) -> PlanCounts:
        """Return the counts of the epoch: its cuts, and how much is padding. O(N)."""
        return self._make_plan((0, 0)).count_all()

    def _make_plan(self, start: tuple[int, int]) -> EpochPlan:
        num, lengths = len(self._cuts), self._lengths
        key = derive_seed(self.seed, "lhotse: cuts", epoch=self.epoch, bits=63)
        order = PermutedOrder(Permutation(num, key)) if self.shuffle else RangeOrder(range(num))
        return EpochPlan(
            EpochOrder(self.epoch, order, lambda indices: lengths[indices], shortest=lambda: int(lengths.min())),
            self._recipe,
            start,
        )

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the sampler, a small dict of plain data, the same on all ranks. O(1)."""
        state = {
            "format": _FORMAT,
            "epoch": self.epoch,
            "position": self.position,
            "window": list(self._window),
            "digest": self._digest,
        }
        return {**state, "checksum": checksum_of(state)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state, on any number of ranks. O(1); the argument is not changed.

        Raises:
            ResumeError: It is of other cuts, options or seed, or damaged.
        """
        if not isinstance(state_dict, Mapping) or state_dict.get("format") != _FORMAT:
            raise ResumeError(f"this is not a state of a PlannedCutSampler: {str(state_dict)[:200]}")
        if state_dict.get("digest") != self._digest:
            raise ResumeError(
                "the state was saved with other cuts (or other durations), options or another seed",
                where=f"{len(self._cuts)} cuts, {self._recipe.batching}, seed={self.seed}",
                fix="give the sampler the cuts, filters and options that it had; rank and world_size may differ",
            )
        try:
            window, first = state_dict["window"]
            numbers = [state_dict["epoch"], state_dict["position"], window, first]
        except (KeyError, TypeError, ValueError) as error:
            raise ResumeError(f"the state is damaged: {error!r}", fix="give it as it was saved") from error
        if any(type(number) is not int for number in numbers) or not 0 <= min(numbers[1:]) <= first <= numbers[1]:
            raise ResumeError(f"the state is damaged: {numbers}", fix="give it as it was saved")
        check(state_dict)
        self.epoch, self.position, self._window = numbers[0], numbers[1], (window, first)
        self.diagnostics.set_epoch(self.epoch)
        self._is_restored = True


def _checked_seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number of seconds over 0, got {value!r}")
    return float(value)


def _checked_cuts(cuts: Any) -> list[Any]:
    if getattr(cuts, "is_lazy", False):
        raise ConfigError(
            "the cuts are read lazily, and a plan needs the durations of all of them",
            fix="give cuts.to_eager(), or one of lhotse's dynamic samplers",
        )
    found = list(cuts)
    if found and not hasattr(found[0], "duration"):
        raise ConfigError(f"a CutSet has cuts, and this is a {type(cuts).__name__} of {type(found[0]).__name__}")
    return found
