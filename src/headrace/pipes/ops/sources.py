"""Pipes at the start of a graph: over an iterable, a sequence, a sampler or a dataset.

`set_epoch` says which epoch comes next, for all pipes of a graph: a loader counts, or a training begins in the middle.
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
        iterable: A list, a range, anything with `iter`. What can be iterated over only once, such as a generator, gives
            one epoch.
        deepcopy: Hand out deep copies, so that nobody downstream changes the original. Items of a list or tuple are
            copied one by one, when they are due; other iterables at once, at the start of an epoch.
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
        return len(self.iterable)  # type: ignore[arg-type]  # TypeError: what is expected of us too


class SequenceWrapper(MapPipe[Any]):
    """The items of a sequence or mapping, by index or key.

    Args:
        sequence: A list, a dict, anything with `[]`.
        deepcopy: Keep a deep copy, so that changes of the original do not show.
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
            f"a {type(thing).__name__} can not be deepcopied: whoever changes an item changes the original. "
            "With deepcopy=False there is no attempt.",
            stacklevel=2,
        )
        return thing


class Sampler(IterPipe[Any]):
    """Give what a sampler gives that is made for a pipe: of most samplers, numbers of its items.

    Args:
        datapipe: A pipe that knows its length.
        sampler: A class of `torch.utils.data.sampler`, or any function whose `data_source` is the pipe, and that
            returns what can be iterated over in each epoch. `None`: `0..len-1`.
        sampler_args: Its positional arguments.
        sampler_kwargs: Its other arguments.

    Raises:
        ConfigError: The pipe does not know its length.
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
    """Give the sequences of a dataset, in the order that it has in an epoch.

    The epochs of the pipe are those of the dataset: the first is `first_epoch`, then one more each time. A seed that
    is set does not change them: a dataset's order has a seed of its own.

    Args:
        dataset: Any dataset with the epoch API.
        first_epoch: The number of the first epoch.
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
        """Let the next iteration be the epoch of a number, see `set_epoch`."""
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
                raise RuntimeError(f"dataset {dataset.name!r} was given another epoch while a pipe reads it")

    def state(self) -> State:
        return {"epoch": self._epoch, "num_given": self._num_given}

    def restore(self, state: State) -> None:
        self._epoch, self._num_given = state["epoch"], state["num_given"]


def set_epoch(datapipe: IterPipe[Any], epoch: int) -> IterPipe[Any]:
    """Let the next iteration over a graph be the epoch of a number: it follows from that and the seeds alone.

    So processes that read copies of the graph agree on its order, whatever they have read before. Random pipes without
    a seed have seed 0 from now on. `headrace.DataLoader` calls it.

    Args:
        datapipe: The end of the graph.
        epoch: The number, 1, 2, ...

    Returns:
        The pipe.
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
