"""The contenders: each makes an endless iterator over items in order, filled by two worker processes.

Every contender is used as its documentation advises for throughput, with settings that were tried on this benchmark.
A contender that sends one item a message has its turn for every kind; one that sends groups, where groups make sense.
"""

from __future__ import annotations

import importlib.util
import itertools
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from .items import Kind, make_group, make_item, make_list

NUM_WORKERS = 2
Stream = Callable[[Kind], Iterator[Any]]


@dataclass(frozen=True)
class Contender:
    """One way to bring items from workers to a consumer.

    Attributes:
        stream: Kind -> endless iterator over items; closing it ends the workers.
        module: What must be installed.
        groups: Whether one message carries several items.
    """

    stream: Stream
    module: str
    groups: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is Headrace."""
        return self.module == "headrace"


# --- Headrace ---


class Task:
    """A job for an engine: first index -> items, in place or not."""

    def __init__(self, make: Callable[..., Any], kind: Kind, *, in_place: bool) -> None:
        self.make, self.kind, self.in_place = make, kind, in_place

    def __call__(self, info: Any) -> Callable[[int], Any]:
        """Return the worker's function."""
        from headrace.engine import empty

        del info
        return partial(self.make, self.kind, empty=empty) if self.in_place else partial(self.make, self.kind)


def headrace(kind: Kind, *, make: Callable[..., Any], in_place: bool) -> Iterator[Any]:
    from headrace.engine import Engine, EngineOptions, Job

    options = EngineOptions(tickets_per_worker=kind.ahead_of(groups=make is not make_item))
    with Engine(Job(Task(make, kind, in_place=in_place)), num_workers=NUM_WORKERS, options=options) as engine:
        if make is make_item:
            for delivered in engine.run(itertools.count()):
                yield delivered.value
        else:
            for delivered in engine.run(itertools.count(0, kind.group)):
                yield from delivered.value


# --- torch ---


class MapStyle:
    """A map-style dataset without an end."""

    def __init__(self, make: Callable[..., Any], kind: Kind) -> None:
        self.make, self.kind = make, kind

    def __getitem__(self, idx: int) -> Any:
        """Make an item or a group."""
        return self.make(self.kind, idx)


def unchanged(value: Any) -> Any:
    return value


def as_numpy(item: Any) -> Any:
    return (
        {key: as_numpy(value) for key, value in item.items()}
        if isinstance(item, dict)
        else (item if isinstance(item, str) else item.numpy())
    )


def torch_loader(kind: Kind, *, context: str, mode: str, groups: bool = False) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    options: dict[str, Any] = {"batch_size": None}
    sampler = itertools.count()
    make: Callable[..., Any] = make_item
    if mode == "numpy":
        options["collate_fn"] = unchanged
        if groups:
            make, sampler = make_group, itertools.count(0, kind.group)
    elif groups:
        options["batch_size"] = kind.group
    loader = DataLoader(
        MapStyle(make, kind),
        sampler=sampler,  # type: ignore[arg-type]
        num_workers=NUM_WORKERS,
        prefetch_factor=kind.ahead_of(groups=groups),
        persistent_workers=True,
        multiprocessing_context=context,
        **options,
    )
    if mode == "numpy":
        yield from (item for group in loader for item in group) if groups else loader
    elif groups:
        for batch in loader:
            yield from batch.numpy()
    else:
        yield from map(as_numpy, loader)


# --- Grain ---


def grain_loader(kind: Kind, *, groups: bool) -> Iterator[Any]:
    import grain

    start = grain.MapDataset.range(1 << 40)
    dataset = start.map(partial(nth_group if groups else make_item, kind))
    ahead = kind.ahead_of(groups=groups)
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=ahead)
    options = grain.MultiprocessingOptions(num_workers=NUM_WORKERS, per_worker_buffer_size=ahead)
    loader: Iterable[Any] = dataset.to_iter_dataset(reading).mp_prefetch(options)
    yield from (item for group in loader for item in group) if groups else loader


def nth_group(kind: Kind, idx: int) -> Any:
    return make_group(kind, idx * kind.group)


# --- SPDL ---


def every_nth(kind: Kind, worker_idx: int, groups: bool) -> Iterator[Any]:
    if groups:
        for group_idx in itertools.count(worker_idx, NUM_WORKERS):
            yield make_group(kind, group_idx * kind.group)
    else:
        for idx in itertools.count(worker_idx, NUM_WORKERS):
            yield make_item(kind, idx)


def spdl_processes(kind: Kind, *, arena: bool, groups: bool) -> Iterator[Any]:
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    ahead = kind.ahead_of(groups=groups)
    segment_bytes = kind.num_bytes * (kind.group if groups else 1) * 3 // 2 + 4096
    streams = [
        iter(
            iterate_in_subprocess(
                partial(every_nth, kind, worker_idx, groups),
                buffer_size=ahead,
                arena=SharedMemorySegmentPool(segment_bytes, ahead + 4) if arena else None,
            )
        )
        for worker_idx in range(NUM_WORKERS)
    ]
    try:
        for stream in itertools.cycle(streams):
            if groups:
                yield from next(stream)
            else:
                yield next(stream)
    finally:
        for stream in streams:
            stream.close()


# --- RETURNN ---

NUM_RETURNN_SEQS = 200_000


def returnn_map(kind: Kind) -> Any:
    from returnn.datasets.map import MapDatasetBase

    class Items(MapDatasetBase):
        def __init__(self) -> None:
            types = {key: {"shape": (None,)} for key in ("data",)}
            if kind.is_dict:
                item = make_item(kind, 0)
                del item["tag"]
                types = {
                    key: {"shape": (None, *array.shape[1:]), "dtype": array.dtype.name} for key, array in item.items()
                }
            super().__init__(data_types=types)

        def __len__(self) -> int:
            return NUM_RETURNN_SEQS

        def __getitem__(self, idx: int) -> dict[str, np.ndarray]:
            item = make_item(kind, idx)
            if not kind.is_dict:
                return {"data": item}
            del item["tag"]  # it comes by get_seq_tag
            return item

        def get_seq_tag(self, idx: int) -> str:
            return f"corpus/recording-{idx // 10}/segment-{idx}"

    return Items()


def returnn_dataset(kind: Kind) -> Iterator[Any]:
    from returnn.datasets.multi_proc import MultiProcDataset

    dataset = MultiProcDataset(
        dataset={"class": "MapDatasetWrapper", "map_dataset": partial(returnn_map, kind)},
        num_workers=NUM_WORKERS,
        buffer_size=max(kind.ahead, 2),
    )
    dataset.initialize()
    dataset.init_seq_order(epoch=1)
    for idx in range(NUM_RETURNN_SEQS):
        dataset.load_seqs(idx, idx + 1)
        if kind.is_dict:
            item = {key: dataset.get_data(idx, key) for key in ("data", "classes", "energy", "mask", "times")}
            item["tag"] = dataset.get_tag(idx)
            yield item
        else:
            yield dataset.get_data(idx, "data")
    raise AssertionError("the sequences came to their end")


# --- the standard library ---


def process_pool(kind: Kind, *, groups: bool) -> Iterator[Any]:
    ahead = kind.ahead_of(groups=groups)
    pool = ProcessPoolExecutor(NUM_WORKERS, mp_context=multiprocessing.get_context("spawn"))
    make, starts = (make_group, itertools.count(0, kind.group)) if groups else (make_item, itertools.count())
    waiting = deque(pool.submit(make, kind, idx) for idx in itertools.islice(starts, NUM_WORKERS * ahead))
    try:
        while True:
            result = waiting.popleft().result()
            waiting.append(pool.submit(make, kind, next(starts)))
            if groups:
                yield from result
            else:
                yield result
    finally:
        pool.shutdown(cancel_futures=True)


CONTENDERS: dict[str, Contender] = {
    "headrace, in place": Contender(partial(headrace, make=make_item, in_place=True), "headrace"),
    "headrace, copied": Contender(partial(headrace, make=make_item, in_place=False), "headrace"),
    "headrace, in place, groups": Contender(partial(headrace, make=make_group, in_place=True), "headrace", True),
    "headrace, copied, groups": Contender(partial(headrace, make=make_list, in_place=False), "headrace", True),
    "torch fork, numpy": Contender(partial(torch_loader, context="fork", mode="numpy"), "torch"),
    "torch spawn, numpy": Contender(partial(torch_loader, context="spawn", mode="numpy"), "torch"),
    "torch fork, tensors": Contender(partial(torch_loader, context="fork", mode="tensors"), "torch"),
    "torch spawn, tensors": Contender(partial(torch_loader, context="spawn", mode="tensors"), "torch"),
    "Grain": Contender(partial(grain_loader, groups=False), "grain"),
    "SPDL, processes": Contender(partial(spdl_processes, arena=False, groups=False), "spdl"),
    "SPDL, arena": Contender(partial(spdl_processes, arena=True, groups=False), "spdl"),
    "RETURNN MultiProcDataset": Contender(returnn_dataset, "returnn"),
    "executor (spawn)": Contender(partial(process_pool, groups=False), "concurrent.futures"),
    "torch fork, numpy, groups": Contender(
        partial(torch_loader, context="fork", mode="numpy", groups=True), "torch", True
    ),
    "torch fork, collated": Contender(
        partial(torch_loader, context="fork", mode="tensors", groups=True), "torch", True
    ),
    "Grain, groups": Contender(partial(grain_loader, groups=True), "grain", True),
    "SPDL, arena, groups": Contender(partial(spdl_processes, arena=True, groups=True), "spdl", True),
    "executor (spawn), groups": Contender(partial(process_pool, groups=True), "concurrent.futures", True),
}


class Needing(Protocol):
    """A contender of any benchmark."""

    @property
    def module(self) -> str:
        """What must be installed."""


def choose(contenders: Mapping[str, Needing], wanted: list[str] | None) -> list[str]:
    """Return those that take part, by words in their names, after naming what is not installed."""
    names = [name for name in contenders if wanted is None or any(word.lower() in name.lower() for word in wanted)]
    missing = {module for name in names if importlib.util.find_spec(module := contenders[name].module) is None}
    for module in sorted(missing):
        print(f"{module} is not installed: left out (pip install headrace[bench])")
    return [name for name in names if contenders[name].module not in missing]


def has_turn(contender: Contender, name: str, kind: Kind) -> bool:
    """Tell whether a contender can carry a kind of items."""
    return not (contender.groups and kind.group == 1) and not (kind.is_dict and "collated" in name)
