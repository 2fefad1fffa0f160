"""What batching leaves out of an epoch: counted, and said once.

Limits such as `max_seq_length` are meant to leave something out; how much that is must not stay unknown.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .base import Dataset

Kind = Literal["too_long", "too_short", "dropped", "alone"]
_logger = logging.getLogger("headrace.datasets")


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What happened to chunks (whole sequences, if there is no chunking) that are not in a batch like any other.

    Attributes:
        num_too_long: Left out by `max_seq_length`.
        num_too_short: Left out by `min_seq_length`.
        num_dropped: Left out by `seq_drop`.
        num_alone: In a batch of their own, because one row is more than `batch_size` or `packed_batch_size`.
        first_too_long: Tag of the first such sequence, `None` if there was none.
        first_too_short: Likewise.
        first_dropped: Likewise.
        first_alone: Likewise.
    """

    num_too_long: int = 0
    num_too_short: int = 0
    num_dropped: int = 0
    num_alone: int = 0
    first_too_long: str | None = None
    first_too_short: str | None = None
    first_dropped: str | None = None
    first_alone: str | None = None

    @property
    def num_left_out(self) -> int:
        """Chunks that are in no batch."""
        return self.num_too_long + self.num_too_short + self.num_dropped


class BatchTally:
    """Counts for the report of one epoch; the first of each kind is also logged.

    Attributes:
        report: What was counted so far.
        at_end: Whether all chunks of the epoch were seen.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.report = BatchReport()
        self.at_end = False

    def count(self, kind: Kind, seq_idx: int, what: str) -> None:
        """Count a chunk of a sequence that is loaded now; `what` says what becomes of it, and why."""
        number: int = getattr(self.report, f"num_{kind}") + 1
        changes: dict[str, Any] = {f"num_{kind}": number}
        if number > 1:
            self.report = dataclasses.replace(self.report, **changes)
            return
        tag = self._dataset.get_tag(seq_idx)
        changes[f"first_{kind}"] = tag
        self.report = dataclasses.replace(self.report, **changes)
        _logger.warning(
            "dataset %r, epoch %d: sequence %r %s; more of this kind are only counted, see BatchSetGenerator.report",
            self._dataset.name,
            int(self._dataset.epoch),
            tag,
            what,
        )
