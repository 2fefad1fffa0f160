"""`dataset.epoch`: the number of the current epoch, and the way to walk through one.

The documented classes have an attribute `epoch` (an int), which sub-classes read; `for seq in dataset.epoch(3)` is the
short way to read an epoch. One name serves both: an int that can be called. It is made afresh on each access and never
stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

from .checks import check_count
from .seq import DatasetSeq

if TYPE_CHECKING:
    from .base import Dataset


class EpochHandle(int):
    """The current epoch number, 0 if none is active; call it with a number to read that epoch."""

    _dataset: Dataset

    @classmethod
    def of(cls, dataset: Dataset, number: int | None) -> EpochHandle:
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
        return self._dataset.iterate_epoch()

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Pickle as the plain number."""
        return int, (int(self),)


def check_not_stale(dataset: Dataset, version: int, reader: str, *, where: str) -> None:
    """Refuse to go on reading an epoch that is over: what came next would be of another one.

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
