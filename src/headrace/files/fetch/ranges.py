"""The loop of a fetch: requests ranges, waits for them, writes them, tries again.

One thread, the caller's, does all of that: it alone writes, keeps the side file and calls `on_bytes`. So there is
nothing to lock, and an answer that arrives after the end is ignored. (Local files are the exception: their copies are
written by threads of the reader.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import xxhash

from headrace.errors import HeadraceError, SourceError

from ..locations import shown_url
from .options import FetchOptions, SourceChangedError, SourceStat, difference_text
from .part import FetchedRange, PartFile, part_errors
from .plan import ByteRange, RangePlan
from .reader import BEAT_SECONDS, OnBytes, Piece, RangesIgnoredError, Reader, Result, pause, timeout_error, wait_for
from .retry import NO_SPACE, TransientError, cause_text, is_transient, retry_after_seconds, status_of, wait_seconds

_FIX_TRANSIENT = "check the network and the store; FetchOptions(num_tries=..., timeout_seconds=...) allows for more"


@dataclass(frozen=True, slots=True)
class _Flight:
    byte_range: ByteRange
    deadline: float


class RangeFetch:
    """One fetch by ranges.

    Args:
        reader: The source.
        part: Where the bytes go.
        stat: The requested version.
        options: Options of the fetch.
        on_bytes: Called with each number of bytes added to the part.
    """

    def __init__(
        self, reader: Reader, part: PartFile, stat: SourceStat, options: FetchOptions, on_bytes: OnBytes
    ) -> None:
        self._reader = reader
        self._part = part
        self._stat = stat
        self._options = options
        self._on_bytes = on_bytes
        self._flights: dict[Future[Piece], _Flight] = {}
        self._arrived: SimpleQueue[Future[Piece]] = SimpleQueue()
        self._plan = RangePlan(part.missing(), range_bytes=reader.range_bytes, num_streams=reader.num_streams)

    def run(self) -> None:
        """Fetch the missing ranges.

        Raises:
            SourceError: A range failed permanently, or too often.
            SourceChangedError: The source has changed.
            RangesIgnoredError: The source does not support ranges.
            OSError: There is no space for it.
        """
        try:
            while not self._plan.is_finished:
                now = time.monotonic()
                while (byte_range := self._plan.take(now)) is not None:
                    self._ask(byte_range, now)
                self._take_arrived(now)
                self._drop_timed_out(time.monotonic())
        finally:
            for future in self._flights:
                future.cancel()

    def _ask(self, byte_range: ByteRange, now: float) -> None:
        future = self._reader.submit(byte_range, self._stat, self._part)
        self._flights[future] = _Flight(byte_range, now + self._options.timeout_seconds)
        future.add_done_callback(self._arrived.put)

    def _take_arrived(self, now: float) -> None:
        """Wait for one answer, at most for one beat, and handle it."""
        times = [flight.deadline for flight in self._flights.values()]
        if (next_time := self._plan.next_time(now)) is not None:
            times.append(next_time)
        try:
            future = self._arrived.get(timeout=min(max(min(times) - now, 0.0), BEAT_SECONDS))
        except Empty:
            self._on_bytes(0)
            return
        flight = self._flights.pop(future, None)
        if flight is None:  # it has timed out before
            return
        try:
            self._keep(flight.byte_range, future.result())
        except (HeadraceError, RangesIgnoredError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise
            self._note_failure(flight.byte_range, error)

    def _keep(self, byte_range: ByteRange, piece: Piece) -> None:
        came, digest = ByteRange(byte_range.start, byte_range.start + piece.num_bytes), piece.digest
        if piece.data is not None:
            with part_errors(self._part.path):
                self._part.write(came.start, piece.data)
            if self._options.checksum is not None:
                digest = _digest_of(piece.data)
        self._part.note(FetchedRange(came, digest))
        self._plan.note_came(byte_range, piece.num_bytes)
        self._on_bytes(piece.num_bytes)

    def _drop_timed_out(self, now: float) -> None:
        for future, flight in list(self._flights.items()):
            if flight.deadline <= now and not future.done():
                del self._flights[future]
                future.cancel()
                self._note_failure(flight.byte_range, timeout_error(self._reader.name, self._options))

    def _note_failure(self, byte_range: ByteRange, error: Exception) -> None:
        num_failures = self._plan.note_failed(byte_range)
        if num_failures >= self._options.num_tries or not is_transient(error):
            self._check_changed(error)
            came = f"{self._part.num_bytes} of {self._stat.size} bytes had come"
            raise permanent_error(self._reader.name, f"fetch {byte_range}", num_failures, error, came) from error
        until = time.monotonic() + wait_seconds(self._options, num_failures, error)
        self._plan.delay(byte_range, until)
        if retry_after_seconds(error):  # it applies to all requests, not to this range
            self._plan.pause(until)

    def _check_changed(self, error: Exception) -> None:
        """Raise that the source has changed, if that is why a range failed."""
        try:
            now = wait_for(self._reader.submit_stat(), self._reader.name, self._options, self._on_bytes)
        except Exception:  # noqa: BLE001 - then the error that led here is reported
            return
        if now != self._stat:
            raise SourceChangedError(difference_text(self._stat, now), where=self._reader.name) from error


def fetch_stream(reader: Reader, part: PartFile, stat: SourceStat, options: FetchOptions, on_bytes: OnBytes) -> None:
    """Fetch from a source without ranges: one stream from the start, again from the start if it fails.

    Raises:
        SourceError: It failed permanently, or too often.
        SourceChangedError: The source has changed.
        OSError: There is no space for it.
    """
    for number in range(1, options.num_tries + 1):
        position = 0
        try:
            stream = wait_for(reader.submit_stream(stat), reader.name, options, on_bytes)
            try:
                while data := wait_for(stream.submit(options.range_bytes), reader.name, options, on_bytes):
                    stop = position + sum(map(len, data))
                    if stop > stat.size:
                        raise TransientError(f"more than {stat.size} bytes came")
                    with part_errors(part.path):
                        part.write(position, data)
                    part.note(FetchedRange(ByteRange(position, stop), _digest_of(data) if options.checksum else None))
                    on_bytes(stop - position)
                    position = stop
                if position < stat.size:
                    raise TransientError(f"only {position} of {stat.size} bytes came")
            finally:
                stream.close()
        except HeadraceError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise
            if number == options.num_tries or not is_transient(error):
                came = f"{position} of {stat.size} bytes had come"
                raise permanent_error(reader.name, "fetch it in one stream", number, error, came) from error
            on_bytes(-position)
            part.start_over()
            part.allocate()
            pause(wait_seconds(options, number, error), on_bytes)
        else:
            return


def ask_stat(reader: Reader, options: FetchOptions, on_bytes: OnBytes) -> SourceStat:
    """Return size and version of a source, with as many tries as the options allow.

    Raises:
        SourceError: It is missing, refused, or does not answer.
        ConfigError: Its store cannot be used from here.
    """
    return try_often(reader.submit_stat, reader.name, "look at it", options, on_bytes)


def try_often(
    submit: Callable[[], Future[Result]], name: str, task: str, options: FetchOptions, on_bytes: OnBytes
) -> Result:
    """Get an answer, with as many tries as the options allow if the failures are transient.

    Args:
        submit: Starts the request.
        name: Name of the source, for errors.
        task: The task, for errors: `"look at it"`.
        options: Tries and time limits.
        on_bytes: Called with 0 while nothing arrives.

    Raises:
        SourceError: It is missing, refused, or does not answer.
    """
    for number in range(1, options.num_tries + 1):
        try:
            return wait_for(submit(), name, options, on_bytes)
        except HeadraceError:
            raise
        except Exception as error:
            if number == options.num_tries or not is_transient(error):
                raise permanent_error(name, task, number, error) from error
            pause(wait_seconds(options, number, error), on_bytes)
    raise AssertionError


def _digest_of(data: list[bytes]) -> str:
    digest = xxhash.xxh3_128()
    for piece in data:
        digest.update(piece)
    return digest.hexdigest()


def permanent_error(name: str, task: str, num_tries: int, error: Exception, came: str | None = None) -> SourceError:
    """Return the error of a task that failed permanently, or too often."""
    status, cause = status_of(error), shown_url(cause_text(error))
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return SourceError(f"the file does not exist ({cause})", where=name, fix="check the address")
    tries = f"{num_tries} tries" if num_tries > 1 else "1 try"
    what = f"could not {task}, {tries}: {cause}"
    if came is not None:
        what += f"; {came}"
    if is_transient(error):
        fix = _FIX_TRANSIENT
    elif isinstance(error, PermissionError) or status in (401, 403):
        fix = "give credentials that may read it, or check the address"
    else:
        fix = "check the address and the settings of its file system"
    return SourceError(what, where=name, fix=fix)
