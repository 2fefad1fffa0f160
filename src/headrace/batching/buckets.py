"""Batches of sequences of similar length: buckets by length, then the batches of each bucket."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count
from headrace.order.policy import set_field

from .base import Batching
from .consecutive import FixedCount, FrameBudget, ends_by_caps, follow
from .pieces import MAX_FRAMES, Pieces, apply_too_long
from .plan import WINDOW_SEQS, Groups, WindowKey

DEFAULT_NUM_BUCKETS = 64  # 2 % padding on speech; about 1000 sequences of a window in each, so they mix well
_MAX_BUCKETS = 4096

_Budget = FixedCount | FrameBudget


@dataclass(frozen=True)
class Buckets(Batching):
    """Batches of sequences of similar length, each within a budget.

    A sequence goes to the first bucket whose bound is not below its length, or to one more bucket beyond the last
    bound. Within a bucket they keep the order of the epoch. What remains in each bucket at the end of a window, too
    little for a batch, is joined with its neighbours: no bucket starves, nothing is dropped, and at most one batch of a
    window is not full because of it.

    Without bounds, each window gets those with which least padding is expected, from its own lengths. More buckets mean
    less padding, fewer a better mixture.

    Args:
        budget: A `FrameBudget` (padded) or a `FixedCount`; or one for each bucket, all of the same kind.
        bounds: The longest lengths of all buckets but the last, ascending.
        num_buckets: How many to make; 64 if neither this nor `bounds` is given.

    Raises:
        ConfigError: An option is wrong.
    """

    budget: _Budget | tuple[_Budget, ...]
    bounds: tuple[int, ...] | None = None
    num_buckets: int | None = None

    def __post_init__(self) -> None:
        """Check all options."""
        if isinstance(self.budget, Sequence):
            set_field(self, "budget", tuple(self.budget))
        _check_budgets(self._budgets)
        if self.bounds is not None:
            set_field(self, "bounds", _check_bounds(self.bounds))
            if self.num_buckets is not None:
                raise ConfigError("Buckets: bounds and num_buckets exclude each other", fix="give only one of them")
        elif isinstance(self.budget, tuple):
            raise ConfigError("Buckets: a budget for each bucket needs bounds", fix="give bounds=(100, 200, ...)")
        else:
            num_buckets = DEFAULT_NUM_BUCKETS if self.num_buckets is None else self.num_buckets
            count = check_count("Buckets: num_buckets", num_buckets, minimum=1, maximum=_MAX_BUCKETS)
            set_field(self, "num_buckets", count)
        if isinstance(self.budget, tuple) and len(self.budget) != len(self.bounds or ()) + 1:
            raise ConfigError(
                f"Buckets: {len(self.budget)} budgets for {len(self.bounds or ()) + 1} buckets (one more than bounds)",
                fix="give one budget for all buckets, or one for each",
            )

    @property
    def _budgets(self) -> tuple[_Budget, ...]:
        return self.budget if isinstance(self.budget, tuple) else (self.budget,)

    @property
    def data_key(self) -> str | None:
        """The data key of the budgets."""
        return self._budgets[0].data_key

    @property
    def _drops_last(self) -> bool:
        return any(isinstance(budget, FixedCount) and budget.last == "drop" for budget in self._budgets)

    def window_seqs(self, target: int = WINDOW_SEQS) -> int:
        """Return the window size of the budget, if there is one for all."""
        return super().window_seqs(target) if isinstance(self.budget, tuple) else self.budget.window_seqs(target)

    def count_batches(self, num_seqs: int) -> int | None:
        """Return the number of batches if all hold as many sequences: what is left over is joined to full ones."""
        return None if isinstance(self.budget, tuple) else self.budget.count_batches(num_seqs)

    def fullness(self, frames: NDArray[np.int64]) -> float:
        """Return the number of batches that are full; of several budgets, by the largest."""
        return min(budget.fullness(frames) for budget in self._budgets)

    def cut(self, pieces: Pieces) -> Pieces:
        """Treat what is too long for its bucket."""
        if not isinstance(self.budget, tuple):
            return self.budget.cut(pieces)
        longest = [budget.longest for budget in self.budget if isinstance(budget, FrameBudget)]
        if not longest:
            return pieces
        limits = np.array(longest)[np.searchsorted(np.asarray(self.bounds, np.int64), pieces.frames)]
        first = self.budget[0]
        assert isinstance(first, FrameBudget)
        return apply_too_long(pieces, limits, first.too_long, self)

    def group(self, frames: NDArray[np.int64], key: WindowKey) -> Groups:  # noqa: ARG002
        """Group the pieces of each bucket, then what is left of all."""
        bounds = self.bounds if self.bounds is not None else least_padding_bounds(frames, self.num_buckets or 1)
        buckets = np.searchsorted(np.asarray(bounds, np.int64), frames).astype(np.int16)  # int16 sorts fastest
        pieces = np.argsort(buckets, kind="stable")
        num_in_bucket = np.bincount(buckets, minlength=len(bounds) + 1)
        caps, costs = self._caps_and_costs(frames[pieces], num_in_bucket)
        limits = np.repeat(np.cumsum(num_in_bucket), num_in_bucket)
        starts = follow(ends_by_caps(caps, limits))
        if len(pieces) == 0:
            return Groups(pieces, starts, np.zeros(0, np.int64))
        order, starts = _join_leftovers(caps, starts, limits)
        if self._drops_last and starts[-1] - starts[-2] < caps[order[starts[-2] :]].min():
            starts = starts[:-1]
            order = order[: starts[-1]]
            if len(order) == 0:
                return Groups(order, starts, np.zeros(0, np.int64))
        batch_costs = np.maximum.reduceat(costs[order], starts[:-1]) * np.diff(starts)
        return Groups(pieces[order], starts, batch_costs)

    def _caps_and_costs(
        self, frames: NDArray[np.int64], num_in_bucket: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return cap and cost of each piece, `int64[n]`; pieces are sorted by bucket."""
        if not isinstance(self.budget, tuple):
            return self.budget.caps(frames), self.budget.costs_of(frames)
        parts = list(zip(self.budget, np.split(frames, np.cumsum(num_in_bucket)[:-1]), strict=True))
        caps, costs = ([budget.caps(part) for budget, part in parts], [b.costs_of(part) for b, part in parts])
        return np.concatenate(caps), np.concatenate(costs)


def least_padding_bounds(frames: NDArray[np.int64], num_buckets: int) -> NDArray[np.int64]:
    """Return the bounds with which least padding is expected, at most `num_buckets - 1`, ascending. O(n log n).

    In a bucket of width w at a density f of lengths, f sequences are padded by w / 2 or so. The sum of f * w over a
    given number of buckets is least where w is proportional to 1 / sqrt(f). (Panter and Dite, "Quantization Distortion
    in Pulse-Count Modulation with Nonuniform Spacing of Levels", 1951, do the same for a squared error, and get the
    cube root.) So the integral of sqrt(f) is cut into equal parts. The density comes from a histogram whose cells are
    1/32 of their octave wide: an outlier does not spoil it. All in whole numbers, but for correctly rounded square
    roots.
    """
    edges = _histogram_edges(int(frames.max(initial=0)))
    counts = np.diff(np.searchsorted(np.sort(frames), edges))
    widths = np.diff(edges)
    masses = (np.sqrt(counts * widths) * 1024).astype(np.int64)
    ends = np.cumsum(masses)
    total = int(ends[-1])
    if total == 0:
        return np.zeros(0, np.int64)
    targets = np.array([total * number // num_buckets for number in range(1, num_buckets)], np.int64)
    cells = np.searchsorted(ends, targets, side="right")
    shares = targets - (ends[cells] - masses[cells])  # of the mass of the cell that the bound is in
    columns = (edges[cells], shares, widths[cells], masses[cells])
    # Python's integers, because the products of absurd lengths would overflow
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return np.array(sorted({edge + share * width // mass for edge, share, width, mass in rows}), np.int64)


def _histogram_edges(longest: int) -> NDArray[np.int64]:
    """Return edges 0, 1, ... 64, 66, ... 128, 132, ...: 32 cells an octave, up to beyond the longest length."""
    octaves = [np.arange(64, dtype=np.int64)]
    while octaves[-1][-1] < longest:
        octaves.append(np.arange(32, 64, dtype=np.int64) << len(octaves))
    return np.append(np.concatenate(octaves), 64 << (len(octaves) - 1))


def _join_leftovers(
    caps: NDArray[np.int64], starts: NDArray[np.int64], limits: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Regroup the pieces of the last batches of the buckets that are not full.

    Returns:
        The pieces, batch after batch, and the starts of the batches.
    """
    sizes = np.diff(starts)
    is_last = starts[1:] == limits[starts[:-1]]
    is_left = is_last & (sizes < np.minimum.reduceat(caps, starts[:-1]))
    in_left = np.repeat(is_left, sizes)
    kept, left = np.flatnonzero(~in_left), np.flatnonzero(in_left)
    left_sizes = np.diff(follow(ends_by_caps(caps[left])))
    new_starts = np.zeros(len(sizes) - np.count_nonzero(is_left) + len(left_sizes) + 1, np.int64)
    np.cumsum(np.concatenate([sizes[~is_left], left_sizes]), out=new_starts[1:])
    return np.concatenate([kept, left]), new_starts


def _check_bounds(bounds: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(bounds, Sequence | np.ndarray):
        raise ConfigError(f"Buckets: bounds must be lengths, got {bounds!r}", fix="give bounds=(100, 200, ...)")
    numbers = tuple(check_count("Buckets: bounds", bound, minimum=0, maximum=MAX_FRAMES) for bound in bounds)
    if any(left >= right for left, right in itertools.pairwise(numbers)):
        raise ConfigError(f"Buckets: bounds must ascend, got {numbers}")
    if len(numbers) >= _MAX_BUCKETS:
        raise ConfigError(f"Buckets: {len(numbers)} bounds are too many, at most {_MAX_BUCKETS - 1}")
    return numbers


def _check_budgets(budgets: tuple[_Budget, ...]) -> None:
    """Refuse what is not a budget, and budgets that do not fit together."""
    if not budgets:
        raise ConfigError("Buckets: there is no budget", fix="give FrameBudget(...) or FixedCount(...)")
    for budget in budgets:
        if not isinstance(budget, FixedCount | FrameBudget):
            raise ConfigError(f"Buckets: a budget is a FrameBudget or a FixedCount, got {budget!r}")
        if isinstance(budget, FrameBudget) and not budget.padded:
            raise ConfigError("Buckets: the budget must count padding", fix="leave padded=False out")
    if len(budgets) == 1:
        return
    for name in ("data_key", "too_long", "quadratic_length", "last"):
        values = {repr(getattr(budget, name, "none")) for budget in budgets}
        if len(values) > 1:
            raise ConfigError(f"Buckets: the budgets must agree on {name}, got {', '.join(sorted(values))}")
    if getattr(budgets[0], "too_long", None) == "chunk":
        raise ConfigError(
            'Buckets: too_long="chunk" needs one budget for all buckets, because a chunk belongs to another bucket',
            fix="give one FrameBudget",
        )
