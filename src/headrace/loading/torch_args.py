"""Translates what users of other loaders type: torch's DataLoader arguments, lists, and map-style datasets.

An argument that means something here is translated, one that changes nothing is accepted, and one that would be
without effect, or contradicts another, is refused with what to write instead. `pin_memory` asks for speed and changes
no value, and torch itself only warns where it can do nothing; so here, too, a line is logged, and the loader goes on.
The workers' memory is not page-locked for it: a copy that the consumer begins from there would run on after the batch
was given up, while a worker writes the next one. `to_device` knows when its copies have ended.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.batching import Batching, FixedCount
from headrace.datasets import Dataset, init_dataset
from headrace.datasets.files.mapped import dataset_over
from headrace.datasets.parts import open_apart
from headrace.engine import EngineOptions, WorkerInfo
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import ConfigError, did_you_mean
from headrace.sources import Source

from .data_key import data_key_of_item, frames_of
from .inputs import DatasetSubject, ItemsSubject, Subject
from .options import LoaderOptions
from .sampler import Drawn, SampledBatches, SampledSubject, draw_batches, draw_indices
from .streams.input import DatasetStream, IterableStream

_logger = logging.getLogger("headrace.loading")

_NAMES = (
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "collate_fn",
    "drop_last",
    "worker_init_fn",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "pin_memory_device",
    "generator",
    "timeout",
    "multiprocessing_context",
    "in_order",
)


@dataclass(frozen=True)
class ForeignOrder:
    """What says the order from outside of the dataset.

    Attributes:
        shuffle: Whether to shuffle a dataset that has no order of its own.
        sampler: Gives corpus indices, or batches of them, anew for each epoch; or None.
        draw: Asks the sampler.
    """

    shuffle: bool = False
    sampler: Any = None
    draw: Callable[[Any], Drawn] = draw_indices


def take_foreign(own: dict[str, Any], foreign: dict[str, Any]) -> ForeignOrder:
    """Translate torch's arguments into ours.

    Args:
        own: Our arguments, which get what is translated.
        foreign: All others.

    Raises:
        ConfigError: One is unknown, or contradicts another; or no argument says what a batch is.
    """
    order = _translate(own, foreign) if foreign else ForeignOrder()
    if own["batching"] is None:
        raise ConfigError(
            "nothing says what a batch is",
            fix="give batching=FrameBudget(max_frames=80_000), Buckets(...), FixedCount(32), or batch_size=32",
        )
    return order


def _translate(own: dict[str, Any], foreign: dict[str, Any]) -> ForeignOrder:
    for name in foreign:
        if name not in _NAMES:
            raise ConfigError(f"DataLoader has no option {name!r}", fix=did_you_mean(name, (*own, *_NAMES)))
    if foreign.get("in_order") is False:
        raise ConfigError("batches always come in order", fix="leave in_order out")
    _tell_of_pin_memory(foreign)
    _take(own, "collate", foreign, "collate_fn", lambda function: function)
    _take(own, "worker_init", foreign, "worker_init_fn", _WorkerInit)
    batch_sampler = foreign.get("batch_sampler")
    if batch_sampler is not None:
        _take_batch_sampler(own, foreign)
    size, drop_last = foreign.get("batch_size"), bool(foreign.get("drop_last"))
    if size is None and drop_last:
        raise ConfigError("drop_last is about batch_size, which is not given", fix='write FixedCount(n, last="drop")')
    _take(own, "batching", foreign, "batch_size", lambda size: FixedCount(size, last="drop" if drop_last else "keep"))
    if foreign.get("generator") is not None:
        own["seed"] = int(foreign["generator"].initial_seed()) % 2**63
    _take_engine_options(own, foreign)
    if batch_sampler is not None:
        return ForeignOrder(sampler=batch_sampler, draw=draw_batches)
    sampler = foreign.get("sampler")
    if sampler is not None and foreign.get("shuffle"):
        raise ConfigError("shuffle=True and sampler both say the order", fix="leave one of them out")
    return ForeignOrder(bool(foreign.get("shuffle")), sampler)


def _tell_of_pin_memory(foreign: Mapping[str, Any]) -> None:
    if foreign.get("pin_memory") or foreign.get("pin_memory_device"):
        _logger.warning(
            "pin_memory=True has no effect: batches are no page-locked tensors; "
            "headrace.adapters.torch.to_device(loader, device) copies them to a GPU straight from the workers' memory, "
            "which it page-locks itself"
        )


def _take_batch_sampler(own: dict[str, Any], foreign: Mapping[str, Any]) -> None:
    """Let a sampler say the batches; nothing else may say them, or their order."""
    others = [name for name in ("batching", "batch_order") if own[name] is not None]
    others += [name for name in ("batch_size", "shuffle", "sampler", "drop_last") if foreign.get(name)]
    if others:
        raise ConfigError(
            f"batch_sampler says which sequences form a batch and in which order, and so does {others[0]}",
            fix=f"leave {others[0]} out, or give batching=Buckets(FrameBudget(...)) in place of the batch_sampler",
        )
    own["batching"] = SampledBatches()


def _take(
    own: dict[str, Any], name: str, foreign: Mapping[str, Any], torch_name: str, make: Callable[..., Any]
) -> None:
    value = foreign.get(torch_name)
    if value is None:
        return
    if own[name] is not None:
        raise ConfigError(f"{name} and {torch_name} both say the same thing", fix=f"leave {torch_name} out")
    own[name] = make(value)


def _take_engine_options(own: dict[str, Any], foreign: Mapping[str, Any]) -> None:
    ahead, timeout = foreign.get("prefetch_factor"), foreign.get("timeout")
    if ahead is not None or timeout:
        if own["engine_options"] is not None:
            raise ConfigError("engine_options says what prefetch_factor and timeout say", fix="leave these two out")
        options = EngineOptions()
        if ahead is not None:
            options = dataclasses.replace(options, tickets_per_worker=ahead)
        own["engine_options"] = dataclasses.replace(options, stall_seconds=timeout) if timeout else options
    context = foreign.get("multiprocessing_context")
    if context is not None:
        if own["executor"] != "process" or own["max_bytes"] is not None:
            raise ConfigError("multiprocessing_context goes with no executor and no max_bytes", fix="leave it out")
        method = context if isinstance(context, str) else context.get_start_method()
        own["executor"] = ProcessExecutor(start_method=method)


@dataclass(frozen=True)
class _WorkerInit:
    """Calls `worker_init_fn(worker_id)` as torch does."""

    function: Callable[[int], None]

    def __call__(self, info: WorkerInfo) -> None:
        self.function(info.worker_idx)


def open_subject(dataset: Any, order: ForeignOrder, options: LoaderOptions) -> Subject:
    """Turn what a user calls a dataset into a subject.

    Raises:
        ConfigError: It is nothing that can be loaded, or the order is said twice.
    """
    shuffled = f"permute:seed={options.seed}" if order.shuffle else None
    if isinstance(dataset, Dataset | Mapping | str | Source) or _is_function(dataset):
        own = open_apart(dataset_over(dataset) if isinstance(dataset, Source) else dataset)
        config = own if isinstance(dataset, Dataset | Source) else dataset
        subject = _subject_of(own, config, shuffled, is_own=own is not dataset)
    elif isinstance(dataset, type) or not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")):
        raise ConfigError(
            f"a loader reads a headrace dataset, a config of one, an object with __len__ and __getitem__, or an "
            f"iterable, and {dataset if isinstance(dataset, type) else type(dataset)} is none",
        )
    elif not _is_map_style(dataset):
        if isinstance(dataset, Iterator):
            raise ConfigError(
                f"a {type(dataset).__name__} gives its items once, and each epoch needs them",
                fix="give an object whose __iter__ begins anew",
            )
        subject = IterableStream(dataset)
    else:
        subject = _open_items(dataset, shuffled or "default", options)
    if subject.is_stream and (order.shuffle or order.sampler is not None):
        raise ConfigError("a stream has its own order", where=subject.name, fix="leave shuffle and sampler out")
    if order.sampler is not None:
        subject = SampledSubject(subject, order.sampler, order.draw)
    return subject


def _subject_of(dataset: Dataset, config: Any, shuffled: str | None, *, is_own: bool) -> Subject:
    if not dataset.get_corpus().knows_order():
        return DatasetStream(dataset, is_own=is_own)
    subject = DatasetSubject(config, dataset, is_own=is_own)
    if shuffled is not None:
        subject.shuffle(shuffled)
    return subject


def _is_function(dataset: Any) -> bool:
    return callable(dataset) and not isinstance(dataset, type) and not hasattr(dataset, "__getitem__")


def _is_map_style(dataset: Any) -> bool:
    """Tell whether items can be asked for by their numbers. An iterable dataset of torch inherits what says so."""
    of_torch = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
    if of_torch is not None and isinstance(dataset, of_torch):
        return False
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _open_items(items: Any, seq_ordering: str, options: LoaderOptions) -> Subject:
    """Items that are mappings of numbers become a dataset; others stay what they are, also for the user's collate."""
    first = items[0] if options.collate is None and len(items) else None
    if isinstance(first, Mapping) and all(np.asarray(value).dtype.kind in "biufc" for value in first.values()):
        made = dataset_over(items, seq_ordering)
        return _subject_of(init_dataset(made), made, None, is_own=True)
    if options.batching.needs_lengths and isinstance(items, list | tuple) and items and isinstance(items[0], Mapping):
        return _ListSubject(items, seq_ordering, options.batching)
    return ItemsSubject(items, seq_ordering)


class _ItemsWithLengths:
    """A list of dicts that tells their lengths, as it is in memory."""

    def __init__(self, items: Sequence[Mapping[str, Any]], data_key: str | None) -> None:
        self._items, self._data_key = items, data_key

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> Mapping[str, Any]:
        return self._items[number]

    def get_seq_len(self, number: int) -> int:
        """Return the frames of the data key that counts."""
        return 1 if self._data_key is None else frames_of(self._items[number][self._data_key])


class _ListSubject(ItemsSubject):
    """A list of dicts that are no dataset (they have texts, or a collate of the user's gets them): lengths are known.

    Args:
        items: At least one.
        seq_ordering: The order.
        batching: It may name a data key; the first item says which has a time axis.
    """

    def __init__(self, items: Sequence[Mapping[str, Any]], seq_ordering: str, batching: Batching) -> None:
        data_key = data_key_of_item(batching, items[0], "the first item of the list")
        super().__init__(_ItemsWithLengths(items, data_key), seq_ordering)
        self.name, self.data_key = "list", data_key

    def knows_lengths(self, data_key: str | None) -> bool:
        """Return True for the key that counts."""
        return data_key == self.data_key
