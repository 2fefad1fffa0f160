"""Translates torch's DataLoader arguments, and answers programs that read them from a loader.

An argument that means something here is translated, one that changes nothing is accepted, and one that would be
without effect, or contradicts another, is refused with what to write instead. `pin_memory` asks for speed and changes
no value, and torch itself only warns where it can do nothing; so here, too, a line is logged, and the loader goes on.
The workers' memory is not page-locked for it: a copy that the consumer begins from there would run on after the batch
was given up, while a worker writes the next one. `to_device` knows when its copies have ended.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.batching import Batching, FixedCount
from headrace.engine import EngineOptions, WorkerInfo
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import ConfigError, did_you_mean

from .options import LoaderOptions
from .sampler import Drawn, SampledBatches, draw_batches, draw_indices

_logger = logging.getLogger("headrace.loading")


class NotGiven(enum.Enum):
    """The default of an argument whose `None` means something."""

    NOT_GIVEN = enum.auto()

    def __repr__(self) -> str:
        return self.name


NOT_GIVEN = NotGiven.NOT_GIVEN

TORCH_DEFAULTS: Mapping[str, Any] = {
    "batch_size": NOT_GIVEN,
    "shuffle": None,
    "sampler": None,
    "batch_sampler": None,
    "collate_fn": None,
    "pin_memory": False,
    "drop_last": False,
    "timeout": 0,
    "worker_init_fn": None,
    "multiprocessing_context": None,
    "generator": None,
    "prefetch_factor": None,
    "persistent_workers": False,
    "pin_memory_device": "",
    "in_order": True,
}
"""Torch's arguments that `DataLoader` takes in addition to its own."""
# Options of sources and datasets that are given to a loader by mistake.
_OF_SOURCES = ("fields", "targets", "vocab", "features", "label", "tag_field", "root", "sample_rate", "size")
_OF_DATASETS = ("seq_ordering", "partition_epoch", "repeat_epoch", "random_seed_offset", "seq_list_filter_file")


@dataclass(frozen=True)
class ForeignOrder:
    """An order that is not defined by the dataset.

    Attributes:
        shuffle: Whether to shuffle a dataset that has no order of its own.
        sampler: Gives corpus indices, or batches of them, anew for each epoch; or None.
        draw: Asks the sampler.
    """

    shuffle: bool = False
    sampler: Any = None
    draw: Callable[[Any], Drawn] = draw_indices


def take_foreign(own: dict[str, Any], unknown: Mapping[str, Any]) -> ForeignOrder:
    """Translate torch's arguments into ours.

    Args:
        own: All arguments; torch's are taken out of it, and ours get what they mean.
        unknown: Arguments that there are not.

    Raises:
        ConfigError: One is unknown, or contradicts another; or no argument says what a batch is.
    """
    foreign, is_said = {}, False
    for name, default in TORCH_DEFAULTS.items():
        foreign[name] = value = own.pop(name)
        is_said = is_said or value is not default
    for name in unknown:
        fix = did_you_mean(name, (*own, *TORCH_DEFAULTS))
        if name in _OF_SOURCES:
            fix = f"give it to what is read: DataLoader(open_source(files, {name}=...), ...)"
        elif name in _OF_DATASETS:
            fix = f"give it to the dataset: DataLoader(SourceDataset(files, {name}=...), ...)"
        raise ConfigError(f"DataLoader has no option {name!r}", fix=fix)
    order = _translate(own, foreign) if is_said else ForeignOrder()
    if own["batching"] is None:
        raise ConfigError(
            "the size of a batch is not given",
            fix="give batching=FrameBudget(max_frames=80_000), Buckets(...), FixedCount(32), or batch_size=32",
        )
    return order


def _translate(own: dict[str, Any], foreign: dict[str, Any]) -> ForeignOrder:
    if foreign.get("in_order") is False:
        raise ConfigError("batches always come in order", fix="leave in_order out")
    _tell_of_pin_memory(foreign)
    _take(own, "collate", foreign, "collate_fn", lambda function: function)
    _take(own, "worker_init", foreign, "worker_init_fn", _WorkerInit)
    batch_sampler = foreign.get("batch_sampler")
    if batch_sampler is not None:
        _take_batch_sampler(own, foreign)
    _take_batch_size(own, foreign)
    if foreign.get("generator") is not None:
        own["seed"] = int(foreign["generator"].initial_seed()) % 2**63
    _take_engine_options(own, foreign)
    if batch_sampler is not None:
        return ForeignOrder(sampler=batch_sampler, draw=draw_batches)
    sampler = foreign.get("sampler")
    if sampler is not None and foreign.get("shuffle"):
        raise ConfigError("shuffle=True and sampler both define the order", fix="leave one of them out")
    return ForeignOrder(bool(foreign.get("shuffle")), sampler)


def _tell_of_pin_memory(foreign: Mapping[str, Any]) -> None:
    if foreign.get("pin_memory") or foreign.get("pin_memory_device"):
        _logger.warning(
            "pin_memory=True has no effect: batches are no page-locked tensors; "
            "headrace.adapters.torch.to_device(loader, device) copies them to a GPU straight from the workers' memory, "
            "which it page-locks itself"
        )


def _take_batch_sampler(own: dict[str, Any], foreign: Mapping[str, Any]) -> None:
    """Let a sampler define the batches; nothing else may define them or their order."""
    others = [name for name in ("batching", "batch_order") if own[name] is not None]
    if foreign["batch_size"] not in (NOT_GIVEN, None):
        others.append("batch_size")
    others += [name for name in ("shuffle", "sampler", "drop_last") if foreign.get(name)]
    if others:
        raise ConfigError(
            f"batch_sampler and {others[0]} both define the batches",
            fix=f"leave {others[0]} out, or give batching=Buckets(FrameBudget(...)) in place of the batch_sampler",
        )
    own["batching"] = SampledBatches()


def _take_batch_size(own: dict[str, Any], foreign: Mapping[str, Any]) -> None:
    """Translate `batch_size`; None delivers sequences one by one, unless `batching` is given."""
    size, drop_last = foreign["batch_size"], bool(foreign["drop_last"])
    if drop_last and size in (NOT_GIVEN, None):
        raise ConfigError("drop_last is about batch_size, which is not given", fix='write FixedCount(n, last="drop")')
    if size is NOT_GIVEN:
        return
    if size is None:
        if own["batching"] is None:
            own["batching"], own["collate"] = FixedCount(1), Alone(own["collate"])
        return
    if own["batching"] is not None:
        raise ConfigError("batching and batch_size both define the batches", fix="leave batch_size out")
    own["batching"] = FixedCount(size, last="drop" if drop_last else "keep")


def _take(
    own: dict[str, Any], name: str, foreign: Mapping[str, Any], torch_name: str, make: Callable[..., Any]
) -> None:
    value = foreign.get(torch_name)
    if value is None:
        return
    if own[name] is not None:
        raise ConfigError(f"{name} and {torch_name} are two names of one option", fix=f"leave {torch_name} out")
    own[name] = make(value)


def _take_engine_options(own: dict[str, Any], foreign: Mapping[str, Any]) -> None:
    ahead, timeout = foreign["prefetch_factor"], foreign["timeout"]
    if ahead is not None or timeout:
        if own["engine_options"] is not None:
            raise ConfigError(
                "prefetch_factor and timeout cannot be combined with engine_options",
                fix="set tickets_per_worker and stall_seconds there",
            )
        own["engine_options"] = engine_options_of(ahead, timeout)
    context = foreign["multiprocessing_context"]
    if context is not None:
        if own["executor"] != "process" or own["max_bytes"] is not None:
            raise ConfigError(
                "multiprocessing_context cannot be combined with executor or max_bytes", fix="leave it out"
            )
        own["executor"] = executor_of(context)


def engine_options_of(prefetch_factor: int | None, timeout: float) -> EngineOptions:
    """Return the engine options for torch's `prefetch_factor` and `timeout`; None and 0 mean the defaults.

    A timeout is for a batch, as in torch, whose workers are forks: how long workers take to start is not part of it.
    """
    options = EngineOptions(tickets_per_worker=prefetch_factor)
    if not timeout:
        return options
    return dataclasses.replace(options, stall_seconds=timeout, start_seconds=max(timeout, options.stall_seconds))


def executor_of(context: Any) -> ProcessExecutor:
    """Return the executor for a `multiprocessing_context`, a name or a context object."""
    return ProcessExecutor(start_method=context if isinstance(context, str) else context.get_start_method())


@dataclass(frozen=True)
class _WorkerInit:
    """Calls `worker_init_fn(worker_id)` as torch does."""

    function: Callable[[int], None]

    def __call__(self, info: WorkerInfo) -> None:
        self.function(info.worker_idx)


@dataclass(frozen=True)
class Alone:
    """Collates a batch of one sequence to that sequence, as torch's `batch_size=None` does.

    Attributes:
        collate: What is called with it, or None.
    """

    collate: Callable[[Any], Any] | None

    def __call__(self, seqs: list[Any]) -> Any:
        """Return the one sequence."""
        (seq,) = seqs
        return seq if self.collate is None else self.collate(seq)


class Given:
    """The options of a loader that programs read from it. All are read-only."""

    _dataset: Any
    _options: LoaderOptions
    _order: ForeignOrder
    _num_workers: int | None = None  # since `resize`

    @property
    def dataset(self) -> Any:
        """The `dataset` argument, unchanged: so that `len(loader.dataset)` works, for a list say."""
        return self._dataset

    @property
    def batching(self) -> Batching:
        """The policy that forms batches; of `batch_size=32` it is `FixedCount(32)`."""
        return self._options.batching

    @property
    def batch_size(self) -> int | None:
        """Sequences of a batch, or None: there are none, or they are formed by length, or by a sampler of batches."""
        batching = self._options.batching
        is_alone = isinstance(self._options.collate, Alone)
        return batching.num_seqs if isinstance(batching, FixedCount) and not is_alone else None

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is not full is dropped. What is left over for the ranks is up to `remainder`."""
        batching = self._options.batching
        return isinstance(batching, FixedCount) and batching.last == "drop"

    @property
    def num_workers(self) -> int:
        """Number of worker processes, or threads, as `resize` left it."""
        return self._options.num_workers if self._num_workers is None else self._num_workers

    @property
    def seed(self) -> int:
        """Seed of the order of the batches, and of the random generators of workers."""
        return self._options.seed

    @property
    def collate_fn(self) -> Any:
        """The function that makes a batch of items; None: sequences are padded, other items stacked."""
        collate = self._options.collate
        return collate.collate if isinstance(collate, Alone) else collate

    @property
    def transform(self) -> Any:
        """The function that changes each sequence, or None."""
        return self._options.transform

    @property
    def sampler(self) -> Any:
        """The sampler that was given; None: the order is that of the dataset, or a shuffle."""
        return None if self._order.draw is draw_batches else self._order.sampler

    @property
    def batch_sampler(self) -> Any:
        """The sampler of batches that was given, or None."""
        return self._order.sampler if self._order.draw is draw_batches else None
