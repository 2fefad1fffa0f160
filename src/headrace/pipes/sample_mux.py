"""Several pipes mixed at random."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from headrace.errors import ConfigError

from .arguments import check_sources, known_length
from .base import IterPipe, State, read
from .draws import Draws
from .registry import register_function


class SampleMultiplexer(IterPipe[Any]):
    """Give an item of a random source, until all have ended. Those that have leave their share to the others.

    It is a random pipe as others are: the loader's seed rules it, and epochs differ.

    Args:
        pipes_to_weights_dict: Source -> weight; weights need not sum to 1.
        seed: What the choices follow from; `None`: the loader's seed, or another one in each epoch.

    Raises:
        ConfigError: There is no source, or a weight is not positive.
    """

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
        self._ended = [False] * len(self.weights)

    @property
    def pipes_to_weights_dict(self) -> dict[Any, float]:
        """Source -> weight."""
        return dict(zip(self.datapipes, self.weights, strict=True))

    def set_seed(self, seed: int) -> SampleMultiplexer:
        """Let the choices of the next epochs follow from a seed."""
        self._draws.set_seed(seed)
        return self

    def reset(self) -> None:
        self._draws.begin_epoch()
        self._ended = [False] * len(self.weights)

    def __iter__(self) -> Iterator[Any]:
        ended, draw = self._ended, self._draws.generator.random
        sources = [iter(()) if over else read(source) for over, source in zip(ended, self.datapipes, strict=True)]
        while not all(ended):
            bounds = list(accumulate(0.0 if over else weight for over, weight in zip(ended, self.weights, strict=True)))
            total = bounds[-1]
            bounds[bounds.index(total)] = float("inf")  # the last that has not ended, whatever rounding does
            while True:
                place = bisect_right(bounds, draw() * total)
                try:
                    item = next(sources[place])
                except StopIteration:
                    ended[place] = True
                    break
                yield item

    def state(self) -> State:
        return {"draws": self._draws.state(), "ended": list(self._ended)}

    def restore(self, state: State) -> None:
        self._draws.restore(state["draws"])
        self._ended = list(state["ended"])

    def __len__(self) -> int:
        return sum(known_length(self.datapipes))


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
        weights: One for each source, the first included; `None`: all the same.
        seed: What the choices follow from.

    Raises:
        ConfigError: There are not as many weights as sources, or one is not positive.
    """
    sources = (datapipe, *datapipes)
    weights = [1.0] * len(sources) if weights is None else weights
    if len(weights) != len(sources):
        raise ConfigError(
            f"{len(weights)} weights for {len(sources)} pipes", fix="give one for each, the first included"
        )
    return SampleMultiplexer(dict(zip(sources, weights, strict=True)), seed)


register_function(IterPipe, "sample_multiplexer", sample_multiplexer)
