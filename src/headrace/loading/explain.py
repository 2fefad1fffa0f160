"""Says what a loader loads, how, and what a recipe leaves out or exceeds.

What is left out is logged once for each reason, as soon as it is known; `DataLoader.explain()` and
`DataLoader.count(epoch)` have all counts.
"""

from __future__ import annotations

import logging
from dataclasses import fields, replace

from headrace.batching import PlanCounts
from headrace.ranks import Ranks

from .epochs import Epochs, Recipe
from .inputs import Subject
from .iterate import BatchIterator, LoaderPosition
from .loader_ranks import LoaderRanks

_logger = logging.getLogger("headrace.loading")
_REASONS = ("too_long", "too_short", "last", "alone", "remainder")


class Explainer:
    """Logs and explains what a loader does; remembers what was logged.

    Args:
        subject: What is loaded.
        recipe: How.
        runs: Its epochs.
        ranks: Ranks of the loader.
    """

    def __init__(self, subject: Subject, recipe: Recipe, runs: Epochs, ranks: LoaderRanks) -> None:
        self._subject, self._recipe, self._runs, self._ranks = subject, recipe, runs, ranks
        self._said: set[str] = set()

    def log_left_out(self) -> None:
        """Log what the last epoch drops or cuts, once for each reason."""
        epoch, progress = self._runs.progress()
        counts = progress.counts
        # who packs rows by default did not ask for sequences to be cut
        reasons = (*_REASONS, "chunked") if self._recipe.plan.batching.shares_rows else _REASONS
        new = [reason for reason in reasons if getattr(counts, reason) and reason not in self._said]
        if not new:
            return
        self._said.update(new)
        others = {field.name: 0 for field in fields(PlanCounts) if field.name in reasons and field.name not in new}
        _logger.warning(
            "%s, epoch %d, %s of %s windows planned: %s (logged once; explain() has the counts)",
            self._subject.name,
            epoch,
            progress.num_planned,
            progress.num_windows,
            replace(counts, **others),
        )

    def log_filtered(self) -> None:
        """Log what a filter removes from the dataset, once; as info, since the user asked for it."""
        counts = self._subject.corpus.num_filtered()
        if counts is not None and "filtered" not in self._said:
            self._said.add("filtered")
            _logger.info("%s: a filter leaves out %s of %s sequences", self._subject.name, *map("{:,}".format, counts))

    def log_event(self, iterator: BatchIterator) -> None:
        """Log what is known by the first batch of an iterator, or by its end."""
        self.log_left_out()
        begun = iterator.begun
        if begun is not None and iterator.is_over and not iterator.has_delivered and not begun.position.position:
            self.log_no_batch(begun.position.epoch, begun.ranks)

    def log_no_batch(self, epoch: int, ranks: Ranks) -> None:
        """Log that this rank had no batch in an epoch.

        Args:
            epoch: Its number; it is the one that was begun last, and is over.
            ranks: Which rank this is.
        """
        if "empty" in self._said:
            return
        self._said.add("empty")
        name, is_empty = self._subject.name, self._runs.is_empty()
        if is_empty or ranks.world_size == 1:
            what = "sequences" if is_empty else "batches, though it has sequences; see explain()"
            _logger.warning("%s: epoch %d has no %s", name, epoch, what)
        else:
            _logger.warning(
                '%s: rank %d of %d has no batch in epoch %d; make batches smaller, or give remainder="pad"',
                name,
                ranks.rank,
                ranks.world_size,
                epoch,
            )

    def explain(self, position: LoaderPosition, left: LoaderPosition | None = None) -> str:
        """Return a text that describes what is loaded and how, and what was dropped so far.

        Args:
            position: Where the consumer is.
            left: Where an epoch was left before its end, if one was.
        """
        subject, options, plan = self._subject, self._recipe.options, self._recipe.plan
        agreed = "" if options.agree is None else f", steps agreed on in blocks of {options.agree_every}"
        grows = " or more" if plan.grows else ""
        is_dealt = self._runs.last_step is not None
        remainder = "sequences are dealt" if is_dealt else f"remainder {options.remainder!r}"
        executor = options.executor if isinstance(options.executor, str) else options.executor.name
        lines = [
            f"dataset:  {subject.name}, order {self._recipe.order_text(subject, position.epoch)}",
            f"batching: {plan.batching}, {plan.batch_order}, windows of {plan.window_seqs:,} sequences{grows}",
            f"ranks:    {self._ranks}, {remainder}{agreed}",
            f"workers:  {self._runs.who_works}, executor {executor if options.num_workers else 'inline'}",
            f"position: epoch {position.epoch}, batch {position.position}",
        ]
        if left is not None:
            lines.append(f"left:     epoch {left.epoch} before batch {left.position}: the rest of it did not come")
        epoch, progress = self._runs.progress()
        counts = subject.corpus.num_filtered()
        if counts is not None:
            lines.append(f"filter:   {counts[0]:,} of {counts[1]:,} sequences are left out")
        if subject.corpus.encodes_texts:
            lines.append(
                "texts:    each epoch encodes them again; `headrace convert` with the same options stores them encoded"
            )
        if progress.num_planned:
            of_all = f"{progress.num_planned} of {progress.num_windows} windows planned"
            lines.append(f"epoch {epoch}: {of_all}: {progress.counts}")
        report = self._runs.engine.report
        total = report.seconds_waited + report.seconds_taken + report.seconds_consumer
        if report.num_delivered and total:
            share = (report.seconds_waited + report.seconds_taken) / total
            lines.append(
                f"time:     {report.num_delivered:,} batches; {share:.0%} of the time was spent waiting for them"
            )
        if report.num_skipped or report.num_restarts:
            lines.append(f"errors:   {report.num_skipped} skipped, {report.num_restarts} restarts of workers")
        return "\n".join(lines)
