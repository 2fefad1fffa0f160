"""What a user asks for: the options that decide the order of every epoch of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.rng import derive_seed

from .epochs import derive_order_seed
from .parse import parse_seq_ordering
from .policy import Policy, check_count, set_field

SeqOrdering = str | Policy | Callable[..., "str | Policy"]


@dataclass(frozen=True)
class OrderRecipe:
    """The options of an order, checked when built.

    Args:
        seq_ordering: An option string, a policy, or a function that is called as `f(epoch=E)` for each epoch and
            returns one of these. A string is replaced by its policy.
        fixed_random_seed: The seed of every epoch, for evaluation sets; 0 is a seed too.
        random_seed_offset: Added to the seed of the documented rule; None means 0.
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
            set_field(self, option, 1 if value is None else check_count("dataset", option, value, minimum=0) or 1)
        if self.num_sub_epochs > 1 and self.num_repeats > 1:
            raise ConfigError(
                f"partition_epoch = {self.partition_epoch} and repeat_epoch = {self.repeat_epoch} exclude each other",
                fix="give only one of them more than 1",
            )
        check_count("dataset", "num_shards", self.num_shards, minimum=1)
        check_count("dataset", "shard_index", self.shard_index, minimum=0, maximum=self.num_shards - 1)
        if self.fixed_random_seed is not None:
            seed = check_count("dataset", "fixed_random_seed", self.fixed_random_seed, minimum=0, maximum=2**32 - 1)
            set_field(self, "fixed_random_seed", seed)
        offset = 0 if self.random_seed_offset is None else self.random_seed_offset
        limits = {"minimum": -(2**62), "maximum": 2**62}
        set_field(self, "random_seed_offset", check_count("dataset", "random_seed_offset", offset, **limits))

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

        It is the number of the documented rule; where the policy has a seed of its own, the two are hashed together.
        """
        number = derive_order_seed(
            epoch,
            num_epochs=policy.num_epochs,
            partition_epoch=self.num_sub_epochs,
            fixed_random_seed=self.fixed_random_seed,
            random_seed_offset=self.random_seed_offset or 0,
        )
        return number if policy.seed is None else derive_seed(policy.seed, "order", epoch=number, bits=32)
