"""Batches from workers to a GPU: from where a worker wrote, by way of page-locked memory, and from pageable memory.

Run `python benchmarks/device.py` (`--quick` for a few seconds) on a machine with a CUDA device; on others it says that
there is none and measures nothing. "in place" is what `to_device` does: the workers' memory is page-locked once, and
the device reads from there. "staged" copies each batch into page-locked memory of torch's first, which is what
`pin_memory` means elsewhere. "pageable" is `tensor.to("cuda")`, which waits for each copy.

Shown are, for one batch that is copied again and again, GB/s; and for a whole loader with two workers, which write each
batch once, GB/s, and the milliseconds of processor time in the training process for each batch. Medians of the repeats.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headrace import StaticDataset
from headrace.batching import FixedCount
from headrace.loading import DataLoader

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

WAYS = ("in place", "staged", "pageable")
MIB = 1 << 20


class Fill:
    """A transform that makes an array of so many bytes, for each sequence.

    Args:
        num_bytes: Of each batch.
    """

    def __init__(self, num_bytes: int) -> None:
        self._shape = (num_bytes // 1024, 256)

    def __call__(self, seq: dict[str, Any]) -> dict[str, Any]:
        """Return the array."""
        return {"data": np.full(self._shape, seq["data"][0], np.float32)}


def open_loader(num_bytes: int, num_batches: int) -> DataLoader:
    """Return a loader with a sequence a batch."""
    seqs = [{"data": np.full(1, number, np.float32)} for number in range(num_batches)]
    return DataLoader(StaticDataset(seqs), batching=FixedCount(1), num_workers=2, transform=Fill(num_bytes))


def epochs_of(way: str, loader: DataLoader) -> Iterator[Iterator[Any]]:
    """Yield epochs: the tensors on the device."""
    from headrace.adapters.torch import CudaCopier, DeviceLoader, TorchLoader

    if way == "pageable":
        while True:
            yield (batch["data"].to("cuda") for batch in TorchLoader(loader))
    batches = DeviceLoader(loader, CudaCopier(torch.device("cuda"), in_place=way == "in place"))
    while True:
        yield (batch["data"] for batch in batches)


def measure_loader(way: str, num_bytes: int, num_batches: int, repeats: int) -> tuple[float, float]:
    """Return GB/s and milliseconds of processor time a batch, of epochs after a first one."""
    rates, costs = [], []
    with open_loader(num_bytes, num_batches) as loader:
        for repeat, tensors in zip(range(repeats + 1), epochs_of(way, loader), strict=False):
            total = torch.zeros((), device="cuda")
            torch.cuda.synchronize()
            start, cpu = time.perf_counter(), time.process_time()
            for tensor in tensors:
                total += tensor[0, 0, 0]
            assert float(total) == num_batches * (num_batches - 1) / 2, "something else came"
            if repeat:
                rates.append(num_bytes * num_batches / (time.perf_counter() - start) / 1e9)
                costs.append(1e3 * (time.process_time() - cpu) / num_batches)
    return statistics.median(rates), statistics.median(costs)


def measure_copies(way: str, num_bytes: int, num_copies: int, repeats: int) -> float:
    """Return GB/s of copies of one batch of a worker."""
    from headrace.adapters.torch import CudaCopier

    copier = CudaCopier(torch.device("cuda"), in_place=way == "in place")
    with open_loader(num_bytes, 1) as loader:
        loader.watch_memory(copier.memory)
        tensor = torch.from_numpy(next(iter(loader))["data"])
        assert tensor.is_pinned() == (way == "in place")
        copy: Callable[..., Any] = copier.copy if way != "pageable" else (lambda tensor: tensor.to("cuda"))
        rates = []
        for _ in range(repeats + 1):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(num_copies):
                copy(tensor)
            torch.cuda.synchronize()
            rates.append(num_bytes * num_copies / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        missing = "PyTorch is not installed" if torch is None else "there is no CUDA device here"
        print(f"{missing}: nothing was measured.")
        sys.exit(0)
    repeats = 2 if options.quick else 5
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("| batch | way | one batch, GB/s | loader, GB/s | processor, ms a batch |\n|---|---|---|---|---|")
    for size in (16,) if options.quick else (1, 16, 64):
        num_batches = max(32, 1024 // size)
        for way in WAYS:
            copies = measure_copies(way, size * MIB, num_batches, repeats)
            rate, cost = measure_loader(way, size * MIB, num_batches, repeats)
            print(f"| {size} MiB | {way} | {copies:.1f} | {rate:.1f} | {cost:.2f} |", flush=True)


if __name__ == "__main__":
    main()
