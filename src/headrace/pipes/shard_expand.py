"""Names of shards from a pattern."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from headrace.errors import ConfigError
from headrace.files.ranges import expand_ranges

from .base import IterPipe, State, read
from .registry import functional_pipe


@functional_pipe("shard_expand")
class ShardExpander(IterPipe[str]):
    """Expand ranges in braces: `a-{000..009}` is ten names. Several ranges multiply, the last varies fastest.

    Args:
        source_datapipe: The source; its items are names.

    Raises:
        ConfigError: A range goes down, or has leading zeros and ends of different widths (while iterating).
    """

    def __init__(self, source_datapipe: IterPipe[Any]) -> None:
        self.source_datapipe = source_datapipe
        self.reset()

    def reset(self) -> None:
        self._pattern: str | None = None
        self._num_given = 0

    def __iter__(self) -> Iterator[str]:
        if self._pattern is not None:
            names = islice(expand(self._pattern), self._num_given, None)
            for self._num_given, name in enumerate(names, self._num_given + 1):
                yield name
        for self._pattern in read(self.source_datapipe):
            for self._num_given, name in enumerate(expand(self._pattern), 1):
                yield name
        self._pattern = None

    def state(self) -> State:
        return {"pattern": self._pattern, "num_given": self._num_given}

    def restore(self, state: State) -> None:
        self._pattern, self._num_given = state["pattern"], state["num_given"]


def expand(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern stands for."""
    try:
        yield from expand_ranges(pattern)
    except ConfigError as error:
        raise ConfigError(f"shard_expand: {error.what}", where=error.where) from error
