"""`BatchSetGenerator`: the batches of one epoch, with a look ahead.

`batch.py` says what a batch is, `batch_planning.py` which batches an epoch has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from headrace.errors import ConfigError
from headrace.rng import derive_seed

from .batch import Batch, BatchSeqCopyPart
from .batch_planning import BatchPlan, BatchReport, plan_batches
from .walk import check_not_stale

__all__ = ["Batch", "BatchPlan", "BatchReport", "BatchSeqCopyPart", "BatchSetGenerator", "plan_batches"]


class BatchSetGenerator:
    """The batches of the epoch that is active now.

    It ends with the epoch: reading a batch after another epoch was started is a `ConfigError`.

    Args:
        dataset: For the progress.
        generator: The batches.
        shuffle_batches: Shuffle them on `reset`. The shuffle is keyed by the epoch and the number of resets; Python's
            global generator is not touched. (RETURNN seeds it.)

    Examples:
        >>> import headrace as hr
        >>> with hr.StaticDataset([{"data": [1.0, 2.0]}, {"data": [3.0]}]) as dataset:
        ...     started = dataset.init_seq_order(epoch=1)
        ...     batches = dataset.generate_batches(batch_size=10, max_seqs=1)
        ...     while batches.has_more():
        ...         (batch,) = batches.peek_next_n(1)
        ...         print(batch.start_seq, batch.get_num_seqs())
        ...         batches.advance(1)
        0 1
        1 1
    """

    def __init__(self, dataset: Any, generator: Iterator[Batch], shuffle_batches: bool = False) -> None:
        self._dataset = dataset
        self._version = dataset.order_version
        self._generator = generator
        self._is_drained = False
        self._shuffle = shuffle_batches
        self._keeps_all = dataset.batch_set_generator_cache_whole_epoch()
        self._kept: list[Batch] = []
        self._ahead: list[Batch] = []
        self._num_resets = 0
        self._batch_idx = 0
        self._last_seq_idx = -1

    @property
    def report(self) -> BatchReport:
        """What was left out of the batches so far, and which rows are larger than the budget."""
        return self._generator.report if isinstance(self._generator, BatchPlan) else BatchReport()

    def _check_not_stale(self) -> None:
        check_not_stale(self._dataset, self._version, "this batch generator", where=f"after batch {self._batch_idx}")

    def _read_ahead(self, num_batches: int) -> None:
        if self._is_drained and not self._ahead:
            return  # also right when the epoch is over: nothing is left
        self._check_not_stale()
        while len(self._ahead) < num_batches and not self._is_drained:
            batch = next(self._generator, None)
            if batch is not None:
                self._ahead.append(batch)
                if self._keeps_all:
                    self._kept.append(batch)
            self._is_drained = batch is None or (isinstance(self._generator, BatchPlan) and self._generator.at_end)

    def has_more(self) -> bool:
        """Whether a batch is left. May load.

        Raises:
            ConfigError: Another epoch was started before the end of this one. `peek_next_n` and `advance` likewise.
        """
        self._read_ahead(1)
        return bool(self._ahead)

    def peek_next_n(self, num_batches: int) -> list[Batch]:
        """Return up to n next batches without passing them."""
        self._read_ahead(num_batches)
        return self._ahead[:num_batches]

    def advance(self, num_batches: int) -> None:
        """Pass n batches.

        Raises:
            ConfigError: Fewer are left.
        """
        self._read_ahead(num_batches)
        if len(self._ahead) < num_batches:
            raise ConfigError(f"advance({num_batches}), but only {len(self._ahead)} batches are left")
        for batch in self._ahead[:num_batches]:
            self._last_seq_idx = max(self._last_seq_idx, (batch.end_seq or 0) - 1)
        del self._ahead[:num_batches]
        self._batch_idx += num_batches

    def reset(self) -> None:
        """Go back to the first batch, in a new order if batches are shuffled.

        Raises:
            ConfigError: The dataset does not allow batches to be kept, or another epoch was started.
        """
        if not self._keeps_all:
            raise ConfigError(
                f"{type(self._dataset).__name__} reads in order, so its batches cannot be reset",
                fix="start the epoch again and call generate_batches",
            )
        self._check_not_stale()
        self._kept.extend(self._generator)  # all of them: a reset in mid-epoch must not lose the rest
        self._is_drained = True
        self._num_resets += 1
        self._ahead = list(self._kept)
        if self._shuffle:
            seed = derive_seed(self._num_resets, "shuffle_batches", epoch=int(self._dataset.epoch))
            random.Random(seed).shuffle(self._ahead)  # noqa: S311 (an order, not a secret)
        self._batch_idx, self._last_seq_idx = 0, -1

    def get_current_batch_idx(self) -> int:
        """Return how many batches were passed."""
        return self._batch_idx

    def completed_frac(self) -> float:
        """Return how much of the epoch was passed, in [0, 1]; 1 once no batch is left.

        Raises:
            ConfigError: Another epoch was started before the end of this one.
        """
        if self._is_drained and not self._ahead:
            return 1.0
        self._check_not_stale()
        if self._keeps_all and self._num_resets:
            return self._batch_idx / len(self._kept)
        return 0.0 if self._last_seq_idx < 0 else self._dataset.get_complete_frac(self._last_seq_idx) or 0.0
