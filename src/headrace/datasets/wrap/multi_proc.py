"""`MultiProcDataset`: a dataset loaded by worker processes, the same stream as the dataset itself.

The order comes from the inner dataset in this process alone, and reaches the workers as slices of an array.
Sequences come back in shared memory, many in one block; what a reader gets are views, which hold their block until they
are gone.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import numpy as np

from headrace.engine import Engine, EngineOptions, EngineReport, Executor, Job, Skipping, WorkerInfo
from headrace.engine.group_size import GroupSize
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import ConfigError, SourceError

from ..base import Dataset
from ..checks import check_count
from ..corpus import Corpus, InnerCorpus, ask_inner
from ..parts import MadeElsewhere, open_here
from ..reading.reader import GivenOrder, Reader, ReadRequest
from ..seq import DatasetSeq
from ..workers import DatasetWorkers
from .ahead import RunsAhead, blocks_ahead, cut_order, shard_blocks
from .blockwise import NO_SEQS, BlocksAhead, BlockwiseDataset, ReadBlock, SeqBlock
from .runs import DedicatedWork, OrderedWork, RunLimits

SHARDING_METHODS = ("seq_order", "dedicated")
_MAX_TICKETS = 1024  # before a worker: as many large sequences fill all memory that it may take
_OUTER_OPTIONS = ("name", "estimated_num_seqs")  # everything else is for the inner dataset


@dataclass(frozen=True)
class PoolOptions:
    """See the arguments of `MultiProcDataset`."""

    num_workers: int
    buffer_size: int = 100
    is_ordered: bool = True
    executor: str | Executor = "process"
    engine: EngineOptions | None = None
    max_bytes: int | None = None
    worker_init: Callable[[WorkerInfo], None] | None = None

    @property
    def skips(self) -> bool:
        """Whether sequences that fail are left out."""
        return self.engine is not None and isinstance(self.engine.on_error, Skipping)


class Pool:
    """Workers that read a corpus. They start when first needed, stay over epochs, and read for one at a time.

    Args:
        made: What they make theirs of.
        corpus: The corpus here.
        options: See `PoolOptions`.
    """

    def __init__(self, made: MadeElsewhere, corpus: Corpus, options: PoolOptions) -> None:
        self.made, self.corpus, self.options = made, corpus, options
        self._engine: Engine | None = None
        self._reading: Iterator[ReadBlock] | None = None  # what the workers are at work for

    def __reduce__(self) -> tuple[Any, ...]:
        return Pool, (self.made, self.corpus, self.options)

    @property
    def report(self) -> EngineReport | None:
        """Statistics; `None` before workers were started."""
        return None if self._engine is None else self._engine.report

    @cached_property
    def limits(self) -> RunLimits:
        """Limits on what they read at once."""
        options = self.options
        return RunLimits.of(self.corpus, options.buffer_size, options.max_bytes, are_shards=not options.is_ordered)

    @cached_property
    def _size(self) -> GroupSize:
        """What is known of the sequences."""
        return GroupSize(max_bytes=self.limits.max_bytes, max_items=self.limits.num_seqs)

    def _open(self) -> Engine:
        if self._engine is None:
            options, limits = self.options, self.limits
            if options.is_ordered:
                setup: Any = OrderedWork(self.made, options.skips)
                ahead = min(options.buffer_size, _MAX_TICKETS)  # how many sequences they have is counted
            else:
                setup = DedicatedWork(self.made, *self.corpus.shard, limits, options.skips)
                ahead = min(max(options.buffer_size // limits.num_seqs, 1), _MAX_TICKETS)
            engine_options = dataclasses.replace(options.engine or EngineOptions(), tickets_per_worker=ahead)
            executor = options.executor
            if executor == "process" and options.max_bytes is not None:
                slot_bytes = min(limits.max_bytes, options.max_bytes)
                executor = ProcessExecutor(max_bytes=options.max_bytes, slot_bytes=slot_bytes)
            job = Job(setup, options.worker_init)
            self._engine = Engine(job, num_workers=options.num_workers, executor=executor, options=engine_options)
        return self._engine

    def blocks(self, wanted: ReadRequest, first: int) -> Iterator[ReadBlock]:
        """Let the workers read a request, from the group of a number on, in place of what they are at work for."""
        self.stop()
        engine, limits = self._open(), self.limits
        first -= first % limits.group

        def begin() -> RunsAhead:
            size, num_ahead = self._size, self.options.buffer_size
            return RunsAhead(size, num_ahead, lambda: engine.num_workers, end=len(wanted.order))

        cut = partial(cut_order, limits, wanted)
        self._reading = blocks = blocks_ahead(engine, cut, first, begin, group=limits.group)
        return blocks

    def blocks_of_shards(self, epoch: int) -> tuple[int | None, Iterator[ReadBlock]]:
        """Let each worker read its shard of an epoch; return how many sequences there are, if they know."""
        num_workers = max(self.options.num_workers, 1)
        run = self._open().run_stream(epoch)
        counts = [delivered.value for delivered in itertools.islice(run, num_workers)]
        self._reading = blocks = shard_blocks(run, num_workers)
        return None if None in counts else sum(counts), blocks

    def is_reading(self, blocks: Iterator[ReadBlock] | None) -> bool:
        """Whether these are the blocks that the workers are at work for."""
        return blocks is not None and blocks is self._reading

    def look_ahead(self) -> int:
        """Return how many sequences all workers together may read ahead."""
        return max(self.options.num_workers, 1) * max(self.options.buffer_size, self.limits.num_seqs)

    def resize(self, num_workers: int) -> None:
        """Have so many workers from now on."""
        if self._engine is not None:
            self._engine.resize(num_workers)
        self.options = dataclasses.replace(self.options, num_workers=num_workers)

    def stop(self) -> None:
        """Cancel what is under way; the workers stay."""
        self._reading = None
        if self._engine is not None:
            self._engine.end_run()

    def close(self) -> None:
        """End the workers; they come back when they are needed."""
        self.stop()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


class PooledCorpus(InnerCorpus):
    """A corpus that workers read.

    Args:
        name: See `Corpus`.
        inner: What they read.
        made: What they make theirs of.
        options: See `PoolOptions`.
        owner: The class of the dataset that was given the workers.
    """

    def __init__(self, name: str, inner: Corpus, made: MadeElsewhere, options: PoolOptions, owner: str) -> None:
        super().__init__(name, inner)
        self.pool, self._owner = Pool(made, inner, options), owner

    def with_orders(self, **options: Any) -> Self:
        """Return this corpus with other options of the order, for other workers."""
        made = super().with_orders(**options)
        made.pool = Pool(self.pool.made.with_orders(options), made.inner, self.pool.options)
        return made

    def with_parts(self, change: Callable[[Corpus], Corpus]) -> Self:
        """Return this corpus with another inner one, and workers of its own."""
        made = super().with_parts(change)
        made.pool = Pool(self.pool.made, made.inner, self.pool.options)
        return made

    def knows_order(self) -> bool:
        """Not where each worker reads a shard of its own: they take no order, and tell none."""
        return self.pool.options.is_ordered and super().knows_order()

    @property
    def can_jump(self) -> bool:  # type: ignore[override]
        """Whether it takes an order."""
        return self.pool.options.is_ordered

    @property
    def skips_failed(self) -> bool:
        """Whether sequences that fail are left out."""
        return self.pool.options.skips

    def reader(self) -> Reader:
        """Return a reader that the workers read for."""
        return PooledReader(self.pool, self.name)

    @property
    def workers(self) -> DatasetWorkers:
        """Its workers; where they take an order, any of them may read any sequence."""
        pool, options = self.pool, self.pool.options
        return DatasetWorkers(
            self._owner,
            options.num_workers,
            self.inner,
            pool.made,
            is_same_without=options.is_ordered,
            num_shards=1 if options.is_ordered else max(options.num_workers, 1),
            executor=options.executor if options.num_workers else None,
            worker_init=options.worker_init,
            engine_options=options.engine,
            max_bytes_per_worker=options.max_bytes,
            buffer_size=options.buffer_size,
            sharding_method="seq_order" if options.is_ordered else "dedicated",
            report=pool.report,
        )

    def order_text(self, epoch: int) -> str:
        """Return what decides the inner order; without an order also how many take turns."""
        text, options = super().order_text(epoch), self.pool.options
        return text if options.is_ordered else f"{text}; {options.num_workers} workers in turn"

    def close(self) -> None:
        """End the workers, and release what the inner corpus holds."""
        self.pool.close()
        super().close()


ask_inner(PooledCorpus, "stored", "can_give_stored")


class MultiProcDataset(BlockwiseDataset):
    """A dataset whose sequences are loaded by worker processes.

    Method "seq_order": order, tags and data are those of the inner dataset, for every number of workers. Method
    "dedicated", for datasets that do not know their order or their number of sequences: worker w of W reads shard w of
    W of the inner dataset, and the epoch takes one sequence from each worker in turn, passing over those that have
    ended. Every sequence comes exactly once; their order depends on W, and is the same each time.

    Workers start when first needed, stay over epochs, and are started again if they die; pickling and copying start
    none.

    Arrays are views of shared memory, of which each sequence holds that of the block it came in: about 1 MiB (less with
    a small `buffer_size` or `max_bytes`). Copy the few that are kept of many.

    Args:
        dataset: Config of the inner dataset. Options given here as well are defaults for it. Or a dataset, of which
            each worker makes a copy.
        num_workers: Number of worker processes; 0 loads in this process, for debugging.
        buffer_size: How many sequences a worker may be ahead. (RETURNN has no default.)
        sharding_method: "seq_order" or "dedicated".
        executor: "process", "thread" or "inline", or an `Executor`, which no other loader uses.
        engine_options: What to do about errors, deaths and stalls, see `EngineOptions`; how far a worker may be ahead
            is said by `buffer_size`.
        max_bytes_per_worker: Limit of the shared memory of each worker process, for what it is ahead and what the
            reader still holds: it waits where `buffer_size` would allow more, and its blocks have at most an eighth of
            it, as far as the sizes of sequences are known. `None`: what the engine allows, 2 GiB.
        max_bytes: The former name of `max_bytes_per_worker`. (Of a loader, `max_bytes` is for all workers together.)
        worker_init: Called in each worker before it builds the dataset, with its `WorkerInfo`.
        **kwargs: Options of the inner dataset.

    Raises:
        ConfigError: An option is wrong.
    """

    has_own_workers = True

    def __init__(
        self,
        dataset: Mapping[str, Any] | Dataset | Corpus,
        num_workers: int,
        buffer_size: int = 100,
        sharding_method: str = "seq_order",
        *,
        executor: str | Executor = "process",
        engine_options: EngineOptions | None = None,
        max_bytes_per_worker: int | None = None,
        max_bytes: int | None = None,
        worker_init: Callable[[WorkerInfo], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{name: value for name, value in kwargs.items() if name in _OUTER_OPTIONS})
        if not isinstance(dataset, Mapping | Dataset | Corpus):
            raise ConfigError(
                f"the inner dataset is a dataset, or described by a dict, got {type(dataset).__name__}",
                fix='write dataset={"class": "HDFDataset", ...}: each worker builds its own',
            )
        if sharding_method not in SHARDING_METHODS:
            raise ConfigError(f"sharding_method must be one of {SHARDING_METHODS}: {sharding_method!r}")
        check_count("num_workers", num_workers)
        check_count("buffer_size", buffer_size, minimum=1)
        defaults = {name: value for name, value in kwargs.items() if name not in _OUTER_OPTIONS}
        if isinstance(dataset, Dataset) and defaults:
            raise ConfigError(
                f"the options {', '.join(defaults)} are for the inner dataset, which is made already",
                where=f"dataset {dataset.name!r}",
                fix="give them to it, or describe it by a dict",
            )
        if max_bytes_per_worker is not None and max_bytes is not None:
            raise ConfigError(
                "max_bytes_per_worker and max_bytes are two names of one option", fix="leave max_bytes out"
            )
        name, value = ("max_bytes_per_worker", max_bytes_per_worker) if max_bytes is None else ("max_bytes", max_bytes)
        executor = "inline" if num_workers == 0 else executor
        if value is not None:
            check_count(name, value, minimum=1)
            if executor not in ("process", "inline"):
                raise ConfigError(
                    f"{name}={value} limits the memory of worker processes, and executor={executor!r} has none",
                    fix=f'leave {name} out, or use executor="process"',
                )
        is_ordered = sharding_method == "seq_order"
        options = PoolOptions(num_workers, buffer_size, is_ordered, executor, engine_options, value, worker_init)
        config: Any = {**defaults, **dataset} if isinstance(dataset, Mapping) else copy.copy(dataset)
        inner = open_here(config)
        made = MadeElsewhere.of(config, inner)
        self._set_corpus(PooledCorpus(self.name, inner, made, options, type(self).__name__))

    @property
    def _pool(self) -> Pool:
        corpus = self._read
        assert isinstance(corpus, PooledCorpus)
        return corpus.pool

    @property
    def num_workers(self) -> int:
        """Number of worker processes; 0: this process loads."""
        return self._pool.options.num_workers

    @property
    def buffer_size(self) -> int:
        """How many sequences a worker may be ahead."""
        return self._pool.options.buffer_size

    @classmethod
    def idle_options(cls, options: Mapping[str, Any]) -> frozenset[str]:
        """Return the options of speed; with "dedicated" the stream depends on the number of workers."""
        idle = super().idle_options(options)
        return idle if options.get("sharding_method", "seq_order") == "seq_order" else idle - {"num_workers"}

    @property
    def supports_jumps(self) -> bool:  # type: ignore[override]
        """Whether it takes an order."""
        return self._read.can_jump

    @classmethod
    def unwrap_options(cls, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        """Return the options of the inner dataset, and into how many shards "dedicated" workers divide it."""
        inner = options.get("dataset")
        if not isinstance(inner, Mapping):
            return options, 1
        own = inspect.signature(MultiProcDataset.__init__).parameters
        defaults = {name: value for name, value in options.items() if name not in {*own, "class", "name"}}
        num_workers, method = options.get("num_workers"), options.get("sharding_method")
        num_shards = max(num_workers, 1) if method == "dedicated" and isinstance(num_workers, int) else 1
        return {**defaults, **inner}, num_shards

    @property
    def engine_report(self) -> EngineReport | None:
        """Statistics: where time was spent, and what was skipped or restarted; `None` before workers were started."""
        return self._pool.report

    def resize(self, num_workers: int) -> None:
        """Have more workers, or fewer, from now on, also in the middle of an epoch: the sequences stay the same.

        Args:
            num_workers: At least 1.

        Raises:
            ConfigError: There are no workers (`num_workers=0`), or each has a share of its own ("dedicated").
        """
        num_workers = check_count("resize: num_workers", num_workers, minimum=1)
        if not self._pool.options.is_ordered or self.num_workers == 0:
            why = "this process does their work" if self.num_workers == 0 else "each worker has a share of its own"
            raise ConfigError(
                f"resize({num_workers}): {why}",
                where=f"dataset {self.name!r}",
                fix='use sharding_method="seq_order" and num_workers=1 or more',
            )
        self._pool.resize(num_workers)

    def close_workers(self) -> None:
        """End the workers; they come back when they are needed, also in the middle of an epoch, where it was."""
        self._stop()
        self._pool.close()

    def change_orders(self, **options: Any) -> None:
        """Set options of the order; workers start anew, as they have the old ones."""
        if self._corpus is not None:
            self.close_workers()
        super().change_orders(**options)

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`. Asks no worker.

        Raises:
            ConfigError: `seq_list` or `seq_order` with "dedicated": each worker would take all of it.
        """
        super().init_seq_order(epoch)
        self._stop()
        given = GivenOrder.of(seq_list, seq_order)
        is_ordered = self._pool.options.is_ordered
        if not is_ordered and given is not None:
            raise ConfigError(
                'sharding_method="dedicated" takes no seq_list or seq_order: each worker would deliver all of it',
                where=f"dataset {self.name!r}",
                fix='use sharding_method="seq_order"',
            )
        if is_ordered and not (epoch is None and given is None):
            try:
                self._take(self._plan(epoch, given))
            except NotImplementedError as error:
                raise ConfigError(
                    f'{self._pool.corpus.kind} does not tell its order, which sharding_method="seq_order" shares out',
                    where=f"dataset {self.name!r}",
                    fix='use sharding_method="dedicated"',
                ) from error
        return True

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences, for a user-defined class. Positions count from 0."""
        super().init_seq_order(wanted.epoch)
        self._stop()
        self._take(dataclasses.replace(wanted, first=0))
        return 0

    # --- reading ---

    def _stop(self) -> None:
        """Cancel what is under way; the workers stay, and what is read next begins anew where it was."""
        self._opened = None
        self._pool.stop()

    def _open_blocks(self, position: int) -> tuple[int, Iterator[ReadBlock]]:
        pool, skips = self._pool, self._pool.options.skips
        if self._request is not None:
            first = 0 if skips else position  # it is not known how many before it are left out
            return first - first % pool.limits.group, pool.blocks(self._request, first)
        num_seqs, blocks = pool.blocks_of_shards(int(self.epoch))
        if not skips:
            self._num_seqs = num_seqs
        return 0, blocks

    def _goes_on(self, opened: BlocksAhead, seq_idx: int) -> bool:
        pool = self._pool  # another reader may have taken it over
        is_near = self._request is None or pool.options.skips or seq_idx - opened.position < pool.look_ahead()
        return is_near and pool.is_reading(opened.blocks)

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch; with `free_resources` also the workers, which come back with the next one."""
        self._stop()
        super().finish_epoch(free_resources=free_resources)

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch; with "dedicated" the workers are asked, if they know."""
        is_asked = self._request is None and self._num_seqs is None and self._epoch is not None
        if is_asked and self._opened is None:
            self._opened = self._open_at(0)
        return super().num_seqs


class PooledReader(Reader):
    """Returns sequences that workers read ahead, in the order of a request.

    They begin anew at a sequence that is asked for out of turn. What their policy on errors leaves out is an error
    here: sequences are asked for by number, and another one must not come in its place.

    Args:
        pool: It has the workers. If another reader takes them over, they begin again here when more is read.
        name: The name of the dataset, for messages.
    """

    gives_own = True
    is_sequential = True  # it costs least in rising order

    def __init__(self, pool: Pool, name: str) -> None:
        self._pool, self._name = pool, name
        self.start(ReadRequest.of(None, np.zeros(0, np.int64)))

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next; the workers begin when something is read."""
        if wanted.tags is not None:
            order, counted = self._pool.corpus.order(wanted.epoch, GivenOrder(wanted.tags))
            wanted = dataclasses.replace(wanted, order=order, occurrences=counted)
        self._wanted = wanted
        self._blocks: Iterator[ReadBlock] | None = None
        self._error: BaseException | None = None  # of the sequence after the current block
        self._take(ReadBlock(NO_SEQS))

    def tags(self) -> list[str] | None:
        """Ask the corpus for the tags."""
        if self._wanted.tags is not None:
            return list(self._wanted.tags)
        corpus = self._pool.corpus
        return corpus.tags_of(self._wanted.indices) if corpus.is_indexed else None

    def read(self, number: int) -> DatasetSeq:
        """Return a sequence; workers begin anew if it is far from those that they read."""
        if not self._first <= number < self._stop:
            self._go_to(number)
        at = number - self._first
        num_left_out = bisect_left(self._left_out, at)
        if at in self._left_out[num_left_out : num_left_out + 1]:
            raise self._error_of(number)
        seq = self._block.seq(at - num_left_out, number, None)
        if self._wanted.tags is not None and seq.seq_tag != self._wanted.tags[number]:
            raise SourceError(
                f"{self._wanted.tags[number]!r} was asked for, and {seq.seq_tag!r} came",
                where=f"inner dataset of {self._name!r}, sequence {number}",
            )
        return seq

    def _go_to(self, number: int) -> None:
        """Make the block of a sequence the current one."""
        pool, blocks, error, is_new = self._pool, self._blocks, self._error, False
        self._blocks = self._error = None  # until the block is here: after an error they begin anew
        if error is not None and number == self._stop:
            raise error
        if error is not None or not pool.is_reading(blocks) or not 0 <= number - self._stop < pool.look_ahead():
            blocks, is_new = pool.blocks(self._wanted, number), True
        while True:
            assert blocks is not None
            found = next(blocks, None)
            if found is None or found.number > number:
                raise self._error_of(number)
            self._take(found)
            if number < self._stop:
                break
            if found.error is not None:
                if is_new or number == self._stop:
                    raise found.error
                blocks, is_new = pool.blocks(self._wanted, number), True  # it is of one before
        self._blocks, self._error = blocks, found.error

    def _take(self, read: ReadBlock) -> None:
        """Make a block the current one."""
        self._block, self._left_out = SeqBlock(*read.parts), read.left_out
        self._first, self._stop = read.number, read.number + len(self._block) + len(read.left_out)

    def _error_of(self, number: int) -> SourceError:
        tags = self.tags()
        name = f"corpus index {self._wanted.order[number]}" if tags is None else repr(tags[number])
        return SourceError(
            f"workers have left out a sequence that failed, as their engine_options say: {name}",
            where=f"MultiProcDataset {self._name!r}, a part of a dataset that needs all of its sequences",
            fix="give on_error=Skipping() to the DataLoader, or to the outermost dataset, in its place",
        )
