"""`DataLoader`: torch's class, whose batches are made by Headrace's workers.

Arguments, attributes, samplers and lengths are torch's own code; what is replaced is the iterator. It has the engine
make the batches, in the order in which the sampler gives their indices, and knows how many were delivered, so that a
state can be saved at any batch (`state.py`).
"""

from __future__ import annotations

import functools
import logging
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
import xxhash
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _sharding_worker_init_fn
from torch.utils.data.graph_settings import apply_sharding

from headrace.engine import Engine, EngineOptions, EngineReport, Job, Run
from headrace.errors import HeadraceError, ResumeError, StalledError
from headrace.loading.torch_args import engine_options_of, executor_of
from headrace.rng.process import kept_globals
from headrace.show.card import Card, Shown

from .asking import Asking, draws_in_parts, num_free
from .state import FORMAT, Generators, TorchState, encode_index, encode_states, process_generators
from .work import Draws, MapTask, StreamPass, TorchWork, added_collate_fns

_logger = logging.getLogger("headrace.torch")
_PRELOAD = ("torch",)
_TORCH_PREFETCH = 2  # torch's value where none is given
_Item_co = TypeVar("_Item_co", covariant=True)  # what the dataset gives: `DataLoader[Item]`, as of torch's class


class DataLoader(Shown, TorchDataLoader[_Item_co]):  # type: ignore[misc, unused-ignore]
    """`torch.utils.data.DataLoader`, whose batches are made by Headrace's workers.

    The signature, the attributes and the batches are torch's. What differs: a worker that dies is replaced and its
    batches are made again; what `__getitem__` draws from the generators of Python, NumPy and torch is the same in each
    run after the same `torch.manual_seed`, for any number of workers; `state_dict` and `load_state_dict` save and
    restore a position within an epoch; workers start anew and do not fork this process, so lambdas and a script without
    `if __name__ == "__main__"` will do; and tensors arrive in shared memory without files in `/dev/shm`.

    Attributes:
        engine_options: What to do about errors, deaths and stalls, in place of what `prefetch_factor` and `timeout`
            say, for the workers that start from then on.

    Raises:
        ValueError: As torch, for arguments that contradict each other.
    """

    engine_options: EngineOptions | None = None
    _iterator: _TorchIterator | None  # torch's, of workers that stay
    _warm: Engine | None = None  # keeps the process that imports torch for the workers of all epochs
    _progress: _Progress | None = None
    _resumed: TorchState | None = None
    _iterators: weakref.WeakSet[_TorchIterator] | None = None  # all that live

    if not TYPE_CHECKING:  # static tools see torch's signature, which is inherited

        @functools.wraps(TorchDataLoader.__init__)
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._prepare()

    def _prepare(self) -> None:
        """Have torch be imported for the workers while the script goes on."""
        if self.num_workers and self.multiprocessing_context is None and self._warm is None:
            self._warm = Engine(Job(_do_nothing, preload=_PRELOAD), num_workers=1)
            self._warm.prepare()

    def _get_iterator(self) -> _TorchIterator:
        if self.num_workers:
            self._prepare()
            self.check_worker_number_rationality()
        iterator = _TorchIterator(self)
        if not iterator.has_begun:  # nothing is left of the epoch of a state: this is the next one
            if self.persistent_workers:
                iterator._reset(self)  # as torch begins it, without another seed for the workers
            else:
                iterator.close()
                iterator = _TorchIterator(self)
        if self._iterators is None:
            self._iterators = weakref.WeakSet()
        self._iterators.add(iterator)
        return iterator

    # --- state ---

    def _card(self) -> Card:
        facts = [
            ("dataset", f"dataset {type(self.dataset).__name__}"),
            ("batches", f"batch_size {self.batch_size}"),
            ("workers", f"{self.num_workers} workers"),
        ]
        return Card(f"headrace.torch.{type(self).__name__}", facts)

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is: after the last batch that it got, whatever was prefetched.

        It is that of the iteration that began last. Plain JSON data: some hundred bytes; 7 KB more for each
        `torch.Generator`, and 14 KB where a sampler draws its order from the global generators.
        """
        if self._resumed is not None:
            return self._resumed.to_dict()
        if self._progress is not None and not self._progress.is_over:
            return self._progress.to_state().to_dict()
        return TorchState(FORMAT, encode_states(Generators(self).save()[0], None)[0]).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a state was saved: the next iteration gives the rest of its epoch.

        Where nothing is left of it, because the state was saved after the last batch, the next iteration is the next
        epoch, from its start (but of an `IterableDataset`, whose end is not known before it is read: it is empty).
        The sampler, if it counts epochs, is told which one it was by `set_epoch`, as ever. `num_workers` may be
        another one, but for an `IterableDataset`. What follows the epoch is as without the interruption where the
        loader has a `generator`, whose state is restored, or the script restores torch's.

        Raises:
            ResumeError: It is no state of such a loader; or, by the next `iter(loader)`, the sampler gives another
                order than it did.
        """
        loaded = TorchState.of_dict(state)
        num_workers = self.num_workers if isinstance(self.dataset, IterableDataset) else None
        if loaded.batches is not None and loaded.num_workers != num_workers:
            raise ResumeError(
                f"the state was saved with num_workers={loaded.num_workers}, and there are {num_workers} here",
                where="an IterableDataset, of which each worker reads a copy; None: a map-style dataset",
                fix="give the loader the same dataset and num_workers",
            )
        self._progress, self._resumed = None, loaded
        if loaded.batches is None:
            Generators(self).restore_own(loaded.generators)
            self._resumed = None

    # --- what happens, and the end ---

    @property
    def report(self) -> EngineReport | None:
        """Where the time of the last iteration went, and what was skipped or restarted; None before the first one."""
        return None if self._progress is None else self._progress.report

    def close(self) -> None:
        """End the workers, also those of iterators that live; harmless twice. Iterating again starts others."""
        iterators, self._iterators, self._iterator = self._iterators, None, None
        for iterator in iterators or ():
            iterator.close()
        warm, self._warm = self._warm, None
        if warm is not None:
            warm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        return {**self.__dict__, "_iterator": None, "_iterators": None, "_warm": None, "_progress": None}


class _Progress:
    """How far an iteration is. It outlives the iterator, whose state may be asked for after the loop.

    Args:
        draws: By which its batches are seeded.
        saved: The generators, as they were before.
        num_workers: See `TorchState`.
        report: Report of the engine.
    """

    def __init__(
        self, draws: Draws, saved: tuple[list[Any], list[Any] | None], num_workers: int | None, report: EngineReport
    ) -> None:
        self.draws, self.num_workers, self.report = draws, num_workers, report
        self.saved = saved
        self.shared_seed: int | None = None
        self.resumed: TorchState | None = None
        self.batches = self.tickets = 0
        self.order = xxhash.xxh3_64()
        self.asked: deque[tuple[Any, bytes]] = deque()  # what the sampler gave, of batches that were not delivered yet
        self.is_over = False

    def to_state(self) -> TorchState:
        """Return it as data."""
        if self.resumed is None:
            generators, of_process = encode_states(*self.saved)
        else:
            generators, of_process = self.resumed.generators, self.resumed.globals
        return TorchState(
            FORMAT,
            generators,
            self.batches,
            self.tickets,
            self.num_workers,
            self.draws.seed,
            self.draws.epoch,
            self.shared_seed,
            self.order.hexdigest(),
            of_process,
        )

    def take(self) -> None:
        """Note that the next batch was delivered, or left out."""
        self.batches += 1
        self.order.update(self.asked.popleft()[1])

    def resume(self, resumed: TorchState) -> None:
        """Be where a state was saved."""
        self.resumed, self.batches, self.tickets = resumed, resumed.batches or 0, resumed.tickets

    def pass_over(self, indices: Iterator[Any], resumed: TorchState) -> Iterator[Any] | None:
        """Return the indices after those of the delivered batches; None if there are none.

        Raises:
            ResumeError: They are not the same.
        """
        for _, index in zip(range(self.batches), indices, strict=False):
            self.order.update(encode_index(index))
        if self.order.hexdigest() != resumed.order:
            raise ResumeError(
                f"the sampler does not give the {self.batches} batches that were delivered before the state was saved",
                fix="give the loader the same dataset, sampler, batch_size and generator, call sampler.set_epoch with "
                "the epoch of the state, and let a sampler of your own draw from its generator",
            )
        first = next(indices, self)  # a sampler that draws its order does so now, as it did then
        if first is not self:
            return chain((first,), indices)
        _logger.info("the state was saved after the last batch of its epoch: this iteration is the next epoch")
        return None


class _TorchIterator(_BaseDataLoaderIter):  # type: ignore[misc, unused-ignore]
    """Iterates over a loader: torch's base class draws the seed and asks the sampler, the engine makes the batches.

    Attributes:
        has_begun: False where a state was loaded, and nothing was left of its epoch.
    """

    has_begun: bool
    _sampler_iter: Iterator[Any]
    _base_seed: int
    _shared_seed: int | None
    _run: Run | None
    _progress: _Progress
    _asking: Asking | None = None
    _look: Callable[[], object] | None = None
    _num_free: float = math.inf  # without workers, batches are asked for one by one

    def __init__(self, loader: DataLoader[Any]) -> None:
        resumed, generators = loader._resumed, Generators(loader)
        saved = generators.save()
        with nullcontext() if resumed is None else kept_globals():
            super().__init__(loader)
        self._epoch = 0
        if resumed is not None:
            self._base_seed = resumed.seed  # before the workers are made, who have it in their get_worker_info()
        self._engine = self._open_engine(loader)
        self.has_begun = self._begin(loader, generators, saved, resumed)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        resumed, generators = loader._resumed, Generators(loader)
        saved = generators.save()
        with nullcontext() if resumed is None else kept_globals():
            super()._reset(loader, first_iter)
        self._epoch += 1
        if resumed is not None and resumed.seed != self._base_seed:  # the workers have another one
            self._engine.close()
            self._base_seed = resumed.seed
            self._engine = self._open_engine(loader)
        self.has_begun = self._begin(loader, generators, saved, resumed)
        if not self.has_begun:
            self._reset(loader, first_iter)

    def _begin(self, loader: DataLoader[Any], generators: Generators, saved: Any, resumed: TorchState | None) -> bool:
        """Have the engine begin, where the iteration that a state was saved in stood, if there is one.

        Returns:
            Whether anything was left of that.
        """
        is_iterable = isinstance(loader.dataset, IterableDataset)
        if resumed is not None:
            self._base_seed, self._epoch, self._shared_seed = resumed.seed, resumed.epoch, resumed.shared_seed
        draws = Draws(self._base_seed, self._epoch)
        progress = _Progress(draws, saved, loader.num_workers if is_iterable else None, self._engine.report)
        progress.shared_seed = self._shared_seed
        if resumed is not None:
            with process_generators(resumed.globals):
                generators.restore_own(resumed.generators)
                self._redraw(loader.generator)
                progress.resume(resumed)
                if not is_iterable:
                    indices = progress.pass_over(self._sampler_iter, resumed)
                    if indices is None:
                        loader._resumed = None
                        return False
                    self._sampler_iter = indices
        self._progress, self._start = progress, progress.tickets if is_iterable else 0
        self._ended_by: str | None = None
        if loader.num_workers and not is_iterable:
            self._num_free, self._prefetch_factor = num_free(loader), loader.prefetch_factor or _TORCH_PREFETCH
            self._look = None if draws_in_parts(loader) else lambda: encode_states(*generators.save())
        if is_iterable:
            self._run = self._engine.run_stream(StreamPass(draws, self._start, self._shared_seed))
        else:
            self._run = self._run_tasks()
        loader._progress, loader._resumed = progress, None  # a state that was refused stays, and is refused again
        return True

    def _redraw(self, generator: Any) -> None:
        """Draw what torch's base class draws when an iteration begins, and ask the sampler, in the same order."""
        if self._shared_seed is not None:
            torch.empty((), dtype=torch.int64).random_(generator=generator)
        self._sampler_iter = iter(self._index_sampler)
        if self._epoch == 0:
            torch.empty((), dtype=torch.int64).random_(generator=generator)

    def _open_engine(self, loader: DataLoader[Any]) -> Engine:
        """Return an engine of workers."""
        dataset, worker_init_fn = self._dataset, loader.worker_init_fn
        if isinstance(dataset, IterDataPipe | MapDataPipe):
            dataset = getattr(dataset, "_datapipe", dataset)  # without the wrapper by which torch pickles it
            of_rank = self._world_size, self._rank
            if loader.num_workers:
                worker_init_fn = functools.partial(_sharding_worker_init_fn, worker_init_fn, *of_rank)
            else:
                apply_sharding(dataset, *of_rank)
        work = TorchWork(
            dataset,
            isinstance(loader.dataset, IterableDataset),
            loader.batch_size,
            loader.batch_sampler is not None,
            loader.drop_last,
            loader.collate_fn,
            worker_init_fn,
            self._base_seed,
            collate_fns=added_collate_fns(),
        )
        options = loader.engine_options
        if options is None:
            ahead = None if loader.prefetch_factor == _TORCH_PREFETCH else loader.prefetch_factor
            options = engine_options_of(ahead, loader.timeout)
        context = loader.multiprocessing_context
        executor = "process" if context is None else executor_of(context)
        return Engine(Job(work, preload=_PRELOAD), num_workers=loader.num_workers, executor=executor, options=options)

    def _run_tasks(self) -> Run:
        """Have the engine make the batches that the sampler gives from here on."""
        progress, self._next_ticket, self._asking = self._progress, 0, None
        tasks = _tasks_of(self._sampler_iter, progress.draws, progress.batches, progress.asked)
        if math.isinf(self._num_free):
            return self._engine.run(tasks)
        ahead = self._num_workers * self._prefetch_factor
        self._asking = Asking(tasks, progress.batches, self._num_free, ahead, progress.asked)
        self._asking.begin(progress.batches, self._look)
        return self._engine.run(self._asking, max_open=self._asking.max_open)

    def _next_data(self) -> Any:
        progress = self._progress
        if self._ended_by is not None:
            raise HeadraceError(f"this iteration was ended by an error: {self._ended_by}", fix="begin another one")
        if self._run is None:
            self._run = self._run_tasks()
        try:
            delivered = next(self._run)
            while delivered.ticket < self._start:
                delivered = next(self._run)  # was delivered before the state was saved
        except StopIteration:
            progress.is_over = True
            if not self._persistent_workers:
                self.close()
            raise
        except Exception as error:
            if isinstance(error, StalledError) and self._timeout and error.seconds is not None:
                error.what = f"DataLoader timed out after {error.seconds:.0f} seconds: {error.what}"  # torch's words
            self._pass_failed(error)
            raise
        value = delivered.value
        if self._pin_memory:
            value = pin_memory(value, self._pin_memory_device)
        if progress.num_workers is None:
            for _ in range(self._next_ticket, delivered.ticket + 1):  # those before were left out, see `Skipping`
                progress.take()
            self._next_ticket = delivered.ticket + 1
            if self._asking is not None:
                self._asking.keep_up(progress.batches)
        else:
            progress.batches += 1
            progress.tickets = delivered.ticket + 1
        return value

    def _pass_failed(self, error: Exception) -> None:
        """Go on after a batch whose items raised an error, when the next one is asked for, as torch does.

        Where that cannot be, the iteration is over, and says so: it never seems complete.
        """
        progress = self._progress
        if progress.num_workers is not None or isinstance(error, HeadraceError) or not progress.asked:
            self._ended_by = f"{type(error).__name__}: {error}"
            return
        progress.take()
        self._sampler_iter = chain([index for index, _ in progress.asked], self._sampler_iter)
        progress.asked.clear()
        self._run = None

    def close(self) -> None:
        """End the workers. Harmless at any time."""
        self._engine.close()

    def _shutdown_workers(self) -> None:
        """End the workers, by the name that scripts call on torch's iterator for want of a public one."""
        self.close()


def _tasks_of(indices: Iterator[Any], draws: Draws, first: int, asked: deque[tuple[Any, bytes]]) -> Iterator[MapTask]:
    """Yield the tasks of what a sampler gives. A function, so that a dropped iterator is no garbage cycle."""
    for number, given in enumerate(indices, first):
        index = list(given) if hasattr(given, "__next__") else given
        asked.append((index, encode_index(index)))
        yield MapTask(draws, number, index)


def _do_nothing(info: Any) -> Any:
    return info
