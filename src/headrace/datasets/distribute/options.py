"""The options of a `DistributeFilesDataset`, checked when it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.engine import EngineOptions, Executor, Skipping, make_executor, where_runs
from headrace.errors import ConfigError
from headrace.ranks import find_ranks

from ..checks import check_count, check_flag
from .files import CacheOptions
from .sub_dataset import GetSubEpochDataset


@dataclass(frozen=True, slots=True)
class ShareOptions:
    """How files are shared out; checked when built.

    Attributes:
        get_sub_epoch_dataset: The user's function.
        shards_files: Whether ranks share the files.
        rank: Rank of this process, if given.
        world_size: The number of ranks, if given.
        shards_twice: The legacy behaviour.
        balance: See `FilePlan`.
        num_canonical_shards: See `FilePlan`.
        num_preloaded: How many coming sub-epochs are opened ahead of time.
        remainder: "drop": sub-epochs are cut to the smallest of all ranks, once it is known.

    Raises:
        ConfigError: A wrong option; they go by the names that users know.
    """

    get_sub_epoch_dataset: GetSubEpochDataset
    shards_files: bool
    rank: int | None
    world_size: int | None
    shards_twice: bool
    balance: Literal["in_order", "largest_first"]
    num_canonical_shards: int | None
    num_preloaded: int
    remainder: Literal["drop", "keep"]

    def __post_init__(self) -> None:
        """Check each option."""
        if not callable(self.get_sub_epoch_dataset):
            raise ConfigError(
                "get_sub_epoch_dataset must be a function from a list of files to the config of a dataset: "
                f"{self.get_sub_epoch_dataset!r}"
            )
        check_flag("distrib_shard_files", self.shards_files)
        check_count("preload_next_n_sub_epochs", self.num_preloaded)
        if self.num_canonical_shards is not None:
            check_count("num_canonical_shards", self.num_canonical_shards, minimum=1)
        for name, valid in (("balance", ("in_order", "largest_first")), ("remainder", ("drop", "keep"))):
            if getattr(self, name) not in valid:
                raise ConfigError(f"{name} must be one of {valid}: {getattr(self, name)!r}")
        if self.rank is not None or self.world_size is not None:
            find_ranks(self.rank, self.world_size)  # checks them
            if not self.shards_files:
                raise ConfigError(
                    f"rank={self.rank} and world_size={self.world_size} are given, but ranks do not share the files",
                    fix="set distrib_shard_files=True",
                )


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How sequences come from workers.

    Attributes:
        num_workers: 0: this process does the work.
        executor: "process", "thread" or "inline", or an `Executor`.
        buffer_size: How many sequences a worker may be ahead; `None`: as many as make some tickets of a few MB.
        engine: What to do about errors, deaths and stalls.
        cache: Where cached files come from.

    Raises:
        ConfigError: An option is wrong.
    """

    num_workers: int
    executor: str | Executor
    buffer_size: int | None
    engine: EngineOptions
    cache: CacheOptions

    def __post_init__(self) -> None:
        """Check each option."""
        if isinstance(self.executor, str):
            make_executor(self.executor)
        check_count("num_workers", self.num_workers)
        if self.buffer_size is not None:
            check_count("buffer_size", self.buffer_size, minimum=1)

    @property
    def skips(self) -> bool:
        """Whether sequences that fail are left out, so that their number is not known before the end."""
        return isinstance(self.engine.on_error, Skipping)

    @property
    def is_inline(self) -> bool:
        """Whether the work is done in the reader's own thread."""
        return self.num_workers == 0 or where_runs(self.executor) == "caller"
