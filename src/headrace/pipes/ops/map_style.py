"""Operations on map-style pipes, which compute nothing before an item is requested.

Also the conversions from map-style pipes to iterable ones and back.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.errors import ConfigError
from headrace.rng.process import globals_state, kept_globals, seed_globals

from ..core.base import IterPipe, MapPipe, is_iter_pipe, is_map_pipe
from ..core.checks import check_positive, check_sources, check_takes, wanted_columns
from ..core.draws import Draws, draws_of, seeds_of
from ..core.registry import functional_pipe, register_function
from ..core.skeletons import Positioned, ShufflingPipe
from ..core.walk import list_pipes
from .batch import DataChunk, count_batches


def same(item: Any) -> Any:
    """Return the item."""
    return item


@functional_pipe("map")
class MapMapper(MapPipe[Any]):
    """Apply a function to an item when the item is requested.

    Args:
        datapipe: The source.
        fn: The function.

    Examples:
        >>> from headrace.pipes.map import SequenceWrapper
        >>> pipe = SequenceWrapper([1, 2]).map(lambda number: number * 10)
        >>> pipe[1], len(pipe)
        (20, 2)
    """

    def __init__(self, datapipe: MapPipe[Any], fn: Callable[[Any], Any] = same) -> None:
        check_takes(fn, 1)
        self.datapipe = datapipe
        self.fn = fn

    def __getitem__(self, index: Any) -> Any:
        return self.fn(self.datapipe[index])

    def __len__(self) -> int:
        return len(self.datapipe)


@functional_pipe("zip")
class MapZipper(MapPipe[Any]):
    """Put the items of several pipes with the same index into a tuple.

    Args:
        datapipes: The sources.

    Raises:
        ConfigError: There are none.
        TypeError: One is not a map-style pipe.
        IndexError: One has no item of that index (on access).

    Examples:
        >>> from headrace.pipes.map import SequenceWrapper
        >>> SequenceWrapper("ab").zip(SequenceWrapper([1, 2]))[1]
        ('b', 2)
    """

    def __init__(self, *datapipes: MapPipe[Any]) -> None:
        self.datapipes = check_sources("Zipper", datapipes, is_map_pipe)

    def __getitem__(self, index: Any) -> Any:
        items = []
        for source in self.datapipes:
            try:
                items.append(source[index])
            except IndexError:
                raise IndexError(
                    f"Index {index} is out of range for one of the input MapDataPipes {source!r}."
                ) from None
        return tuple(items)

    def __len__(self) -> int:
        return min(map(len, self.datapipes))


@functional_pipe("concat")
class MapConcater(MapPipe[Any]):
    """Concatenate pipes: the first index of a pipe follows the last one of the pipe before.

    Args:
        datapipes: The sources, which have the indices `0..len-1`.

    Raises:
        ConfigError: There are none.
        TypeError: One is not a map-style pipe.
        IndexError: There is no item of that index (on access).

    Examples:
        >>> from headrace.pipes.map import SequenceWrapper
        >>> SequenceWrapper("ab").concat(SequenceWrapper("c"))[2]
        'c'
    """

    def __init__(self, *datapipes: MapPipe[Any]) -> None:
        self.datapipes = check_sources("Concater", datapipes, is_map_pipe)

    def __getitem__(self, index: int) -> Any:
        position = index + len(self) if index < 0 else index
        for source in self.datapipes:
            if 0 <= position < len(source):
                return source[position]
            position -= len(source)
        raise IndexError(f"Index {index} is out of range: there are {len(self)} items")

    def __len__(self) -> int:
        return sum(map(len, self.datapipes))


@functional_pipe("batch")
class MapBatcher(MapPipe[Any]):
    """Make batches of consecutive items.

    Args:
        datapipe: The source, which has the indices `0..len-1`.
        batch_size: How many items a batch has.
        drop_last: Drop the last batch if it is smaller.
        wrapper_class: The class of a batch, which is called with a list of the items.

    Raises:
        ConfigError: `batch_size` is less than 1.
        IndexError: There is no batch of that index (on access).

    Examples:
        >>> from headrace.pipes.map import SequenceWrapper
        >>> list(SequenceWrapper(range(5)).batch(2))
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self, datapipe: MapPipe[Any], batch_size: int, drop_last: bool = False, wrapper_class: type[Any] = DataChunk
    ) -> None:
        self.datapipe = datapipe
        self.batch_size = check_positive("batch_size", batch_size)
        self.drop_last = drop_last
        self.wrapper_class = wrapper_class

    def __getitem__(self, index: int) -> Any:
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"Index {index} is out of bound: there are {len(self)} batches")
        start = number * self.batch_size
        end = min(start + self.batch_size, len(self.datapipe))
        return self.wrapper_class([self.datapipe[position] for position in range(start, end)])

    def __len__(self) -> int:
        return count_batches(len(self.datapipe), self.batch_size, drop_last=self.drop_last)


class _Indexed(Positioned[Any]):
    """Yields the items of a map-style pipe at some of its indices, or at all."""

    _position_names = ("num_given",)
    _num_given = 0
    datapipe: MapPipe[Any]
    indices: Sequence[Any] | None

    def _read(self, indices: Sequence[Any]) -> Iterator[Any]:
        for self._num_given, index in enumerate(indices[self._num_given :], self._num_given + 1):
            yield self.datapipe[index]

    def __len__(self) -> int:
        return len(self.datapipe) if self.indices is None else len(self.indices)


class MapShuffler(_Indexed, ShufflingPipe[Any]):
    """Yield all items of a map-style pipe in random order. As in torchdata, this is an iterable pipe.

    Args:
        datapipe: The source.
        indices: The indices to read; `None`: `0..len-1`.

    Examples:
        >>> from headrace.pipes.map import SequenceWrapper
        >>> sorted(SequenceWrapper(range(5)).shuffle().set_seed(1))
        [0, 1, 2, 3, 4]
    """

    def __init__(self, datapipe: MapPipe[Any], *, indices: Sequence[Any] | None = None) -> None:
        self.datapipe = datapipe
        self.indices = indices
        self._draws = Draws("pipes: map shuffle")

    def __iter__(self) -> Iterator[Any]:
        indices = list(range(len(self.datapipe)) if self.indices is None else self.indices)
        before = self._draws.state()
        if self._enabled:
            self._draws.generator.shuffle(indices)
            self._draws.restore(before)  # so that a state holds the numbers that the order was drawn from
        yield from self._read(indices)


@functional_pipe("in_memory_cache")
class MapInMemoryCacheHolder(MapPipe[Any]):
    """Keep each item that was requested, and return the same object again.

    Args:
        source_dp: The source.

    Examples:
        >>> from headrace.pipes.map import SequenceWrapper
        >>> pipe = SequenceWrapper(["a", "b"]).map(str.upper).in_memory_cache()
        >>> pipe[1], pipe[1]  # computed once
        ('B', 'B')
    """

    _not_shipped = ("_cache",)

    def __init__(self, source_dp: MapPipe[Any]) -> None:
        self.source_dp = source_dp
        self._cache: dict[Any, Any] = {}

    def __getitem__(self, index: Any) -> Any:
        cache = self.__dict__.setdefault("_cache", {})  # a copy has none
        if index not in cache:
            cache[index] = self.source_dp[index]
        return cache[index]

    def __len__(self) -> int:
        return len(self.source_dp)


class MapUnZipper(MapPipe[Any]):
    """One column of a map-style pipe, see `map_unzip`."""

    def __init__(self, main_datapipe: MapPipe[Any], instance_id: int) -> None:
        self.main_datapipe = main_datapipe
        self.instance_id = instance_id

    def __getitem__(self, index: Any) -> Any:
        return self.main_datapipe[index][self.instance_id]

    def __len__(self) -> int:
        return len(self.main_datapipe)


def map_unzip(
    source_datapipe: MapPipe[Any], sequence_length: int, columns_to_skip: Sequence[int] | None = None
) -> list[MapPipe[Any]]:
    """Make a pipe of each column.

    Args:
        source_datapipe: The source, whose items are sequences.
        sequence_length: How many columns each item has.
        columns_to_skip: Columns to leave out.

    Raises:
        RuntimeError: All columns are skipped.

    Examples:
        >>> from headrace.pipes.map import SequenceWrapper
        >>> numbers, letters = SequenceWrapper([(1, "a"), (2, "b")]).unzip(sequence_length=2)
        >>> letters[1]
        'b'
    """
    return [MapUnZipper(source_datapipe, column) for column in wanted_columns(sequence_length, columns_to_skip)]


register_function(MapPipe, "shuffle", MapShuffler)
register_function(MapPipe, "unzip", map_unzip)


class MapToIterConverter(_Indexed):
    """Yield the items of a map-style pipe one by one.

    Args:
        datapipe: The map-style pipe.
        indices: The indices to read, in this order; `None`: `0..len-1`.

    Raises:
        TypeError: It is not a map-style pipe.

    Examples:
        >>> from headrace.pipes.map import SequenceWrapper
        >>> list(SequenceWrapper("abc").to_iter_datapipe(indices=[2, 0]))
        ['c', 'a']
    """

    def __init__(self, datapipe: MapPipe[Any], indices: Sequence[Any] | None = None) -> None:
        if not is_map_pipe(datapipe):
            raise TypeError(f"MapToIterConverter can only apply on MapDataPipe, but found {type(datapipe)}")
        self.datapipe = datapipe
        self.indices = indices

    def __iter__(self) -> Iterator[Any]:
        yield from self._read(range(len(self.datapipe)) if self.indices is None else self.indices)


class IterToMapConverter(MapPipe[Any]):
    """Load a pipe of (key, value) pairs into memory when the first item is requested.

    The items are kept for all epochs: a shuffle before it has one order for all of them, one after it another order in
    each. They are not part of a state. `DataLoader2` gives the random pipes before it the seeds of the first epoch in
    all epochs, so that the same items are loaded after a resume in a later one; a new seed has them loaded again.
    Elsewhere the state of the graph says with which random numbers they were loaded. Functions before it may draw from
    the global generators of Python, NumPy and torch where these are seeded: in workers, and with `keyed_randomness`.

    Args:
        datapipe: The source.
        key_value_fn: Makes (key, value) of an item; `None`: items are such pairs.

    Raises:
        TypeError: It is not an iterable pipe.
        ConfigError: An item is not a pair (when loading).
        IndexError: There is no item of that key (on access).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> IterableWrapper([("a", 1), ("b", 2)]).to_map_datapipe()["b"]
        2
    """

    _not_shipped = ("_table", "_seeds", "_noted", "_has_drawn")
    keeps_items = True
    _table: dict[Any, Any] | None = None
    _noted: tuple[int, ...] | None = None  # see `note_seeds`
    _seed_of_globals: int | None = None
    _has_drawn = False  # whether the pipes before it drew from the global generators when the table was loaded
    _seeds: list[dict[str, Any]] | None = None  # of the pipes before this one, when the table was loaded

    def __init__(self, datapipe: IterPipe[Any], key_value_fn: Callable[[Any], tuple[Any, Any]] | None = None) -> None:
        if not is_iter_pipe(datapipe):
            raise TypeError(f"IterToMapConverter can only apply on IterDataPipe, but found {type(datapipe)}")
        if key_value_fn is not None:
            check_takes(key_value_fn, 1)
        self.datapipe = datapipe
        self.key_value_fn = key_value_fn

    def _load(self) -> dict[Any, Any]:
        if self._seed_of_globals is None:
            return self._read_all()
        with kept_globals():
            seed_globals(self._seed_of_globals, "pipes: kept items")
            before = pickle.dumps(globals_state())
            table = self._read_all()
            self._has_drawn = pickle.dumps(globals_state()) != before
            return table

    def _read_all(self) -> dict[Any, Any]:
        table: dict[Any, Any] = {}
        before = list_pipes(self.datapipe)
        for pipe in before:
            for draws in draws_of(pipe).values():
                draws.fix_seed()  # so that the same table can be loaded again
        seeds = seeds_of(before)
        for item in self.datapipe:
            pair = item if self.key_value_fn is None else self.key_value_fn(item)
            try:
                key, value = pair
            except (TypeError, ValueError):
                raise ConfigError(
                    f"to_map_datapipe needs (key, value) pairs, got {pair!r}",
                    fix="give a key_value_fn that returns such pairs",
                ) from None
            if key in table:
                warnings.warn(f"Found duplicate key {key}. Please check your `key_value_fn`", stacklevel=4)
            table[key] = value
        self._table, self._seeds = table, seeds
        return table

    def note_seeds(self, seeds: tuple[int, ...]) -> None:
        if seeds != self._noted:
            self._table, self._noted = None, seeds

    def note_seed_of_globals(self, seed: int) -> None:
        if seed != self._seed_of_globals and (self._has_drawn or self._seed_of_globals is None):
            self._table = None
        self._seed_of_globals = seed

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
