"""`DataLoader`: planned batches, made by workers in shared memory, the same stream for any number of workers and ranks.

It joins three parts and decides nothing itself: the plan says which sequences are batch n (`plan.py`), the engine has
workers make it (`epochs.py`, `work.py`), the state says where the consumer is (`state.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn, Self

from headrace.batching import Batching, BatchOrder, PlanCounts
from headrace.engine import EngineOptions, EngineReport, Executor, WorkerInfo
from headrace.engine.memory.lease import MemoryWatcher
from headrace.errors import ConfigError, ResumeError, check_count
from headrace.ranks import Ranks
from headrace.rng.process import kept_globals
from headrace.show.card import Card, Shown, layout_of

from .epochs import Epochs, PlannedEpochs, Recipe
from .explain import Explainer
from .iterate import BatchIterator, Begun, Iterations, LoaderEpoch, LoaderPosition
from .loader_ranks import LoaderRanks, RankCheck
from .opening import open_subject
from .options import CheckRanks, LoaderOptions, Remainder
from .shapes import MAX_BATCHES, BatchShapes
from .state import FORMAT, LoaderState
from .steps import Agree
from .streams.epochs import StreamEpochs
from .streams.input import StreamSubject
from .torch_args import NOT_GIVEN, NotGiven, take_foreign


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
        self._rank_check = RankCheck(options, subject)
        self._explainer = Explainer(subject, self._recipe, self._runs, self._ranks)
        self._iterations = Iterations(  # they hold no loader: one that is dropped is no garbage cycle
            partial(_begin_run, options, self._runs, self._ranks, self._rank_check, self._explainer),
            self._ranks.settle,
            self._explainer.log_event,
            self._runs.engine.watch_memory,
            self._recipe.data_key,
        )

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
        return self._iterations.begin(None)

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
        epoch = self._iterations.first_epoch(first)
        while last is None or epoch <= last:
            yield LoaderEpoch(epoch, self._iterations.begin, self.num_steps)
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
        self._iterations.set_epoch(check_count("set_epoch: epoch", epoch, minimum=1))

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch on this rank: of the current epoch, or else of the next.

        It plans the whole epoch, 0.1 to 1 us a sequence, once for each epoch (of a large corpus, once on each machine,
        see `plan_cache.py`); the batches come without it.
        """
        return self.num_steps(self.position.epoch)

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
        number = self.position.epoch if epoch is None else check_count("epoch", epoch, minimum=1)
        return self._runs.shapes(number, max_batches)

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is: after the last batch that it got, whatever was prefetched.

        JSON data of less than 1 KB, the same on every rank between two steps. O(1), but for the first digest of a
        corpus in memory, and the first one in an epoch of lengths that a class of your own tells.
        """
        return self.state_at(self.position)

    def state_at(self, position: LoaderPosition) -> dict[str, Any]:
        """Return the state of a position, for readers ahead of their consumer, which keep `position` of each batch."""
        digests = self._runs.digests(position.epoch)
        return LoaderState(FORMAT, *position, digests).to_dict()

    @property
    def position(self) -> LoaderPosition:
        """The position of the consumer."""
        return self._iterations.consumer.position

    @property
    def is_iterating(self) -> bool:
        """Whether there is an iterator that was asked for a batch, and is not at its end."""
        return self._iterations.live() is not None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a state was saved: the next iteration gives the rest of its epoch, then the next epochs.

        The number of workers and ranks and the executor may be others; nothing is read or planned again.

        Raises:
            ResumeError: The state is of another dataset, order, batching, seed or recipe version, which is named; or it
                comes too late, after an iteration has begun.
        """
        if self.is_iterating:
            raise ResumeError(
                "load_state_dict comes too late: an iteration over this loader has begun",
                where=f"epoch {self.position.epoch}, batch {self.position.position}",
                fix="load the state before the first batch, or finish or drop the iterator first",
            )
        loaded = LoaderState.of_dict(state)
        loaded.check_digests(self._runs.digests(loaded.epoch))
        self._iterations.resume(LoaderPosition(loaded.epoch, loaded.position, loaded.window))
        self._rank_check.ask_again()

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
        self._iterations.watch_next(watcher)

    def explain(self) -> str:
        """Return a text about what is loaded, how, and what was left out so far."""
        return self._explainer.explain(self.position)

    def close(self) -> None:
        """End the workers and close the dataset; harmless twice. Batches that were delivered stay valid."""
        self._iterations.close()
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


def _begin_run(
    options: LoaderOptions,
    runs: Epochs,
    ranks: LoaderRanks,
    rank_check: RankCheck,
    explainer: Explainer,
    position: LoaderPosition,
) -> Begun:
    """Have the workers begin at a position of an epoch."""
    found = ranks.look_up()
    rank_check.compare(runs, position, found)
    run, arrivals = runs.begin(position, found)
    explainer.log_filtered(position.epoch)
    return Begun(position, found, run, arrivals, options.start_agreement(), ranks.equal_steps_of(found))
