"""One pass over a sampler, drawn batch by batch and packed for the workers.

Who asks for the batches, and in which thread, is decided in `ahead.py`.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from headrace.engine.user.ship import ship_payload
from headrace.errors import ConfigError
from headrace.rng.process import kept_globals, seed_globals

from .payload import LeftToWorkers
from .private import Keyed, NewIds
from .sampler import SamplerSide, chain_digest
from .seeds import plain_globals

_logger = logging.getLogger("headrace.adapters")
# The largest share of the drawing time that states of the sampler may take.
_SNAPSHOT_SHARE = 20


class Drawn(NamedTuple):
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


_drawn = functools.partial(tuple.__new__, Drawn)  # in half the time of a call of the class


@dataclass(frozen=True)
class DrawKey:
    """The key of the randomness of drawing a batch.

    Attributes:
        key: Key of the pass.
        offset: Number of batch 0 of the pass among those of all ranks.
        stride: From one batch to the next among those of all ranks.
        transforms: The generators of the functions that the sampler applies to its batches.
        from_start: Whether each batch is drawn with seeded generators from the first one on.
    """

    key: int
    offset: int
    stride: int
    transforms: Keyed
    from_start: bool


class Drawing:
    """One pass over a sampler: draws one batch after another.

    A sampler that applies functions to its batches, or that needs numbers of global generators, or ids for new cuts, to
    begin, is drawn from with generators that are seeded for each batch. These belong to the whole process, so such a
    sampler is used by the requesting thread only, and does not run ahead.

    Args:
        side: The sampler.
        iterator: Iterator of the pass.
        packs: Whether batches are packed for a worker.
        digest: Digest of the batches drawn before.
        number: Number of the next batch.
        key: Key of the randomness; None: generators are not seeded.
        ids: The generator of ids of new cuts when the pass began.
        reading: A block in which the sampler is drawn from, such as `left_to_workers()`; it is entered many times.

    Attributes:
        is_keyed: Whether generators are seeded for each batch; settled by the first one.
    """

    def __init__(
        self,
        side: SamplerSide,
        iterator: Iterator[Any],
        *,
        packs: bool,
        digest: int = 0,
        number: int = 0,
        key: DrawKey | None = None,
        ids: NewIds | None = None,
        reading: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._reading = nullcontext() if reading is None else reading
        self._is_read_plainly = isinstance(self._reading, nullcontext)
        self._side, self._iterator, self._packs, self._key = side, iterator, packs, key
        self._ids = NewIds() if ids is None else ids
        self.digest, self.number = digest, number
        self.is_keyed = key is not None and key.from_start
        self._is_settled = key is None or key.from_start
        self._seconds = 0.0  # of drawing, since the last state
        self._state_seconds = 0.0

    def skip(self) -> bool:
        """Draw a batch and forget it; return False at the end."""
        try:
            batch = self._next()
        except StopIteration:
            return False
        self.digest, self.number = chain_digest(self.digest, batch), self.number + 1
        return True

    def draw(self) -> Drawn:
        """Draw a batch; an exception of the sampler is returned."""
        keeps_state = self._side.keeps_state
        start = time.perf_counter() if keeps_state else 0.0
        number = self.number
        try:
            batch = self._next()
            digest = chain_digest(self.digest, batch)
            content = _pack(batch) if self._packs else batch
        except StopIteration:
            return Drawn(number, None, self.digest, is_end=True)
        except BaseException as error:  # noqa: BLE001 - the boundary of a thread: the training raises it
            return Drawn(number, None, self.digest, error=error, is_end=True)
        self.digest, self.number = digest, number + 1
        if not keeps_state:
            return Drawn(number, content, digest)
        self._seconds += time.perf_counter() - start
        try:
            return Drawn(number, content, digest, self._snapshot())
        except Exception as error:  # noqa: BLE001 - the boundary of a thread: the training raises it
            return Drawn(number, None, digest, error=error, is_end=True)

    def draws(self) -> Iterator[Drawn]:
        """Yield the batches, each as soon as it is drawn; the end, or an error, comes last."""
        is_plain = self._packs and self._is_settled and not (self.is_keyed or self._side.keeps_state)
        if is_plain and self._is_read_plainly:
            yield from self._draw_plainly()
            return
        while not (drawn := self.draw()).is_end:
            yield drawn
        yield drawn

    def _draw_plainly(self) -> Iterator[Drawn]:
        """Do as `draw` where it has nothing to see to: 0.5 us for an index, in place of 1.0."""
        iterator, digest, number = self._iterator, self.digest, self.number
        while True:
            try:
                batch = next(iterator)
                digest = chain_digest(digest, batch)
                content = batch if type(batch) is int else _pack(batch)
            except StopIteration:
                yield Drawn(number, None, self.digest, is_end=True)
                return
            except BaseException as error:  # noqa: BLE001 - the boundary of a thread: the training raises it
                yield Drawn(number, None, self.digest, error=error, is_end=True)
                return
            self.digest, self.number = digest, number + 1
            yield _drawn((number, content, digest, None, None, False))
            number += 1

    def _next(self) -> Any:
        with self._reading:
            return self._next_batch()

    def _next_batch(self) -> Any:
        if not self._is_settled:
            before = plain_globals()
            batch = next(self._iterator)
            self.is_keyed, self._is_settled = self._ids.are_used or plain_globals() != before, True
            return batch
        key = self._key
        if not self.is_keyed or key is None:
            return next(self._iterator)
        number = key.offset + self.number * key.stride
        with kept_globals(), key.transforms.kept(), NewIds():
            seed_globals(key.key, "lhotse: draw", number=number)
            key.transforms.seed(key.key, number)
            return next(self._iterator)

    def _snapshot(self) -> Any:
        """Take the sampler's state, if it is time for that."""
        if not self._side.is_elastic and self._seconds < _SNAPSHOT_SHARE * self._state_seconds:
            return None
        start = time.perf_counter()
        state = self._side.snapshot()
        self._seconds, self._state_seconds = 0.0, time.perf_counter() - start
        return state


def left_to_workers() -> AbstractContextManager[Any]:
    """Return a block in which this thread draws cuts of Shar without their data, which workers read."""
    reader = _shar_reader() if "lhotse.shar.readers.lazy" in sys.modules else None
    if reader is None:
        return nullcontext()
    reader.install()
    return LeftToWorkers()


@functools.cache
def _shar_reader() -> ModuleType | None:
    try:
        from . import shar
    except ImportError as error:
        _logger.info(
            "data of Shar are read by the sampler, not by the workers: this version of lhotse is not known (%s)", error
        )
        return None
    return shar


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
