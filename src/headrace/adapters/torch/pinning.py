"""Page-locks the shared memory of workers, so that a device copies directly from where a worker wrote.

Locking memory costs far more than a copy, so it is done once for each slot of an arena, and again only if a result is
larger than all before it. Invariants: the locked part is a prefix of a mapping that lives until it is unlocked; it is
unlocked only when no copy reads from host memory any more; memory that could not be unlocked is never unmapped.
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from typing import Protocol

from headrace.engine.memory.memfd import Mapping, round_to_pages

_logger = logging.getLogger("headrace.adapters")


class Host(Protocol):
    """Page-locks host memory for a device. A failure is a `RuntimeError`."""

    def register(self, address: int, num_bytes: int) -> None:
        """Lock pages, so that the device can read them by itself."""

    def unregister(self, address: int) -> None:
        """Unlock the memory at an address."""

    def wait(self) -> None:
        """Wait until all copies from host memory are done."""


class PinnedMemory:
    """Locks the memory of results: a `MemoryWatcher`. For the consumer's thread only.

    If the system refuses, that is logged once, and later results are not locked.

    Args:
        host: The device's side.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._locked: dict[int, tuple[Mapping, int]] = {}  # address -> mapping, locked bytes
        self._addresses: list[int] = []  # the same addresses, sorted
        self._stuck: list[Mapping] = []
        self._has_failed = False

    @property
    def num_bytes(self) -> int:
        """Number of locked bytes."""
        return sum(num_bytes for _, num_bytes in self._locked.values())

    def covers(self, address: int, num_bytes: int) -> bool:
        """Tell whether a piece of memory is entirely locked."""
        index = bisect_right(self._addresses, address) - 1
        if index < 0:
            return False
        start = self._addresses[index]
        return address + num_bytes <= start + self._locked[start][1]

    def on_lease(self, mapping: Mapping, num_bytes: int) -> None:
        """Lock the memory of a result, unless it is locked."""
        _, have = self._locked.get(mapping.address, (mapping, 0))
        if num_bytes <= have or self._has_failed:
            return
        # An eighth more each time, so that results that grow step by step are not locked anew one by one.
        lock_bytes = min(mapping.num_bytes, round_to_pages(max(num_bytes, have + have // 8)))
        if have and not self._unlock(mapping):
            return
        # Recorded first, and forgotten last: after a Ctrl-C in between, too much counts as locked, which is harmless.
        self._locked[mapping.address] = mapping, lock_bytes
        insort(self._addresses, mapping.address)
        try:
            self._host.register(mapping.address, lock_bytes)
        except RuntimeError as error:
            self._forget(mapping)
            self._has_failed = True
            _logger.warning(
                "%d bytes of shared memory cannot be page-locked (%s): batches are copied to such memory first",
                lock_bytes,
                str(error),  # the error itself would keep frames and their objects alive in stored log records
            )

    def on_retire(self, mapping: Mapping) -> None:
        """Unlock, after the running copies."""
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
