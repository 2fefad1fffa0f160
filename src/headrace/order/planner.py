"""Turn a recipe into the order of an epoch.

The steps: policy over the whole corpus, unique tags, tag filter, slice of the sub-epoch and shard, repeat. Filtering
comes before slicing, so that sub-epochs and shards stay even. (RETURNN slices first.) The order before slicing is the
same for all sub-epochs of a full epoch and is kept; nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, InternalError

from .base import ArrayOrder, Order, RangeOrder, RepeatedOrder, occurrences
from .policy import Policy
from .recipe import OrderRecipe, slice_bounds


@dataclass(frozen=True)
class OrderCorpus:
    """What a planner needs to know about a corpus. Functions are called only when their result is needed.

    Attributes:
        num_seqs: Number of sequences.
        lengths: Returns `int or float[num_seqs]`, None if this corpus has no lengths.
        keep: Returns `bool[num_seqs]`, which sequences pass the tag filter, None without a filter.
        first_of_tag: Returns `int[num_seqs]`, for each sequence the smallest corpus index with the same tag, None if
            tags may repeat.
        is_fixed: Whether all of this stays the same until the planner's `invalidate` is called. If not, lengths are
            fetched and compared in each epoch that needs them, tags and filters are fetched in each.
    """

    num_seqs: int
    lengths: Callable[[], NDArray[Any]] | None = None
    keep: Callable[[], NDArray[np.bool_]] | None = None
    first_of_tag: Callable[[], NDArray[Any]] | None = None
    is_fixed: bool = True


class OrderPlanner:
    """Gives the order of any epoch, and keeps the last full-epoch order. Not thread-safe.

    Args:
        recipe: What the user asked for.
    """

    def __init__(self, recipe: OrderRecipe) -> None:
        self.recipe = recipe
        self._key: tuple[Policy, int | None, int] | None = None
        self._full = _EMPTY
        self._lengths: NDArray[Any] | None = None

    @property
    def full_order(self) -> Order:
        """The order of the full epoch that was last asked for, of all its sub-epochs and shards."""
        return self._full

    def order_for_epoch(self, epoch: int | None, corpus: OrderCorpus) -> Order:
        """Return the order of one epoch for this recipe's shard.

        O(1) if the full-epoch order is still kept: in the other sub-epochs of the same full epoch, in epochs that keep
        the same shuffle, and always for an order that is not random.

        Args:
            epoch: From 1; 0 counts as 1; None means no data, an empty order.
            corpus: The corpus, the same one as last time unless `invalidate` was called.

        Raises:
            ConfigError: The order needs lengths that the corpus does not have, or `epoch` is negative.
            SourceError: Lengths are negative, NaN, or of a wrong shape.
        """
        if epoch is None:
            return _EMPTY
        if epoch < 0:
            raise ConfigError(f"epoch must be at least 1, got {epoch}")
        recipe = self.recipe
        policy = recipe.policy_for_epoch(epoch)
        rng_seed = recipe.derive_rng_seed(policy, epoch)
        key = (policy, rng_seed if policy.is_random else None, corpus.num_seqs)
        if not corpus.is_fixed:
            corpus = self._forget_what_changed(policy, corpus)
        if key != self._key:
            self.invalidate()  # first, so that two full orders are never in memory
            lengths = corpus.lengths() if policy.needs_lengths and corpus.lengths is not None else None
            self._full = restrict_order(policy.plan(corpus.num_seqs, rng_seed, lengths), corpus)
            self._key = key
        start, stop = slice_bounds(len(self._full), epoch, recipe.num_sub_epochs, recipe.num_shards, recipe.shard_index)
        part = self._full.slice(start, stop)
        return part if recipe.num_repeats == 1 else RepeatedOrder(part, recipe.num_repeats)

    def _forget_what_changed(self, policy: Policy, corpus: OrderCorpus) -> OrderCorpus:
        """Forget the order if the corpus may no longer be the one that it was made of."""
        if corpus.keep is not None or corpus.first_of_tag is not None:
            self.invalidate()
        if not policy.needs_lengths or corpus.lengths is None:
            return corpus
        lengths = corpus.lengths()
        if self._lengths is None or not np.array_equal(lengths, self._lengths):
            self.invalidate()
        self._lengths = np.array(lengths)
        return replace(corpus, lengths=lambda: lengths)

    def counter(self, epoch: int) -> Callable[[], NDArray[np.int64]]:
        """Return what counts, for each position of the order last given, how often its sequence came before.

        It counts in all shards of the sub-epoch, so that a sequence which two of them have does not get the same number
        twice.

        Args:
            epoch: The epoch that `order_for_epoch` was last asked for. Others may be asked for before it counts.

        Returns:
            A function that returns `int64[n]`; O(n) memory, and O(n log n) time for an order that may repeat.
        """
        return partial(_count, self.recipe, self._full, epoch)

    def invalidate(self) -> None:
        """Forget the full-epoch order: the corpus, its lengths, tags or filter have changed."""
        self._key, self._full = None, _EMPTY


def _count(recipe: OrderRecipe, full: Order, epoch: int) -> NDArray[np.int64]:
    starts, stops = zip(
        *(
            slice_bounds(len(full), epoch, recipe.num_sub_epochs, recipe.num_shards, shard)
            for shard in (0, recipe.shard_index, recipe.num_shards - 1)
        ),
        strict=True,
    )
    first, last = starts[0], stops[2]
    whole = full.slice(first, last)
    counted = occurrences(whole if recipe.num_repeats == 1 else RepeatedOrder(whole, recipe.num_repeats))
    own = counted.reshape(recipe.num_repeats, last - first)[:, starts[1] - first : stops[1] - first]
    return own.reshape(-1)


_EMPTY: Order = RangeOrder(range(0))


def restrict_order(order: Order, corpus: OrderCorpus) -> Order:
    """Return what unique tags and the filter leave of an order over a whole corpus."""
    if corpus.first_of_tag is not None:
        order = _keep_first_tags(order, _checked(corpus.first_of_tag(), corpus.num_seqs))
    return order if corpus.keep is None else _filter(order, _checked(corpus.keep(), corpus.num_seqs))


def _checked(column: NDArray[Any], num_seqs: int) -> NDArray[Any]:
    if column.shape != (num_seqs,):
        raise InternalError(f"a column of shape {column.shape} for a corpus of {num_seqs} sequences")
    return column


def _keep_first_tags(order: Order, first_of_tag: NDArray[Any]) -> Order:
    """Keep the first position of each tag; which of the sequences that is depends on the order."""
    indices = order.block(0, len(order))
    groups = first_of_tag[indices]
    positions = np.arange(len(indices))
    first_position = np.zeros(len(first_of_tag), np.int64)
    first_position[groups[::-1]] = positions[::-1]  # of equal indices NumPy keeps the last assignment
    return ArrayOrder(indices[first_position[groups] == positions], may_repeat=False)


def _filter(order: Order, keep: NDArray[np.bool_]) -> Order:
    indices = order.block(0, len(order))
    return ArrayOrder(indices[keep[indices]], may_repeat=order.may_repeat)
