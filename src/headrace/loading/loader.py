"""`DataLoader`: planned batches, made by workers in shared memory, the same stream for any number of workers and ranks.

It joins three parts and decides nothing itself: the plan says which sequences are batch n (`plan.py`), the engine has
workers make it (`epochs.py`, `work.py`), the state says where the consumer is (`state.py`).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn, Self

from headrace.batching import Batching, BatchOrder, PlanCounts
from headrace.engine import EngineOptions, EngineReport, Executor, WorkerInfo
from headrace.engine.memory.lease import MemoryWatcher
from headrace.errors import ConfigError, HeadraceError, ResumeError, check_count
from headrace.ranks import Ranks
from headrace.rng.process import kept_globals
from headrace.show.card import Card, Shown, layout_of
from headrace.version import __version__

from .epochs import Epochs, PlannedEpochs, Recipe
from .explain import Explainer
from .iterate import BatchIterator, Begun, Consumer, LoaderEpoch, LoaderPosition
from .loader_ranks import LoaderRanks, compare_cards, fingerprint
from .opening import open_subject
from .options import CheckRanks, LoaderOptions, Remainder
from .shapes import MAX_BATCHES, BatchShapes
from .state import FORMAT, LoaderState
from .steps import Agree
from .streams.epochs import StreamEpochs
from .streams.input import StreamSubject
from .torch_args import NOT_GIVEN, NotGiven, take_foreign

_logger = logging.getLogger("headrace.loading")


class DataLoader(Shown):
    """Batches of a dataset, epoch by epoch. Not thread-safe.

    Batches are numbered over all ranks: from position b of an epoch, step s on rank r of R is batch `b + s * R + r`.
    Which sequences a batch has is a pure function of (data, recipe, seed, epoch); workers, ranks and restarts decide
    nothing but who makes it and when.

    Args:
        dataset: A dataset, a config of one (see `init_dataset`), a `Source`, a list, any object with `__len__` and
            `__getitem__`, or a stream: an iterable, or a dataset that does not tell its order. Its `seq_ordering`,
            `partition_epoch` and filters say what an epoch is. Items that are dicts become padded batches by data key,
            other items are stacked in their own structure.
        batching: Which sequences form a batch: `FrameBudget`, `Buckets`, `FixedCount`, `Pack`, `Chunks`, ...
        num_workers: Worker processes; 0 makes the batches in this thread, when they are asked for. A stream is read by
            one of them, or one more, for all others. `None`: as many as the dataset was given, if it
            is a `MultiProcDataset` or the like, whose other options of workers hold then as well; else 0.
        seed: Of the order of batches, and of the generators that `transform` gets. The order of the dataset is not
            changed by it.
        rank: Which training process this is; found by itself under torchrun, SLURM and the like, see `find_ranks`, when
            the first batch is asked for, and the same from then on.
        world_size: How many there are.
        mesh: In place of both, where several processes work on the same batch (tensor, pipeline or context
            parallelism): the `DeviceMesh` of torch, or the part of it along which the data are divided, `mesh["dp"]`;
            see `ranks_of_mesh`.
        remainder: What becomes of the last batches of an epoch, fewer than ranks: `"drop"`, `"pad"` (the first batches
            of the epoch once more, marked by `is_repeat`), or `"keep"` (the last ranks have one step less).
        transform: Called in a worker as `transform(seq)` or, if it has a parameter `rng`, `transform(seq, rng=
            generator)`, for each sequence (or chunk); returns the new data. The generator is keyed by (seed, epoch,
            sequence).
        collate: Makes the value that is delivered, of a list of sequences; in place of a `Batch`.
        executor: `"process"`, `"thread"` or `"inline"`, or an `Executor`, which no other loader uses.
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
        worker_init: Called in each worker before anything else, with its `WorkerInfo`; also in the one that reads a
            stream for the others, as 0 of 1.
        batch_order: In which order batches come. Default: in that of the dataset where batches are runs of it
            (`FixedCount`, `FrameBudget`), else `BatchOrder()`: shuffled, and sorted by cost in groups, so that ranks do
            not wait for each other.
        window_seqs: How many sequences are planned at a time. None: 65,536; of a stream, whose sequences are in memory
            until then, 512, and further 512 until they fill 8 batches.
        pad_values: Data key -> what to pad with; 0 for the others.
        pad_multiple: Round the frames of padded arrays up to a multiple.
        seed_globals: Seed the global generators of Python, NumPy and torch (if loaded) for each batch, by (seed, epoch,
            batch), while code of yours makes it (for each window, while it gives the items of a stream; for each epoch,
            while a sampler or a dataset of yours says its order): so that what draws from them is the same in each run,
            for any number of workers and on each rank. In this process they are put back. None:
            so it is, but for workers that are threads, which share them. It costs 1 us a batch in a worker process
            where nothing is drawn and 7 us else, 40 us in this process, and nothing where no code of yours is involved.
        batch_size: Torch's word for `batching=FixedCount(batch_size)`. None: sequences are delivered one by one, as
            they are (a dict by data key, of a dataset), or as `collate` returns each of them.
        shuffle: Shuffle a dataset that has no order of its own, by `seed`.
        sampler: Gives corpus indices, anew for each epoch, in place of the order of the dataset.
        batch_sampler: Gives lists of them, each a batch.
        collate_fn: As `collate`.
        pin_memory: Has no effect; see `headrace.adapters.torch.to_device`.
        drop_last: Leave out a last batch of fewer than `batch_size`.
        timeout: As `stall_seconds` of `EngineOptions`; 0: as that is.
        worker_init_fn: As `worker_init`, but called with the number of the worker.
        multiprocessing_context: How worker processes are started: `"fork"`, `"spawn"`, `"forkserver"`, or a context.
        generator: Its initial seed is taken as `seed`.
        prefetch_factor: As `tickets_per_worker` of `EngineOptions`.
        persistent_workers: Has no effect: workers stay until the loader is closed.
        pin_memory_device: Has no effect, as `pin_memory`.
        in_order: Batches come in order, and False is refused.
        **unknown: Nothing else: the error says what may have been meant.

    Raises:
        ConfigError: An option is wrong, unknown, or contradicts another.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batching: Batching | None = None,
        num_workers: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
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
        window_seqs: int | None = None,
        pad_values: Mapping[str, Any] | None = None,
        pad_multiple: int = 1,
        seed_globals: bool | None = None,
        batch_size: int | NotGiven | None = NOT_GIVEN,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        **unknown: Any,
    ) -> None:
        own = {
            **locals(),
            "pad_values": dict(pad_values or {}),
            "num_workers": 0 if num_workers is None else num_workers,
        }
        for name in ("self", "dataset", "unknown"):
            del own[name]
        order = take_foreign(own, unknown)
        options = LoaderOptions(**own)
        with kept_globals() if options.seeds_globals else nullcontext():  # a sequence may be read to learn the layout
            self._subject = subject = open_subject(dataset, order, options)
        if subject.workers is not None:
            options = options.with_workers(subject.workers, takes_number=num_workers is None)
        self._options = options
        if not subject.is_stream:
            options.check_known_steps(subject.name, subject.num_shards)
        self._ranks = LoaderRanks(options, subject)
        self._recipe = Recipe.of(options, subject)
        self._runs: Epochs
        if isinstance(subject, StreamSubject):
            self._runs = StreamEpochs(subject, self._recipe)
        else:
            self._runs = PlannedEpochs(subject, self._recipe)
        self._epoch = 1  # the next one to be iterated over
        self._resumed: LoaderPosition | None = None
        self._consumer = Consumer(LoaderPosition(1))
        self._current: weakref.ref[BatchIterator] | None = None  # the last that was asked for a batch
        self._waiting: weakref.ref[BatchIterator] | None = None  # for which a run has begun, and that was not asked yet
        self._is_agreed = options.check_ranks is None
        self._explainer = Explainer(subject, self._recipe, self._runs, self._ranks)
        self._is_closed = False
        self._is_watched_next = False  # whether the watcher of memory is that of the next iteration

    # --- iteration ---

    def start(self) -> None:
        """Start the workers now, so that the first iteration need not; they get ready while others do the same.

        For several loaders in one process: start each of them, and iterate then.
        """
        self._runs.start()

    def resize(self, num_workers: int) -> None:
        """Have more workers, or fewer, from now on, also in the middle of an epoch; batches and state stay the same.

        New ones begin at once; those that are let go do what they have been given, and end then. Each has the share of
        `max_bytes` that one had at first, so the limit for all goes with their number.

        Args:
            num_workers: At least 1.

        Raises:
            ConfigError: This thread makes the batches itself (`num_workers=0`), the executor cannot do it, or it is a
                stream, of which one worker reads and the others have fixed parts.
        """
        self._runs.resize(num_workers)

    @property
    def ranks(self) -> Ranks:
        """Which rank this is, of how many: as it is known now, and for good once a batch was asked for.

        Where the surroundings contradict themselves until a trainer has begun, it is 0 of 1, and `source` says so.
        """
        try:
            return self._ranks.look_up()
        except ConfigError as error:
            return Ranks(0, 1, f"not known yet: {error.what}")

    @property
    def divided_by(self) -> str | None:
        """Who gives each rank a share of the data, as text; None if this loader loads all of it."""
        if self._subject.num_shards > 1:
            return f"the dataset shards itself: {self._subject.sharded_by}"
        ranks = self.ranks
        return f"rank {ranks.rank} of {ranks.world_size}, {ranks.source}" if ranks.world_size > 1 else None

    def __iter__(self) -> BatchIterator:
        """Return an iterator over the next epoch, or the rest of the one that was loaded; the workers begin at once.

        The epoch is used up by its first batch, not by this: an iterator that was asked for nothing has no effect.
        """
        return self._begin(None)

    def epochs(self, first: int | None = None, last: int | None = None) -> Iterator[LoaderEpoch]:
        """Return the epochs one after the other, each to be iterated over.

        Args:
            first: Number of the first one; None: the next. After `load_state_dict` it is the saved epoch, whatever this
                says.
            last: Number of the last one; None: for ever.
        """
        for name, value in (("first", first), ("last", last)):
            if value is not None:
                check_count(f"epochs: {name}", value, minimum=1)
        return self._epochs(first, last)

    def _epochs(self, first: int | None, last: int | None) -> Iterator[LoaderEpoch]:
        epoch = self._epoch if first is None or self._resumed is not None else first
        while last is None or epoch <= last:
            yield LoaderEpoch(epoch, self._begin, self.num_steps)
            epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is: 1, 2, ...

        A loaded position stays if it is of this epoch; else it is given up, with a warning.

        Raises:
            ConfigError: It is not a number of at least 1.
        """
        if type(epoch) is int and epoch == 0:
            raise ConfigError(
                "set_epoch: epochs are numbered from 1, got 0",
                fix="give epoch + 1, if yours begin at 0; trainers count so, and have adapters: headrace.adapters",
            )
        self._epoch = check_count("set_epoch: epoch", epoch, minimum=1)
        if self._resumed is not None and self._resumed.epoch != epoch:
            _logger.warning(
                "set_epoch(%d) gives up the loaded position: batch %d of epoch %d",
                epoch,
                self._resumed.position,
                self._resumed.epoch,
            )
            self._resumed = None
        if self._live() is None:
            self._consumer.position = self._resumed or LoaderPosition(self._epoch)

    def _begin(self, epoch: int | None) -> BatchIterator:
        """Return an iterator over an epoch, None: over the one that is next when it is asked for its first batch."""
        if self._is_closed:
            raise HeadraceError("this loader is closed", fix="make a new one")
        begun = None
        if self._live() is None:
            position = self._position_of(epoch)
            if epoch is not None and self._consumer.position.epoch != epoch:
                self._consumer.position = position
            waiting = self._take_waiting()
            begun = waiting if waiting is not None and waiting.position == position else self._begin_run(position)
        start = partial(self._start, epoch, self._is_watched_next)
        iterator = BatchIterator(start, self._consumer, self._note, self._recipe.data_key, begun)
        self._is_watched_next = False
        if begun is not None:
            self._waiting = weakref.ref(iterator)
        return iterator

    def _start(self, epoch: int | None, is_watched: bool, iterator: BatchIterator) -> Begun:
        """Return what an iterator iterates over, which is asked for its first batch; all others are over."""
        if self._is_closed:
            raise HeadraceError("this loader is closed", fix="make a new one")
        position, ranks = self._position_of(epoch), self._ranks.settle()
        live = self._live()
        if live is not None:
            live.supersede("another iteration over the same loader has begun")
        begun = iterator.give_up_begun()
        if begun is None or begun.position != position or begun.ranks != ranks:
            self._take_waiting()
            begun = self._begin_run(position)
        if not is_watched:
            self._runs.engine.watch_memory(None)
        self._waiting, self._current = None, weakref.ref(iterator)
        return begun

    def _position_of(self, epoch: int | None) -> LoaderPosition:
        number = self._epoch if epoch is None else epoch
        resumed = self._resumed
        return LoaderPosition(number) if resumed is None or resumed.epoch != number else resumed

    def _begin_run(self, position: LoaderPosition) -> Begun:
        ranks = self._ranks.look_up()
        self._agree(position, ranks)
        run, arrivals = self._runs.begin(position, ranks)
        self._explainer.log_filtered(position.epoch)
        return Begun(position, ranks, run, arrivals, self._options.start_agreement(), self._ranks.equal_steps_of(ranks))

    def _take_waiting(self) -> Begun | None:
        """Return what has begun for an iterator that was not asked for a batch yet; it will have to begin by itself."""
        waiting = None if self._waiting is None else self._waiting()
        self._waiting = None
        return None if waiting is None or waiting.is_over else waiting.give_up_begun()

    def _note(self, iterator: BatchIterator) -> None:
        """Take note that an iterator has its first batch, or is at its end."""
        assert iterator.begun is not None
        begun = iterator.begun.position
        if not iterator.has_delivered:
            self._epoch, self._resumed = begun.epoch + 1, None
        self._explainer.log_left_out()
        if iterator.is_over and not iterator.has_delivered and not begun.position:
            self._explainer.log_no_batch(begun.epoch, iterator.begun.ranks)

    def _agree(self, position: LoaderPosition, ranks: Ranks) -> None:
        """Compare with the other ranks, once; see `loader_ranks.py`."""
        check_ranks, options = self._options.check_ranks, self._options
        if self._is_agreed or check_ranks is None:
            return
        digests = self._runs.digests(position.epoch)
        if self._subject.num_shards > 1:
            for part in ("order", "lengths"):  # each rank has its own
                digests.pop(part, None)
        parts = {
            "version": __version__,
            "epoch": position.epoch,
            "position": position.position,
            "remainder": options.remainder,
            "steps_per_epoch": options.steps_per_epoch,
            "agree_every": options.agree_every,
            **digests,
        }
        compare_cards(check_ranks(fingerprint(parts, ranks)), ranks)
        self._is_agreed = True

    def _live(self) -> BatchIterator | None:
        iterator = None if self._current is None else self._current()
        return None if iterator is None or iterator.is_over else iterator

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch on this rank: of the current epoch, or else of the next.

        It plans the whole epoch, 0.1 to 1 us a sequence, once for each epoch (of a large corpus, once on each machine,
        see `plan_cache.py`); the batches come without it.
        """
        return self.num_steps(self._consumer.position.epoch)

    def num_steps(self, epoch: int, position: int = 0) -> int:
        """Return the number of steps of an epoch on this rank, from a position on."""
        return self._runs.num_steps(epoch, position, self._ranks.look_up())

    def __bool__(self) -> bool:
        """Return True: whether there is a loader is not a question about its length."""
        return True

    def count(self, epoch: int) -> PlanCounts:
        """Return what becomes of the sequences of an epoch, on all ranks: what is left out, cut, or padding.

        It plans the whole epoch, see `__len__`.
        """
        return self._runs.count(epoch, self._ranks.look_up())

    def batch_shapes(self, epoch: int | None = None, max_batches: int = MAX_BATCHES) -> BatchShapes:
        """Return sequences, frames and padding of each batch of an epoch, on all ranks; nothing is read.

        Args:
            epoch: Its number; None: of the current epoch, or else of the next.
            max_batches: Of so many batches, the first ones.

        Raises:
            ConfigError: It is a stream, or the lengths are not known without reading.
        """
        number = self._consumer.position.epoch if epoch is None else check_count("epoch", epoch, minimum=1)
        return self._runs.shapes(number, max_batches)

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is: after the last batch that it got, whatever was prefetched.

        JSON data of less than 1 KB, the same on every rank between two steps. O(1), but for the first digest of a
        corpus in memory, and the first one in an epoch of lengths that a class of your own tells.
        """
        return self.state_at(self._consumer.position)

    def state_at(self, position: LoaderPosition) -> dict[str, Any]:
        """Return the state of a position, for readers ahead of their consumer, which keep `position` of each batch."""
        digests = self._runs.digests(position.epoch)
        return LoaderState(FORMAT, *position, digests).to_dict()

    @property
    def position(self) -> LoaderPosition:
        """The position of the consumer."""
        return self._consumer.position

    @property
    def is_iterating(self) -> bool:
        """Whether there is an iterator that was asked for a batch, and is not at its end."""
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
                where=f"epoch {self._consumer.position.epoch}, batch {self._consumer.position.position}",
                fix="load the state before the first batch, or finish or drop the iterator first",
            )
        loaded = LoaderState.of_dict(state)
        loaded.check_digests(self._runs.digests(loaded.epoch))
        self._resumed = self._consumer.position = LoaderPosition(loaded.epoch, loaded.position, loaded.window)
        self._epoch = loaded.epoch
        self._is_agreed = False

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
        return self._explainer.explain(self._consumer.position)

    def close(self) -> None:
        """End the workers and close the dataset; harmless twice. Batches that were delivered stay valid."""
        self._is_closed = True
        for found in (self._current, self._waiting):
            iterator = None if found is None else found()
            if iterator is not None:
                iterator.supersede("its loader was closed")
        self._runs.close()
        self._subject.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: workers and the position in an epoch belong to this process."""
        raise ConfigError(
            "a loader cannot be pickled or copied",
            fix="make one in the other process, and give it the state_dict() of this one",
        )

    def _card(self) -> Card:
        lines = (line.partition(":") for line in self.explain().splitlines())
        facts = [(what, text.strip()) for what, _, text in lines]
        keys = {key: layout_of(spec) for key, spec in self._subject.reading.specs.items()}
        return Card(type(self).__name__, facts, keys)

    def __repr__(self) -> str:
        position = f"epoch {self.position.epoch}, batch {self.position.position}"
        return f"<DataLoader of {self._subject.name}, {self._options.batching}, {position}>"
