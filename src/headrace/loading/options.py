"""The options of a loader, checked when it is built and before anything is started."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self, get_args

from headrace.batching import Batching, BatchOrder
from headrace.datasets.workers import DatasetWorkers
from headrace.engine import EngineOptions, Executor, WorkerInfo, where_runs
from headrace.engine.executor import check_executor_name
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import ConfigError, check_count
from headrace.rng.process import kept_globals, seed_globals

from .steps import Agree, Agreement

_logger = logging.getLogger("headrace.loading")

CheckRanks = Callable[[str], Sequence[str]]
Remainder = Literal["drop", "pad", "keep"]
_INT64_MAX = 2**63 - 1
_IN_ORDER, _SHUFFLED = BatchOrder("keep", 1), BatchOrder()


@dataclass(frozen=True)
class LoaderOptions:
    """See `DataLoader` for what they mean.

    Raises:
        ConfigError: An option is wrong.
    """

    batching: Batching
    num_workers: int = 0
    seed: int = 0
    rank: int | None = None
    world_size: int | None = None
    mesh: Any = None
    remainder: Remainder = "drop"
    transform: Callable[..., Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    executor: str | Executor = "process"
    recipe_version: str | None = None
    steps_per_epoch: int | None = None
    agree_every: int | None = None
    agree: Agree | None = None
    check_ranks: CheckRanks | None = None
    engine_options: EngineOptions | None = None
    max_bytes: int | None = None
    worker_init: Callable[[WorkerInfo], None] | None = None
    batch_order: BatchOrder | None = None
    window_seqs: int | None = None
    pad_values: Mapping[str, Any] = field(default_factory=dict)
    pad_multiple: int = 1
    seed_globals: bool | None = None

    def __post_init__(self) -> None:
        """Check each of them."""
        if not isinstance(self.batching, Batching):
            raise ConfigError(f"batching must be a policy such as FrameBudget(80_000), got {self.batching!r}")
        for name, minimum in (("num_workers", 0), ("pad_multiple", 1)):
            object.__setattr__(self, name, check_count(f"DataLoader: {name}", getattr(self, name), minimum=minimum))
        for name in ("max_bytes", "steps_per_epoch", "agree_every", "window_seqs"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_count(f"DataLoader: {name}", getattr(self, name), minimum=1))
        seed = check_count("DataLoader: seed", self.seed, minimum=-_INT64_MAX, maximum=_INT64_MAX)
        object.__setattr__(self, "seed", seed)
        if self.remainder not in get_args(Remainder):
            raise ConfigError(f'DataLoader: remainder must be "drop", "pad" or "keep", got {self.remainder!r}')
        if self.recipe_version is not None and not isinstance(self.recipe_version, str):
            raise ConfigError(f'DataLoader: recipe_version is a text such as "v2", got {self.recipe_version!r}')
        if self.batch_order is not None and not isinstance(self.batch_order, BatchOrder):
            raise ConfigError(f"DataLoader: batch_order is a BatchOrder(...), got {self.batch_order!r}")
        if self.engine_options is not None and not isinstance(self.engine_options, EngineOptions):
            raise ConfigError(f"DataLoader: engine_options is an EngineOptions(...), got {self.engine_options!r}")
        if not isinstance(self.seed_globals, bool | None):
            raise ConfigError(f"DataLoader: seed_globals is True, False or None, got {self.seed_globals!r}")
        if isinstance(self.executor, str):
            check_executor_name(self.executor)
        if self.seed_globals and self._has_threads:
            raise ConfigError(
                "seed_globals=True, and the threads of a process share its generators",
                fix='use executor="process", or draw from the rng that a transform gets',
            )
        for name in ("transform", "collate", "worker_init", "check_ranks", "agree"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigError(f"DataLoader: {name} must be a function, got {getattr(self, name)!r}")
        if self.mesh is not None and not (self.rank is None and self.world_size is None):
            raise ConfigError("mesh cannot be combined with rank or world_size", fix="leave one of them out")
        self._check_agreement()
        if self.collate is not None and (self.pad_values or self.pad_multiple != 1):
            raise ConfigError(
                "pad_values and pad_multiple have no effect with a collate of your own", fix="pad in collate"
            )

    def with_workers(self, workers: DatasetWorkers, *, takes_number: bool) -> Self:
        """Return these options plus those that a dataset was given for its workers, which the loader's workers replace.

        Args:
            workers: The workers that the dataset was given.
            takes_number: Whether the loader was given no number of workers.

        Raises:
            ConfigError: Both were given `worker_init`, or both `engine_options`.
        """
        changes: dict[str, Any] = {}
        for name in ("worker_init", "engine_options"):
            value = getattr(workers, name)
            if value is not None and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} is given both to the loader and to its {workers.owner}, which uses the loader's workers",
                    fix="give it to one of them",
                )
            if value is not None:
                changes[name] = value
        if takes_number:
            changes["num_workers"] = workers.num_workers
            if workers.executor is not None and self.executor == "process":
                changes["executor"] = workers.executor
            of_each = workers.max_bytes_per_worker
            if of_each is not None and self.max_bytes is None and changes.get("executor") in (None, "process"):
                changes["max_bytes"] = of_each * max(workers.num_workers, 1)
        elif workers.num_workers != self.num_workers:
            _logger.warning(
                "num_workers=%d of the loader is used, and num_workers=%d of its %s is not",
                self.num_workers,
                workers.num_workers,
                workers.owner,
            )
        return replace(self, **changes)

    def _check_agreement(self) -> None:
        if (self.agree is None) != (self.agree_every is None):
            raise ConfigError(
                "agree and agree_every must be given together",
                fix="agree_every=100, agree=headrace.adapters.torch_ranks.all_agree, for torch.distributed",
            )
        if self.agree is None:
            return
        others = {"steps_per_epoch": self.steps_per_epoch is not None, 'remainder="keep"': self.remainder == "keep"}
        for name, is_given in others.items():
            if is_given:
                raise ConfigError(
                    f"{name} and agree both define the number of steps of a rank", fix="leave one of them out"
                )

    def check_known_steps(self, name: str, num_shards: int) -> None:
        """Refuse options about the number of steps, for a dataset whose length is known.

        Args:
            name: Name of the dataset.
            num_shards: Into how many shards it divides itself.

        Raises:
            ConfigError: One of these options is given.
        """
        if self.steps_per_epoch is not None:
            raise ConfigError(
                "steps_per_epoch is for streams, and the length of this dataset is known",
                where=name,
                fix="leave it out; for shorter epochs, give the dataset partition_epoch=",
            )
        if self.agree is not None and num_shards == 1:
            raise ConfigError(
                "agree is for ranks that cannot know how many steps the others have, and here they do",
                where=name,
                fix="leave agree and agree_every out: all ranks have equally many steps",
            )

    def check_equal_steps(self, name: str) -> None:
        """Refuse options that contradict each other about equal numbers of steps on all ranks of a stream.

        Args:
            name: Name of the stream.

        Raises:
            ConfigError: They do.
        """
        if self.remainder == "keep" and self.steps_per_epoch is not None:
            raise ConfigError(
                'remainder="keep" allows unequal numbers of steps, and steps_per_epoch promises equal ones',
                where=name,
                fix='use remainder="drop", or "pad", which repeats the first batches where there are too few',
            )

    @property
    def _has_threads(self) -> bool:
        return self.num_workers > 0 and where_runs(self.executor) == "thread"

    @cached_property
    def seeds_globals(self) -> bool:
        """Whether the global generators are seeded wherever user code may draw from them."""
        return not self._has_threads if self.seed_globals is None else self.seed_globals

    @contextmanager
    def order_seeded(self, epoch: int) -> Iterator[None]:
        """Seed the global generators while user code determines the order of an epoch: the same on each rank."""
        with kept_globals():
            seed_globals(self.seed, "order", epoch=epoch)
            yield

    def start_agreement(self) -> Agreement | None:
        """Return the object by which the ranks agree on the number of steps of an epoch; None if they know it."""
        if self.agree is None or self.agree_every is None:
            return None
        return Agreement(self.agree, self.agree_every, may_repeat=self.remainder == "pad")

    def limited_executor(self, num_shares: int | None = None) -> str | Executor:
        """Return the executor, with the memory limit divided among the workers, or among a given number of shares."""
        if self.max_bytes is None:
            return self.executor
        if self.executor != "process":
            raise ConfigError(
                f"max_bytes bounds the shared memory of worker processes, and executor={self.executor!r}",
                fix="leave max_bytes out, or give an executor that was made with a limit of its own",
            )
        per_worker = max(self.max_bytes // (num_shares or max(self.num_workers, 1)), 1)
        return ProcessExecutor(max_bytes=per_worker, slot_bytes=min(1 << 20, per_worker))

    @property
    def order_of_batches(self) -> BatchOrder:
        """In which order batches come.

        What takes consecutive sequences keeps the order that the dataset was asked for; what picks sequences by their
        lengths has left it anyway, so its batches are shuffled, and sorted by cost in groups.
        """
        if self.batch_order is not None:
            return self.batch_order
        return _IN_ORDER if self.batching.keeps_order else _SHUFFLED
