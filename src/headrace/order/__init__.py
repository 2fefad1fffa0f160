"""Which sequence comes when: orderings, partition into sub-epochs, shards, and a shuffle that needs no memory.

This room decides the order of an epoch as a pure function of (recipe, number of sequences, lengths, tags, epoch). It
never reads data, starts processes or keeps more than the last full-epoch order. Read `base.py` first, then
`planner.py`.
"""

from .base import ArrayOrder, Order, RangeOrder, RepeatedOrder, occurrences
from .by_length import Laplace, SortBinShuffle, SortBinShuffleX2, Sorted, SortedReverse
from .mixture import Lane, MixedOrder, Mixture
from .parse import VALID_FORMS, parse_seq_ordering
from .permutation import Permutation
from .plain import Default, EveryN, InterleavedOrder, Permute, PermutedOrder, Random, RandomSample, Reverse
from .planner import OrderCorpus, OrderPlanner, restrict_order
from .policy import Policy
from .recipe import OrderRecipe, derive_order_seed, full_epoch_of, slice_bounds

__all__ = [
    "VALID_FORMS",
    "ArrayOrder",
    "Default",
    "EveryN",
    "InterleavedOrder",
    "Lane",
    "Laplace",
    "MixedOrder",
    "Mixture",
    "Order",
    "OrderCorpus",
    "OrderPlanner",
    "OrderRecipe",
    "Permutation",
    "Permute",
    "PermutedOrder",
    "Policy",
    "Random",
    "RandomSample",
    "RangeOrder",
    "RepeatedOrder",
    "Reverse",
    "SortBinShuffle",
    "SortBinShuffleX2",
    "Sorted",
    "SortedReverse",
    "derive_order_seed",
    "full_epoch_of",
    "occurrences",
    "parse_seq_ordering",
    "restrict_order",
    "slice_bounds",
]
