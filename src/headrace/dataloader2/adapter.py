"""Adapters: changes to a graph that a `DataLoader2` makes before it reads it."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from headrace.errors import ConfigError
from headrace.pipes.graph import list_pipes


class Adapter:
    """The base class of adapters."""

    @abstractmethod
    def __call__(self, datapipe: Any) -> Any:
        """Change a graph, and return its end."""


class Shuffle(Adapter):
    """Turns all shuffles of a graph on or off.

    Args:
        enable: True: on; if there is no shuffle, one is added at the end, with a warning. False: off. None: unchanged.
    """

    def __init__(self, enable: bool | None = True) -> None:
        if enable not in (True, False, None):
            raise ConfigError(f"enable must be True, False or None, got {enable!r}")
        self.enable = enable

    def __call__(self, datapipe: Any) -> Any:
        """Turn them on or off."""
        if self.enable is None:
            return datapipe
        shufflers = [pipe for pipe in list_pipes(datapipe) if callable(getattr(type(pipe), "set_shuffle", None))]
        if self.enable and not shufflers:
            warnings.warn("there is no shuffle in this graph: one is added at its end", stacklevel=2)
            datapipe = datapipe.shuffle()
            shufflers = [datapipe]
        for shuffler in shufflers:
            shuffler.set_shuffle(self.enable)
        return datapipe


class CacheTimeout(Adapter):
    """Sets how long on-disk caches of a graph wait for files that another process is fetching.

    Args:
        timeout: Seconds.
    """

    def __init__(self, timeout: float) -> None:
        if timeout is None or not timeout >= 0:
            raise ConfigError(f"timeout must be 0 or more seconds, got {timeout!r}")
        self.timeout = timeout

    def __call__(self, datapipe: Any) -> Any:
        """Set it."""
        for pipe in list_pipes(datapipe):
            set_timeout = getattr(type(pipe), "set_timeout", None)
            if callable(set_timeout):
                set_timeout(pipe, self.timeout)
        return datapipe


def list_adapters(given: Iterable[Adapter] | Adapter | None) -> list[Callable[[Any], Any]]:
    """Return the adapters that a user gave, in their order.

    Raises:
        ConfigError: One of them is not an adapter.
    """
    if given is None:
        return []
    adapters: list[Callable[[Any], Any]] = list(given) if isinstance(given, Iterable) else [given]
    for adapter in adapters:
        if not callable(adapter):
            raise ConfigError(f"datapipe_adapter_fn holds {adapter!r}, which is not an adapter")
    return adapters
