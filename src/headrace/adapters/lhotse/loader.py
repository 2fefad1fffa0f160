"""`LhotseDataLoader`: a map-style dataset that is asked for whole batches, in the order of a sampler.

The `LhotseDataLoader` of lhotse 0.8 to 0.12, with its name and arguments, on Headrace's engine. The parts:
`sampler.py` (how a pass over a sampler begins, and how its position is kept), `draws.py` (drawing batches), `ahead.py`
(ahead of the training), `work.py` (what a worker does), `passes.py` (one pass), `state.py` (what is saved),
`torch_args.py` (what is refused).

Invariants: the stream does not depend on the number of workers, nor on their deaths; the state is that of the delivered
    batches, never of the prefetched ones. Neither lhotse nor torch is imported here.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from headrace.engine import Engine, EngineOptions, EngineReport, Job, Skipping
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import ConfigError, HeadraceError, ResumeError, StalledError, check_count
from headrace.rng import derive_seed
from headrace.show.card import Card, Shown

from .ahead import Ahead, Inline
from .draws import Drawing
from .passes import Pass, PassKey
from .sampler import Resume, SamplerSide, is_of_lhotse
from .state import Course, Saved
from .torch_args import checked_dataset, refuse_options
from .work import DatasetSetup

_logger = logging.getLogger("headrace.adapters")
# Modules that take a lhotse worker seconds and hundreds of megabytes to import, torch among them.
_PRELOAD = ("lhotse.dataset",)


class LhotseDataLoader(Shown):
    """Batches `dataset[batch]` for each batch that a sampler gives, made by workers, in the sampler's order.

    The loader is its own iterator, as in lhotse: `iter(loader)` begins a new pass over the sampler, whatever was left
    of the one before, and returns the loader. A pass from which nothing was taken yet counts as that new pass. The
    workers persist over passes, and end with `close`, a `with` block, `del` or the interpreter. They may start
    processes of their own. Not thread-safe.

    Args:
        dataset: Any object with `dataset[batch] -> anything`: a lhotse dataset, or one of your own.
        sampler: The sampler of the batches: any lhotse sampler, a `PlannedCutSampler`, or any iterable. It runs in a
            thread of its own, ahead of the training.
        num_workers: Worker processes; 0 makes the batches in this thread, when they are asked for.
        prefetch_factor: How many batches a worker may be ahead. The sampler is asked for `num_workers *
            prefetch_factor` batches when a pass begins, and for one more with each batch that is taken.
        seed: The global generators of Python, NumPy and torch (if loaded) are seeded for each batch by (seed, epoch,
            batch) before `dataset[batch]`, so that random transforms do not depend on the workers. None: they are not.
        resume: How `load_state_dict` finds the position: `"replay"` draws the same batches again, without loading them;
            `"snapshot"` uses the sampler's own state; `"auto"` replays lhotse's samplers and uses the state of others.
        worker_init_fn: Called in each worker process with its number, before anything else.
        threads_per_worker: How many threads torch, OpenMP and BLAS use in a worker.
        start_method: How workers are started: None (by a clean helper process), `"spawn"`, `"forkserver"`.
        max_bytes: Limit on the shared memory of all workers together; default: 2 GiB each.
        engine_options: What to do about errors, deaths and stalls.
        **others: Refused; the error names what to use instead of an argument of torch's.

    Raises:
        ConfigError: An option is wrong.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Any,
        num_workers: int = 1,
        prefetch_factor: int = 2,
        *,
        seed: int | None = 0,
        resume: Resume = "auto",
        worker_init_fn: Callable[[int], Any] | None = None,
        threads_per_worker: int = 1,
        start_method: str | None = None,
        max_bytes: int | None = None,
        engine_options: EngineOptions | None = None,
        **others: Any,
    ) -> None:
        self._engine: Engine | None = None
        self._pass: Pass | None = None
        self.dataset, self.sampler = checked_dataset(dataset), sampler
        self.num_workers = check_count("num_workers", num_workers)
        self.prefetch_factor = check_count("prefetch_factor", prefetch_factor, minimum=1)
        refuse_options(others, inspect.signature(type(self)).parameters)
        self._seed = None if seed is None else check_count("seed", seed, minimum=-(2**63) + 1, maximum=2**63 - 1)
        if worker_init_fn is not None and not callable(worker_init_fn):
            raise ConfigError(f"worker_init_fn must be a function, got {worker_init_fn!r}")
        self._side = SamplerSide(sampler, resume)
        options = EngineOptions() if engine_options is None else engine_options
        if not isinstance(options, EngineOptions):
            raise ConfigError(f"engine_options is an EngineOptions(...), got {options!r}")
        self._stall_seconds = options.stall_seconds
        self._engine = Engine(
            Job(
                DatasetSetup(dataset, worker_init_fn, isinstance(options.on_error, Skipping)),
                preload=_PRELOAD if is_of_lhotse(sampler) or is_of_lhotse(dataset) else (),
            ),
            num_workers=self.num_workers,
            executor=_make_executor(max_bytes, self.num_workers, start_method, threads_per_worker),
            options=dataclasses.replace(
                options,
                # What is queued behind a slow batch waits for it, so no more than one is.
                tickets_per_worker=min(self.prefetch_factor, 2),
                look_ahead=max(self.num_workers, 1) * self.prefetch_factor,
            ),
        )
        self._engine.prepare()
        self._is_closed = False
        self._epoch = 0
        self._course = Course()
        self._last: tuple[int, int, bool] | None = None  # epoch and number of the last pass, and whether it ended
        self._loaded: Saved | None = None

    # --- iteration ---

    def start(self) -> None:
        """Start the workers now; without this they are started by the first pass.

        They import torch and lhotse for some seconds while the caller continues: call it before the model is built.

        Raises:
            HeadraceError: After `close`.
        """
        if self._is_closed or self._engine is None:
            raise HeadraceError("this loader is closed", fix="make a new one")
        self._engine.start()

    def __iter__(self) -> LhotseDataLoader:
        """Begin a pass over the sampler, or continue from a loaded state; return the loader itself.

        Once more before the first batch changes nothing: progress bars and `itertools` ask an iterator for its
        iterator, and the position of a loaded state would be lost.

        Raises:
            ResumeError: The sampler does not lead to the loaded state.
        """
        live = self._pass
        if live is None or not live.is_untouched or self.epoch != self._course.epoch:
            self._begin()
        return self

    def __next__(self) -> Any:
        """Return the next batch; without a pass under way, of a new one.

        An exception of the dataset is raised here, at its position, and the next call continues after it.

        Raises:
            StopIteration: At the end of the pass, until `iter` begins another one.
            BaseException: What the dataset or the sampler raised, with the ids of the batch; or what ended the workers.
        """
        if self._pass is None:
            self._begin()
            assert self._pass is not None
        return next(self._pass)

    def __len__(self) -> int:
        """Return the number of batches of a pass, for samplers that know it.

        Raises:
            TypeError: The sampler does not; lhotse's never do.
        """
        return len(self.sampler)

    def __bool__(self) -> bool:
        """Return True: a loader is true whatever its length."""
        return True

    @property
    def epoch(self) -> int:
        """The epoch of the sampler; of the loader, if the sampler has none."""
        own = self._side.epoch
        return self._epoch if own is None else own

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, also in the sampler; random transforms draw new numbers.

        A loaded position is kept if it is of this epoch; else it is dropped, with a warning.
        """
        self._epoch = check_count("epoch", epoch)
        loaded = self._loaded
        if loaded is not None and loaded.epoch != epoch:
            _logger.warning(
                "set_epoch(%d) drops the loaded position: batch %d of epoch %d", epoch, loaded.batches, loaded.epoch
            )
            self._loaded = None
        self._side.set_epoch(epoch)

    def _begin(self) -> None:
        """Begin a pass."""
        self._stop()
        self.start()  # the workers get ready while the sampler does
        assert self._engine is not None
        self._side.settle_ranks()
        loaded = self._loaded
        if loaded is not None and loaded.epoch != self.epoch:
            _logger.warning("the sampler's epoch was set to %d: the loaded position is dropped", self.epoch)
            loaded = self._loaded = None
        if loaded is None or loaded.is_over:
            course = Course(self.epoch, self._next_passes())
        else:
            course = Course.of_saved(loaded, self._side.is_elastic)
        key = None
        if self._seed is not None:
            key = derive_seed(self._seed, "lhotse: pass", epoch=course.epoch, occurrence=course.passes)
        pass_key = PassKey(course.epoch, key, course.origin + self._side.rank, self._side.world_size)
        self._course = course
        source = self._open(course, loaded, pass_key)
        self._loaded = None
        self._pass = Pass(self._engine, source, pass_key, course.mark)
        self._pass.start()

    def _open(self, course: Course, loaded: Saved | None, key: PassKey) -> Ahead | Inline:
        """Start to draw, at the position of a state if there is one."""
        side, mark, packs = self._side, course.mark, self.num_workers > 0
        # Ranks that share one order must all draw it by the same seeds.
        first = key.offset if side.is_elastic else course.origin
        drawing = Drawing(side, packs=packs, key=key.key, first=first, stride=key.world_size)
        drawing.begin(mark.state, mark.state_num, mark.state_digest, is_restart=loaded is not None)
        if side.is_elastic:
            mark.state = side.snapshot()
        if loaded is not None and not loaded.is_over:
            self._draw_again(drawing, course, loaded)
        num_ahead = self.num_workers * self.prefetch_factor
        drawn = drawing.draw()
        if not packs or drawing.uses_globals:
            return Inline(drawing, drawn, num_ahead)
        return Ahead(drawing, drawn, num_ahead, self._stall_seconds, type(self.sampler).__name__)

    def _draw_again(self, drawing: Drawing, course: Course, saved: Saved) -> None:
        """Draw the consumed batches again, and check that they are the same.

        Raises:
            ResumeError: It is not.
        """
        num = course.mark.num
        while drawing.number < num and drawing.skip():
            pass
        is_same = saved.rank != self._side.rank or drawing.digest == course.mark.digest
        if drawing.number < num or not is_same:
            raise ResumeError(
                f"the sampler gives other batches than when the state was saved: {drawing.number} of {num} batches "
                f"have the digest {drawing.digest:016x}, and it was {course.mark.digest:016x}",
                where=f"epoch {course.epoch}, {type(self.sampler).__name__}, rank {self._side.rank}",
                fix="give the sampler the cuts, filters, options and seed that it had, and transforms that keep the "
                'ids of cuts; if its order depends on earlier passes or on a loaded state, use resume="snapshot"',
            )

    def _next_passes(self) -> int:
        """Return how many complete passes over this epoch came right before the next one."""
        if self._last is None or self._last[0] != self.epoch:
            return 0
        return self._last[1] + self._last[2]

    def _stop(self) -> None:
        """End the current pass.

        Raises:
            StalledError: The sampler hangs in drawing a batch.
        """
        live = self._pass
        if live is None:
            return
        self._last = self._course.epoch, self._course.passes, live.is_complete
        live.close()
        if not live.source.close(self._stall_seconds or float("inf")):
            raise StalledError(
                f"the sampler is still drawing a batch of the pass before, after {self._stall_seconds:.0f} s",
                where=type(self.sampler).__name__,
                fix="EngineOptions(stall_seconds=...) sets how long is too long; 0: wait for ever",
            )
        self._pass = None

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training: after the last batch that it got, whatever was drawn and made ahead.

        The dict is of plain data, except for a state that the sampler gave (`resume="snapshot"`, `PlannedCutSampler`).
        A batch whose error was raised counts once the next one was handed over.
        """
        if self._loaded is not None:
            return self._loaded.to_dict()
        live, course, side = self._pass, self._course, self._side
        if live is None:
            course = Course(self.epoch, self._next_passes())
        mark = course.mark
        return Saved(
            epoch=course.epoch,
            passes=course.passes,
            origin=course.origin,
            batches=mark.num,
            digest=mark.digest,
            is_over=live is not None and live.is_complete,
            rank=side.rank,
            world_size=side.world_size,
            seed=self._seed,
            sampler=side.describe(),
            state=mark.state,
            state_batches=mark.state_num,
            state_digest=mark.state_digest,
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the next pass gives the rest of the saved one. A current pass is dropped.

        The number of workers may be another one, and with a `PlannedCutSampler` the number of ranks. The state itself
        is not changed. Replay takes place when the next pass begins.

        Raises:
            ResumeError: The state is damaged, or of another sampler or seed, which is named.
        """
        saved, side = Saved.of_dict(state), self._side
        side.check(saved.sampler)
        if saved.seed != self._seed:
            raise ResumeError(f"the state was saved with seed={saved.seed}, and this loader has seed={self._seed}")
        if saved.world_size != side.world_size and not side.is_elastic:
            raise ResumeError(
                f"the state was saved on {saved.world_size} ranks, and there are {side.world_size}",
                fix="use as many, or PlannedCutSampler, which can be resumed on any number of ranks",
            )
        if saved.state is not None and not side.keeps_state:
            raise ResumeError(
                "the state holds a state of the sampler, but this loader replays",
                fix="make the loader with the same resume=",
            )
        self._stop()
        self._loaded, self._epoch = saved, saved.epoch
        self._last = (saved.epoch, saved.passes, saved.is_over)
        side.set_epoch(saved.epoch)

    # --- what happened, and the end ---

    def _card(self) -> Card:
        facts = [
            ("dataset", f"dataset {type(self.dataset).__name__}"),
            ("sampler", f"sampler {type(self.sampler).__name__}"),
            ("workers", f"{self.num_workers} workers"),
            ("epoch", f"epoch {self.epoch}"),
        ]
        return Card(type(self).__name__, facts)

    @property
    def report(self) -> EngineReport:
        """Where the time went, and how many workers were restarted."""
        assert self._engine is not None
        return self._engine.report

    def close(self) -> None:
        """End the workers and the thread of the sampler, within seconds; harmless when closed."""
        self._is_closed = True
        live, self._pass = self._pass, None
        if live is not None:
            live.close()
            live.source.close()
        if self._engine is not None:
            self._engine.close()

    def __enter__(self) -> LhotseDataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # At the end of the interpreter modules may be gone, and the workers have ended before.
        if getattr(self, "_engine", None) is not None and sys is not None and not sys.is_finalizing():
            self.close()


def _make_executor(
    max_bytes: int | None, num_workers: int, start_method: str | None, threads_per_worker: int
) -> ProcessExecutor:
    threads = check_count("threads_per_worker", threads_per_worker, minimum=1)
    if max_bytes is None:
        return ProcessExecutor(start_method=start_method, threads_per_worker=threads)
    per_worker = max(check_count("max_bytes", max_bytes, minimum=1) // max(num_workers, 1), 1)
    return ProcessExecutor(
        start_method=start_method,
        max_bytes=per_worker,
        slot_bytes=min(1 << 20, per_worker),
        threads_per_worker=threads,
    )
