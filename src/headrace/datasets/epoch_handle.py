"""`dataset.epoch`: the number of the current epoch, and the way to walk through one.

The documented classes have an attribute `epoch` (an int), which sub-classes read; `for seq in dataset.epoch(3)` is the
short way to read an epoch. One name serves both: an int that can be called. It is made afresh on each access and never
stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

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
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 1:
            raise ConfigError(f"an epoch is numbered 1, 2, ...: got {epoch!r}")
        self._dataset.init_seq_order(epoch=int(epoch))
        return _read(self._dataset, self._dataset.order_version, int(epoch))

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Pickle as the plain number."""
        return int, (int(self),)


def _read(dataset: Dataset, version: int, epoch: int) -> Iterator[DatasetSeq]:
    seq_idx = 0
    while True:
        if dataset.order_version != version:
            raise ConfigError(
                f"the iterator over epoch {epoch} is stale: the dataset has started another epoch since",
                where=f"dataset {dataset.name!r}, sequence {seq_idx}",
                fix="read one epoch to its end before the next, or use a second dataset object",
            )
        if not dataset.is_less_than_num_seqs(seq_idx):
            return
        dataset.load_seqs(seq_idx, seq_idx + 1)
        yield dataset.get_seq(seq_idx)
        seq_idx += 1
