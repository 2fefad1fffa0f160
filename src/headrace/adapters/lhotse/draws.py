"""One pass over a sampler, drawn batch by batch and packed for the workers.

Who asks for the batches, and in which thread, is decided in `ahead.py`.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.engine.user.ship import ship_payload
from headrace.errors import ConfigError
from headrace.rng.process import globals_state, kept_globals, seed_globals

from .sampler import SamplerSide, chain_digest

# The largest share of the drawing time that states of the sampler may take.
_SNAPSHOT_SHARE = 20


class DrawnBatch(NamedTuple):
    """A batch of the sampler, or an error or the end instead of one.

    Attributes:
        number: Number of the batch in the pass; at the end, that of the next one.
        content: The batch for a worker: packed (an int as it is), or the batch itself where there is no worker; None at
            the end.
        digest: Digest of this batch and all before it.
        state: The sampler's state after this batch, if it was taken, else None.
        error: Exception of the sampler; nothing comes after it.
        is_end: Whether there is no batch.
    """

    number: int
    content: Any
    digest: int
    state: Any = None
    error: BaseException | None = None
    is_end: bool = False


class Drawing:
    """One pass over a sampler: draws one batch after another.

    The start of a pass and the first batch are drawn with global generators that are seeded for them. If the first
    batch drew from these, all others are seeded likewise. The generators belong to the whole process, so such a sampler
    must be used by the requesting thread only.

    Args:
        side: The sampler.
        packs: Whether the batches are for other processes.
        key: Key of the pass; None: the generators are not seeded.
        first: Number of batch 0 by which the generators are seeded.
        stride: From one batch to the next.

    Attributes:
        digest: Digest of the batches so far.
        number: How many there were.
        uses_globals: Whether the sampler draws from the global generators.
    """

    def __init__(
        self, side: SamplerSide, *, packs: bool, key: int | None = None, first: int = 0, stride: int = 1
    ) -> None:
        self._side, self._packs, self._key, self._first, self._stride = side, packs, key, first, stride
        self._iterator: Iterator[Any] = iter(())
        self.digest = self.number = 0
        self.uses_globals = False
        self._is_watched = True
        self._seconds = 0.0  # of drawing, since the last state
        self._state_seconds = 0.0

    def begin(self, state: Any = None, number: int = 0, digest: int = 0, *, is_restart: bool = False) -> None:
        """Begin the pass.

        Args:
            state: The sampler's own after `number` batches, or None: the start of the pass.
            number: See above.
            digest: Digest of these batches.
            is_restart: Whether to drop a position that was loaded into the sampler.
        """
        self.number, self.digest = number, digest
        self._iterator = self._seeded("lhotse: begin", lambda: self._side.begin(state, is_restart))

    def skip(self) -> bool:
        """Draw a batch and forget it; return False at the end."""
        try:
            batch = self._next()
        except StopIteration:
            return False
        self.digest, self.number = chain_digest(self.digest, batch), self.number + 1
        return True

    def draw(self) -> DrawnBatch:
        """Draw a batch; an exception of the sampler is returned."""
        start, number = time.perf_counter(), self.number
        try:
            batch = self._next()
            digest = chain_digest(self.digest, batch)
            content = _pack(batch) if self._packs else batch
            self.digest, self.number = digest, number + 1
            state = self._snapshot(time.perf_counter() - start) if self._side.keeps_state else None
        except StopIteration:
            return DrawnBatch(number, None, self.digest, is_end=True)
        except BaseException as error:  # noqa: BLE001 - the boundary of a thread: the training raises it
            return DrawnBatch(number, None, self.digest, error=error, is_end=True)
        return DrawnBatch(number, content, digest, state)

    def _next(self) -> Any:
        if not self._is_watched:
            return next(self._iterator)
        return self._seeded("lhotse: draw", self._watch)

    def _watch(self) -> Any:
        before = pickle.dumps(globals_state())
        batch = next(self._iterator)
        self._is_watched = self.uses_globals = pickle.dumps(globals_state()) != before
        return batch

    def _seeded(self, purpose: str, function: Callable[[], Any]) -> Any:
        if self._key is None:
            return function()
        with kept_globals():
            seed_globals(self._key, purpose, number=self._first + self.number * self._stride)
            return function()

    def _snapshot(self, seconds: float) -> Any:
        """Take the sampler's state, if it is time for that."""
        self._seconds += seconds
        if not self._side.is_elastic and self._seconds < _SNAPSHOT_SHARE * self._state_seconds:
            return None
        start = time.perf_counter()
        state = self._side.snapshot()
        self._seconds, self._state_seconds = 0.0, time.perf_counter() - start
        return state


def _pack(batch: Any) -> Any:
    """Pickle a batch, unless it is a single index; one that cannot be carried becomes an error in the worker."""
    if type(batch) is int:
        return batch
    try:
        return ship_payload(batch)
    except ConfigError as error:
        return ship_payload(_Refused(error))


class _Refused:
    """Raises when it is unpickled."""

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, (self._error,)


def _refuse(error: ConfigError) -> None:
    raise error
