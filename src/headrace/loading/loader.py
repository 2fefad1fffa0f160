"""`DataLoader`: planned batches, made by workers in shared memory, the same stream for any number of workers and ranks.

It joins three parts and decides nothing itself: the plan says which sequences are batch n (`plan.py`), the engine has
workers make it (`epochs.py`, `work.py`), the state says where the consumer is (`state.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn, Self, get_args

from headrace.batching import Batching, BatchOrder, PlanCounts
from headrace.batching.dealing import LastStep
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
from .torch_args import NOT_GIVEN, Given, NotGiven, take_foreign


class DataLoader(Given, Shown):
    """Iterates over a dataset in batches, which worker processes prepare in shared memory. Not thread-safe.

    Each pass over the loader is one epoch; the first one is epoch 1. Which sequences form batch n of an epoch depends
    only on the data, the options, the seed and the epoch, never on the number of workers or ranks, or on restarts.
    Ranks take batches in turn: after b batches of an epoch, step s from there on rank r of R is batch `b + s * R + r`.
    `state_dict` saves the position in an epoch, and `load_state_dict` continues there, also with other numbers of
    workers and ranks.

    Args:
        dataset: A Headrace dataset or its config (see `init_dataset`), a `Source`, the path of files, a list, any
            object with `__len__` and `__getitem__`, or an iterable. Of a Headrace dataset, `seq_ordering`,
            `partition_epoch` and filters define what an epoch is. Items that are dicts become a `Batch`, padded by key;
            other items are stacked in their own structure, as torch's default collate does.
        batching: Which sequences form a batch: `FixedCount`, `FrameBudget`, `Buckets`, `Pack`, `Chunks`, ...
        num_workers: Number of worker processes. 0: batches are made in this process, each when it is asked for. `None`:
            that of the dataset, if it has workers of its own (such as a `MultiProcDataset`), whose other worker options
            are used as well; otherwise 0. A stream is read by one worker, which passes sequences on to the others.
        seed: Seeds the order of the batches and the random generators of `transform`. The order of a Headrace dataset
            has a seed of its own.
        rank: Index of this training process. Default: detected from torch.distributed, torchrun, SLURM and the like
            (see `find_ranks`) when the first batch is requested, and fixed from then on.
        world_size: Number of training processes.
        mesh: Instead of `rank` and `world_size`, if several processes work on the same batch (tensor, pipeline or
            context parallelism): torch's `DeviceMesh`, or the dimension over which data are split, such as
            `mesh["dp"]`; see `ranks_of_mesh`.
        remainder: What to do at the end of an epoch with fewer batches than ranks: `"drop"` them; `"pad"` with the
            first batches of the epoch, which then have `is_repeat` set; or `"keep"` them, so that the last ranks have
            one step less.
        transform: Called in a worker for each sequence (or chunk), as `transform(seq)`, or as `transform(seq, rng=rng)`
            if it has a parameter `rng`: a NumPy generator seeded by (seed, epoch, sequence). Returns the new sequence.
        collate: Called in a worker with the list of the sequences of a batch; what it returns is delivered in place of
            a `Batch`.
        executor: Where workers run: `"process"`, `"thread"`, `"inline"`, or an `Executor` that no other loader uses.
        recipe_version: A string to change whenever your own code changes the content of the batches. States that were
            saved with a different one are refused.
        steps_per_epoch: For streams, whose length is unknown: end each epoch after this many steps on every rank. If a
            rank has fewer batches, `remainder="pad"` repeats some, and otherwise it is an error.
        agree_every: For datasets that split themselves into shards, so that no rank knows how many steps the others
            have: every this many steps, the ranks ask each other by `agree` whether all of them have that many more.
            The epoch ends with the shortest rank, or with the longest if `remainder="pad"`.
        agree: A collective operation: `agree(flag)` blocks until all ranks have called it, and returns whether all
            flags are True. `headrace.adapters.torch_ranks.all_agree` uses torch.distributed. Called in the thread that
            iterates.
        check_ranks: A collective operation: `check_ranks(text)` returns the texts of all ranks, ordered by rank. Used
            before the first batch, and after each `load_state_dict`, to check that all ranks load the same data with
            the same options. `headrace.adapters.torch_ranks.gather_texts` uses torch.distributed.
        engine_options: How to handle errors, dead workers and stalls, and how far to prefetch.
        max_bytes: Limit on the shared memory of all workers together.
        worker_init: Called in each worker at its start, with its `WorkerInfo`. The worker that reads a stream for the
            others is 0 of 1.
        batch_order: The order of the batches. Default: the order of the dataset where batches are consecutive sequences
            (`FixedCount`, `FrameBudget`); otherwise `BatchOrder()`: shuffled, with batches of similar cost on all ranks
            in the same step.
        window_seqs: How many consecutive sequences are grouped into batches at a time. Default: 65,536. For a stream,
            which keeps these sequences in memory: 512, and 512 more until they fill 8 batches.
        pad_values: Padding value by data key; 0 for the others.
        pad_multiple: Pad to a multiple of this many frames.
        seed_globals: Whether to seed the global generators of Python, NumPy and torch (if loaded) whenever your code
            runs: by (seed, epoch, batch) where it makes a batch, for each window where it yields a stream, and for each
            epoch where a sampler or dataset of yours defines the order. So random draws are the same in every run, for
            any number of workers. In this process, the state of the generators is restored afterwards. Default: True,
            except for worker threads, which share the generators. It costs 1 us per batch in a worker process (7 us if
            your code draws), 40 us in this process, and nothing if no code of yours is called.
        batch_size: Torch's word for `batching=FixedCount(batch_size)`. `None`: sequences are delivered one by one,
            without a batch axis, or as `collate` returns each of them.
        shuffle: Shuffle the dataset by `seed`, if it does not define an order.
        sampler: Yields the corpus indices of an epoch; iterated anew for each epoch. Replaces the order of the dataset.
        batch_sampler: The same, but it yields one list of corpus indices for each batch.
        drop_last: Drop the last batch of an epoch if it has fewer than `batch_size` sequences.
        **unknown: Any other argument is an error, which suggests the closest option.

    Raises:
        ConfigError: An option is wrong, unknown, or contradicts another.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | NotGiven | None = NOT_GIVEN,
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
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        drop_last: bool = False,
        **unknown: Any,
    ) -> None:
        own = {
            **locals(),
            "pad_values": dict(pad_values or {}),
            "num_workers": 0 if num_workers is None else num_workers,
        }
        for name in ("self", "dataset", "unknown"):
            del own[name]
        self._dataset, self._order = dataset, take_foreign(own, unknown)
        options = LoaderOptions(**own)
        with kept_globals() if options.seeds_globals else nullcontext():  # a sequence may be read to learn the layout
            self._subject = subject = open_subject(dataset, self._order, options)
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
        """Start the workers now, without waiting for them, rather than in the first iteration.

        If a program has several loaders, start all of them before it iterates: their workers get ready in parallel.
        """
        self._runs.start()

    def resize(self, num_workers: int) -> None:
        """Change the number of workers, at any time, also in mid-epoch. Batches and state stay the same.

        New workers begin at once; those that leave finish the batches they have begun. Each has the share of
        `max_bytes` that a worker had at first, so the limit for all grows and shrinks with their number.

        Args:
            num_workers: At least 1.

        Raises:
            ConfigError: There are no workers (`num_workers=0`), the executor cannot change their number, or a worker
                reads a stream for the others.
        """
        self._runs.resize(num_workers)
        self._num_workers = num_workers

    @property
    def ranks(self) -> Ranks:
        """Rank and world size: as far as they are known now, and fixed once the first batch was requested.

        As long as the environment contradicts itself (before a trainer has set it up), rank 0 of 1; `source` says why.
        """
        try:
            return self._ranks.look_up()
        except ConfigError as error:
            return Ranks(0, 1, f"not known yet: {error.what}")

    @property
    def divided_by(self) -> str | None:
        """What splits the data among ranks, as text: the dataset or this loader; None if they are not split."""
        if self._subject.num_shards > 1:
            return f"the dataset shards itself: {self._subject.sharded_by}"
        ranks = self.ranks
        return f"rank {ranks.rank} of {ranks.world_size}, {ranks.source}" if ranks.world_size > 1 else None

    def __iter__(self) -> BatchIterator:
        """Return an iterator over the next epoch, or over the rest of the epoch of a loaded state.

        The workers begin at once. The epoch counts as begun with its first batch: an iterator that is never asked for
        one has no effect.
        """
        return self._iterations.begin(None)

    def epochs(self, first: int | None = None, last: int | None = None) -> Iterator[LoaderEpoch]:
        """Iterate over epochs: `for epoch in loader.epochs(last=10): for batch in epoch: ...`.

        Args:
            first: The first epoch; None: the next one. After `load_state_dict` it is always the saved epoch.
            last: The last epoch; None: never stop.
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
        """Set the epoch of the next iteration; the first one is 1.

        A loaded state remains in force if it is of this epoch; otherwise it is discarded, with a warning.

        Raises:
            ConfigError: It is not an integer of at least 1.
        """
        if type(epoch) is int and epoch == 0:
            raise ConfigError(
                "set_epoch: epochs are numbered from 1, got 0",
                fix="give epoch + 1, if yours begin at 0; trainers count so, and have adapters: headrace.adapters",
            )
        self._iterations.set_epoch(check_count("set_epoch: epoch", epoch, minimum=1))

    def deal(self, last_step: LastStep) -> None:
        """Deal sequences to the ranks from the next iteration on, rather than batches, for an exact evaluation.

        In each step all ranks get equally many sequences, and as many steps, whatever `remainder` says; no sequence is
        dropped. Only the last step may have too few for all ranks; then it has one for each rank. The evaluation
        loaders of the trainers' adapters call this. With one rank the batches stay the same. A state of a loader that
        deals is refused by one that does not, and the other way round.

        Args:
            last_step: What a rank gets in the last step if no sequence is left for it: `"repeat"`, a repeat, which has
                `is_repeat` set, and which the one who gathers results trims; the last step has `count(epoch).pieces %
                world_size` sequences. Or `"split"`, one of its own sequences, which an earlier batch does without:
                nothing is repeated, and that batch has one sequence less than those of other ranks in its step.

        Raises:
            ConfigError: There are several ranks, and it is a stream, or a batch sampler defines the batches.
        """
        if last_step not in get_args(LastStep):
            raise ConfigError(f'deal: last_step must be "repeat" or "split", got {last_step!r}')
        self._runs.deal(last_step, self.ranks)

    def __len__(self) -> int:
        """Return the number of steps on this rank of the current epoch, or of the next one if none has begun.

        It has to plan all batches of the epoch: 0.1 to 1 us per sequence, once per epoch (for a large corpus once per
        machine, as the result is cached on disk). Iterating does not need it.
        """
        return self.num_steps(self.position.epoch)

    def num_steps(self, epoch: int, position: int = 0) -> int:
        """Return the number of steps of an epoch on this rank, after the first `position` batches of all ranks."""
        return self._runs.num_steps(epoch, position, self._ranks.look_up())

    def __bool__(self) -> bool:
        """Return True, so that `if loader:` computes no length."""
        return True

    def count(self, epoch: int) -> PlanCounts:
        """Count, over all ranks, the sequences of an epoch that are delivered, dropped or cut, and its padding.

        It has to plan all batches of the epoch, see `__len__`.
        """
        return self._runs.count(epoch, self._ranks.look_up())

    def batch_shapes(self, epoch: int | None = None, max_batches: int = MAX_BATCHES) -> BatchShapes:
        """Return the numbers of sequences, frames and padded frames of each batch, of all ranks; reads no data.

        Args:
            epoch: The epoch; None: the current one, or the next if none has begun.
            max_batches: At most this many batches, from the first one on.

        Raises:
            ConfigError: It is a stream, or the lengths are not known without reading.
        """
        number = self.position.epoch if epoch is None else check_count("epoch", epoch, minimum=1)
        return self._runs.shapes(number, max_batches)

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was delivered; prefetched batches do not count.

        It is JSON data of less than 1 KB, the same on every rank after the same step. O(1), except that a corpus in
        memory is hashed once, and lengths that a dataset class of your own provides once per epoch.
        """
        return self.state_at(self.position)

    def state_at(self, position: LoaderPosition) -> dict[str, Any]:
        """Return the state at a position, for code that prefetches batches itself and keeps `position` with each."""
        digests = self._runs.digests(position.epoch)
        return LoaderState(FORMAT, position.epoch, position.position, position.window, digests).to_dict()

    @property
    def position(self) -> LoaderPosition:
        """The position of the consumer."""
        return self._iterations.consumer.position

    @property
    def is_iterating(self) -> bool:
        """Whether an iterator has delivered a batch and is not exhausted."""
        return self._iterations.live() is not None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state: the next iteration delivers the rest of its epoch, then come the next epochs.

        Number of workers, number of ranks and executor may differ. Batches before the state are not read again.

        Raises:
            ResumeError: The state was saved with another dataset, order, batching, seed or recipe version (the error
                says which); or an iteration has already begun.
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
        """Statistics: where time was spent, and how many items were skipped and workers restarted."""
        return self._runs.engine.report

    def watch_memory(self, watcher: MemoryWatcher | None) -> None:
        """Have a watcher told of the shared memory of batches, in place of the watcher before, if there was one.

        It holds until the end of the current iteration, or of the next one if none has begun. An iteration without a
        watcher delivers batches in memory that is not prepared in any way.
        """
        self._iterations.watch_next(watcher)

    def explain(self) -> str:
        """Return a text that describes what is loaded and how, and what was dropped so far."""
        return self._explainer.explain(self.position, self._iterations.left)

    def close(self) -> None:
        """End the workers and close the dataset. Batches that were delivered stay valid. May be called twice."""
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
    explainer.log_filtered()
    return Begun(position, found, run, arrivals, options.start_agreement(), ranks.equal_steps_of(found))
