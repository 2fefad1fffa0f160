"""`DataLoader`: torch's class, whose batches are made by Headrace's workers.

Arguments, attributes, samplers and lengths are torch's own code; what is replaced is the iterator. It has the engine
make the batches, in the order in which the sampler gives their indices, and knows how many were delivered, so that a
state can be saved at any batch (`state.py`).
"""

from __future__ import annotations

import functools
import logging
import math
import pickle
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
from headrace.engine.process.executor import ProcessExecutor
from headrace.errors import HeadraceError, ResumeError, StalledError
from headrace.loading.torch_args import engine_options_of
from headrace.rng.process import kept_globals
from headrace.show.card import Card, Shown

from .asking import Asking, draws_in_parts, num_free
from .state import FORMAT, Generators, TorchState, counts_epochs, encode_states, encode_value, process_generators
from .work import CopyState, MapTask, StreamPass, TorchWork, added_collate_fns, is_stateful, restore

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
    _progress: _IterationProgress | None = None
    _resumed: TorchState | None = None
    _copies: list[Any] | None = None  # of a state: where the workers' copies of a stream begin the next iteration
    _iterators: weakref.WeakSet[_TorchIterator] | None = None  # all that live

    if not TYPE_CHECKING:  # static tools see torch's signature, which is inherited

        @functools.wraps(TorchDataLoader.__init__)
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.num_workers and self.multiprocessing_context is None:
                _keep_warm()

    def _get_iterator(self) -> _TorchIterator:
        if self.num_workers:
            self.check_worker_number_rationality()
        iterator = _TorchIterator(self)
        if not iterator.has_begun:  # nothing is left of the epoch of a state: this is the next one
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
        `torch.Generator`, and 14 KB where a sampler draws its order from the global generators. A dataset that has
        `state_dict` and `load_state_dict` itself, torchdata's `Stateful`, is asked for its state, which is added as it
        is: by each worker after each batch, if it is an `IterableDataset`, and here otherwise.
        """
        if self._resumed is not None:
            return self._resumed.to_dict()
        progress = self._progress
        is_between = progress is None or progress.is_over
        copies = self._copies if progress is None else progress.saved_copies()
        if is_between and not self.persistent_workers:  # the next epoch has new ones
            copies = None
        dataset = self.dataset.state_dict() if copies is None and is_stateful(self.dataset) else None
        if progress is not None and not is_between:
            return progress.to_state(dataset, copies, is_last=self._is_last(progress)).to_dict()
        generators, _ = encode_states(Generators(self).save()[0], None)
        num_workers = None if copies is None else self.num_workers
        return TorchState(FORMAT, generators, num_workers=num_workers, dataset=dataset, copies=copies).to_dict()

    def _is_last(self, progress: _IterationProgress) -> bool:
        """Tell whether a sampler that is told the numbers of epochs has given its last batch."""
        try:
            return counts_epochs(self) and progress.batches == len(self)
        except (TypeError, NotImplementedError):  # it has no length
            return False

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
        if (loaded.batches, loaded.copies) != (None, None) and loaded.num_workers != num_workers:
            raise ResumeError(
                f"the state was saved with num_workers={loaded.num_workers}, and there are {num_workers} here",
                where="an IterableDataset, of which each worker reads a copy; None: a map-style dataset",
                fix="give the loader the same dataset and num_workers",
            )
        if self._iterator is not None:  # of workers that stay: these have read on
            self._iterator.close()
        if loaded.dataset is not None:
            restore(self.dataset, loaded.dataset)
        self._iterator, self._progress, self._resumed, self._copies = None, None, loaded, loaded.copies
        if loaded.batches is None:
            Generators(self).restore_own(loaded.generators)
            self._resumed = None

    # --- what happens, and the end ---

    @property
    def report(self) -> EngineReport | None:
        """Where the time of the last iteration went, and what was skipped or restarted; None before the first one."""
        return None if self._progress is None else self._progress.report

    def close(self) -> None:
        """End the workers, also those of iterators that live; harmless twice. Iterating again starts others.

        The process that has imported torch stays for loaders made later, until this program ends.
        """
        iterators, self._iterators, self._iterator = self._iterators, None, None
        for iterator in iterators or ():
            iterator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        return {**self.__dict__, "_iterator": None, "_iterators": None, "_progress": None}


class _IterationProgress:
    """How far an iteration is. It outlives the iterator, whose state may be asked for after the loop.

    Args:
        seed: torch's base seed, by which its batches are seeded.
        saved: The generators, as they were before.
        num_workers: See `TorchState`.
        report: Report of the engine.
    """

    def __init__(
        self, seed: int, saved: tuple[list[Any], list[Any] | None], num_workers: int | None, report: EngineReport
    ) -> None:
        self.seed, self.num_workers, self.report = seed, num_workers, report
        self.saved = saved
        self.shared_seed: int | None = None
        self.resumed: TorchState | None = None
        self.batches = self.tickets = 0
        self.order = xxhash.xxh3_64()
        self.asked: deque[tuple[Any, bytes]] = deque()  # what the sampler gave, of batches that were not delivered yet
        self.copies: list[bytes | None] = [None] * max(num_workers or 0, 1)  # of a stream; what the workers told last
        self.is_over = False

    def saved_copies(self) -> list[Any] | None:
        """Return where the workers' copies are, if the dataset tells."""
        if not any(self.copies):
            return None
        return [None if copy is None else list(pickle.loads(copy)) for copy in self.copies]  # noqa: S301 - our own

    def to_state(self, dataset: Any, copies: list[Any] | None, *, is_last: bool) -> TorchState:
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
            is_last,
            self.num_workers,
            self.seed,
            self.shared_seed,
            self.order.hexdigest(),
            of_process,
            dataset=dataset,
            copies=copies,
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

        Where these were all, a sampler that is told the numbers of epochs may have the next one's already.

        Raises:
            ResumeError: They are not the same.
        """
        for _, index in zip(range(self.batches), indices, strict=False):
            self.order.update(encode_value(index))
        is_same = self.order.hexdigest() == resumed.order
        if not (is_same or resumed.is_last):
            raise ResumeError(
                f"the sampler does not give the {self.batches} batches that were delivered before the state was saved",
                fix="give the loader the same dataset, sampler, batch_size and generator, call sampler.set_epoch with "
                "the epoch of the state, and let a sampler of your own draw from its generator",
            )
        first = next(indices, self)  # a sampler that draws its order does so now, as it did then
        if first is not self and is_same:
            return chain((first,), indices)
        note = "the state was saved after the last batch of its epoch: this iteration is the next epoch"
        if is_same and resumed.is_last:
            _logger.warning("%s, and the sampler gives the same order again: set_epoch tells it the next number", note)
        else:
            _logger.info(note)
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
    _progress: _IterationProgress
    _asking: Asking | None = None
    _look: Callable[[], object] | None = None
    _num_free: float = math.inf  # without workers, batches are asked for one by one

    def __init__(self, loader: DataLoader[Any]) -> None:
        resumed, generators = loader._resumed, Generators(loader)
        saved = generators.save()
        with nullcontext() if resumed is None else kept_globals():
            super().__init__(loader)
        if resumed is not None:
            self._base_seed = resumed.seed  # before the workers are made, who have it in their get_worker_info()
        self._engine = self._open_engine(loader)
        self.has_begun = self._begin(loader, generators, saved, resumed)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin another iteration of workers that stay: what is drawn is what an iteration of new ones draws."""
        generators = Generators(loader)
        saved = generators.save()
        super()._reset(loader, first_iter)
        self._base_seed = _draw_seed(loader.generator)
        self._begin(loader, generators, saved, None)

    def _begin(self, loader: DataLoader[Any], generators: Generators, saved: Any, resumed: TorchState | None) -> bool:
        """Have the engine begin, where the iteration that a state was saved in stood, if there is one.

        Returns:
            Whether anything was left of that.
        """
        is_iterable = isinstance(loader.dataset, IterableDataset)
        if resumed is not None:
            self._base_seed, self._shared_seed = resumed.seed, resumed.shared_seed
        progress = _IterationProgress(
            self._base_seed, saved, loader.num_workers if is_iterable else None, self._engine.report
        )
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
        self._progress = progress
        self._ended_by: str | None = None
        if loader.num_workers and not is_iterable:
            self._num_free, self._prefetch_factor = num_free(loader), loader.prefetch_factor or _TORCH_PREFETCH
            self._look = None if draws_in_parts(loader) else lambda: encode_states(*generators.save())
        if is_iterable:
            self._run = self._run_stream(loader, resumed)
        else:
            self._run = self._run_tasks()
        loader._progress, loader._resumed = progress, None  # a state that was refused stays, and is refused again
        return True

    def _redraw(self, generator: Any) -> None:
        """Draw what torch's base class draws when an iteration begins, and ask the sampler, in the same order."""
        if self._shared_seed is not None:
            _draw_seed(generator)
        self._sampler_iter = iter(self._index_sampler)
        _draw_seed(generator)

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
        method = context if context is None or isinstance(context, str) else context.get_start_method()
        executor = ProcessExecutor(start_method=method)
        return Engine(Job(work, preload=_PRELOAD), num_workers=loader.num_workers, executor=executor, options=options)

    def _run_stream(self, loader: DataLoader[Any], resumed: TorchState | None) -> Run:
        """Have the engine read the workers' copies: from where these can begin, or else from their start."""
        progress, num_workers = self._progress, len(self._progress.copies)
        num_kept = 1 if resumed is None else None  # between two passes, only the dataset's own
        saved, loader._copies = loader._copies or [None] * num_workers, None
        copies = [None if copy is None else CopyState(*copy[:num_kept]) for copy in saved]
        first = progress.tickets // num_workers * num_workers if any(copies) else 0
        self._start, self._first = progress.tickets, first - num_workers  # before its batches, each tells where it is
        self._resumed, self._loader = resumed, weakref.ref(loader)
        return self._engine.run_stream(StreamPass(self._base_seed, self._start, first, self._shared_seed, copies))

    def _next_of_stream(self) -> Any:
        """Return the next batch of the workers' copies.

        Raises:
            ResumeError: They do not give the batches that were delivered before a state was saved.
        """
        progress, run = self._progress, self._run
        assert run is not None
        while True:
            delivered = next(run, None)
            number = math.inf if delivered is None else delivered.ticket + self._first
            if number >= self._start and self._resumed is not None:
                if progress.order.hexdigest() != self._resumed.order:
                    if (loader := self._loader()) is not None:
                        loader.load_state_dict(self._resumed.to_dict())  # it is refused again
                    raise ResumeError(
                        f"the dataset does not give the {progress.batches} batches that were delivered before the "
                        "state was saved",
                        where=f"a {type(self._dataset).__name__}, which is read from its start",
                        fix="make each pass give the same, with a generator that it seeds itself; or let the dataset "
                        "have state_dict() and load_state_dict(), which tell where it is",
                    )
                self._resumed = None
            if delivered is None:
                raise StopIteration
            digest, copy, *batch = delivered.value
            if copy is not None:
                progress.copies[delivered.ticket % len(progress.copies)] = copy
            if digest is not None:
                progress.order.update(digest)
            if batch:
                progress.batches += 1
                progress.tickets = int(number) + 1
                return batch[0]

    def _run_tasks(self) -> Run:
        """Have the engine make the batches that the sampler gives from here on."""
        progress, self._next_ticket, self._asking = self._progress, 0, None
        tasks = _tasks_of(self._sampler_iter, progress.seed, progress.batches, progress.asked)
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
        is_stream = progress.num_workers is not None
        try:
            value = self._next_of_stream() if is_stream else self._next_of_tasks(self._run)
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
        return pin_memory(value, self._pin_memory_device) if self._pin_memory else value

    def _next_of_tasks(self, run: Run) -> Any:
        """Return the next batch of a map-style dataset."""
        delivered, progress = next(run), self._progress
        for _ in range(self._next_ticket, delivered.ticket + 1):  # those before were left out, see `Skipping`
            progress.take()
        self._next_ticket = delivered.ticket + 1
        if self._asking is not None:
            self._asking.keep_up(progress.batches)
        return delivered.value

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


def _tasks_of(indices: Iterator[Any], seed: int, first: int, asked: deque[tuple[Any, bytes]]) -> Iterator[MapTask]:
    """Yield the tasks of what a sampler gives. A function, so that a dropped iterator is no garbage cycle."""
    for number, given in enumerate(indices, first):
        index = list(given) if hasattr(given, "__next__") else given
        asked.append((index, encode_value(index)))
        yield MapTask(seed, number, index)


def _draw_seed(generator: Any) -> int:
    """Draw a seed as torch's base class does when an iteration begins."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


_warm: Engine | None = None  # of the loader made last: it keeps the process that has imported torch


def _keep_warm() -> None:
    """Have torch be imported for the workers while the script goes on, and once for all loaders of this process.

    It is one process, whose memory is what an import of torch takes; if the environment has changed meanwhile, another
    one takes its place.
    """
    global _warm
    before, _warm = _warm, Engine(Job(_do_nothing, preload=_PRELOAD), num_workers=1)
    _warm.prepare()
    if before is not None:
        before.close()


def _do_nothing(info: Any) -> Any:
    return info
