"""The options that decide the order of every epoch of a dataset, and the arithmetic of epochs.

The arithmetic (which full epoch, which seed, which slice) is pure functions of numbers. `epoch` counts from 1. With
`partition_epoch` = P it counts sub-epochs, and P of them make one full pass over the corpus.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import ConfigError, check_count
from headrace.rng import derive_seed

from .parse import parse_seq_ordering
from .policy import Policy, set_field


def full_epoch_of(epoch: int, partition_epoch: int = 1) -> int:
    """Return which pass over the whole corpus an epoch belongs to, from 0; epoch 0 counts as epoch 1."""
    return (max(epoch, 1) - 1) // partition_epoch


def derive_order_seed(
    epoch: int,
    *,
    num_epochs: int = 1,
    partition_epoch: int = 1,
    fixed_random_seed: int | None = None,
    random_seed_offset: int = 0,
) -> int:
    """Return the seed of an epoch by RETURNN's rule.

    It is the number of the full epoch, from 1, plus an offset, so that the shuffle stays the same during one full pass;
    or the fixed seed, whatever the epoch.

    Args:
        epoch: The epoch number; 0 counts as 1.
        num_epochs: How many full epochs keep the same shuffle.
        partition_epoch: Sub-epochs of a full epoch.
        fixed_random_seed: If not None, the result.
        random_seed_offset: Added otherwise.
    """
    if fixed_random_seed is not None:
        return fixed_random_seed
    return full_epoch_of(epoch, partition_epoch) // max(num_epochs, 1) + 1 + random_seed_offset


def slice_bounds(
    num_seqs: int, epoch: int, partition_epoch: int = 1, num_shards: int = 1, shard_index: int = 0
) -> tuple[int, int]:
    """Return which positions of a full-epoch order one shard of one sub-epoch gets, as (start, stop).

    The order is cut into `partition_epoch * num_shards` contiguous parts, all shards of a sub-epoch side by side; the
    first `num_seqs % parts` parts hold one more. All parts together are everything, exactly once. A part may be empty.

    Args:
        num_seqs: Length of the order.
        epoch: The epoch number; 0 counts as 1.
        partition_epoch: Sub-epochs of a full epoch.
        num_shards: Shares of a sub-epoch.
        shard_index: Which of them, from 0.
    """
    num_parts = partition_epoch * num_shards
    part = (max(epoch, 1) - 1) % partition_epoch * num_shards + shard_index
    size, num_larger = divmod(num_seqs, num_parts)
    start = part * size + min(part, num_larger)
    return start, start + size + int(part < num_larger)


SeqOrdering = str | Policy | Callable[..., "str | Policy"]


@dataclass(frozen=True)
class OrderRecipe:
    """The options of an order, checked when built.

    Args:
        seq_ordering: An option string, a policy, or a function that is called as `f(epoch=E)` for each epoch and
            returns one of these. A string is replaced by its policy.
        fixed_random_seed: The seed of every epoch, for evaluation sets; 0 is a seed too.
        random_seed_offset: Added to the seed of RETURNN's rule; None means 0.
        partition_epoch: Sub-epochs of a full epoch; None and 0 mean 1.
        repeat_epoch: How often the order of an epoch is repeated, without a new shuffle; None and 0 mean 1.
        num_shards: Shares of each sub-epoch, for example one per rank.
        shard_index: Which of them.

    Raises:
        ConfigError: An option, or a combination of them, is wrong.
    """

    seq_ordering: SeqOrdering = "default"
    fixed_random_seed: int | None = None
    random_seed_offset: int | None = 0
    partition_epoch: int | None = 1
    repeat_epoch: int | None = 1
    num_shards: int = 1
    shard_index: int = 0

    def __post_init__(self) -> None:
        """Check all options, parse the string, and bring None and 0 to what they mean."""
        if isinstance(self.seq_ordering, str):
            set_field(self, "seq_ordering", parse_seq_ordering(self.seq_ordering))
        elif isinstance(self.seq_ordering, type) and issubclass(self.seq_ordering, Policy):
            name = self.seq_ordering.__name__
            raise ConfigError(f"seq_ordering is the class {name}, not one of its instances", fix=f"write {name}(...)")
        elif not isinstance(self.seq_ordering, Policy) and not callable(self.seq_ordering):
            raise ConfigError(
                f"seq_ordering must be a string, a policy or a function, got {self.seq_ordering!r}",
                fix="for the order of the corpus, write 'default'",
            )
        for option in ("partition_epoch", "repeat_epoch"):
            value = getattr(self, option)
            set_field(self, option, 1 if value is None else check_count(f"dataset: {option}", value, minimum=0) or 1)
        if self.num_sub_epochs > 1 and self.num_repeats > 1:
            raise ConfigError(
                f"partition_epoch = {self.partition_epoch} and repeat_epoch = {self.repeat_epoch} exclude each other",
                fix="give only one of them more than 1",
            )
        check_count("dataset: num_shards", self.num_shards, minimum=1)
        check_count("dataset: shard_index", self.shard_index, minimum=0, maximum=self.num_shards - 1)
        if self.fixed_random_seed is not None:
            seed = check_count("dataset: fixed_random_seed", self.fixed_random_seed, minimum=0, maximum=2**32 - 1)
            set_field(self, "fixed_random_seed", seed)
        offset = 0 if self.random_seed_offset is None else self.random_seed_offset
        limits = {"minimum": -(2**62), "maximum": 2**62}
        set_field(self, "random_seed_offset", check_count("dataset: random_seed_offset", offset, **limits))

    @property
    def num_sub_epochs(self) -> int:
        """Sub-epochs of a full epoch, at least 1."""
        return self.partition_epoch or 1

    @property
    def num_repeats(self) -> int:
        """How often the order of an epoch is repeated, at least 1."""
        return self.repeat_epoch or 1

    def policy_for_epoch(self, epoch: int) -> Policy:
        """Return the policy of an epoch; a user's function is called anew each time.

        Raises:
            ConfigError: The function returned something else, or a string that is not valid.
        """
        asked = self.seq_ordering
        if callable(asked):
            asked = asked(epoch=epoch)
        if isinstance(asked, str):
            return parse_seq_ordering(asked)
        if isinstance(asked, Policy):
            return asked
        raise ConfigError(
            f"the function given as seq_ordering returned {asked!r}, a {type(asked).__name__}",
            where=f"epoch {epoch}",
            fix="return an option string such as 'random', or a policy",
        )

    def derive_rng_seed(self, policy: Policy, epoch: int) -> int:
        """Return the seed with which a policy plans an epoch.

        It is the number of RETURNN's rule; where the policy has a seed of its own, the two are hashed together.
        """
        number = derive_order_seed(
            epoch,
            num_epochs=policy.num_epochs,
            partition_epoch=self.num_sub_epochs,
            fixed_random_seed=self.fixed_random_seed,
            random_seed_offset=self.random_seed_offset or 0,
        )
        return number if policy.seed is None else derive_seed(policy.seed, "order", epoch=number, bits=32)
