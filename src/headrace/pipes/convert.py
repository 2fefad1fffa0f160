"""From map-style pipes to iterable ones, and back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.errors import ConfigError

from .arguments import check_takes
from .base import IterPipe, MapPipe, State, is_iter_pipe, is_map_pipe
from .draws import seeds_of
from .graph_walk import list_pipes
from .registry import register_function


class MapToIterConverter(IterPipe[Any]):
    """Give the items of a map-style pipe, one after another.

    Args:
        datapipe: The map-style pipe.
        indices: Which, in this order; `None`: `0..len-1`. None at all is an empty list.

    Raises:
        TypeError: It is no map-style pipe.
    """

    def __init__(self, datapipe: MapPipe[Any], indices: Sequence[Any] | None = None) -> None:
        if not is_map_pipe(datapipe):
            raise TypeError(f"MapToIterConverter can only apply on MapDataPipe, but found {type(datapipe)}")
        self.datapipe = datapipe
        self.indices = indices
        self._num_given = 0

    def reset(self) -> None:
        self._num_given = 0

    def __iter__(self) -> Iterator[Any]:
        indices = range(len(self.datapipe)) if self.indices is None else self.indices
        for self._num_given, index in enumerate(indices[self._num_given :], self._num_given + 1):
            yield self.datapipe[index]

    def state(self) -> State:
        return {"num_given": self._num_given}

    def restore(self, state: State) -> None:
        self._num_given = state["num_given"]

    def __len__(self) -> int:
        return len(self.datapipe) if self.indices is None else len(self.indices)


class IterToMapConverter(MapPipe[Any]):
    """Load a pipe of (key, value) into memory when the first item is asked for.

    They are kept for all epochs. So shuffle after it, not before: whoever begins with a later epoch, as workers do that
    resume in one, loads by the random numbers of that. They are not part of a state; what a state says is by which
    numbers they were loaded, so that a copy loads the same.

    Args:
        datapipe: The source.
        key_value_fn: Makes (key, value) of an item; `None`: items are such pairs.

    Raises:
        TypeError: It is no iterable pipe.
        ConfigError: An item is no pair (when loading).
        IndexError: There is no such key.
    """

    _not_shipped = ("_table", "_seeds")
    _table: dict[Any, Any] | None = None
    _seeds: list[dict[str, Any]] | None = None  # of the pipes before this one, when the table was loaded

    def __init__(self, datapipe: IterPipe[Any], key_value_fn: Callable[[Any], tuple[Any, Any]] | None = None) -> None:
        if not is_iter_pipe(datapipe):
            raise TypeError(f"IterToMapConverter can only apply on IterDataPipe, but found {type(datapipe)}")
        if key_value_fn is not None:
            check_takes(key_value_fn, 1)
        self.datapipe = datapipe
        self.key_value_fn = key_value_fn

    def _load(self) -> dict[Any, Any]:
        table: dict[Any, Any] = {}
        seeds = seeds_of(list_pipes(self.datapipe))
        for item in self.datapipe:
            pair = item if self.key_value_fn is None else self.key_value_fn(item)
            try:
                key, value = pair
            except (TypeError, ValueError):
                raise ConfigError(
                    f"to_map_datapipe needs (key, value), got {pair!r}", fix="give a key_value_fn that makes such pairs"
                ) from None
            if key in table:
                warnings.warn(f"Found duplicate key {key}. Please check your `key_value_fn`", stacklevel=4)
            table[key] = value
        self._table, self._seeds = table, seeds
        return table

    def draws_when_loaded(self) -> dict[int, dict[str, Any]]:
        """See `MapPipe`."""
        if self._table is None or not self._seeds:
            return {}
        return {id(pipe): seeds for pipe, seeds in zip(list_pipes(self.datapipe), self._seeds, strict=True)}

    def forget_other_draws(self) -> None:
        """See `MapPipe`."""
        if self._table is not None and self._seeds != seeds_of(list_pipes(self.datapipe)):
            self._table = None

    def __getitem__(self, index: Any) -> Any:
        table = self._load() if self._table is None else self._table
        try:
            return table[index]
        except KeyError:
            raise IndexError(f"Index {index} is invalid for IterToMapConverter.") from None

    def __len__(self) -> int:
        return len(self._load() if self._table is None else self._table)


register_function(MapPipe, "to_iter_datapipe", MapToIterConverter)
register_function(IterPipe, "to_map_datapipe", IterToMapConverter)
