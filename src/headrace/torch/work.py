"""What a worker does for a `DataLoader`: what torch's worker does, on the engine.

The dataset is asked for its items, and what they are collated to is torch's; tensors are stacked where the trainer
reads them. Invariant: the generators of the process are seeded for each batch, so a batch does not depend on which
worker makes it, on what that worker did before, or on whether it is made again.
"""

from __future__ import annotations

import pickle
import random
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch.utils.data import Subset, TensorDataset, _utils, default_collate
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map
from torch.utils.data.graph_settings import apply_random_seed

from headrace.batching.stacking import stack_tensors
from headrace.engine import WorkerInfo, empty, note_item, note_number
from headrace.errors import ResumeError
from headrace.rng.process import kept_globals, seed_globals

from .state import encode_value

_PURPOSE = "torch batch"


class MapTask(NamedTuple):
    """A batch of a map-style dataset.

    Attributes:
        seed: torch's base seed of the iteration.
        number: Number of the batch in the pass, from 0.
        index: What the sampler gave: a list of keys, or one key where items are not batched.
    """

    seed: int
    number: int
    index: Any


class CopyState(NamedTuple):
    """Where a worker's copy of an iterable-style dataset is, of one that can say so: torchdata's `Stateful`.

    Attributes:
        dataset: What the `state_dict` of the dataset returned; None: it has none.
        iterator: What that of its iterator returned; None: it has none, or a pass begins.
        is_over: Whether the iterator has ended.
    """

    dataset: Any = None
    iterator: Any = None
    is_over: bool = False


class StreamPass(NamedTuple):
    """A pass over an iterable-style dataset.

    Attributes:
        seed: torch's base seed of the iteration.
        start: Batches with a lower number were delivered already: their items are passed over.
        first: Number of the first batch of worker 0; more than 0 where `copies` are.
        shared_seed: Seed of the data pipes of torch that shuffle, the same in all workers; None: they are none.
        copies: Where the copy of each worker begins; None for one that begins as it is.
    """

    seed: int
    start: int
    first: int
    shared_seed: int | None
    copies: Sequence[CopyState | None]


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
            self._tell_torch(info, self.base_seed)
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
            return partial(_fetch, items_of, collate_fn, keep)
        size = self.batch_size if self.is_batched else None
        tell = partial(self._tell_torch, info) if in_process else None
        who = info.worker_idx, info.num_workers
        return partial(_Stream, dataset, size, self.drop_last, collate_fn, keep, tell, who)

    def _seed_worker(self, worker_idx: int) -> None:
        seed = self.base_seed + worker_idx
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        if torch.get_num_threads() != 1:  # a fork of the trainer
            torch.set_num_threads(1)

    def _tell_torch(self, info: WorkerInfo, base_seed: int) -> None:
        torch_worker._worker_info = torch_worker.WorkerInfo(  # what torch's own worker sets
            id=info.worker_idx, num_workers=info.num_workers, seed=base_seed + info.worker_idx, dataset=self.dataset
        )


def _draws_nothing(dataset: Any) -> bool:
    """Tell whether no user code reads the items, which might draw from the generators."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) in (TensorDataset, list, tuple, range, np.ndarray, torch.Tensor)


def _items_of(dataset: Any, *, is_batched: bool) -> Callable[[MapTask], Any]:
    """Return the function that reads what a batch is made of."""
    if not is_batched:
        return lambda task: next(_read_each(dataset, (task.index,)))
    if getattr(dataset, "__getitems__", None):
        return lambda task: _read_at_once(dataset, task.index)
    return lambda task: list(_read_each(dataset, task.index))


def _read_each(dataset: Any, index: Iterable[Any]) -> Iterator[Any]:
    for key in index:
        if type(key) is int:
            note_number("(item {})", key)
        else:
            note_item(f"(item {key})")
        yield dataset[key]


def _read_at_once(dataset: Any, index: Any) -> Any:
    note_item(f"(items {reprlib.repr(index)})")
    return dataset.__getitems__(index)


def _fetch(
    items_of: Callable[[MapTask], Any],
    collate_fn: Callable[[Any], Any],
    keep: Callable[[], Any],
    task: MapTask,
) -> Any:
    """Make a batch of a map-style dataset."""
    with keep():
        seed_globals(task.seed, _PURPOSE, number=task.number)
        return collate_fn(items_of(task))


class _Stream(Iterator[Any]):
    """The batches that one worker makes of its copy of an iterable-style dataset.

    Each comes with a digest of its first and last item, or with the pickled `CopyState` after it. The start, the end
    and what was passed over come likewise, without a batch.

    Args:
        dataset: The copy.
        batch_size: Items of a batch; None: they are not batched.
        drop_last: Whether a last batch that is not full is left out.
        collate_fn: Makes a batch of a list of items, or of one.
        keep: Returns what keeps the generators of the process, where they are not the worker's.
        tell: Where they are the worker's: has torch's `get_worker_info` answer for a base seed.
        who: Which worker of how many this is.
        run: What is asked for.

    Raises:
        ResumeError: There is a state to begin at, and the dataset cannot.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        drop_last: bool,
        collate_fn: Callable[[Any], Any],
        keep: Callable[[], Any],
        tell: Callable[[int], None] | None,
        who: tuple[int, int],
        run: StreamPass,
    ) -> None:
        self._size, self._drop_last, self._collate_fn = batch_size, drop_last, collate_fn
        self._keep, self._run = keep, run
        worker_idx, self._num_workers = who
        self._number, self._has_begun = run.first + worker_idx, False
        if tell is not None:
            tell(run.seed)
        copy = run.copies[worker_idx] or CopyState()
        with keep():
            self._seed()
            if run.shared_seed is not None:
                dataset = apply_random_seed(dataset, torch.Generator().manual_seed(run.shared_seed))
            restore(dataset, copy.dataset)
            self._dataset, self._is_over, self._skips = dataset, copy.is_over, any(run.copies)
            self._items: Iterator[Any] = iter(dataset)
            restore(self._items, copy.iterator)
        self._is_stateful = is_stateful(dataset) or is_stateful(self._items)

    def __next__(self) -> Any:
        if not self._has_begun:
            self._has_begun = True
            return None, self._copy_state()
        if self._is_over:
            raise StopIteration
        with self._keep():
            self._seed()
            note_number("(batch {} of the streams)", self._number)
            is_wanted = self._number >= self._run.start
            self._number += self._num_workers
            if not is_wanted and self._skips:
                return None, self._copy_state()
            items = list(islice(self._items, self._size or 1))
            self._is_over = len(items) < (self._size or 1)
            if not items or (self._is_over and self._drop_last):
                self._is_over = True
                return None, self._copy_state()
            ends = items[:: max(len(items) - 1, 1)]  # the first and the last: to digest all would double a small batch
            digest = None if self._is_stateful else xxhash.xxh3_64_digest(encode_value(ends))
            if not is_wanted:
                return digest, None
            batch = self._collate_fn(items if self._size else items[0])
            return digest, self._copy_state(), batch

    def _seed(self) -> None:
        seed_globals(self._run.seed, _PURPOSE, number=self._number)

    def _copy_state(self) -> bytes | None:
        if not self._is_stateful:
            return None
        both: tuple[Any, Any] = (self._dataset, self._items)
        of_dataset, of_items = (one.state_dict() if is_stateful(one) else None for one in both)
        return pickle.dumps(CopyState(of_dataset, of_items, self._is_over))


def is_stateful(value: Any) -> bool:
    """Tell whether a dataset, or its iterator, saves and restores its own state: the protocol of torchdata."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def restore(value: Any, state: Any) -> None:
    """Put a dataset, or its iterator, into a state that it returned; `None` leaves it as it is.

    Raises:
        ResumeError: It cannot.
    """
    if state is None:
        return
    if not is_stateful(value):
        raise ResumeError(
            f"the state has one of the dataset, and {type(value).__name__} has no load_state_dict",
            fix="give the loader the same dataset",
        )
    value.load_state_dict(state)


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
