"""`MultiProcDataset`: a dataset loaded by worker processes, the same stream as the dataset itself.

The order comes from the inner dataset in this process alone, and reaches the workers as slices of an array.
Sequences come back in shared memory, many in one block; what a reader gets are views, which hold their block until they
are gone.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine import Engine, EngineOptions, EngineReport, Executor, Job, Skipping, WorkerInfo
from headrace.engine.group_size import GroupSize
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import ConfigError
from headrace.order import Order, RangeOrder

from ..base import Dataset
from ..checks import check_count
from ..configs import init_dataset
from ..corpus import Corpus
from ..delegating import InnerAnswers
from ..parts import MadeElsewhere
from ..reading.reader import CountedOrder, GivenOrder, Reader, ReadRequest
from ..seq import DatasetSeq
from ..workers import DatasetWorkers
from .blockwise import BlockwiseDataset, SeqBlock
from .ordered_runs import OrderedRuns
from .pooled import PooledReader
from .runs import DedicatedWork, OrderedWork, RunLimits
from .shard_runs import ShardRuns

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
        defaults = {name: value for name, value in kwargs.items() if name not in _OUTER_OPTIONS}
        if isinstance(dataset, Dataset) and defaults:
            raise ConfigError(
                f"the options {', '.join(defaults)} are for the inner dataset, which is made already",
                where=f"dataset {dataset.name!r}",
                fix="give them to it, or describe it by a dict",
            )
        self._config: dict[str, Any] | Dataset = (
            copy.copy(dataset) if isinstance(dataset, Dataset) else {**defaults, **dataset}
        )
        self._executor = "inline" if self.num_workers == 0 else executor
        self.max_bytes_per_worker: int | None = None
        for name, value in (("max_bytes_per_worker", max_bytes_per_worker), ("max_bytes", max_bytes)):
            if value is None:
                continue
            if self.max_bytes_per_worker is not None:
                raise ConfigError(
                    "max_bytes_per_worker and max_bytes are two names of one option", fix="leave max_bytes out"
                )
            self.max_bytes_per_worker = check_count(name, value, minimum=1)
            if self._executor not in ("process", "inline"):
                raise ConfigError(
                    f"{name}={value} limits the memory of worker processes, and executor={executor!r} has none",
                    fix=f'leave {name} out, or use executor="process"',
                )
        self._engine_options = engine_options
        self._worker_init = worker_init
        self._inner: Dataset | None = None
        self._engine: Engine | None = None
        self._run: ShardRuns | OrderedRuns | None = None
        self._is_lent = False  # whether the run is that of a reader
        self._size: GroupSize | None = None  # what is known of the sequences
        self._limits: RunLimits | None = None
        self._order: Order = RangeOrder(range(0))
        self._occurrences: NDArray[np.int64] | None = None

    # --- the inner dataset ---

    @property
    def inner(self) -> Dataset:
        """The inner dataset in this process: it says order and layout, and reads nothing."""
        if self._inner is None:
            self._inner = init_dataset(self._config)
            self._inner.answer_alone()  # it is not read, or by a reader
            self.num_inputs = self._inner.num_inputs
            self.num_outputs = self._inner.num_outputs
            self.labels = dict(self._inner.labels)
            self._follow_order()
        return self._inner

    def get_parts(self) -> Sequence[Dataset]:
        """Return the inner dataset, if it is made already."""
        return () if self._inner is None else (self._inner,)

    @property
    def _is_ordered(self) -> bool:
        return self.sharding_method == "seq_order"

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
        return self._skips()

    @property
    def engine_report(self) -> EngineReport | None:
        """Statistics: where time was spent, and what was skipped or restarted; `None` before workers were started."""
        return None if self._engine is None else self._engine.report

    def initialize(self) -> None:
        """Get ready to read: learn the layout. Starts no process."""
        _ = self.inner
        super().initialize()

    @property
    def _run_limits(self) -> RunLimits:
        if self._limits is None:
            limits_of = RunLimits.of if self._is_ordered else RunLimits.of_shards
            self._limits = limits_of(self.inner, self.buffer_size, self.max_bytes_per_worker)
        return self._limits

    def _open_engine(self) -> Engine:
        if self._engine is None:
            inner, limits, max_bytes = self.inner, self._run_limits, self.max_bytes_per_worker
            made = MadeElsewhere.of(self._config, inner)
            if self.sharding_method == "seq_order":
                setup: Any = OrderedWork(made, self._skips())
                ahead = min(self.buffer_size, _MAX_TICKETS)  # how many sequences they have is counted
            else:
                setup = DedicatedWork(made, inner.num_shards, inner.shard_index, limits, self._skips())
                ahead = min(max(self.buffer_size // limits.num_seqs, 1), _MAX_TICKETS)
            engine_options = dataclasses.replace(self._engine_options or EngineOptions(), tickets_per_worker=ahead)
            executor: str | Executor = self._executor
            if executor == "process" and max_bytes is not None:
                executor = ProcessExecutor(max_bytes=max_bytes, slot_bytes=min(limits.max_bytes, max_bytes))
            job = Job(setup, self._worker_init)
            self._engine = Engine(
                job,
                num_workers=self.num_workers,
                executor=executor,
                options=engine_options,
            )
        return self._engine

    def resize(self, num_workers: int) -> None:
        """Have more workers, or fewer, from now on, also in the middle of an epoch: the sequences stay the same.

        Args:
            num_workers: At least 1.

        Raises:
            ConfigError: There are no workers (`num_workers=0`), or each has a share of its own ("dedicated").
        """
        num_workers = check_count("resize: num_workers", num_workers, minimum=1)
        if self.sharding_method == "dedicated" or self.num_workers == 0:
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
        self._stop_run()
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
        self._stop_run()
        self._order = RangeOrder(range(0))
        given = seq_list is not None or seq_order is not None
        if epoch is None and not given:
            return True
        if self.sharding_method == "dedicated":
            if given:
                raise ConfigError(
                    'sharding_method="dedicated" takes no seq_list or seq_order: each worker would deliver all of it',
                    where=f"dataset {self.name!r}",
                    fix='use sharding_method="seq_order"',
                )
            return True
        self._order, self._occurrences = self._order_of_inner(epoch, GivenOrder.of(seq_list, seq_order))
        self._num_seqs = None if self._skips() else len(self._order)
        return True

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences, for a user-defined class. Positions count from 0."""
        position = super().start_part(wanted)
        if wanted.occurrences is not None and self._occurrences is not None:
            self._occurrences = wanted.occurrences  # in the whole epoch, not in this part
        return position

    def _order_of_inner(self, epoch: int | None, given: GivenOrder | None) -> CountedOrder:
        try:
            return self.inner.get_epoch_order(epoch, given)
        except NotImplementedError as error:
            raise ConfigError(
                f'{type(self.inner).__name__} does not tell its order, which sharding_method="seq_order" shares out',
                where=f"dataset {self.name!r}",
                fix='use sharding_method="dedicated"',
            ) from error

    def read_blocks(self, wanted: ReadRequest, first: int) -> OrderedRuns:
        """Let the workers read a request from a number on, in place of their current work; see `PooledReader`."""
        self._stop_run()
        limits = self._run_limits
        if self._size is None:
            self._size = GroupSize(max_bytes=limits.max_bytes, max_items=limits.num_seqs)
        first -= first % limits.group
        engine = self._open_engine()
        runs = OrderedRuns(engine, wanted, first, limits, self._size, self.buffer_size)
        self._run, self._is_lent = runs, True
        return runs

    def _start_run(self, position: int) -> None:
        """Let the workers begin at a position; their current work is cancelled."""
        epoch = int(self.epoch)
        if self.sharding_method == "seq_order":
            self._upcoming = position - position % self._run_limits.group
            self.read_blocks(ReadRequest(epoch, self._order, self._occurrences, 0), self._upcoming)
            self._is_lent = False
            return
        self._stop_run()
        engine = self._open_engine()
        self._upcoming = 0
        self._run = runs = ShardRuns(engine.run_stream(epoch), max(self.num_workers, 1))
        if not self._skips():
            self._num_seqs = runs.num_seqs

    def _stop_run(self) -> None:
        run, self._run = self._run, None
        self._complete_frac, self._is_lent = 0.0, False
        if run is not None:
            run.close()  # what is under way is cancelled, the workers stay

    def _skips(self) -> bool:
        """Whether sequences that fail are left out, so that their number is not known before the end."""
        return self._engine_options is not None and isinstance(self._engine_options.on_error, Skipping)

    # --- reading ---

    def _new_reader(self) -> Reader:
        return PooledReader(self) if self._is_ordered else super()._new_reader()

    def _next_block(self, seq_idx: int) -> SeqBlock | None:
        if self._run is None or self._is_lent or self._is_far(seq_idx):
            self._start_run(0 if self._skips() else seq_idx)  # it is not known how many before it are left out
        run = self._run
        assert run is not None
        if isinstance(run, OrderedRuns):
            read = next(run, None)
            if read is None:
                return None
            self._error_behind = read.error
            return self._block_of(read.parts)
        read_round = next(run, None)
        if read_round is None:
            return None
        parts, self._error_behind = read_round
        return self._block_of(parts)

    def _lose_count(self) -> None:
        self._stop_run()  # the next read begins another one

    def _restart(self) -> None:
        self._stop_run()
        self._reset()

    def _is_far(self, seq_idx: int) -> bool:
        """Whether a position is so far ahead that the sequences in between should not be loaded."""
        ahead = seq_idx - self._upcoming
        return self.sharding_method == "seq_order" and not self._skips() and ahead >= self.look_ahead()

    def look_ahead(self) -> int:
        """Return how many sequences all workers together may read ahead."""
        return max(self.num_workers, 1) * max(self.buffer_size, self._run_limits.num_seqs)

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch; with `free_resources` also the workers, which come back with the next one."""
        super().finish_epoch(free_resources=free_resources)
        self._stop_run()
        if free_resources:
            self._order, self._occurrences = RangeOrder(range(0)), None
            self.close_workers()

    # --- what the inner dataset knows ---

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch; with "dedicated" the workers are asked, if they know."""
        if self._num_seqs is None and self._epoch is not None and self._run is None:
            self._start_run(0)
        return super().num_seqs

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order; not offered by "dedicated"."""
        if self.sharding_method == "dedicated":
            self._not_offered('get_current_seq_order with sharding_method="dedicated"')
        return self._order

    def _change_recipe(self, **changes: Any) -> None:
        super()._change_recipe(**changes)
        if not isinstance(self._config, Dataset):  # which has taken them itself
            self._config.update(changes)
        self.close_workers()  # they have the old options

    def _take_shard(self, num_shards: int, shard_index: int) -> None:
        """Make this dataset one shard of `num_shards`; workers start anew if their shards depend on it."""
        super()._take_shard(num_shards, shard_index)
        if not isinstance(self._config, Dataset):
            self._config.update(_num_shards=num_shards, _shard_index=shard_index)
        self.close_workers()

    def have_corpus_seq_idx(self) -> bool:
        """Whether the order is known here."""
        return self.sharding_method == "seq_order"

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the corpus index of a sequence of the current order."""
        return self.get_current_seq_order()[seq_idx]

    def have_get_corpus_seq(self) -> bool:
        """Whether the inner dataset supports it."""
        return self.inner.have_get_corpus_seq()

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence of the corpus, read in this process."""
        return self.inner.get_corpus_seq(corpus_seq_idx)
