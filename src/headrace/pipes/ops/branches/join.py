"""Joining pipes: one after another, item by item, in turn, or at random."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from headrace.errors import ConfigError

from ...core.base import IterPipe, State, read
from ...core.checks import check_sources
from ...core.draws import Draws
from ...core.registry import functional_pipe, register_function
from ...core.skeletons import PendingPipe, Positioned, RandomPipe


@functional_pipe("concat")
class Concater(IterPipe[Any]):
    """Concatenate pipes: yield the items of the first source, then those of the next. `a + b` is the same.

    Args:
        datapipes: The sources.

    Raises:
        ConfigError: There are none.
        TypeError: One is not a pipe.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper("ab").concat(IterableWrapper("c")))
        ['a', 'b', 'c']
    """

    def __init__(self, *datapipes: IterPipe[Any]) -> None:
        self.datapipes = check_sources("Concater", datapipes)
        self._source_idx = 0

    def reset(self) -> None:
        self._source_idx = 0

    def __iter__(self) -> Iterator[Any]:
        for self._source_idx in range(self._source_idx, len(self.datapipes)):
            yield from read(self.datapipes[self._source_idx])

    def state(self) -> State:
        return {"place": self._source_idx}

    def restore(self, state: State) -> None:
        self._source_idx = state["place"]

    def __len__(self) -> int:
        return sum(map(len, self.datapipes))


@functional_pipe("zip")
class Zipper(Positioned[Any]):
    """Yield tuples with an item of each source, until the shortest ends.

    Args:
        datapipes: The sources.

    Raises:
        ConfigError: There are none.
        TypeError: One is not a pipe.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper("abc").zip(IterableWrapper(range(2))))
        [('a', 0), ('b', 1)]
    """

    def __init__(self, *datapipes: IterPipe[Any]) -> None:
        self.datapipes = check_sources("Zipper", datapipes)

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*[read(source) for source in self.datapipes], strict=False)

    def __len__(self) -> int:
        return min(map(len, self.datapipes))


def _read_rest(pipe: ZipperLongest | MultiplexerLongest | SampleMultiplexer) -> tuple[list[bool], list[Iterator[Any]]]:
    """Return which sources of a pipe have ended, in the list that is its state, and iterators over all sources."""
    pipe._ended = ended = list(pipe._ended) or [False] * len(pipe.datapipes)
    return ended, [iter(()) if over else read(source) for over, source in zip(ended, pipe.datapipes, strict=True)]


@functional_pipe("zip_longest")
class ZipperLongest(Positioned[Any]):
    """Yield tuples with an item of each source, until the longest ends.

    Args:
        datapipes: The sources.
        fill_value: Replaces the items of sources that have ended.

    Raises:
        ConfigError: There are none.
        TypeError: One is not a pipe.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper("abc").zip_longest(IterableWrapper(range(2)), fill_value=-1))
        [('a', 0), ('b', 1), ('c', -1)]
    """

    _position_names = ("ended",)
    _ended: Sequence[bool] = ()

    def __init__(self, *datapipes: IterPipe[Any], fill_value: Any = None) -> None:
        self.datapipes = check_sources("ZipperLongest", datapipes)
        self.fill_value = fill_value

    def __iter__(self) -> Iterator[Any]:
        fill = self.fill_value
        ended, sources = _read_rest(self)
        while True:
            items = []
            for source_idx, source in enumerate(sources):
                if ended[source_idx]:
                    items.append(fill)
                    continue
                try:
                    items.append(next(source))
                except StopIteration:
                    ended[source_idx] = True
                    items.append(fill)
            if all(ended):
                return
            yield tuple(items)

    def __len__(self) -> int:
        return max(map(len, self.datapipes))


@functional_pipe("mux")
class Multiplexer(PendingPipe[Any]):
    """Yield an item of each source in turn, in complete rounds: it ends when the shortest source does.

    Args:
        datapipes: The sources.

    Raises:
        ConfigError: There are none.
        TypeError: One is not a pipe.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper("abc").mux(IterableWrapper("xy")))
        ['a', 'x', 'b', 'y']
    """

    _pending_name = "rest"

    def __init__(self, *datapipes: IterPipe[Any]) -> None:
        self.datapipes = check_sources("Multiplexer", datapipes)

    def _groups(self) -> Iterator[tuple[Any, ...]]:
        return zip(*[read(source) for source in self.datapipes], strict=False)

    def __len__(self) -> int:
        return min(map(len, self.datapipes)) * len(self.datapipes)


@functional_pipe("mux_longest")
class MultiplexerLongest(Positioned[Any]):
    """Yield an item of each source in turn, until all have ended; those that have ended are skipped.

    Args:
        datapipes: The sources.

    Raises:
        ConfigError: There are none.
        TypeError: One is not a pipe.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper("abc").mux_longest(IterableWrapper("x")))
        ['a', 'x', 'b', 'c']
    """

    _position_names = ("ended", "turn")
    _ended: Sequence[bool] = ()
    _turn = 0

    def __init__(self, *datapipes: IterPipe[Any]) -> None:
        self.datapipes = check_sources("MultiplexerLongest", datapipes)

    def __iter__(self) -> Iterator[Any]:
        ended, sources = _read_rest(self)
        turn, last = self._turn, len(sources)
        while not all(ended):
            for source_idx in range(turn, last):
                if ended[source_idx]:
                    continue
                try:
                    item = next(sources[source_idx])
                except StopIteration:
                    ended[source_idx] = True
                    continue
                self._turn = source_idx + 1
                yield item
            turn = 0

    def __len__(self) -> int:
        return sum(map(len, self.datapipes))


class SampleMultiplexer(RandomPipe[Any]):
    """Yield an item of a randomly chosen source each time, until all sources have ended.

    A source that has ended is no longer chosen. Like other random pipes it is seeded by the loader, and epochs differ.

    Args:
        pipes_to_weights_dict: Source -> weight; weights need not sum to 1.
        seed: The seed of the choices; `None`: the loader's, or without a loader another one in each epoch.

    Raises:
        ConfigError: There is no source, or a weight is not positive.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.pipes.iter import SampleMultiplexer
        >>> often, rarely = IterableWrapper("aaaa"), IterableWrapper("bb")
        >>> sorted(SampleMultiplexer({often: 0.8, rarely: 0.2}, seed=1))
        ['a', 'a', 'a', 'a', 'b', 'b']
    """

    _position_names = ("ended",)
    _ended: Sequence[bool] = ()

    def __init__(self, pipes_to_weights_dict: Mapping[IterPipe[Any], float], seed: int | None = None) -> None:
        if not pipes_to_weights_dict:
            raise ConfigError("Empty dictionary passed to SampleMultiplexer")
        for weight in pipes_to_weights_dict.values():
            if not 0 < weight < float("inf"):
                raise ConfigError(f"Expecting a positive and non-zero weight, got {weight}")
        self.datapipes = check_sources("SampleMultiplexer", list(pipes_to_weights_dict))
        self.weights = [float(weight) for weight in pipes_to_weights_dict.values()]
        self.seed = seed
        self._draws = Draws("pipes: sample multiplexer", seed)

    @property
    def pipes_to_weights_dict(self) -> dict[Any, float]:
        """Source -> weight."""
        return dict(zip(self.datapipes, self.weights, strict=True))

    def __iter__(self) -> Iterator[Any]:
        draw = self._draws.generator.random
        ended, sources = _read_rest(self)
        while not all(ended):
            bounds = list(accumulate(0.0 if over else weight for over, weight in zip(ended, self.weights, strict=True)))
            total = bounds[-1]
            bounds[bounds.index(total)] = float("inf")  # of the last that has not ended, despite rounding
            while True:
                source_idx = bisect_right(bounds, draw() * total)
                try:
                    item = next(sources[source_idx])
                except StopIteration:
                    ended[source_idx] = True
                    break
                yield item

    def __len__(self) -> int:
        return sum(map(len, self.datapipes))


def sample_multiplexer(
    datapipe: IterPipe[Any],
    *datapipes: IterPipe[Any],
    weights: list[float] | None = None,
    seed: int | None = None,
) -> SampleMultiplexer:
    """Mix this pipe with others, see `SampleMultiplexer`.

    Args:
        datapipe: The first source.
        datapipes: The others.
        weights: One for each source, including the first; `None`: equal weights.
        seed: The seed of the choices.

    Raises:
        ConfigError: There are not as many weights as sources, or one is not positive.
    """
    sources = (datapipe, *datapipes)
    weights = [1.0] * len(sources) if weights is None else weights
    if len(weights) != len(sources):
        raise ConfigError(
            f"{len(weights)} weights for {len(sources)} pipes", fix="give one for each, including the first"
        )
    return SampleMultiplexer(dict(zip(sources, weights, strict=True)), seed)


register_function(IterPipe, "sample_multiplexer", sample_multiplexer)
