"""What a worker does for a `DataLoader`: what torch's worker does, on the engine.

The dataset is asked for its items, and what they are collated to is torch's; tensors are stacked where the trainer
reads them. Invariant: the generators of the process are seeded for each batch, so a batch does not depend on which
worker makes it, on what that worker did before, or on whether it is made again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset, _utils, default_collate
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map
from torch.utils.data.graph_settings import apply_random_seed

from headrace.batching.stacking import stack_tensors
from headrace.engine import WorkerInfo, empty, note_item, note_number
from headrace.rng.process import kept_globals, seed_globals

_PURPOSE = "torch batch"


class Draws(NamedTuple):
    """What the generators are seeded by while the batches of one pass are made.

    Attributes:
        seed: torch's base seed of the iterator.
        epoch: How many passes the same workers have made before.
    """

    seed: int
    epoch: int

    def seed_for(self, number: int, *, lazily: bool) -> None:
        """Seed the generators of this process for a batch; `lazily` as `seed_globals` has it."""
        seed_globals(self.seed, _PURPOSE, epoch=self.epoch, number=number, lazily=lazily)


class MapTask(NamedTuple):
    """A batch of a map-style dataset.

    Attributes:
        draws: Draws of its pass.
        number: Number of the batch in the pass, from 0.
        index: What the sampler gave: a list of keys, or one key where items are not batched.
    """

    draws: Draws
    number: int
    index: Any


class StreamPass(NamedTuple):
    """A pass over an iterable-style dataset.

    Attributes:
        draws: Draws of the pass.
        start: Tickets before this one were delivered already: their items are passed over.
        shared_seed: Seed of the data pipes of torch that shuffle, the same in all workers; None: they are none.
    """

    draws: Draws
    start: int
    shared_seed: int | None = None


@dataclass(frozen=True)
class TorchWork:
    """Gets ready in a worker; returns the function of a `MapTask`, or of a `StreamPass` to an iterator of batches.

    Attributes:
        dataset: The user's. In this process it is used as it is, in others it is a copy.
        is_iterable: Whether it is iterable-style.
        batch_size: Items of a batch, for iterable-style datasets; None: they are not batched.
        is_batched: Whether the items are batched.
        drop_last: Whether a last batch that is not full is left out, for iterable-style datasets.
        collate_fn: Makes a batch of a list of items, or converts one item where they are not batched.
        worker_init_fn: The user's, or None.
        base_seed: torch's base seed.
        collate_fns: What the user has added to torch's `default_collate_fn_map`.
    """

    dataset: Any
    is_iterable: bool
    batch_size: int | None
    is_batched: bool
    drop_last: bool
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], None] | None
    base_seed: int
    collate_fns: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)

    def __call__(self, info: WorkerInfo) -> Callable[[Any], Any]:
        """Get ready in a worker: torch's `get_worker_info` answers from here on."""
        dataset, collate_fn = self.dataset, self.collate_fn
        in_process = info.runs_in == "process"
        draws = collate_fn is not default_collate or bool(self.collate_fns) or not _draws_nothing(dataset)
        if in_process:
            self._seed_worker(info.worker_idx)
            self._tell_torch(info, dataset)
            if self.worker_init_fn is not None:
                self.worker_init_fn(info.worker_idx)
            default_collate_fn_map.update(self.collate_fns)
            if collate_fn is default_collate:
                collate_fn = _collate_in_place
        keep = nullcontext if in_process or not draws else kept_globals
        if not self.is_iterable:
            items_of = _items_of(dataset, is_batched=self.is_batched)
            if not draws:
                return lambda task: collate_fn(items_of(task))
            return partial(_fetch, items_of, collate_fn, keep, in_process)
        size = self.batch_size if self.is_batched else None
        who = info.worker_idx, info.num_workers
        return partial(_Stream, dataset, size, self.drop_last, collate_fn, keep, in_process, who)

    def _seed_worker(self, worker_idx: int) -> None:
        seed = self.base_seed + worker_idx
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        if torch.get_num_threads() != 1:  # a fork of the trainer
            torch.set_num_threads(1)

    def _tell_torch(self, info: WorkerInfo, dataset: Any) -> None:
        torch_worker._worker_info = torch_worker.WorkerInfo(  # what torch's own worker sets
            id=info.worker_idx, num_workers=info.num_workers, seed=self.base_seed + info.worker_idx, dataset=dataset
        )


def _draws_nothing(dataset: Any) -> bool:
    """Tell whether no user code reads the items, which might draw from the generators."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) in (TensorDataset, list, tuple, range, np.ndarray, torch.Tensor)


def _items_of(dataset: Any, *, is_batched: bool) -> Callable[[MapTask], Any]:
    """Return the function that reads what a batch is made of."""
    if not is_batched:
        return lambda task: dataset[task.index]
    if getattr(dataset, "__getitems__", None):
        return lambda task: dataset.__getitems__(task.index)
    return lambda task: list(_read_each(dataset, task.index))


def _read_each(dataset: Any, index: Iterable[Any]) -> Iterator[Any]:
    for key in index:
        if type(key) is int:
            note_number("(item {})", key)
        else:
            note_item(f"(item {key})")
        yield dataset[key]


def _fetch(
    items_of: Callable[[MapTask], Any],
    collate_fn: Callable[[Any], Any],
    keep: Callable[[], Any],
    in_process: bool,
    task: MapTask,
) -> Any:
    """Make a batch of a map-style dataset."""
    with keep():
        task.draws.seed_for(task.number, lazily=in_process)
        return collate_fn(items_of(task))


class _Stream(Iterator[Any]):
    """The batches that one worker makes of its copy of an iterable-style dataset.

    Args:
        dataset: The copy.
        batch_size: Items of a batch; None: they are not batched.
        drop_last: Whether a last batch that is not full is left out.
        collate_fn: Makes a batch of a list of items, or of one.
        keep: Returns what keeps the generators of the process, where they are not the worker's.
        in_process: Whether they are the worker's.
        who: Which worker of how many this is.
        run: What is asked for.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        drop_last: bool,
        collate_fn: Callable[[Any], Any],
        keep: Callable[[], Any],
        in_process: bool,
        who: tuple[int, int],
        run: StreamPass,
    ) -> None:
        self._size, self._drop_last, self._collate_fn = batch_size, drop_last, collate_fn
        self._keep, self._in_process, self._run = keep, in_process, run
        self._ticket, self._num_workers = who
        self._is_over = False
        with keep():
            run.draws.seed_for(self._ticket, lazily=in_process)
            if run.shared_seed is not None:
                dataset = apply_random_seed(dataset, torch.Generator().manual_seed(run.shared_seed))
            self._items = iter(dataset)

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        ticket, self._ticket = self._ticket, self._ticket + self._num_workers
        with self._keep():
            self._run.draws.seed_for(ticket, lazily=self._in_process)
            if self._size is None:
                item = next(self._items)
                return None if ticket < self._run.start else self._collate_fn(item)
            items = []
            for _ in range(self._size):
                try:
                    items.append(next(self._items))
                except StopIteration:
                    self._is_over = True
                    break
            if not items or (self._drop_last and len(items) < self._size):
                self._is_over = True
                raise StopIteration
            return None if ticket < self._run.start else self._collate_fn(items)


def _collate_in_place(batch: list[Any]) -> Any:
    """Do as torch's `default_collate`, but stack plain tensors where the trainer reads them."""
    if default_collate_fn_map.get(torch.Tensor) is not collate_tensor_fn:
        return default_collate(batch)
    return collate(batch, collate_fn_map={**default_collate_fn_map, torch.Tensor: _stack})


def _stack(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    first = batch[0]
    if first.is_nested or first.layout is not torch.strided:  # these torch refuses, and says why
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return stack_tensors(torch, batch, _allocate)


def _allocate(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    del name
    return empty(shape, dtype)


def added_collate_fns() -> dict[Any, Callable[..., Any]]:
    """Return what the user has added to torch's `default_collate_fn_map`, or put in place of something there."""
    own = _utils.collate.__name__
    return {kind: function for kind, function in default_collate_fn_map.items() if function.__module__ != own}
