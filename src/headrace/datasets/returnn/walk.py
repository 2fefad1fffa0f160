"""Iterates over an epoch, sequence by sequence (`dataset.epoch(3)`) and by chunks of sequences.

RETURNN's classes have an attribute `epoch` (an int), which sub-classes read; `for seq in dataset.epoch(3)` is the
short way to read an epoch. One name serves both: an int that can be called. It is made afresh on each access and never
stored. A dataset may be any object with the epoch API.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.batching import Chunking, NumbersDict, plan_chunks, vary_chunking
from headrace.errors import ConfigError

from ..checks import check_count
from ..seq import DatasetSeq


class EpochHandle(int):
    """The current epoch number, 0 if none is active; call it with a number to read that epoch."""

    _dataset: Any

    @classmethod
    def of(cls, dataset: Any, number: int | None) -> EpochHandle:
        """Return the handle of a dataset whose current epoch is `number`."""
        handle = cls(number or 0)
        handle._dataset = dataset
        return handle

    def __call__(self, epoch: int) -> Iterator[DatasetSeq]:
        """Start an epoch and return an iterator over its sequences, in order.

        Starting another epoch ends this iterator: its next step raises `ConfigError`.

        Args:
            epoch: The epoch number, 1, 2, ...; with `partition_epoch > 1` it counts sub-epochs.

        Raises:
            ConfigError: The number is not a positive integer.
        """
        number = check_count("an epoch is numbered 1, 2, ...; epoch", epoch, minimum=1)
        self._dataset.init_seq_order(epoch=number)
        epoch_of: Iterator[DatasetSeq] = self._dataset.iterate_epoch()
        return epoch_of

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Pickle as the plain number."""
        return int, (int(self),)


def check_not_stale(dataset: Any, version: int, reader: str, *, where: str) -> None:
    """Refuse to go on reading an epoch that is over: the next sequence would be one of another epoch.

    Args:
        dataset: What is read.
        version: Its `order_version` when the reader was made.
        reader: What is stale, for the message.
        where: How far it came, for the message.

    Raises:
        ConfigError: The dataset has ended that epoch, or started another, since.
    """
    if dataset.order_version != version:
        raise ConfigError(
            f"{reader} is stale: the dataset has ended its epoch, or started another, since",
            where=f"dataset {dataset.name!r}, {where}",
            fix="read one epoch to its end before the next, or use a second dataset object",
        )


Chunk = tuple[int, NumbersDict, NumbersDict]


class ChunkWalk(Iterator[Chunk]):
    """(seq_idx, start, end) for each chunk of the epoch that is active now, see `Dataset.iterate_seqs`.

    A chunking function of the user is called once as `f(dataset=, seq_idx_start=, recurrent_net=, used_data_keys=)` and
    yields the same triples. A walk ends with the epoch: a step after another one was started is a `ConfigError`.

    Attributes:
        rng: Made afresh from the seed of the epoch, so that every walk through an epoch has the same chunks. Drawn
            from once a sequence for `chunking_variance`, which applies if `used_data_keys` are given, and, by batching,
            once a chunk for `seq_drop`. The two share it as in RETURNN, so varied chunks in batches are not those of a
            bare walk.
    """

    def __init__(self, dataset: Any, *, recurrent_net: bool, used_data_keys: Sequence[str] | None) -> None:
        self._dataset = dataset
        self._version = dataset.order_version
        self._last_seq_idx = -1
        self.rng = epoch_rng(dataset)
        chunking = dataset.chunking
        if chunking is None or isinstance(chunking, Chunking):
            self._chunks = _chunks(dataset, chunking if recurrent_net else None, used_data_keys, self.rng)
        else:
            self._chunks = chunking(
                dataset=dataset, seq_idx_start=0, recurrent_net=recurrent_net, used_data_keys=used_data_keys
            )

    def __next__(self) -> Chunk:
        """Return the next chunk. May load its sequence.

        Raises:
            ConfigError: The epoch is not active any more.
        """
        check_not_stale(self._dataset, self._version, "this walk", where=f"after sequence {self._last_seq_idx}")
        chunk = next(self._chunks)
        self._last_seq_idx = chunk[0]
        return chunk


iterate_chunks = ChunkWalk


def epoch_rng(dataset: Any) -> random.Random:
    """Return a new generator, seeded for the current epoch."""
    return random.Random(dataset.get_random_seed_for_epoch(int(dataset.epoch) or None))  # noqa: S311 (RETURNN's)


def _chunks(
    dataset: Any, chunking: Chunking | None, used_data_keys: Sequence[str] | None, rng: random.Random
) -> Iterator[Chunk]:
    seq_idx = 0
    while dataset.is_less_than_num_seqs(seq_idx):
        lengths = dataset.get_seq_length(seq_idx)
        if chunking is None:
            yield seq_idx, NumbersDict.constant_like(0, lengths), lengths
        else:
            varied = chunking
            if dataset.chunking_variance and used_data_keys is not None:  # RETURNN's rule
                varied = vary_chunking(chunking, dataset.chunking_variance, rng.random())
            for start, end in plan_chunks(lengths, varied, dataset.min_chunk_size, used_data_keys):
                yield seq_idx, start, end
        seq_idx += 1
