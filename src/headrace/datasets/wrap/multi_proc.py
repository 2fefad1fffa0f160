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
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine import Engine, EngineOptions, EngineReport, Executor, Job, Skipping, WorkerInfo
from headrace.engine.group_size import GroupSize
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import ConfigError, SourceError
from headrace.order import Order, RangeOrder

from ..base import Dataset
from ..checks import check_count
from ..configs import init_dataset
from ..corpus import Corpus
from ..delegating import InnerAnswers
from ..parts import MadeElsewhere
from ..reading.reader import GivenOrder, Reader, ReadRequest
from ..seq import DatasetSeq
from ..workers import DatasetWorkers
from .ahead import ordered_blocks, shard_blocks
from .blockwise import NO_SEQS, BlockwiseDataset, ReadBlock, SeqBlock
from .runs import DedicatedWork, OrderedWork, RunLimits

SHARDING_METHODS = ("seq_order", "dedicated")
_MAX_TICKETS = 1024  # before a worker: as many large sequences fill all memory that it may take
_OUTER_OPTIONS = ("name", "estimated_num_seqs")  # everything else is for the inner dataset


class MultiProcDataset(InnerAnswers, BlockwiseDataset):
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
        dataset: Mapping[str, Any] | Dataset,
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
        if not isinstance(dataset, Mapping | Dataset):
            raise ConfigError(
                f"the inner dataset is a dataset, or described by a dict, got {type(dataset).__name__}",
                fix='write dataset={"class": "HDFDataset", ...}: each worker builds its own',
            )
        if sharding_method not in SHARDING_METHODS:
            raise ConfigError(f"sharding_method must be one of {SHARDING_METHODS}: {sharding_method!r}")
        self.num_workers = check_count("num_workers", num_workers)
        self.buffer_size = check_count("buffer_size", buffer_size, minimum=1)
        self.sharding_method = sharding_method
        self._is_ordered = sharding_method == "seq_order"
        defaults = {name: value for name, value in kwargs.items() if name not in _OUTER_OPTIONS}
        if isinstance(dataset, Dataset) and defaults:
            raise ConfigError(
                f"the options {', '.join(defaults)} are for the inner dataset, which is made already",
                where=f"dataset {dataset.name!r}",
                fix="give them to it, or describe it by a dict",
            )
        self._config = copy.copy(dataset) if isinstance(dataset, Dataset) else {**defaults, **dataset}
        self._executor = "inline" if self.num_workers == 0 else executor
        if max_bytes_per_worker is not None and max_bytes is not None:
            raise ConfigError(
                "max_bytes_per_worker and max_bytes are two names of one option", fix="leave max_bytes out"
            )
        name, value = ("max_bytes_per_worker", max_bytes_per_worker) if max_bytes is None else ("max_bytes", max_bytes)
        self.max_bytes_per_worker = None if value is None else check_count(name, value, minimum=1)
        if value is not None and self._executor not in ("process", "inline"):
            raise ConfigError(
                f"{name}={value} limits the memory of worker processes, and executor={executor!r} has none",
                fix=f'leave {name} out, or use executor="process"',
            )
        self._engine_options = engine_options
        self._worker_init = worker_init
        self._inner: Dataset | None = None
        self._engine: Engine | None = None
        self._reading: Iterator[ReadBlock] | None = None  # what the workers are at work for
        self._order: Order = RangeOrder(range(0))
        self._occurrences: NDArray[np.int64] | None = None

    # --- the inner dataset ---

    @property
    def inner(self) -> Dataset:
        """The inner dataset in this process: it says order and layout, and reads nothing."""
        if self._inner is None:
            self._inner = init_dataset(self._config)
            self._inner.foreign.answer_alone()  # it is not read, or by a reader
            self.num_inputs = self._inner.num_inputs
            self.num_outputs = self._inner.num_outputs
            self.labels = dict(self._inner.labels)
            self._follow_order()
        return self._inner

    def get_parts(self) -> Sequence[Dataset]:
        """Return the inner dataset, if it is made already."""
        return () if self._inner is None else (self._inner,)

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what the inner dataset knows; "dedicated" takes no order, and tells none."""
        corpus = self.inner.get_corpus(epoch)
        return corpus if self._is_ordered else dataclasses.replace(corpus.without_index(), knows_order=lambda: False)

    def order_text(self, epoch: int) -> str:
        """Return what decides the inner order; with "dedicated" also how many take turns."""
        text = super().order_text(epoch)
        return text if self._is_ordered else f"{text}; {self.num_workers} workers in turn"

    @classmethod
    def idle_options(cls, options: Mapping[str, Any]) -> frozenset[str]:
        """Return the options of speed; with "dedicated" the stream depends on the number of workers."""
        idle = super().idle_options(options)
        return idle if options.get("sharding_method", "seq_order") == "seq_order" else idle - {"num_workers"}

    @property
    def supports_jumps(self) -> bool:
        """Whether it takes an order."""
        return self._is_ordered

    def get_workers(self) -> DatasetWorkers:
        """Return its workers; with "seq_order", any worker may read any sequence."""
        return DatasetWorkers(
            type(self).__name__,
            self.num_workers,
            self.inner,
            MadeElsewhere.of(self._config, self.inner),
            is_same_without=self._is_ordered,
            num_shards=1 if self._is_ordered else max(self.num_workers, 1),
            executor=self._executor if self.num_workers else None,
            worker_init=self._worker_init,
            engine_options=self._engine_options,
            max_bytes_per_worker=self.max_bytes_per_worker,
            buffer_size=self.buffer_size,
            sharding_method=self.sharding_method,
            report=self.engine_report,
        )

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
    def skips_failed(self) -> bool:
        """Whether sequences that fail are left out."""
        return self._engine_options is not None and isinstance(self._engine_options.on_error, Skipping)

    @property
    def engine_report(self) -> EngineReport | None:
        """Statistics: where time was spent, and what was skipped or restarted; `None` before workers were started."""
        return None if self._engine is None else self._engine.report

    def initialize(self) -> None:
        """Get ready to read: learn the layout. Starts no process."""
        _ = self.inner
        super().initialize()

    @cached_property
    def _limits(self) -> RunLimits:
        return RunLimits.of(self.inner, self.buffer_size, self.max_bytes_per_worker, are_shards=not self._is_ordered)

    @cached_property
    def _size(self) -> GroupSize:
        """What is known of the sequences."""
        return GroupSize(max_bytes=self._limits.max_bytes, max_items=self._limits.num_seqs)

    def _open_engine(self) -> Engine:
        if self._engine is None:
            inner, limits, max_bytes = self.inner, self._limits, self.max_bytes_per_worker
            made = MadeElsewhere.of(self._config, inner)
            if self._is_ordered:
                setup: Any = OrderedWork(made, self.skips_failed)
                ahead = min(self.buffer_size, _MAX_TICKETS)  # how many sequences they have is counted
            else:
                setup = DedicatedWork(made, inner.num_shards, inner.shard_index, limits, self.skips_failed)
                ahead = min(max(self.buffer_size // limits.num_seqs, 1), _MAX_TICKETS)
            engine_options = dataclasses.replace(self._engine_options or EngineOptions(), tickets_per_worker=ahead)
            executor: str | Executor = self._executor
            if executor == "process" and max_bytes is not None:
                executor = ProcessExecutor(max_bytes=max_bytes, slot_bytes=min(limits.max_bytes, max_bytes))
            job = Job(setup, self._worker_init)
            self._engine = Engine(job, num_workers=self.num_workers, executor=executor, options=engine_options)
        return self._engine

    def resize(self, num_workers: int) -> None:
        """Have more workers, or fewer, from now on, also in the middle of an epoch: the sequences stay the same.

        Args:
            num_workers: At least 1.

        Raises:
            ConfigError: There are no workers (`num_workers=0`), or each has a share of its own ("dedicated").
        """
        num_workers = check_count("resize: num_workers", num_workers, minimum=1)
        if not self._is_ordered or self.num_workers == 0:
            why = "this process does their work" if self.num_workers == 0 else "each worker has a share of its own"
            raise ConfigError(
                f"resize({num_workers}): {why}",
                where=f"dataset {self.name!r}",
                fix='use sharding_method="seq_order" and num_workers=1 or more',
            )
        if self._engine is not None:
            self._engine.resize(num_workers)
        self.num_workers = num_workers

    def close_workers(self) -> None:
        """End the workers; they come back when they are needed, also in the middle of an epoch, where it was."""
        self._stop()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

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
        self._order = RangeOrder(range(0))
        given = GivenOrder.of(seq_list, seq_order)
        if not self._is_ordered and given is not None:
            raise ConfigError(
                'sharding_method="dedicated" takes no seq_list or seq_order: each worker would deliver all of it',
                where=f"dataset {self.name!r}",
                fix='use sharding_method="seq_order"',
            )
        if self._is_ordered and not (epoch is None and given is None):
            try:
                self._order, self._occurrences = self.inner.get_epoch_order(epoch, given)
            except NotImplementedError as error:
                raise ConfigError(
                    f"{type(self.inner).__name__} does not tell its order, "
                    'which sharding_method="seq_order" shares out',
                    where=f"dataset {self.name!r}",
                    fix='use sharding_method="dedicated"',
                ) from error
            self._num_seqs = None if self.skips_failed else len(self._order)
        return True

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences, for a user-defined class. Positions count from 0."""
        position = super().start_part(wanted)
        if wanted.occurrences is not None and self._occurrences is not None:
            self._occurrences = wanted.occurrences  # in the whole epoch, not in this part
        return position

    # --- reading ---

    def read_blocks(self, wanted: ReadRequest, first: int) -> Iterator[ReadBlock]:
        """Let the workers read a request, from the group of a number on, in place of what they are at work for."""
        self._stop()
        engine, limits = self._open_engine(), self._limits
        first -= first % limits.group
        self._reading = blocks = ordered_blocks(engine, wanted, first, limits, self._size, self.buffer_size)
        return blocks

    def is_reading(self, blocks: Iterator[ReadBlock] | None) -> bool:
        """Whether these are the blocks that the workers are at work for."""
        return blocks is not None and blocks is self._reading

    def _stop(self) -> None:
        """Cancel what is under way; the workers stay, and what is read next begins anew where it was."""
        self._opened = self._reading = None
        if self._engine is not None:
            self._engine.end_run()

    def _open_blocks(self, position: int) -> tuple[int, Iterator[ReadBlock]]:
        epoch = int(self.epoch)
        if self._is_ordered:
            first = 0 if self.skips_failed else position  # it is not known how many before it are left out
            blocks = self.read_blocks(ReadRequest(epoch, self._order, self._occurrences, 0), first)
            return first - first % self._limits.group, blocks
        num_workers = max(self.num_workers, 1)
        run = self._open_engine().run_stream(epoch)
        counts = [delivered.value for delivered in itertools.islice(run, num_workers)]
        if not self.skips_failed:
            self._num_seqs = None if None in counts else sum(counts)
        return 0, shard_blocks(run, num_workers)

    def _is_far(self, num_seqs: int) -> bool:
        return self._is_ordered and not self.skips_failed and num_seqs >= self.look_ahead()

    def _new_reader(self) -> Reader:
        return PooledReader(self) if self._is_ordered else super()._new_reader()

    def look_ahead(self) -> int:
        """Return how many sequences all workers together may read ahead."""
        return max(self.num_workers, 1) * max(self.buffer_size, self._limits.num_seqs)

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch; with `free_resources` also the workers, which come back with the next one."""
        super().finish_epoch(free_resources=free_resources)
        self._stop()
        if free_resources:
            self._order, self._occurrences = RangeOrder(range(0)), None
            self.close_workers()

    # --- what the inner dataset knows ---

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch; with "dedicated" the workers are asked, if they know."""
        if not self._is_ordered and self._num_seqs is None and self._epoch is not None and self._opened is None:
            self._opened = self._open_at(0)
        return super().num_seqs

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order; not offered by "dedicated"."""
        if not self._is_ordered:
            self._not_offered('get_current_seq_order with sharding_method="dedicated"')
        return self._order

    def _change_recipe(self, **changes: Any) -> None:
        super()._change_recipe(**changes)
        self._renew_workers(changes)

    def _take_shard(self, num_shards: int, shard_index: int) -> None:
        """Make this dataset one shard of `num_shards`; workers start anew if their shards depend on it."""
        super()._take_shard(num_shards, shard_index)
        self._renew_workers({"_num_shards": num_shards, "_shard_index": shard_index})

    def _renew_workers(self, changes: Mapping[str, Any]) -> None:
        if not isinstance(self._config, Dataset):  # which has taken them itself
            self._config = {**self._config, **changes}
        self.close_workers()  # they have the old options

    def have_corpus_seq_idx(self) -> bool:
        """Whether the order is known here."""
        return self._is_ordered

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the corpus index of a sequence of the current order."""
        return self.get_current_seq_order()[seq_idx]

    def have_get_corpus_seq(self) -> bool:
        """Whether the inner dataset supports it."""
        return self.inner.have_get_corpus_seq()

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence of the corpus, read in this process."""
        return self.inner.get_corpus_seq(corpus_seq_idx)


class PooledReader(Reader):
    """Returns sequences that workers read ahead, in the order of a request.

    They begin anew at a sequence that is asked for out of turn. What their policy on errors leaves out is an error
    here: sequences are asked for by number, and another one must not come in its place.

    Args:
        pool: It has the workers. If another reader takes them over, they begin again here when more is read.
    """

    gives_own = True
    is_sequential = True  # it costs least in rising order

    def __init__(self, pool: MultiProcDataset) -> None:
        self._pool = pool
        self.start(ReadRequest.of(None, np.zeros(0, np.int64)))

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next; the workers begin when something is read."""
        if wanted.tags is not None:
            order, counted = self._pool.inner.get_epoch_order(wanted.epoch, GivenOrder(wanted.tags))
            wanted = dataclasses.replace(wanted, order=order, occurrences=counted)
        self._wanted = wanted
        self._blocks: Iterator[ReadBlock] | None = None
        self._error: BaseException | None = None  # of the sequence after the current block
        self._take(ReadBlock(NO_SEQS))

    def tags(self) -> list[str] | None:
        """Ask the corpus for the tags."""
        if self._wanted.tags is not None:
            return list(self._wanted.tags)
        corpus = self._pool.inner.get_corpus()
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
                where=f"inner dataset of {self._pool.name!r}, sequence {number}",
            )
        return seq

    def _go_to(self, number: int) -> None:
        """Make the block of a sequence the current one."""
        pool, blocks, error, is_new = self._pool, self._blocks, self._error, False
        self._blocks = self._error = None  # until the block is here: after an error they begin anew
        if error is not None and number == self._stop:
            raise error
        if error is not None or not pool.is_reading(blocks) or not 0 <= number - self._stop < pool.look_ahead():
            blocks, is_new = pool.read_blocks(self._wanted, number), True
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
                blocks, is_new = pool.read_blocks(self._wanted, number), True  # it is of one before
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
            where=f"MultiProcDataset {self._pool.name!r}, a part of a dataset that needs all of its sequences",
            fix="give on_error=Skipping() to the DataLoader, or to the outermost dataset, in its place",
        )
