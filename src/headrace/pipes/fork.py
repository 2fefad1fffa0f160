"""The same items for several readers."""

from __future__ import annotations

import copy as copying
from collections.abc import Callable
from typing import Any

from headrace.errors import ConfigError

from .base import IterPipe
from .registry import register_function
from .split import Splitter, children_of

_COPIES: dict[str | None, Callable[[Any], Any]] = {"shallow": copying.copy, "deep": copying.deepcopy}


class Forker(Splitter):
    """Gives each item to every reader, see `fork`."""

    def __init__(self, datapipe: IterPipe[Any], num_instances: int, buffer_size: int, copy: str | None) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        self.copy = copy

    def _deal(self, item: Any, reader: int) -> None:
        self._check_ahead(reader)
        readers, copied = self._open, _COPIES.get(self.copy)
        items = [item] * len(readers) if copied is None else [copied(item) for _ in readers]
        for other, given in zip(readers, items, strict=True):
            self._buffers[other].append(given)

    def child_length(self, reader: int) -> int:  # noqa: ARG002 - all get as many
        return len(self.datapipe)


def fork(
    datapipe: IterPipe[Any], num_instances: int, buffer_size: int = 1000, copy: str | None = None
) -> list[IterPipe[Any]] | IterPipe[Any]:
    """Give the same items to several readers.

    The readers may be read in turn, one after another, or in several threads. Copies of the source are not made: an
    item that one has caused to be read waits for the others. A reader that was thrown away, or has stopped early, is
    not waited for.

    Args:
        datapipe: The source.
        num_instances: How many readers. 1: it is the source itself, not in a list.
        buffer_size: How many items the foremost may be ahead of the last; -1: as many as it likes.
        copy: What readers get: `None`: the same objects; `"shallow"` or `"deep"`: copies.

    Returns:
        The readers.

    Raises:
        ConfigError: A number is wrong, or `copy` is none of these.
        BufferError: A reader is too far ahead (while iterating).
    """
    if num_instances < 1:
        raise ConfigError(f"Expected `num_instances` larger than 0, but {num_instances} is found")
    if copy is not None and copy not in _COPIES:
        raise ConfigError(f"Unknown copy method `copy` = {copy!r}, choose one of None, `shallow` or `deep`.")
    if num_instances == 1:
        return datapipe
    return children_of(Forker(datapipe, num_instances, buffer_size, copy))


register_function(IterPipe, "fork", fork)
