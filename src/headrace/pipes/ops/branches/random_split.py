"""Random splits of a pipe, the same in every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from headrace.errors import ConfigError

from ...core.base import IterPipe, read
from ...core.registry import register_function
from ...core.skeletons import Positioned


class SplitPlan:
    """The parameters that all parts of a split share.

    Args:
        weights: Name of a part -> its share, or its number of items.
        seed: The seed of the split.
        total_length: How many items the source has.
    """

    def __init__(self, weights: Mapping[Any, float], seed: int, total_length: int) -> None:
        self.keys = list(weights)
        total = sum(weights.values())
        self.amounts = [float(weight) * total_length / total for weight in weights.values()]
        self.is_exact = all(amount.is_integer() for amount in self.amounts) and sum(self.amounts) == total_length
        self.seed = seed
        self.total_length = total_length


class SplitterIterator(Positioned[Any]):
    """One part of a split, see `random_split`."""

    _position_names = ("num_seen",)
    _num_seen = 0

    def __init__(self, source_datapipe: IterPipe[Any], plan: SplitPlan, target: Any) -> None:
        self.source_datapipe = source_datapipe
        self.plan = plan
        self.target = target

    def override_seed(self, seed: int) -> SplitterIterator:
        """Change the seed of the split for all of its parts, from the next epoch on."""
        self.plan.seed = seed
        return self

    def __iter__(self) -> Iterator[Any]:
        wanted = self.plan.keys.index(self.target)
        parts = self._parts_of_items()
        for _ in range(self._num_seen):
            next(parts)
        for self._num_seen, item in enumerate(read(self.source_datapipe), self._num_seen + 1):
            if next(parts) == wanted:
                yield item

    def _parts_of_items(self) -> Iterator[int]:
        """Yield the number of the part of each item, as torchdata's `random_split` drew it for the same seed."""
        choices = Random(self.plan.seed).choices  # noqa: S311 - no secret
        parts = range(len(self.plan.amounts))
        left = list(self.plan.amounts)
        for num_left in range(self.plan.total_length - 1, -1, -1):
            (part,) = choices(parts, left)
            left[part] -= 1
            if left[part] < 0:
                left[part] = 0.0
                scale = num_left / (sum(left) or 1.0)
                left = [amount * scale for amount in left]
            yield part
        raise ConfigError(
            f"random_split: the source has more than total_length = {self.plan.total_length} items",
            fix="give the actual number of items as total_length",
        )

    def __len__(self) -> int:
        if self.plan.is_exact:
            return int(self.plan.amounts[self.plan.keys.index(self.target)])
        raise TypeError(
            "Lengths of the split cannot be known in advance. "
            "Please supply integer `weights` that sum up to `total_length`."
        )


def random_split(
    source_datapipe: IterPipe[Any],
    weights: Mapping[Any, float],
    seed: int,
    total_length: int | None = None,
    target: Any = None,
) -> list[IterPipe[Any]] | IterPipe[Any]:
    """Split a pipe at random, in the same way in every epoch.

    Args:
        source_datapipe: The source. The parts cannot be read at the same time, because each reads the whole source.
        weights: Name of a part -> its share. Integers that sum to `total_length` are exact numbers of items.
        seed: The seed of the split; a seed gives the same split as in torchdata.
        total_length: How many items the source has; `None`: its `len`.
        target: Return only the part of this name.

    Returns:
        The parts, in the order of `weights`; or the one that was asked for.

    Raises:
        ConfigError: The weights are not a mapping, a weight is negative, or all are 0.
        KeyError: `target` is not among the weights.
        TypeError: The length of the source is not known.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> train, valid = IterableWrapper(range(10)).random_split(weights={"train": 0.8, "valid": 0.2}, seed=1)
        >>> len(train), len(valid), sorted([*train, *valid])
        (8, 2, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    if not isinstance(weights, Mapping):
        raise ConfigError(
            f"random_split needs a dict of weights, got {weights!r}", fix='write {"train": 0.9, "valid": 0.1}'
        )
    if any(weight < 0 for weight in weights.values()) or sum(weights.values()) <= 0:
        raise ConfigError(
            f"random_split needs non-negative weights, at least one of them positive, got {dict(weights)}"
        )
    if target is not None and target not in weights:
        raise KeyError(f"`target={target}` does not match any key in `weights`.")
    if total_length is None:
        try:
            total_length = len(source_datapipe)
        except (TypeError, NotImplementedError):
            raise TypeError(
                "RandomSplitter needs `total_length`, but it is unable to infer it from the `source_datapipe`: "
                f"{source_datapipe!r}."
            ) from None
    plan = SplitPlan(weights, seed, total_length)
    if target is not None:
        return SplitterIterator(source_datapipe, plan, target)
    return [SplitterIterator(source_datapipe, plan, key) for key in weights]


register_function(IterPipe, "random_split", random_split)
