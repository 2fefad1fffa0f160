"""The sequences of a dataset as a pipe."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.datasets import Dataset, DatasetSeq

from .base import IterPipe, State


class FromDataset(IterPipe[DatasetSeq]):
    """Give the sequences of a dataset, in the order that it has in an epoch.

    The epochs of the pipe are those of the dataset: the first is `first_epoch`, then one more each time. A seed that
    is set does not change them: a dataset's order has a seed of its own.

    Args:
        dataset: Any dataset with the epoch API.
        first_epoch: The number of the first epoch.
    """

    def __init__(self, dataset: Dataset, first_epoch: int = 1) -> None:
        self.dataset = dataset
        self.first_epoch = first_epoch
        self._epoch = first_epoch - 1
        self._num_given = 0

    def reset(self) -> None:
        self._epoch += 1
        self._num_given = 0

    def set_number(self, number: int) -> None:
        """Let the next iteration be the epoch of a number, see `set_epoch`."""
        self._epoch = number - 1

    def __iter__(self) -> Iterator[DatasetSeq]:
        dataset, seq_idx = self.dataset, self._num_given
        dataset.init_seq_order(epoch=self._epoch)
        version = dataset.order_version
        while dataset.is_less_than_num_seqs(seq_idx):
            dataset.load_seqs(seq_idx, seq_idx + 1)
            seq = dataset.get_seq(seq_idx)
            seq_idx = self._num_given = seq_idx + 1
            yield seq
            if dataset.order_version != version:
                raise RuntimeError(f"dataset {dataset.name!r} was given another epoch while a pipe reads it")

    def state(self) -> State:
        return {"epoch": self._epoch, "num_given": self._num_given}

    def restore(self, state: State) -> None:
        self._epoch, self._num_given = state["epoch"], state["num_given"]
