"""Map-style datasets of plain items, and the loaders that batch them; one turn of one of them.

A turn is a process of its own, `python -m measuring.item_batches NAME CASE SECONDS`, which prints one line of JSON.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .items import KIB, MIB, NUM_VALUES
from .processes import cpu_seconds

NUM_WORKERS = 2
NUM_ITEMS = 1 << 24
_EXPENSIVE_SECONDS = 0.005
_TEXT = "one of the sentences that somebody has written down, number "


@dataclass(frozen=True)
class Case:
    """What a dataset holds, and how it is batched.

    Attributes:
        kind: "array", "tuple", "dict", "text", or "expensive", whose items tell the processor time of their making.
        batch_size: Items of a batch.
        num_bytes: Of an item.
        ahead: How many batches a worker of a peer may be ahead: enough to hide waiting, and no more than caches like.
    """

    kind: str
    batch_size: int
    num_bytes: int = 28 * 28 * 4
    ahead: int = 8


CASES = (
    {
        f"{name} x {batch_size}": Case("array", batch_size, num_bytes, ahead)
        for name, num_bytes, batch_size, ahead in (
            ("1KiB", KIB, 1, 32),
            ("1KiB", KIB, 32, 16),
            ("1KiB", KIB, 1024, 8),
            ("64KiB", 64 * KIB, 1, 32),
            ("64KiB", 64 * KIB, 32, 8),
            ("64KiB", 64 * KIB, 1024, 2),
            ("1MiB", MIB, 1, 16),
            ("1MiB", MIB, 32, 2),
            ("16MiB", 16 * MIB, 1, 2),
        )
    }
    | {
        f"{name} x {batch_size}": Case(kind, batch_size, ahead=ahead)
        for name, kind in (("image, label", "tuple"), ("dict", "dict"), ("text", "text"))
        for batch_size, ahead in ((1, 32), (32, 16), (64, 8), (1024, 2))
    }
    | {
        "expensive x 1": Case("expensive", 1, 24),
    }
)
EXPENSIVE = "expensive x 1"


class Items:
    """A map-style dataset, made in memory when it is asked.

    Args:
        case: What it holds.
        full: Makes a filled array: `full(shape, value, dtype=dtype)`, of NumPy or of torch.
        dtype: Of that library.
    """

    def __init__(self, case: Case, full: Callable[..., Any] = np.full, dtype: Any = np.float32) -> None:
        self.case, self._full, self._dtype = case, full, dtype
        self._user_seconds = 0.0

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, idx: int) -> Any:
        """Make an item."""
        kind, value = self.case.kind, idx % NUM_VALUES
        if kind == "array":
            return self._full((self.case.num_bytes // 4,), value, dtype=self._dtype)
        if kind == "tuple":
            return self._full((28, 28), value, dtype=self._dtype), value
        if kind == "dict":
            return {"image": self._full((28, 28), value, dtype=self._dtype), "label": value}
        if kind == "text":
            return f"{_TEXT}{idx}"
        return self._expensive()

    def _expensive(self) -> Any:
        """Return who has made this, the processor seconds of all calls of this so far, and those of the process."""
        start = now = time.thread_time()
        item = self._full((3,), 0.0, dtype=self._dtype)
        item[0] = os.getpid()
        while now - start < _EXPENSIVE_SECONDS:
            sum(range(1000))
            now = time.thread_time()
        process_seconds = time.process_time()
        self._user_seconds += time.thread_time() - start
        item[1], item[2] = self._user_seconds, process_seconds
        return item


def first_value(case: Case, batch: Any) -> tuple[Any, Any]:
    """Return a value of the first item of a batch, and one of the last, as the consumer of the benchmark reads them."""
    if case.kind == "text":
        return batch[0], batch[-1]
    array = batch["image"] if case.kind == "dict" else batch[0] if case.kind == "tuple" else batch
    return array[(0,) * array.ndim].item(), array[(-1,) * array.ndim].item()


def wanted_value(case: Case, idx: int) -> Any:
    """Return the value of an item that `first_value` should find."""
    return f"{_TEXT}{idx}" if case.kind == "text" else idx % NUM_VALUES


# --- the loaders: each returns batches without an end ---


def headrace(case: Case) -> Iterator[Any]:
    from headrace import DataLoader

    dtype = np.float64 if case.kind == "expensive" else np.float32
    items = Items(case, dtype=dtype)
    with DataLoader(items, batch_size=case.batch_size, num_workers=NUM_WORKERS) as loader:
        while True:
            yield from loader


def stack_numpy(items: list[Any]) -> Any:
    """Stack NumPy items, as people write it who do not want tensors."""
    first = items[0]
    if isinstance(first, tuple):
        return tuple(np.stack(column) for column in zip(*items, strict=True))
    if isinstance(first, dict):
        return {key: np.stack([item[key] for item in items]) for key in first}
    return items if isinstance(first, str) else np.stack(items)


def torch_loader(case: Case, *, tensors: bool) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader

    is_double = case.kind == "expensive"
    if tensors:
        items = Items(case, torch.full, torch.float64 if is_double else torch.float32)
    else:
        items = Items(case, dtype=np.float64 if is_double else np.float32)
    loader = DataLoader(
        items,  # type: ignore[arg-type]
        batch_size=case.batch_size,
        num_workers=NUM_WORKERS,
        prefetch_factor=case.ahead,
        persistent_workers=True,
        collate_fn=None if tensors else stack_numpy,
    )
    while True:
        yield from loader


def grain_loader(case: Case) -> Iterator[Any]:
    import grain

    items = Items(case, dtype=np.float64 if case.kind == "expensive" else np.float32)
    batches = grain.MapDataset.source(items).batch(case.batch_size, batch_fn=stack_numpy)
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=case.ahead)
    options = grain.MultiprocessingOptions(num_workers=NUM_WORKERS, per_worker_buffer_size=case.ahead)
    while True:
        yield from batches.to_iter_dataset(reading).mp_prefetch(options)


def returnn_map(case: Case) -> Any:
    from returnn.datasets.map import MapDatasetBase

    items = Items(case, dtype=np.float64 if case.kind == "expensive" else np.float32)

    class Seqs(MapDatasetBase):
        def __init__(self) -> None:
            dtype = "float64" if case.kind == "expensive" else "float32"
            super().__init__(data_types={"data": {"shape": (None,), "dtype": dtype}})

        def __len__(self) -> int:
            return 200_000  # it makes a list of them

        def __getitem__(self, idx: int) -> dict[str, np.ndarray]:
            return {"data": items[idx]}

    return Seqs()


def returnn_dataset(case: Case) -> Iterator[Any]:
    from returnn.datasets.multi_proc import MultiProcDataset

    dataset = MultiProcDataset(
        dataset={"class": "MapDatasetWrapper", "map_dataset": partial(returnn_map, case)},
        num_workers=NUM_WORKERS,
        buffer_size=max(case.ahead * case.batch_size, 2),
    )
    dataset.initialize()
    dataset.init_seq_order(epoch=1)
    for start in itertools.count(0, case.batch_size):
        dataset.load_seqs(start, start + case.batch_size)
        yield np.stack([dataset.get_data(idx, "data") for idx in range(start, start + case.batch_size)])


@dataclass(frozen=True)
class Contender:
    """One loader.

    Attributes:
        stream: Case -> endless iterator over batches.
        module: What must be installed.
        kinds: Of the cases that it can batch.
    """

    stream: Callable[[Case], Iterator[Any]]
    module: str
    kinds: tuple[str, ...] = ("array", "tuple", "dict", "text", "expensive")


CONTENDERS = {
    "headrace": Contender(headrace, "headrace"),
    "torch, NumPy": Contender(partial(torch_loader, tensors=False), "torch"),
    "torch, tensors": Contender(partial(torch_loader, tensors=True), "torch"),
    "Grain": Contender(grain_loader, "grain"),
    "RETURNN": Contender(returnn_dataset, "returnn", ("array", "expensive")),
}


# --- a turn ---


def consume(batches: Iterator[Any], case: Case, idx: int, seconds: float) -> tuple[int, float, float]:
    """Consume for so many seconds; return the index after the last item, the seconds, and this process's own."""
    start_cpu = time.process_time()
    start = now = time.perf_counter()
    size = case.batch_size
    while now - start < seconds:
        for batch in itertools.islice(batches, 8):
            if first_value(case, batch) != (wanted_value(case, idx), wanted_value(case, idx + size - 1)):
                raise AssertionError(f"the batch from item {idx} is wrong: {first_value(case, batch)}")
            idx += size
        now = time.perf_counter()
    return idx, now - start, time.process_time() - start_cpu


def measure(batches: Iterator[Any], case: Case, seconds: float) -> dict[str, float]:
    """Count batches, after some for the caches."""
    idx, _, _ = consume(batches, case, case.batch_size, min(seconds, 0.3))
    workers = cpu_seconds() - time.process_time()
    end, took, own = consume(batches, case, idx, seconds)
    workers = cpu_seconds() - time.process_time() - workers
    num_batches = (end - idx) / case.batch_size
    return {
        "items": (end - idx) / took,
        "batches": num_batches / took,
        "trainer_us": own / num_batches * 1e6,
        "workers_us": workers / num_batches * 1e6,
    }


def measure_share(batches: Iterator[Any], seconds: float) -> dict[str, float]:
    """Return the share of the workers' processor time that the user's function took."""
    rows: dict[float, list[tuple[float, float]]] = {}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        pid, user_seconds, process_seconds = np.asarray(next(batches))[0].tolist()
        rows.setdefault(pid, []).append((user_seconds, process_seconds))
    spans = [np.subtract(of_one[-1], of_one[0]) for of_one in rows.values()]
    user_seconds, process_seconds = np.sum(spans, axis=0).tolist()
    return {"user_share": user_seconds / process_seconds}


def main() -> None:
    name, case_name, seconds = sys.argv[1:]
    contender, case = CONTENDERS[name], CASES[case_name]
    importlib.import_module(contender.module)
    batches = contender.stream(case)
    next(batches)  # the start is not the question here
    if case.kind == "expensive":
        result = measure_share(batches, float(seconds))
    else:
        result = measure(batches, case, float(seconds))
    print(json.dumps(result), flush=True)
    batches.close()  # type: ignore[attr-defined]  # they are generators; else workers of torch keep the output open
    os._exit(0)


if __name__ == "__main__":
    main()
