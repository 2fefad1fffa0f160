"""`DataLoader2`: a graph of pipes, read epoch by epoch through a reading service.

Invariants: the user's graph and reading service are copied, and never changed; one iterator is valid at a time; an
epoch's randomness follows from (seed, number of epochs since the seed was given); and after any error the loader is
shut down, so that nothing is left running. The loader and its iterator are one file, since each calls the other.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Literal, Self, TypeVar

from headrace.errors import ConfigError, ResumeError, check_count
from headrace.pipes import IterPipe
from headrace.pipes.core.base import read, stop
from headrace.pipes.core.naming import name_raiser
from headrace.pipes.graph import is_map_pipe, is_pipe, split_graph
from headrace.pipes.graph.seeds import SeedGenerator, check_seed, draw_seed, find_unrepeatable
from headrace.pipes.graph.state import graph_state, restore_graph
from headrace.pipes.graph.worker_order import explain_worker_order
from headrace.show.card import Card, Shown

from .adapter import Adapter, list_adapters
from .copying import copy_graph
from .error import PauseIteration
from .interface import CheckpointableReadingServiceInterface, Processes, ReadingServiceInterface
from .services.in_process import InProcessGraph
from .state import GraphState, list_recipe
from .transport.worker_error import is_named

T_co = TypeVar("T_co", covariant=True)

_logger = logging.getLogger("headrace.dataloader2")

_EPOCH_SEEDINGS = ("derived", "same")


class DataLoader2(Shown, Generic[T_co]):
    """Reads a graph of pipes. Not thread-safe.

    Args:
        datapipe: The end of the graph, of Headrace's pipes or torch's; a map-style one gives its items in the order of
            its keys. It is copied, without its data.
        datapipe_adapter_fn: One or several adapters, applied to the copy.
        reading_service: The service that runs the graph: `MultiProcessingReadingService`, ...; copied too. `None`: the
            graph runs in this process.
        epoch_seeding: `"derived"`: epochs differ, each follows from the seed and its number. `"same"`: all epochs of a
            seed are the same, as in torchdata 0.7.

    Raises:
        ConfigError: An argument is not what it must be.
    """

    def __init__(
        self,
        datapipe: Any,
        datapipe_adapter_fn: Iterable[Adapter] | Adapter | None = None,
        reading_service: ReadingServiceInterface | None = None,
        *,
        epoch_seeding: Literal["derived", "same"] = "derived",
    ) -> None:
        self._terminated = True  # until it is made
        self._iterator: Iterator[Any] | None = None
        self.reading_service: ReadingServiceInterface | None = None
        if epoch_seeding not in _EPOCH_SEEDINGS:
            raise ConfigError(f"epoch_seeding={epoch_seeding!r}", fix='use "derived" or "same"')
        if reading_service is not None and not isinstance(reading_service, ReadingServiceInterface):
            raise ConfigError(f"{reading_service!r} is not a reading service")
        self._epoch_seeding = epoch_seeding
        self.datapipe_adapter_fns = list_adapters(datapipe_adapter_fn)
        self.datapipe = None if datapipe is None else self._adapted(datapipe)
        self._recipe = list_recipe(self.datapipe)
        self.reading_service = None if reading_service is None else copy_graph(reading_service)
        self._service = InProcessGraph() if self.reading_service is None else self.reading_service
        self._service_state: bytes | None = None
        self._end: Any = None  # the pipe that is iterated over; None before the first iteration
        self._initialized: Any = None  # the pipe that reset functions change for an epoch
        self.valid_iterator_id: int | None = None
        self._numbers = itertools.count()
        self._is_started = False  # an iterator was made, and no item was read from it
        self._seed: int | None = None
        self._next_seed: int | None = None
        self._epoch = self._position = 0
        self._is_in_epoch = False
        self._has_warned = False  # about an epoch that was left in the middle
        self._resuming: GraphState | None = None
        self._terminated = False

    def _adapted(self, datapipe: Any) -> Any:
        if not is_pipe(datapipe):
            raise ConfigError(f"datapipe must be a pipe, got {type(datapipe).__name__}", fix="use IterableWrapper")
        datapipe = copy_graph(datapipe)
        if is_map_pipe(datapipe):
            datapipe = datapipe.to_iter_datapipe()
        for adapt in self.datapipe_adapter_fns:
            datapipe = adapt(datapipe)
        return datapipe

    @property
    def reading_service_state(self) -> bytes | None:
        """The state of the reading service that was loaded, if it has one of its own."""
        return self._service_state

    # --- epochs ---

    def __iter__(self) -> DataLoader2Iterator[T_co]:
        """Begin an epoch and return its iterator; the one before is invalid from now on.

        If no item of the current epoch was read yet, that epoch is not begun again, so a second call loses nothing. An
        epoch that was left in the middle counts as done, as in torchdata; the first time, a warning is logged.

        Raises:
            RuntimeError: The loader was shut down, or has no pipe.
            ResumeError: The loaded state was taken with other numbers of ranks or workers, on which the order depends.
        """
        if self._terminated:
            raise RuntimeError("Cannot iterate over the DataLoader as it has already been shut down")
        if self.datapipe is None:
            raise RuntimeError("there is no datapipe to iterate over: give one to DataLoader2")
        if not self._is_started:
            try:
                self._begin_epoch()
            except BaseException:
                self.shutdown()
                raise
            self._is_started = True
        self.valid_iterator_id = next(self._numbers)
        return DataLoader2Iterator(self, self.valid_iterator_id)

    def _begin_epoch(self) -> None:
        if self._is_in_epoch and self._position > 0 and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "epoch %d was left after %d items: the rest of it is not read, and the next epoch begins. "
                "To read an epoch in parts use limit() and resume() of its iterator",
                self._epoch,
                self._position,
            )
        self._leave_epoch()
        resuming, self._resuming = self._resuming, None
        if self._next_seed is not None and (resuming is None or not resuming.is_in_epoch):
            self._seed, self._next_seed, self._epoch = self._next_seed, None, 0
        elif self._seed is None:
            self._seed = draw_seed()
        self._position = 0
        if resuming is not None and resuming.position > 0:
            self._check_processes(resuming)
        if self._end is None:
            self._end = self._initialized = self._initialize()
        epoch = 0 if self._epoch_seeding == "same" else self._epoch
        seeds = SeedGenerator(self._seed).for_epoch(epoch)
        reset_fn = self._service.initialize_iteration(seeds)
        if reset_fn is not None:
            self._end = reset_fn(self._initialized)
        self._is_in_epoch = True
        if resuming is not None and resuming.position > 0:
            self._go_to(resuming)
        else:
            self._iterator = read(self._end)

    def _initialize(self) -> Any:
        service, state = self._service, self._service_state
        if state is None or self.reading_service is None:
            return service.initialize(self.datapipe)
        if not isinstance(service, CheckpointableReadingServiceInterface):
            raise TypeError(f"Cannot restore from non-checkpointable reading service: {type(service).__name__}")
        return service.restore(self.datapipe, state)

    def _go_to(self, state: GraphState) -> None:
        """Continue at the position of a state, in the middle of an epoch."""
        if state.graph is not None:
            try:
                restore_graph(self._end, state.graph)
            except ResumeError as error:
                _logger.warning("the position of the pipes cannot be used: %s", error)
            else:
                self._position = state.position
                self._iterator = read(self._end)
                return
        _logger.warning(
            "the items before item %d of epoch %d are read again, to continue there", state.position, state.epoch
        )
        self._iterator = read(self._end)
        while self._position < state.position:
            try:
                next(self._iterator)
            except StopIteration:
                raise ResumeError(
                    f"the state is of item {state.position} of an epoch, which now ends after {self._position} items"
                ) from None
            self._position += 1

    def next_item(self) -> T_co:
        """Return the next item of the epoch, for its iterator.

        Raises:
            StopIteration: At the end of the epoch.
            RuntimeError: The loader was shut down.
        """
        self._is_started = False
        iterator = self._iterator
        if iterator is None:
            if self._terminated:
                raise RuntimeError("Cannot iterate over the DataLoader as it has already been shut down")
            raise StopIteration
        try:
            item: T_co = next(iterator)
        except PauseIteration:
            raise
        except StopIteration:
            self._end_epoch()
            raise
        except BaseException as error:
            if self._terminated and isinstance(error, Exception):
                raise RuntimeError("the DataLoader was shut down while an item was awaited") from error
            if not is_named(error):
                name_raiser(error)
            self.shutdown()
            raise
        self._position += 1
        return item

    def _end_epoch(self) -> None:
        self._leave_epoch()
        self.finalize_iteration()

    def _leave_epoch(self) -> None:
        """Count the current epoch, if there is one, as done."""
        self._abandon_iteration()
        if self._is_in_epoch:
            self._is_in_epoch = False
            self._epoch += 1
            self._position = 0
        stop(self._end)

    def _abandon_iteration(self) -> None:
        if self._iterator is not None:
            self.call_service("_interrupt")  # before the iterator ends, because threads that wait end with it
            self._iterator = None

    def finalize_iteration(self) -> None:
        """Tell the reading service that the iteration has ended."""
        if not self._terminated:
            self._service.finalize_iteration()

    def seed(self, seed: int) -> None:
        """Set the seed of all epochs from the next one on, which becomes epoch 0 of this seed.

        If no item of the current epoch was read yet, it counts as the next one.

        Raises:
            ValueError: It does not fit into 64 bits.
        """
        self._next_seed = check_seed(seed)
        if self._position == 0:  # else it continues from a loaded state
            self._is_started = False

    def __len__(self) -> int:
        """Return the number of items of an epoch, if the pipes know it.

        Raises:
            TypeError: They do not.
        """
        if self.datapipe is None:
            raise TypeError("a DataLoader2 without a pipe has no length")
        try:
            with warnings.catch_warnings():  # about an inferred length: `list` did not ask for it
                warnings.simplefilter("ignore")
                length = self._known_length()
        except Exception as error:  # user code: `list(loader)` calls this, and handles a TypeError only
            raise TypeError(f"the length of this DataLoader2 is not known: {error}") from error
        if length is None:
            raise TypeError("the length of this DataLoader2 is not known before its first iteration, or never")
        return length

    def _known_length(self) -> int | None:
        if self._end is not None:
            return len(self._end)
        length_of = getattr(self._service, "_length", None)
        length: int | None = None if length_of is None else length_of(self.datapipe)
        return length

    def __bool__(self) -> bool:
        return True  # whatever its length

    # --- state ---

    def _card(self) -> Card:
        service = "this process" if self.reading_service is None else type(self.reading_service).__name__
        facts = [("graph", f"graph that ends with {type(self.datapipe).__name__}"), ("run by", f"run by {service}")]
        return Card(type(self).__name__, facts)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader, as data that `json` can write.

        Exact in the middle of an epoch. If a pipe has no state, the state of the loader says so (`"graph": None`), and
        resuming from it reads the epoch again from its start up to that position.
        """
        if self._resuming is not None:
            return self._resuming.to_dict()
        service = None
        if isinstance(self._service, CheckpointableReadingServiceInterface) and self._end is not None:
            service = self._service.checkpoint()
        graph = None
        if self._iterator is not None and self._position > 0 and isinstance(self._end, IterPipe):
            graph = graph_state(self._end)
        processes = self._processes() if self._position > 0 else Processes()
        return GraphState(
            seed=self._seed,
            next_seed=self._next_seed,
            epoch=self._epoch,
            position=self._position,
            is_in_epoch=self._is_in_epoch,
            graph=graph,
            reading_service_state=service,
            epoch_seeding=self._epoch_seeding,
            pipes=self._recipe,
            num_ranks=processes.num_ranks,
            num_workers=processes.num_workers,
        ).to_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next iteration give the rest of the epoch in which the state was taken.

        Raises:
            RuntimeError: There is an iterator already.
            ResumeError: It is not a state of this class, or is of another graph or another `epoch_seeding`.
        """
        if self.valid_iterator_id is not None:
            raise RuntimeError("Unable to load state after an iterator was made: load it into a new DataLoader2")
        state = GraphState.of_dict(state_dict)
        if state.epoch_seeding != self._epoch_seeding:
            raise ResumeError(
                f"the state was taken with epoch_seeding={state.epoch_seeding!r}, and this loader has "
                f"epoch_seeding={self._epoch_seeding!r}"
            )
        if self.datapipe is not None:
            state.check_pipes(self._recipe)
            self._check_repeatable(state)
        self._seed, self._next_seed, self._epoch = state.seed, state.next_seed, state.epoch
        self._service_state = state.reading_service_state
        self._resuming = state

    def _check_repeatable(self, state: GraphState) -> None:
        found = find_unrepeatable(self.datapipe) if state.epoch > 0 or state.position > 0 else None
        if found is not None:
            source, keeper = (type(pipe).__name__ for pipe in found)
            raise ResumeError(
                f"the state, of item {state.position} of epoch {state.epoch}, does not say which items {keeper} keeps: "
                f"other pipes too read {source}, which comes before it",
                fix=f"give {keeper} a source of its own, and shuffle after it, not before",
            )

    def _processes(self) -> Processes:
        tell = getattr(self._service, "_processes", Processes)
        processes: Processes = tell()
        return processes

    def _check_processes(self, state: GraphState) -> None:
        """Check that the items before the position of a state are the same for the processes that there are now."""
        now = self._processes()
        where = f"item {state.position} of epoch {state.epoch}"
        fix = "to have other numbers, resume from a state that was taken between two epochs"
        if now.num_ranks != state.num_ranks:
            raise ResumeError(
                f"the state is the position of one of {state.num_ranks} ranks, and there are {now.num_ranks}",
                where=where,
                fix=f"resume with {state.num_ranks} ranks; {fix}",
            )
        if now.num_workers == state.num_workers:
            return
        if now.run_user_code:
            reason: str | None = "a worker_init_fn or worker_reset_fn may change the graph in each worker"
        else:
            parts = split_graph(self.datapipe)
            reason = explain_worker_order(parts, (state.num_workers, now.num_workers), now.num_ranks)
        if reason is not None:
            raise ResumeError(
                f"the state was saved with {state.num_workers} workers, there are {now.num_workers}, and the order of "
                f"the items depends on that number: {reason}",
                where=where,
                fix=f"resume with {state.num_workers} workers; {fix}",
            )

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        datapipe: Any,
        reading_service: ReadingServiceInterface | None = None,
        *,
        datapipe_adapter_fn: Iterable[Adapter] | Adapter | None = None,
    ) -> Self:
        """Return a loader that continues from a state.

        Args:
            state: The result of `state_dict`.
            datapipe: The same graph, built again, because a state holds no pipes.
            reading_service: A service with the same options. Another number of workers is refused in the middle of an
                epoch when the iteration begins, if the order of the items depends on it.
            datapipe_adapter_fn: The same adapters.

        Raises:
            ResumeError: It is not a state of this class.
            ConfigError: An argument is not what it must be.
        """
        if isinstance(datapipe, ReadingServiceInterface):
            raise ConfigError(
                "from_state(state, reading_service) was torchdata's, whose states held the pipe",
                fix="use from_state(state, datapipe, reading_service)",
            )
        seeding = GraphState.of_dict(state).epoch_seeding
        loader = cls(datapipe, datapipe_adapter_fn, reading_service, epoch_seeding=seeding)  # type: ignore[arg-type]
        loader.load_state_dict(state)
        return loader

    def _restore_checkpoint_beginning_of_epoch(self) -> None:
        """Have the next iteration begin the epoch of the loaded state, or the current epoch, at its start."""
        if self._resuming is not None:
            self._resuming = None
        elif self._is_in_epoch:
            self._is_in_epoch = self._is_started = False
            self._position = 0

    # --- the end ---

    def shutdown(self) -> None:
        """End all workers; the loader cannot be iterated over after that. A second call does nothing."""
        if self._terminated:
            return
        self._terminated = True
        self._abandon_iteration()
        try:
            self._service.finalize_iteration()
        finally:
            self._service.finalize()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    def __del__(self) -> None:
        if not getattr(self, "_terminated", True):
            self.shutdown()

    # --- for the iterator ---

    def call_service(self, method: str, *arguments: Any) -> bool:
        """Call an optional method of the reading service; return False if it has no such method."""
        function = getattr(self._service, method, None)
        if function is None:
            return False
        function(*arguments)
        return True

    def pipe_attribute(self, name: str) -> Any:
        """Return an attribute of the pipe that is iterated over.

        Raises:
            AttributeError: It has none of this name, or there was no iteration yet.
        """
        if self._end is None:
            raise AttributeError(f"'DataLoader2Iterator' object has no attribute {name!r}")
        return getattr(self._end, name)


class DataLoader2Iterator(Iterator[T_co]):
    """The iterator of a loader. Attributes that it lacks are those of the pipe that is iterated over.

    Args:
        dataloader: Its loader.
        iterator_id: Its number.

    Examples:
        >>> from headrace.dataloader2 import DataLoader2
        >>> from headrace.pipes.iter import IterableWrapper
        >>> with DataLoader2(IterableWrapper(range(4))) as loader:
        ...     batches = iter(loader)
        ...     batches.limit(2)
        ...     print(list(batches))
        ...     batches.resume()
        ...     print(list(batches))
        [0, 1]
        [2, 3]
    """

    def __init__(self, dataloader: DataLoader2[T_co], iterator_id: int) -> None:
        self.dataloader = dataloader
        self.iterator_id = iterator_id
        self.limit_counter: int | None = None
        self.limit_threshold: int | None = None
        self._is_paused = False

    def __next__(self) -> T_co:
        """Return the next item.

        Raises:
            StopIteration: At the end of the epoch; as `PauseIteration` at the limit.
            RuntimeError: Another iterator was made, or the loader was shut down.
        """
        loader = self.dataloader
        if self.iterator_id != loader.valid_iterator_id:
            loader.finalize_iteration()
            raise RuntimeError(
                "This iterator has been invalidated because another iterator has been created "
                f"from the same DataLoader2: {loader}"
            )
        if self.limit_threshold is None or self.limit_counter is None:
            return loader.next_item()
        if not self._is_paused and self.limit_counter >= self.limit_threshold:
            self._pause()
        if self._is_paused:
            raise PauseIteration("DataLoader2 is paused: `resume()` continues")
        item = loader.next_item()
        self.limit_counter += 1
        return item

    def limit(self, num_batches: int | None) -> None:
        """Pause after a number of further items: the loop ends, and `resume` continues after them.

        The limit applies again after each `resume`.

        Args:
            num_batches: The number, counted from now; None: no limit.

        Raises:
            ConfigError: The number is negative.
        """
        self.limit_threshold = None if num_batches is None else check_count("num_batches", num_batches)
        self.limit_counter = None if num_batches is None else 0
        if num_batches is None and self._is_paused:
            self.resume()
        self.dataloader.call_service("_limit", num_batches)

    def resume(self) -> None:
        """Continue after the limit was reached; warns if it was not."""
        if not self._is_paused:
            warnings.warn("`resume` was called, but the DataLoader2 is not paused", stacklevel=2)
            return
        self._is_paused = False
        if self.limit_counter is not None:
            self.limit_counter = 0
        self.dataloader.call_service("_resume")

    def _pause(self) -> None:
        self._is_paused = True
        if not self.dataloader.call_service("_pause") and self.dataloader.reading_service is not None:
            name = type(self.dataloader.reading_service).__name__
            warnings.warn(f"{name} doesn't support `pause`", stacklevel=4)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataloader":
            raise AttributeError(name)
        return self.dataloader.pipe_attribute(name)
