"""Says what a recipe leaves out or exceeds: once for each reason, in the log, as soon as it is known.

The counts themselves are in `DataLoader.explain()` and `DataLoader.count(epoch)`.
"""

from __future__ import annotations

import logging
from dataclasses import fields, replace

from headrace.batching import PlanCounts
from headrace.ranks import Ranks

from .options import LoaderOptions, pack_of
from .streams.plan import Progress

_logger = logging.getLogger("headrace.loading")
_REASONS = ("too_long", "too_short", "last", "alone", "remainder")


class LeftOutLog:
    """What one loader has said so far.

    Args:
        name: Of the dataset.
        options: Of the loader.
    """

    def __init__(self, name: str, options: LoaderOptions) -> None:
        self._name = name
        # who packs rows by default did not ask for sequences to be cut
        self._reasons = _REASONS if pack_of(options.batching) is None else (*_REASONS, "chunked")
        self._said: set[str] = set()

    def take(self, epoch: int, progress: Progress) -> None:
        """Log what has not been said before of an epoch, as far as it is known."""
        counts = progress.counts
        new = [reason for reason in self._reasons if getattr(counts, reason) and reason not in self._said]
        if not new:
            return
        self._said.update(new)
        others = {
            field.name: 0 for field in fields(PlanCounts) if field.name in self._reasons and field.name not in new
        }
        _logger.warning(
            "%s, epoch %d, %s of %s windows planned: %s (said once; explain() counts)",
            self._name,
            epoch,
            progress.num_planned,
            progress.num_windows,
            replace(counts, **others),
        )

    def take_filtered(self, num_filtered: tuple[int, int] | None, epoch: int | None = None) -> None:
        """Log what a filter of the dataset leaves out; the user asked for it by name, so it is no warning.

        Args:
            num_filtered: How many sequences, and of how many; None: there is no filter.
            epoch: Of which epoch, if the filter is one of single epochs; None: of all.
        """
        reason = "filtered" if epoch is None else "filtered in an epoch"
        if num_filtered is None or reason in self._said:
            return
        self._said.add(reason)
        where = self._name if epoch is None else f"{self._name}, epoch {epoch}"
        further = "" if epoch is None else " (said once; explain() counts)"
        counts = map("{:,}".format, num_filtered)
        _logger.info("%s: a filter leaves out %s of %s sequences%s", where, *counts, further)

    def take_no_batch(self, epoch: int, ranks: Ranks, *, is_empty: bool) -> None:
        """Log that this rank had no batch in an epoch.

        Args:
            epoch: Its number.
            ranks: Which rank this is.
            is_empty: Whether there are no sequences at all.
        """
        if "empty" in self._said:
            return
        self._said.add("empty")
        if is_empty or ranks.world_size == 1:
            what = "sequences" if is_empty else "batches, though it has sequences; see explain()"
            _logger.warning("%s: epoch %d has no %s", self._name, epoch, what)
        else:
            _logger.warning(
                '%s: rank %d of %d has no batch in epoch %d; make batches smaller, or give remainder="pad"',
                self._name,
                ranks.rank,
                ranks.world_size,
                epoch,
            )
