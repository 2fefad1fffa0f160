"""What a contender of the loader benchmark can be asked for, the work of the expensive setting, and who takes part.

Every contender brings padded batches of the same corpus from two workers, within the same budget of frames where it has
one, and all but RETURNN read sequences with the same code, `HDFSource`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import timeit
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loader_corpora import Corpus

NUM_WORKERS = 2
AHEAD = 8  # batches that a worker may be ahead, for who lets one say: more gained nothing for any of them
WORLD_SIZE = 8
Batch = tuple[Any, Any]  # data[B, T, D] and lengths[B], NumPy or torch
Saved = tuple[Any, list[int]]  # a state, and the lengths of the batch that comes next


class Contender(ABC):
    """One way from a file to padded batches."""

    @abstractmethod
    def stream(self, corpus: Corpus, *, is_dear: bool) -> Iterator[Batch]:
        """Yield batches without an end, epoch after epoch; closing the iterator ends the workers."""

    @abstractmethod
    def rank_lengths(self, corpus: Corpus, rank: int) -> Iterator[NDArray[Any]]:
        """Yield the lengths of each batch of an epoch that one of `WORLD_SIZE` ranks gets, in order, read or not."""

    def save(self, corpus: Corpus, shares: Sequence[float]) -> list[Saved] | None:
        """Return states at some shares of an epoch; None if there are none within an epoch."""
        del corpus, shares
        return None

    def resume(self, corpus: Corpus, state: Any) -> Iterator[Batch]:
        """Yield the batches after a state."""
        raise NotImplementedError


# title -> module here, its class, arguments, packages that are needed
CONTENDERS: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "Headrace": ("loader_ours", "Ours", {}, ("headrace",)),
    "torch, tensors": ("loader_torch", "Torch", {}, ("torch",)),
    "torch, NumPy": ("loader_torch", "Torch", {"makes_tensors": False}, ("torch",)),
    "RETURNN, MultiProcDataset": ("loader_returnn", "Returnn", {"shards_loader": False}, ("torch", "returnn")),
    "RETURNN, 2 loader workers": ("loader_returnn", "Returnn", {"shards_loader": True}, ("torch", "returnn")),
    "Lhotse": ("loader_lhotse", "Lhotse", {}, ("torch", "lhotse")),
    "Grain, equal counts": ("loader_grain", "Grain", {"lists_batches": False}, ("grain",)),
    "Grain, listed batches": ("loader_grain", "Grain", {"lists_batches": True}, ("torch", "grain")),
}
OURS = "Headrace"
QUICK = (OURS, "torch, tensors", "RETURNN, 2 loader workers", "Lhotse", "Grain, listed batches")


def missing_packages(title: str) -> list[str]:
    """Return what a contender needs and is not installed."""
    return [name for name in CONTENDERS[title][3] if importlib.util.find_spec(name) is None]


def open_contender(title: str) -> Contender:
    """Import what a contender needs, and make it."""
    module, name, arguments, _ = CONTENDERS[title]
    contender = getattr(importlib.import_module(f".{module}", __package__), name)(**arguments)
    assert isinstance(contender, Contender)
    return contender


_NOISE = np.random.default_rng(4).random(1 << 15, dtype=np.float32)
DEAR_VARIABLE = "LOADER_BENCHMARK_PIECES"  # pieces of work for a sequence, as the parent of the turns found out


def dear_work(data: NDArray[Any]) -> NDArray[Any]:
    """Do a fixed amount of NumPy work, and return the data as they are.

    It does not depend on the length, so that a contender that begins with short sequences has no advantage.
    """
    do_pieces(int(os.environ[DEAR_VARIABLE]))
    return data


def do_pieces(number: int) -> None:
    """Filter a piece of noise so many times, in one thread."""
    for _ in range(number):
        np.fft.irfft(np.fft.rfft(_NOISE) * 2)


def count_pieces(seconds: float) -> int:
    """Return how many pieces take about so long on this machine when it is quiet."""
    fastest = min(timeit.repeat(partial(do_pieces, 1), number=4, repeat=25)) / 4
    return max(round(seconds / fastest), 1)
