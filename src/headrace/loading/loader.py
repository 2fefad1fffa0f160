"""`DataLoader`: planned batches, made by workers in shared memory, the same stream for any number of workers and ranks.

It joins three parts and decides nothing itself: the plan says which sequences are batch n (`plan.py`), the engine has
workers make it (`epochs.py`, `work.py`), the state says where the consumer is (`state.py`).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, NoReturn, Self

from headrace.batching import WINDOW_SEQS, Batching, BatchOrder, FixedCount, PlanCounts
from headrace.engine import EngineOptions, EngineReport, Executor, WorkerInfo
from headrace.engine.lease import MemoryWatcher
from headrace.errors import ConfigError, HeadraceError, ResumeError
from headrace.order.policy import check_count
from headrace.version import __version__

from .agreement import Agree
from .epochs import Epochs, PlannedEpochs, Recipe, StreamEpochs
from .foreign import open_subject, take_foreign
from .iteration import BatchIterator, LoaderEpoch, Place
from .options import LoaderOptions, Remainder
from .plan import EpochPlan
from .rank_check import CheckRanks, card_of, compare_cards
from .sampled import SampledBatches
from .state import FORMAT, LoaderState, digest_text
from .stream import StreamSubject, check_stream

_logger = logging.getLogger("headrace.loading")


class DataLoader:
    """Batches of a dataset, epoch by epoch. Not thread-safe.

    Batches are numbered over all ranks: from position b of an epoch, step s on rank r of R is batch `b + s * R + r`.
    Which sequences a batch has is a pure function of (data, recipe, seed, epoch); workers, ranks and restarts decide
    nothing but who makes it and when.

    Args:
        dataset: A dataset, a config of one (see `init_dataset`), a `Source`, a list, any object with `__len__` and
            `__getitem__`, or a stream (see `stream.py`): an iterable, or a dataset that does not tell its order. Its
            `seq_ordering`, `partition_epoch` and filters say what an epoch is. Items that are dicts become padded
            batches by data key, other items are stacked in their own structure.
        batching: Which sequences form a batch: `FrameBudget`, `Buckets`, `FixedCount`, `Pack`, `Chunks`, ...
        num_workers: Worker processes; 0 makes the batches in this thread, when they are asked for. Each of them reads
            all of a stream, unless the stream has workers of its own.
        seed: Of the order of batches, and of the generators that `transform` gets. The order of the dataset is not
            changed by it.
        rank: Which training process this is; found by itself under torchrun, SLURM and the like, see `find_ranks`.
        world_size: How many there are.
        remainder: What becomes of the last batches of an epoch, fewer than ranks: `"drop"`, `"pad"` (the first batches
            of the epoch once more, marked by `is_repeat`), or `"keep"` (the last ranks have one step less).
        transform: Called in a worker as `transform(seq)` or, if it has a parameter `rng`, `transform(seq, rng=
            generator)`, for each sequence (or chunk); returns the new data. The generator is keyed by (seed, epoch,
            sequence).
        collate: Makes the value that is delivered, of a list of sequences; in place of a `Batch`.
        executor: `"process"`, `"thread"` or `"inline"`.
        recipe_version: A text that you change when your own code changes what the batches hold: a state that was saved
            with another one is refused.
        steps_per_epoch: For streams only, whose length is not known: the epoch ends after so many steps on every rank.
            Where there are fewer, `remainder="pad"` repeats batches, and else it is an error.
        agree_every: Where ranks cannot know how many steps the others have, since the dataset shares itself out: before
            every so many steps they ask each other by `agree`, whether all have them. The epoch ends after the shortest
            rank, or with `remainder="pad"` after the longest.
        agree: Tells whether all ranks gave it True: `agree(flag)` is called in the thread that iterates, and waits for
            all ranks. `headrace.adapters.torch_ranks.all_agree` does it by torch.distributed.
        check_ranks: Gathers a text of each rank: `check_ranks(text)` returns those of all ranks, in their order. It is
            called once before the first batch (and once after each `load_state_dict`), to compare what the ranks are
            about to load. `headrace.adapters.torch_ranks.gather_texts` does it by torch.distributed.
        engine_options: What to do about errors, deaths and stalls.
        max_bytes: Limit on the shared memory of all workers together.
        worker_init: Called in each worker before anything else, with its `WorkerInfo`.
        batch_order: In which order batches come. Default: in that of the dataset where batches are runs of it
            (`FixedCount`, `FrameBudget`), else `BatchOrder()`: shuffled, and sorted by cost in groups, so that ranks do
            not wait for each other.
        window_seqs: How many sequences are planned at a time.
        pad_values: Data key -> what to pad with; 0 for the others.
        pad_multiple: Round the frames of padded arrays up to a multiple.
        seed_globals: Seed the global generators of Python, NumPy and torch (if loaded) for each batch, by (seed, epoch,
            batch), while it is made: for code that draws from them.
        **foreign: Torch's words: `batch_size`, `shuffle`, `sampler`, `collate_fn`, `drop_last`, `worker_init_fn`,
            `prefetch_factor`, `generator`, `timeout`, ...

    Raises:
        ConfigError: An option is wrong, unknown, or contradicts another.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batching: Batching | None = None,
        num_workers: int = 0,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        remainder: Remainder = "drop",
        transform: Callable[..., Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        executor: str | Executor = "process",
        recipe_version: str | None = None,
        steps_per_epoch: int | None = None,
        agree_every: int | None = None,
        agree: Agree | None = None,
        check_ranks: CheckRanks | None = None,
        engine_options: EngineOptions | None = None,
        max_bytes: int | None = None,
        worker_init: Callable[[WorkerInfo], None] | None = None,
        batch_order: BatchOrder | None = None,
        window_seqs: int = WINDOW_SEQS,
        pad_values: Mapping[str, Any] | None = None,
        pad_multiple: int = 1,
        seed_globals: bool = False,
        **foreign: Any,
    ) -> None:
        given = {**locals(), "pad_values": dict(pad_values or {})}
        own = {field.name: given[field.name] for field in fields(LoaderOptions)}
        order = take_foreign(own, foreign)
        self._options = options = LoaderOptions(**own)
        self._subject = subject = open_subject(dataset, order, options)
        if not subject.is_stream:
            options.check_known_steps(subject.name, subject.num_shards)
        batching = options.batching
        if batching.needs_lengths and not subject.knows_lengths(batching.data_key):
            raise ConfigError(
                f"{batching} needs the lengths of the sequences, and they are not known",
                where=subject.name,
                fix="give them (MapDataset: lengths=, or a method get_seq_len; PostprocessingDataset: "
                "map_seq_preserves_lengths=True, where it does), or use FixedCount(n)",
            )
        is_even = subject.has_even_shards and isinstance(batching, FixedCount | SampledBatches)
        self.ranks = options.find_ranks(subject.num_shards, subject.sharded_by, is_even)
        self._recipe = Recipe.of(options, subject, self.ranks)
        self._runs: Epochs
        if isinstance(subject, StreamSubject):
            check_stream(subject, options.remainder, options.steps_per_epoch, self.ranks)
            self._runs = StreamEpochs(subject, self._recipe)
        else:
            self._runs = PlannedEpochs(subject, self._recipe)
        self._epoch = 1  # the next one to be iterated over
        self._resumed: Place | None = None
        self._place = Place(1)  # where the consumer is
        self._current: weakref.ref[BatchIterator] | None = None
        self._digests_of: tuple[int, dict[str, str]] | None = None
        self._is_agreed = options.check_ranks is None
        self._is_closed = False
        self._is_watched_next = False  # whether the watcher of memory is that of the next iteration

    # --- iteration ---

    def start(self) -> None:
        """Start the workers now, so that the first iteration need not; they get ready while others do the same.

        For several loaders in one process: start each of them, and iterate then.
        """
        self._runs.engine.start()

    def __iter__(self) -> BatchIterator:
        """Begin the next epoch, or the rest of the one that was loaded; the workers begin at once."""
        return self._begin(self._epoch)

    def epochs(self, first: int | None = None, last: int | None = None) -> Iterator[LoaderEpoch]:
        """Return the epochs one after the other, each to be iterated over.

        Args:
            first: Number of the first one; None: the next. After `load_state_dict` it is the saved epoch, whatever this
                says.
            last: Number of the last one; None: for ever.
        """
        for name, value in (("first", first), ("last", last)):
            if value is not None:
                check_count("epochs", name, value, minimum=1)
        return self._epochs(first, last)

    def _epochs(self, first: int | None, last: int | None) -> Iterator[LoaderEpoch]:
        epoch = self._epoch if first is None or self._resumed is not None else first
        while last is None or epoch <= last:
            yield LoaderEpoch(epoch, self._begin, self.num_steps)
            epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is.

        A loaded position stays if it is of this epoch; else it is given up, with a warning.
        """
        self._epoch = check_count("set_epoch", "epoch", epoch, minimum=1)
        if self._resumed is not None and self._resumed.epoch != epoch:
            _logger.warning(
                "set_epoch(%d) gives up the loaded position: batch %d of epoch %d",
                epoch,
                self._resumed.position,
                self._resumed.epoch,
            )
            self._resumed = None
        if self._live() is None:
            self._place = self._resumed or Place(self._epoch)

    def _begin(self, epoch: int) -> BatchIterator:
        if self._is_closed:
            raise HeadraceError("this loader is closed", fix="make a new one")
        live = self._live()
        if live is not None:
            live.supersede("another iteration over the same loader has begun")
        place = Place(epoch)
        if self._resumed is not None and self._resumed.epoch == epoch:
            place = self._resumed
        self._agree(place)
        if not self._is_watched_next:
            self._runs.engine.watch_memory(None)
        self._is_watched_next = False
        run, arrivals = self._runs.begin(place)
        iterator = BatchIterator(
            run,
            arrivals,
            agreement=self._options.start_agreement(),
            equal_steps_of=self._options.equal_steps_of(self.ranks, self._subject.num_shards),
            on_place=self._set_place,
            data_key=self._recipe.data_key,
        )
        self._place, self._epoch, self._resumed = place, epoch + 1, None
        self._current = weakref.ref(iterator)
        return iterator

    def _agree(self, place: Place) -> None:
        """Compare with the other ranks, once; see `rank_check.py`."""
        check_ranks, options = self._options.check_ranks, self._options
        if self._is_agreed or check_ranks is None:
            return
        digests = dict(self._digests(place.epoch))
        if self._subject.num_shards > 1:
            del digests["order"]  # each rank has its own
        parts = {
            "version": __version__,
            "epoch": place.epoch,
            "position": place.position,
            "remainder": options.remainder,
            "steps_per_epoch": options.steps_per_epoch,
            "agree_every": options.agree_every,
            **digests,
        }
        compare_cards(check_ranks(card_of(parts, self.ranks)), self.ranks)
        self._is_agreed = True

    def _live(self) -> BatchIterator | None:
        iterator = None if self._current is None else self._current()
        return None if iterator is None or iterator.is_over else iterator

    def _set_place(self, place: Place) -> None:
        self._place = place

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch on this rank: of the current epoch, or else of the next.

        It plans the whole epoch, 0.1 to 1 us a sequence, once for each epoch (of a large corpus, once on each machine,
        see `kept_tables.py`); the batches come without it.
        """
        return self.num_steps(self._place.epoch)

    def num_steps(self, epoch: int, position: int = 0) -> int:
        """Return the number of steps of an epoch on this rank, from a position on."""
        return self._runs.num_steps(epoch, position)

    def _plan_of(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch whose order is known, for measurements and tests."""
        assert isinstance(self._runs, PlannedEpochs)
        return self._runs.plan_of(epoch)

    def __bool__(self) -> bool:
        """Return True: whether there is a loader is not a question about its length."""
        return True

    def count(self, epoch: int) -> PlanCounts:
        """Return what becomes of the sequences of an epoch, on all ranks: what is left out, cut, or padding.

        It plans the whole epoch, see `__len__`.
        """
        return self._runs.count(epoch)

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is: after the last batch that it got, whatever was prefetched.

        JSON data of less than 1 KB, the same on every rank between two steps. O(1), but for the first digest of a
        corpus in memory.
        """
        return self.state_at(self._place)

    def state_at(self, place: Place) -> dict[str, Any]:
        """Return the state of a place, for who reads ahead of its own consumer and knows `place` for each batch."""
        digests = self._digests(place.epoch)
        return LoaderState(FORMAT, place.epoch, place.position, place.window, digests).to_dict()

    @property
    def place(self) -> Place:
        """Where the consumer is."""
        return self._place

    @property
    def is_iterating(self) -> bool:
        """Whether there is an iterator that is not at its end."""
        return self._live() is not None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a state was saved: the next iteration gives the rest of its epoch, then the next epochs.

        The number of workers and ranks and the executor may be others; nothing is read or planned again.

        Raises:
            ResumeError: The state is of another dataset, order, batching, seed or recipe version, which is named; or it
                comes too late, after an iteration has begun.
        """
        if self._live() is not None:
            raise ResumeError(
                "load_state_dict comes too late: an iteration over this loader has begun",
                where=f"epoch {self._place.epoch}, batch {self._place.position}",
                fix="load the state before iter(loader), or finish or drop the iterator first",
            )
        loaded = LoaderState.of_dict(state)
        loaded.check_digests(self._digests(loaded.epoch))
        self._resumed = self._place = Place(loaded.epoch, loaded.position, loaded.window)
        self._epoch = loaded.epoch
        self._is_agreed = False

    def _digests(self, epoch: int) -> dict[str, str]:
        if self._digests_of is None or self._digests_of[0] != epoch:
            self._digests_of = epoch, self._make_digests(epoch)
        return self._digests_of[1]

    def _make_digests(self, epoch: int) -> dict[str, str]:
        digests = {
            "data": self._subject.data_digest()[:32],
            "order": digest_text(self._subject.order_text(epoch)),
            "batching": digest_text(self._recipe.batching_text),
            "seed": digest_text(str(self._options.seed)),
            "user": digest_text(self._options.recipe_version or ""),
        }
        if self._subject.num_shards > 1:  # a position is one in the share of a rank, so their number may not change
            digests = {"shards": str(self._subject.num_shards), **digests}
        return digests

    # --- what happens, and the end ---

    @property
    def report(self) -> EngineReport:
        """Where the time went, and what was skipped or restarted."""
        return self._runs.engine.report

    def watch_memory(self, watcher: MemoryWatcher | None) -> None:
        """Tell a watcher of the shared memory that batches come in from now on, in place of another one or of None.

        It is told until the end of the next iteration, or of the one that is under way: whoever iterates without a
        watcher of his own gets batches in ordinary memory.
        """
        self._runs.engine.watch_memory(watcher)
        self._is_watched_next = watcher is not None

    def explain(self) -> str:
        """Return a text about what is loaded, how, and what was left out so far."""
        recipe, ranks, options = self._recipe.plan, self.ranks, self._options
        agreed = "" if options.agree is None else f", steps agreed on in blocks of {options.agree_every}"
        lines = [
            f"dataset:  {self._subject.name}, order {self._subject.order_text(self._place.epoch)}",
            f"batching: {recipe.batching}, {recipe.batch_order}, windows of {recipe.window_seqs:,} sequences",
            f"ranks:    {ranks.rank} of {ranks.world_size} ({ranks.source}), remainder {options.remainder!r}{agreed}",
            f"workers:  {options.num_workers}, executor {self._engine_name()}",
            f"place:    epoch {self._place.epoch}, batch {self._place.position}",
        ]
        progress = self._runs.progress_text()
        if progress is not None:
            lines.append(progress)
        report = self.report
        total = report.seconds_waited + report.seconds_taken + report.seconds_consumer
        if report.num_delivered and total:
            share = (report.seconds_waited + report.seconds_taken) / total
            lines.append(f"time:     {report.num_delivered:,} batches, {share:.0%} of it spent waiting for them")
        if report.num_skipped or report.num_restarts:
            lines.append(f"trouble:  {report.num_skipped} skipped, {report.num_restarts} restarts of workers")
        return "\n".join(lines)

    def _engine_name(self) -> str:
        executor = self._options.executor
        if self._options.num_workers == 0:
            return "inline"
        return executor if isinstance(executor, str) else executor.name

    def close(self) -> None:
        """End the workers and close the dataset; harmless twice. Batches that were delivered stay valid."""
        self._is_closed = True
        live = self._live()
        if live is not None:
            live.supersede("its loader was closed")
        self._runs.engine.close()
        self._subject.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: workers and the place in an epoch belong to this process."""
        raise ConfigError(
            "a loader cannot be carried to another process, or copied", fix="build it there; carry its state_dict()"
        )

    def __repr__(self) -> str:
        place = f"epoch {self._place.epoch}, batch {self._place.position}"
        return f"<DataLoader of {self._subject.name}, {self._options.batching}, {place}>"
