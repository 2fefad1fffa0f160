"""What a policy is: one `seq_ordering`, parsed once into a frozen value.

Invariant: `plan` is a pure function of its arguments, and two equal policies give equal orders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, check_count

from .base import Order

_MAX_LENGTH = 2**62  # larger ones could not be negated or packed in 64 bits
_MAX_SEED = 2**63 - 1  # what the keyed hash takes


class Policy(ABC):
    """Decides the order of one full epoch over a whole corpus.

    Attributes:
        name: The word that a `seq_ordering` string begins with.
        needs_lengths: Whether `plan` needs the lengths of all sequences.
        is_exhaustive: Whether each sequence comes exactly once.
        is_random: Whether the order depends on the seed.
        num_epochs: For how many full epochs the same shuffle is kept.
        seed: The user's own seed, or None for RETURNN's seed rule.

    Examples:
        >>> from headrace.order import parse_seq_ordering
        >>> policy = parse_seq_ordering("random:seed=1")
        >>> policy.is_random, str(policy), sorted(policy.plan(4, rng_seed=1, lengths=None))
        (True, 'random:seed=1', [0, 1, 2, 3])
    """

    name: ClassVar[str]
    needs_lengths: ClassVar[bool] = False
    is_exhaustive: ClassVar[bool] = True
    is_random: ClassVar[bool] = False
    num_epochs: int = 1
    seed: int | None = None

    @abstractmethod
    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:
        """Return the order of one full epoch.

        Args:
            num_seqs: Size of the corpus, may be 0.
            rng_seed: Seed of this full epoch, see `headrace.order.derive_order_seed`.
            lengths: `int or float[num_seqs]`, may be None if `needs_lengths` is False.

        Raises:
            ConfigError: Lengths are needed and there are none, or `rng_seed` does not suit the generator.
            SourceError: Lengths are negative, not a number, too large or too few.
        """

    @abstractmethod
    def __str__(self) -> str:
        """Return the string that parses to this policy."""

    def __post_init__(self) -> None:
        """Check the fields that the random policies share, and bring `num_epochs` = 0 to its meaning, 1."""
        if self.is_random:
            set_field(self, "num_epochs", check_count(f"{self.name}: num_epochs", self.num_epochs, minimum=0) or 1)
            if self.seed is not None:
                set_field(self, "seed", check_count(f"{self.name}: seed", self.seed, minimum=0, maximum=_MAX_SEED))

    def option_string(self, *parts: str) -> str:
        """Join the name, `parts`, and the seed, where there is one."""
        seed = () if self.seed is None else (f"seed={self.seed}",)
        return ":".join((self.name, *parts, *seed))


def set_field(instance: object, name: str, value: object) -> None:
    """Set a field of a frozen dataclass; only for its own `__post_init__`."""
    object.__setattr__(instance, name, value)


def check_lengths(policy: Policy, num_seqs: int, lengths: NDArray[Any] | None) -> NDArray[Any]:
    """Return lengths that can be sorted: one non-negative number for each sequence.

    Raises:
        ConfigError: There are none.
        SourceError: They are not numbers, negative, NaN, larger than 2**62, or of another count.
    """
    if lengths is None:
        raise ConfigError(
            f"seq_ordering {str(policy)!r} needs the length of each sequence, and this dataset has none",
            fix="choose an order without lengths, such as 'random', or give seq_order_seq_lens_file",
        )
    if lengths.shape != (num_seqs,):
        raise SourceError(f"got lengths of shape {lengths.shape} for a corpus of {num_seqs} sequences")
    if lengths.dtype.kind not in "iuf":
        raise SourceError(f"lengths must be integers or floats, got dtype {lengths.dtype}")
    if num_seqs > 0:
        # min and max pass a NaN on, and every comparison with it is false
        lowest, highest = lengths.min(), lengths.max()
        if not (lowest >= 0 and (lengths.dtype.kind == "f" or highest <= _MAX_LENGTH)):
            valid = lengths >= 0 if lengths.dtype.kind == "f" else (lengths >= 0) & (lengths <= _MAX_LENGTH)
            first = int(np.argmin(valid))
            raise SourceError(f"length {lengths[first]} is not in 0..2**62", where=f"corpus index {first}")
    return lengths


def legacy_rng(rng_seed: int) -> np.random.RandomState:
    """Return NumPy's legacy generator, whose stream is frozen, so that orders stay bit-identical to RETURNN's.

    Raises:
        ConfigError: The seed is outside of what the generator takes.
    """
    if not 0 <= rng_seed < 2**32:
        raise ConfigError(
            f"the seed of this epoch is {rng_seed}, and must be in 0..2**32-1",
            where="epoch + random_seed_offset, or fixed_random_seed",
            fix="choose another random_seed_offset, or spell out a seed, as in 'random:seed=42'",
        )
    return np.random.RandomState(rng_seed)
