"""Pipes at the start of a graph: over an iterable, a sequence, a sampler or a dataset.

`set_epoch` sets the number of the next epoch for all pipes of a graph: for a loader that counts epochs itself, or a
training that continues in a later one.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

from headrace.datasets import Dataset, DatasetSeq
from headrace.errors import ConfigError
from headrace.rng import derive_seed

from ..core.base import IterPipe, MapPipe, State
from ..core.draws import draws_of
from ..core.registry import register_function
from ..core.skeletons import Positioned
from ..core.walk import list_pipes

_NEVER_CHANGE = frozenset({int, float, complex, bool, str, bytes, type(None), range, frozenset})


class IterableWrapper(Positioned[Any]):
    """The items of an iterable.

    Args:
        iterable: Any iterable. One that can be read only once, such as a generator, gives one epoch.
        deepcopy: Yield deep copies, so that pipes downstream cannot change the original. Items of a list or tuple are
            copied one by one as they are yielded, other iterables as a whole at the start of an epoch.
    """

    _position_names = ("position",)
    _position = 0

    def __init__(self, iterable: Iterable[Any], deepcopy: bool = True) -> None:
        self.iterable = iterable
        self.deepcopy = deepcopy

    def __iter__(self) -> Iterator[Any]:
        start = self._position
        if isinstance(self.iterable, range):
            items: Iterable[Any] = self.iterable[start:]
        elif type(self.iterable) in (list, tuple):
            rest = self.iterable[start:]  # type: ignore[index]
            items = map(_copy_item, rest) if self.deepcopy else rest
        else:
            items = islice(iter(_copy_all(self.iterable) if self.deepcopy else self.iterable), start, None)
        for self._position, item in enumerate(items, start + 1):
            yield item

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]  # the TypeError of a generator is right for this pipe too


class SequenceWrapper(MapPipe[Any]):
    """The items of a sequence or mapping, by index or key.

    Args:
        sequence: A list, a dict, anything with `[]`.
        deepcopy: Keep a deep copy, so that later changes to the original have no effect.

    Examples:
        >>> from headrace.pipes.map import SequenceWrapper
        >>> pipe = SequenceWrapper({"a": 1, "b": 2})
        >>> pipe["b"], len(pipe)
        (2, 2)
    """

    def __init__(self, sequence: Sequence[Any] | Mapping[Any, Any], deepcopy: bool = True) -> None:
        self.sequence: Any = _copy_all(sequence) if deepcopy else sequence

    def __getitem__(self, index: Any) -> Any:
        return self.sequence[index]

    def __len__(self) -> int:
        return len(self.sequence)


def _copy_item(item: Any) -> Any:
    return item if type(item) in _NEVER_CHANGE else _copy_all(item)


def _copy_all(thing: Any) -> Any:
    try:
        return copy.deepcopy(thing)
    except TypeError:
        warnings.warn(
            f"a {type(thing).__name__} cannot be deepcopied, so pipes that change an item change the original. "
            "deepcopy=False turns this warning off.",
            stacklevel=2,
        )
        return thing


class Sampler(IterPipe[Any]):
    """Yield what a sampler over a pipe yields, which is usually indices.

    Args:
        datapipe: A pipe that knows its length.
        sampler: A class of `torch.utils.data.sampler`, or any function that takes the pipe as `data_source` and returns
            an object that can be iterated over in each epoch. `None`: `0..len-1`.
        sampler_args: Positional arguments of the sampler.
        sampler_kwargs: Other keyword arguments of the sampler.

    Raises:
        ConfigError: The pipe does not know its length.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> class Backwards:
        ...     def __init__(self, data_source):
        ...         self.numbers = range(len(data_source) - 1, -1, -1)
        ...
        ...     def __iter__(self):
        ...         return iter(self.numbers)
        >>> from headrace.pipes.iter import Sampler
        >>> list(Sampler(IterableWrapper("abc"), Backwards))
        [2, 1, 0]
    """

    def __init__(
        self,
        datapipe: Any,
        sampler: Callable[..., Iterable[Any]] | None = None,
        sampler_args: tuple[Any, ...] | None = None,
        sampler_kwargs: dict[str, Any] | None = None,
    ) -> None:
        try:
            length = len(datapipe)
        except TypeError as error:
            raise ConfigError(
                f"Sampler needs a pipe that knows its length: {error}", fix="use .set_length(n)"
            ) from None
        self.datapipe = datapipe
        arguments = {**(sampler_kwargs or {}), "data_source": datapipe}
        self.sampler: Iterable[Any] = range(length) if sampler is None else sampler(*(sampler_args or ()), **arguments)

    def __iter__(self) -> Iterator[Any]:
        yield from self.sampler

    def __len__(self) -> int:
        if isinstance(self.sampler, Sized):
            return len(self.sampler)
        return super().__len__()


class FromDataset(IterPipe[DatasetSeq]):
    """Yield the sequences of a dataset, in its order of the epoch.

    The first iteration reads epoch `first_epoch` of the dataset, each further one the next epoch. Seeding the pipe does
    not change the order: a dataset has a seed of its own.

    Args:
        dataset: Any dataset with the epoch API.
        first_epoch: The number of the first epoch.

    Examples:
        >>> import headrace as hr
        >>> from headrace.pipes.iter import FromDataset
        >>> with hr.StaticDataset([{"data": [1.0, 2.0]}, {"data": [3.0]}]) as dataset:
        ...     [seq.seq_tag for seq in FromDataset(dataset)]
        ['seq-0', 'seq-1']
    """

    def __init__(self, dataset: Dataset, first_epoch: int = 1) -> None:
        self.dataset = dataset
        self.first_epoch = first_epoch
        self._epoch = first_epoch - 1
        self._num_given = 0

    def reset(self) -> None:
        self._epoch += 1
        self._num_given = 0

    def set_number(self, number: int) -> None:
        """Set the number of the epoch that the next iteration reads, see `set_epoch`."""
        self._epoch = number - 1

    def __iter__(self) -> Iterator[DatasetSeq]:
        dataset, seq_idx = self.dataset, self._num_given
        dataset.init_seq_order(epoch=self._epoch)
        version = dataset.order_version
        while dataset.is_less_than_num_seqs(seq_idx):
            dataset.load_seqs(seq_idx, seq_idx + 1)
            seq = dataset.get_seq(seq_idx)
            seq_idx = self._num_given = seq_idx + 1
            yield seq
            if dataset.order_version != version:
                raise RuntimeError(f"the epoch of dataset {dataset.name!r} was changed while a pipe was reading it")

    def state(self) -> State:
        return {"epoch": self._epoch, "num_given": self._num_given}

    def restore(self, state: State) -> None:
        self._epoch, self._num_given = state["epoch"], state["num_given"]


def set_epoch(datapipe: IterPipe[Any], epoch: int) -> IterPipe[Any]:
    """Set the number of the next epoch of a graph: its random numbers then follow from that and the seeds alone.

    So processes that read copies of the graph agree on its order, whatever they have read before. Random pipes without
    a seed have seed 0 from now on. `headrace.DataLoader` calls this function.

    Args:
        datapipe: The end of the graph.
        epoch: The number, 1, 2, ...

    Returns:
        The pipe.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.pipes.iter import set_epoch
        >>> pipe = IterableWrapper(range(10)).shuffle().set_seed(1)
        >>> orders = []
        >>> for epoch in (1, 2, 1):
        ...     orders.append(list(set_epoch(pipe, epoch)))
        >>> orders[0] == orders[2], orders[0] == orders[1]
        (True, False)
    """
    for pipe_idx, pipe in enumerate(list_pipes(datapipe)):
        counters = draws_of(pipe).values()
        if isinstance(pipe, FromDataset):
            pipe.set_number(epoch)
        for counter in counters:
            counter.set_number(epoch)
        if not counters and callable(getattr(type(pipe), "set_seed", None)):
            pipe.set_seed(derive_seed(0, "pipes: epoch", epoch=epoch, corpus_idx=pipe_idx))
    return datapipe


register_function(IterPipe, "set_epoch", set_epoch)
