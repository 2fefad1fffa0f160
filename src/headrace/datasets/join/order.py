"""Orders of sequences that come from several datasets.

The orders of RETURNN's `CombinedDataset` that depend on which part a sequence is from are policies like all others,
except for their input: how many sequences each part has. `JointPolicy` lays any policy over what the parts offer in an
epoch, so that sub-epochs, shards, filters and counts of repeats come from the planner, in joint corpus indices.
"""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, InternalError
from headrace.order import VALID_FORMS, ArrayOrder, Order, Policy, parse_seq_ordering
from headrace.order.policy import legacy_rng, set_field

GumbelScale = float | str | None
_NOISE_BLOCK = 1 << 14  # draws made at a time


class PartPolicy(Policy):
    """An order that depends on how many sequences each of several parts has, and keeps the order inside of each."""

    @abstractmethod
    def plan_owners(self, sizes: Sequence[int], rng_seed: int) -> NDArray[np.int64]:
        """Return the part that each position is taken from, `int64[n]`."""

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:
        """Not for one corpus: see `JointPolicy`."""
        raise InternalError(f"{self} needs the sizes of the parts of {num_seqs} sequences ({rng_seed}, {lengths})")

    def __str__(self) -> str:
        return self.option_string()


@dataclass(frozen=True)
class Reversed(PartPolicy):
    """`reversed`: the last dataset first; the order inside of each is kept."""

    name: ClassVar[str] = "reversed"

    def plan_owners(self, sizes: Sequence[int], rng_seed: int) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the part of each position."""
        return np.repeat(np.arange(len(sizes))[::-1], np.asarray(sizes, np.int64)[::-1])


@dataclass(frozen=True)
class RandomDataset(PartPolicy):
    """`random_dataset`: at each position a dataset is drawn, by how much it has left; the order inside is kept.

    The draw is a shuffle by Python's generator, as in RETURNN.
    """

    name: ClassVar[str] = "random_dataset"
    is_random: ClassVar[bool] = True

    def plan_owners(self, sizes: Sequence[int], rng_seed: int) -> NDArray[np.int64]:
        """Return the part of each position. O(n), about 0.5 us each."""
        owners = np.repeat(np.arange(len(sizes)), np.asarray(sizes, np.int64)).tolist()
        random.Random(rng_seed).shuffle(owners)  # noqa: S311 (not for secrets)
        return np.array(owners, np.int64)


@dataclass(frozen=True)
class Interleave(PartPolicy):
    """`interleave`: the dataset comes next whose next sequence leaves it the least far; of equal ones the first.

    With a scale s, the dataset with the largest log(sequences left) + s * (Gumbel noise): s = 1 draws by what is left,
    like a shuffle of all, and small s are nearly even. "remaining" is s = 1 - (how far the farthest dataset is).

    Args:
        scale: s, `None` for no noise.
    """

    scale: GumbelScale = None
    name: ClassVar[str] = "interleave"

    def __post_init__(self) -> None:
        """Check the scale."""
        scale: Any = self.scale
        if scale not in ("remaining", None):
            is_number = isinstance(scale, int | float | np.number) and not isinstance(scale, bool)
            if not is_number or not 0 <= float(scale) < float("inf"):
                raise ConfigError(
                    f'interleave_gumbel_scale must be a number of at least 0, "remaining" or None: {scale!r}',
                    fix="write 1.0 for draws by what is left, and less for a more even mix",
                )
            set_field(self, "scale", float(scale) or None)
        set_field(self, "is_random", self.scale is not None)

    def plan_owners(self, sizes: Sequence[int], rng_seed: int) -> NDArray[np.int64]:
        """Return the part of each position. O(n log n); with noise about 2 us each."""
        if self.scale is not None:
            drawn = _draw_owners(sizes, self.scale, legacy_rng(rng_seed))
            return np.fromiter(drawn, np.int64, count=int(sum(sizes)))
        progress = [np.arange(1, size + 1) / size for size in sizes if size]
        owners = np.repeat(np.arange(len(sizes)), np.asarray(sizes, np.int64))
        return owners[np.argsort(np.concatenate(progress), kind="stable")] if progress else owners

    def __str__(self) -> str:
        return self.option_string() if self.scale is None else f"{self.option_string()} ({self.scale})"


def _draw_owners(sizes: Sequence[int], scale: float | str, rng: np.random.RandomState) -> Iterator[int]:
    logs = np.log(np.maximum(np.arange(max(sizes, default=0) + 1), 1.0)).tolist()
    used, open_parts = [0] * len(sizes), [part for part, size in enumerate(sizes) if size]
    noise, cursor = rng.gumbel(size=_NOISE_BLOCK).tolist(), 0
    while open_parts:
        if cursor + len(open_parts) > len(noise):
            noise, cursor = noise[cursor:] + rng.gumbel(size=_NOISE_BLOCK).tolist(), 0
        factor: Any = scale
        if scale == "remaining":
            factor = 1.0 - max(min(1.0, (used[part] + 1) / sizes[part]) for part in open_parts)
        best, best_value = -1, float("-inf")
        for part in open_parts:
            value = logs[sizes[part] - used[part]] + factor * noise[cursor]
            cursor += 1
            if value > best_value:
                best, best_value = part, value
        yield best
        used[best] += 1
        if used[best] == sizes[best]:
            open_parts.remove(best)


@dataclass(frozen=True)
class JointPolicy(Policy):
    """Any policy, over what the parts of a joint corpus offer in a full epoch; it gives joint corpus indices.

    Attributes:
        inner: The order over what is offered.
        sizes: How many sequences each part offers.
        offered: Joint corpus indices, `int64[n]`, one part after the other; `None` if it is all of the joint corpus.
            The planner forgets its order when they change.
        may_repeat: Whether an index can come twice in it.
    """

    inner: Policy
    sizes: tuple[int, ...]
    offered: NDArray[np.int64] | None = field(default=None, compare=False)
    may_repeat: bool = False
    name: ClassVar[str] = "joint"

    def __post_init__(self) -> None:
        """Take over what the planner asks of a policy."""
        for name in ("needs_lengths", "is_exhaustive", "is_random", "num_epochs", "seed"):
            set_field(self, name, getattr(self.inner, name))

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:  # noqa: ARG002
        """Return the order; `lengths` are those of the joint corpus."""
        positions: Order
        if isinstance(self.inner, PartPolicy):
            owners = self.inner.plan_owners(self.sizes, rng_seed)  # each position: the next one of whose turn it is
            places = np.empty(len(owners), np.int64)
            places[np.argsort(owners, kind="stable")] = np.arange(len(owners))
            positions = ArrayOrder(places, may_repeat=False)
        else:
            own = lengths if lengths is None or self.offered is None else lengths[self.offered]
            positions = self.inner.plan(sum(self.sizes), rng_seed, own)
        return positions if self.offered is None else MappedOrder(self.offered, positions, may_repeat=self.may_repeat)

    def __str__(self) -> str:
        return str(self.inner)


class MappedOrder(Order):
    """Positions looked up in an array.

    Args:
        table: `int64[n]`.
        positions: In it.
        may_repeat: Whether the table may hold a number twice.
    """

    def __init__(self, table: NDArray[np.int64], positions: Order, *, may_repeat: bool) -> None:
        self._table, self._positions, self._has_repeats = table, positions, may_repeat
        self.may_repeat = may_repeat or positions.may_repeat

    def __len__(self) -> int:
        return len(self._positions)

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return positions start..stop as `int64[n]`."""
        return self._table[self._positions.block(start, stop)]

    def slice(self, start: int, stop: int) -> MappedOrder:
        """Return positions start..stop as an order."""
        return MappedOrder(self._table, self._positions.slice(start, stop), may_repeat=self._has_repeats)


def parse_joint_ordering(value: Any, scale: GumbelScale = None) -> Policy | Callable[..., Policy]:
    """Return the policy of a `seq_ordering` of a dataset made of several; for a function, one that returns policies.

    Args:
        value: Text, a policy, or a function that is called as `f(epoch=E)`.
        scale: The option `interleave_gumbel_scale`.

    Raises:
        ConfigError: It is none of the valid forms, which the error lists.
    """
    own: dict[str, Policy] = {policy.name: policy for policy in (Reversed(), RandomDataset(), Interleave(scale))}
    if isinstance(value, Policy):
        return value
    if callable(value) and not isinstance(value, type):
        return lambda epoch: _policy_of(value, epoch, scale)
    if not isinstance(value, str):
        raise ConfigError(
            f"seq_ordering must be a string, a policy or a function, got {value!r}",
            fix="for one dataset after the other, write 'default'",
        )
    if value in own:
        return own[value]
    try:
        return parse_seq_ordering(value)
    except ConfigError as error:
        forms, word = (*VALID_FORMS, *own), value.partition(":")[0]
        close = get_close_matches(word, [re.split(r"[\[:]", form)[0] for form in forms], n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close not in ([], [word]) else ""
        raise ConfigError(error.what, fix=f"{hint}valid forms: {', '.join(forms)}") from None


def _policy_of(function: Callable[..., Any], epoch: int, scale: GumbelScale) -> Policy:
    found = function(epoch=epoch)
    policy = parse_joint_ordering(found, scale)
    if not isinstance(policy, Policy):
        raise ConfigError(f"the function given as seq_ordering returned {found!r}", where=f"epoch {epoch}")
    return policy
