"""Arenas as page-locked memory, so that a device copies from where a worker wrote, without a stop in between.

Locking memory costs far more than a copy, so it is done once for each slot of an arena, and again only if a result is
larger than all before it. Invariants: what is locked is a prefix of a mapping that lives until it is unlocked; it is
unlocked only when no copy reads from host memory any more; memory that could not be unlocked is never unmapped.
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from typing import Protocol

from headrace.engine.memory.memfd import Mapping, round_to_pages

_logger = logging.getLogger("headrace.adapters")


class Host(Protocol):
    """What a device does for memory of the host. A failure is a `RuntimeError`."""

    def register(self, address: int, num_bytes: int) -> None:
        """Lock pages, so that the device can read them by itself."""

    def unregister(self, address: int) -> None:
        """Unlock what was locked at an address."""

    def wait(self) -> None:
        """Wait until no copy that was begun reads from memory of the host."""


class PinnedMemory:
    """Locks the memory that results come in: a `MemoryWatcher`. For the thread of the consumer alone.

    If the system refuses, that is said once, and what comes from then on is not locked.

    Args:
        host: The device's side.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._locked: dict[int, tuple[Mapping, int]] = {}  # address -> where, how many bytes
        self._addresses: list[int] = []  # the same, in order
        self._stuck: list[Mapping] = []
        self._has_failed = False

    @property
    def num_bytes(self) -> int:
        """How much is locked, in bytes."""
        return sum(num_bytes for _, num_bytes in self._locked.values())

    def covers(self, address: int, num_bytes: int) -> bool:
        """Tell whether a piece of memory is locked, as a whole."""
        place = bisect_right(self._addresses, address) - 1
        if place < 0:
            return False
        start = self._addresses[place]
        return address + num_bytes <= start + self._locked[start][1]

    def on_lease(self, mapping: Mapping, num_bytes: int) -> None:
        """Lock what a result takes, unless it is locked."""
        _, have = self._locked.get(mapping.address, (mapping, 0))
        if num_bytes <= have or self._has_failed:
            return
        # An eighth more each time, so that results that grow step by step are not locked anew one by one.
        wanted = min(mapping.num_bytes, round_to_pages(max(num_bytes, have + have // 8)))
        if have and not self._unlock(mapping):
            return
        # Noted first, and forgotten last: if Ctrl-C comes between, too much is taken for locked, which does no harm.
        self._locked[mapping.address] = mapping, wanted
        insort(self._addresses, mapping.address)
        try:
            self._host.register(mapping.address, wanted)
        except RuntimeError as error:
            self._forget(mapping)
            self._has_failed = True
            _logger.warning(
                "%d bytes of shared memory cannot be page-locked (%s): batches are copied to such memory first",
                wanted,
                str(error),  # the error itself would keep frames, and what they refer to, where records are kept
            )

    def on_retire(self, mapping: Mapping) -> None:
        """Unlock, after the copies that were begun."""
        if mapping.address in self._locked:
            self._unlock(mapping)

    def _unlock(self, mapping: Mapping) -> bool:
        is_done = True
        try:
            self._host.wait()
            self._host.unregister(mapping.address)
        except RuntimeError as error:
            is_done = False
            self._stuck.append(mapping)
            _logger.warning("shared memory cannot be unlocked, and stays until the process ends: %s", str(error))
        self._forget(mapping)
        return is_done

    def _forget(self, mapping: Mapping) -> None:
        del self._locked[mapping.address]
        self._addresses.remove(mapping.address)
