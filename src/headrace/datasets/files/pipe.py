"""`SingleStreamPipeDataset`: a dataset that another thread feeds."""

from __future__ import annotations

import queue
from typing import Any, NoReturn

from numpy.typing import NDArray

from headrace.errors import ConfigError

from ..cached2 import CachedDataset2
from ..seq import DatasetSeq

_MAX_WAITING = 1000  # sequences: the producer then waits for the consumer


class SingleStreamPipeDataset(CachedDataset2):
    """Sequences that a producer thread hands over one by one, under the one data key "data".

    The producer calls `producer_add_data` for each sequence and `producer_set_finished` at the end. The consumer reads
    one epoch, and waits where the producer is behind; a producer that is far ahead waits for the consumer.

    Args:
        dim: Size of a frame, or number of classes.
        ndim: Axes of an array, time included.
        sparse: Whether values are class indices.
        dtype: Dtype of the arrays.

    Examples:
        >>> import numpy as np
        >>> from headrace.datasets import SingleStreamPipeDataset
        >>> dataset = SingleStreamPipeDataset(dim=2, ndim=2)
        >>> dataset.producer_add_data(np.zeros((3, 2), np.float32), seq_tag="a")
        >>> dataset.producer_set_finished()
        >>> [(seq.seq_tag, seq["data"].shape) for seq in dataset.epoch(1)]
        [('a', (3, 2))]
    """

    def __init__(self, dim: int, ndim: int, sparse: bool = False, dtype: str = "float32") -> None:
        super().__init__()
        self.num_inputs = dim
        self.num_outputs = {"data": (dim, ndim)}
        self.sparse = sparse
        self.dtype = dtype
        self._waiting: queue.Queue[tuple[NDArray[Any], str | None] | None] = queue.Queue(_MAX_WAITING)
        self._finished = False

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied: what the producer hands over comes here.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("it is fed by a thread of this process", where=f"dataset {self.name!r}")

    def producer_add_data(self, data: NDArray[Any], seq_tag: str | None = None) -> None:
        """Hand over a sequence, `dtype[T, ...]`; called by the producer.

        Raises:
            ConfigError: The array does not fit the declared layout, or the stream was finished.
        """
        dim, ndim = self._num_output("data")
        if self._finished:
            raise ConfigError("the stream was finished already", where=f"dataset {self.name!r}")
        if data.dtype != self.dtype or data.ndim != ndim or (not self.sparse and ndim > 1 and data.shape[-1] != dim):
            raise ConfigError(
                f"data is {data.dtype}{list(data.shape)}, but {self.dtype} with {ndim} axes and dim {dim} was declared",
                where=f"dataset {self.name!r}, sequence {seq_tag!r}",
            )
        self._waiting.put((data, seq_tag))

    def producer_set_finished(self) -> None:
        """Say that no more sequences follow; called by the producer."""
        self._finished = True
        self._waiting.put(None)

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        self._num_output(key)
        return self.sparse

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        self._num_output(key)
        return self.dtype

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        item = self._waiting.get()
        if item is None:
            self._waiting.put(None)  # the end stays the end
            return None
        data, tag = item
        return DatasetSeq(seq_idx, data, seq_tag=tag)
