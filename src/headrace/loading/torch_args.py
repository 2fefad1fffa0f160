"""Translates torch's words for the size of a batch and its order, and answers programs that read options of a loader.

Torch's other words are refused, each with the option to use instead: `headrace.torch.DataLoader` has all of them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.batching import Batching, FixedCount
from headrace.engine import EngineOptions
from headrace.errors import ConfigError, did_you_mean

from .options import LoaderOptions
from .sampler import SampledBatches, SampledOrder, draw_batches, draw_indices


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
    "drop_last": False,
}
"""Torch's arguments that `DataLoader` takes in addition to its own."""
_LOCK = "iterate over headrace.adapters.torch.to_device(loader, device), which locks the memory itself"
_INSTEAD = {
    "collate_fn": "pass collate=",
    "pin_memory": _LOCK,
    "pin_memory_device": _LOCK,
    "persistent_workers": "omit it: workers stay until the loader is closed",
    "in_order": "omit it: batches always come in order",
    "timeout": "pass engine_options=EngineOptions(stall_seconds=...)",
    "worker_init_fn": "pass worker_init=, which is called with a WorkerInfo",
    "multiprocessing_context": "pass executor=ProcessExecutor(start_method=...)",
    "generator": "pass seed=",
    "prefetch_factor": "pass engine_options=EngineOptions(tickets_per_worker=...)",
}
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
    draw: Callable[[Any], SampledOrder] = draw_indices


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
        if name in _INSTEAD:
            fix = f"{_INSTEAD[name]}; or use `from headrace.torch import DataLoader`, which has all of torch's options"
        elif name in _OF_SOURCES:
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
    batch_sampler = foreign["batch_sampler"]
    if batch_sampler is not None:
        _take_batch_sampler(own, foreign)
    _take_batch_size(own, foreign)
    if batch_sampler is not None:
        return ForeignOrder(sampler=batch_sampler, draw=draw_batches)
    sampler = foreign["sampler"]
    if sampler is not None and foreign["shuffle"]:
        raise ConfigError("shuffle=True and sampler both define the order", fix="leave one of them out")
    return ForeignOrder(bool(foreign["shuffle"]), sampler)


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


def engine_options_of(prefetch_factor: int | None, timeout: float) -> EngineOptions:
    """Return the engine options for torch's `prefetch_factor` and `timeout`; None and 0 mean the defaults.

    A timeout is for a batch, as in torch, whose workers are forks: how long workers take to start is not part of it.
    """
    options = EngineOptions(tickets_per_worker=prefetch_factor)
    if not timeout:
        return options
    return dataclasses.replace(options, stall_seconds=timeout, start_seconds=max(timeout, options.stall_seconds))


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
    def collate(self) -> Any:
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
