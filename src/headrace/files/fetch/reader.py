"""Readers: the contract between the loop of a fetch and each kind of store.

A reader starts a request and returns a future; only the loop waits, and each wait has a limit. So a store that stops
answering costs an abandoned call, never a fetch that hangs.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from .options import FetchOptions, SourceStat
from .part import PartFile
from .plan import ByteRange
from .retry import TransientError

Result = TypeVar("Result")
OnBytes = Callable[[int], None]

BEAT_SECONDS = 0.25  # how often `on_bytes(0)` is called while nothing arrives, so that it can stop the fetch
_END_SECONDS = 1.0  # how long the end of a fetch waits for its threads


class StoppedError(BaseException):
    """Carries an exception of `on_bytes` to the caller: it must not count as a failure of the source.

    Args:
        reason: The exception.
    """

    def __init__(self, reason: BaseException) -> None:
        super().__init__(reason)
        self.reason = reason


class RangesIgnoredError(Exception):
    """The store answered a range request with the whole file: read it as one stream."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a range that was received: its first `num_bytes`.

    Attributes:
        num_bytes: More than 0.
        data: The bytes, in pieces as received; None if the reader has written them to the part itself.
        digest: XXH3-128 of the bytes, if the reader has written them and digests are kept.
    """

    num_bytes: int
    data: list[bytes] | None = None
    digest: str | None = None


class Reader(ABC):
    """One source. The futures fail with the errors of the store's library, or with those of Headrace.

    Args:
        name: The source as errors show it.
        range_bytes: The size of a range.
        num_streams: How many ranges may be in flight.
    """

    def __init__(self, name: str, *, range_bytes: int, num_streams: int) -> None:
        self.name, self.range_bytes, self.num_streams = name, range_bytes, num_streams

    @abstractmethod
    def submit_stat(self) -> Future[SourceStat]:
        """Start to request size and version of the source."""

    @abstractmethod
    def submit(self, byte_range: ByteRange, stat: SourceStat, part: PartFile) -> Future[Piece]:
        """Start to read a range of this version.

        The future fails with `SourceChangedError` if the source has changed, and with `RangesIgnoredError` if it does
        not support ranges.
        """

    def submit_stream(self, stat: SourceStat) -> Future[Any]:
        """Start to read the whole of this version, as an `HttpStream`; only called for a source without ranges."""
        raise NotImplementedError

    def close(self) -> bool:
        """End what is in flight; return False if a call that may still write to the part could not be ended."""
        return True  # a request that was cancelled closes its connection


class BlockingCalls:
    """Runs blocking calls, each in a daemon thread that need not be waited for."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.stopped = threading.Event()

    def submit(self, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Future[Result]:
        """Start a call."""
        future: Future[Result] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - the end of a thread: it goes to the waiting caller
                future.set_exception(error)
            else:
                future.set_result(result)

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=call, name="headrace-fetch", daemon=True)
        thread.start()
        self._threads.append(thread)
        return future

    def close(self) -> bool:
        """Set `stopped` and wait a second, the first time, for the calls to end; tell whether they did."""
        deadline = time.monotonic() + (0.0 if self.stopped.is_set() else _END_SECONDS)
        self.stopped.set()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return not self._threads


def wait_for(future: Future[Result], who: str, options: FetchOptions, on_bytes: OnBytes) -> Result:
    """Wait for an answer, at most `timeout_seconds`; `on_bytes(0)` may raise to stop waiting.

    Raises:
        TransientError: There was none.
    """
    deadline = time.monotonic() + options.timeout_seconds
    try:
        while not future.done():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise timeout_error(who, options)
            concurrent.futures.wait([future], min(remaining, BEAT_SECONDS))
            on_bytes(0)
    finally:
        future.cancel()
    return future.result()


def timeout_error(who: str, options: FetchOptions) -> TransientError:
    """Return the error for an answer that did not arrive in time."""
    return TransientError(f"no answer from {who} within {options.timeout_seconds:g} s")


def pause(seconds: float, on_bytes: OnBytes) -> None:
    """Wait; `on_bytes(0)` may raise to stop it."""
    until = time.monotonic() + seconds
    while (remaining := until - time.monotonic()) > 0:
        time.sleep(min(remaining, BEAT_SECONDS))
        on_bytes(0)
