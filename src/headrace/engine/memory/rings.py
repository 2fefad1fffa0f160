"""Shared memory through which a worker and its trainer talk without system calls, as long as neither of them sleeps.

Each life of a worker has its own: *records* (small messages, from the worker to the trainer) and *credits* (numbers of
slots that are free again, from the trainer to the worker). Each is a ring with one writer and one reader, each of which
writes only words of its own: the writer how much was written in all, the reader how much was read.

Records lie one after the other, without anything in between, so that all that wait are read by one copy, however many
they are: a word says how many bytes were written, and how many records these are.

Invariants: a record is written before the word that covers it, so what a worker had finished when it was killed is
there, and half a record is never seen. Who goes to sleep says so first and looks once more afterwards; who has written
something looks for that flag afterwards. So one of them always sees the other (Dekker), given the fence in between.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

from .memfd import PAGE_BYTES, Mapping, create_memfd_of

# Bytes of records. Results that travel whole are up to 4 KiB, and a worker has some tens of tickets before it; what
# does not fit goes by the socket, which costs a system call.
RECORD_BYTES = 256 << 10
# Bytes of the longest record: so one long record does not keep many short ones out.
MAX_RECORD_BYTES = RECORD_BYTES // 8
# Words of the ring of credits: more than there are slots, so it is never full.
CREDIT_WORDS = 8192
_CREDITS_AT = PAGE_BYTES
_RECORDS_AT = _CREDITS_AT + 8 * CREDIT_WORDS
_NUM_BYTES = _RECORDS_AT + RECORD_BYTES

# Words of the first page, each in a cache line of its own.
_RECORDS_WRITTEN, _RECORDS_READ, _READER_SLEEPS, _CREDITS_WRITTEN = 0, 8, 16, 24

# The word of what was written: the number of bytes in the lower bits, the number of records in the others. Both begin
# anew at 0 where they do not fit; the ring holds far less, so differences are true.
_BYTES_BITS = 40
_BYTES_MASK = (1 << _BYTES_BITS) - 1
_COUNT_MASK = (1 << 64 - _BYTES_BITS) - 1

# These processors show the writes of one process to all others in the order in which they were made. Elsewhere a fence
# stands between the data and the count that covers them.
_IN_ORDER = os.uname().machine in ("x86_64", "i686", "i386")


class Fence(Protocol):
    """What keeps reads and writes of memory before it from being done after it, and the other way round."""

    def __call__(self) -> None:
        """Pass."""


def make_fence() -> Fence:
    """Return a fence of the caller's own: two turns of a lock, whose operations are fences to the processor.

    The lock is not shared, so there is never a wait for it, not even in a forked child.
    """
    lock = threading.Lock()

    def fence() -> None:
        lock.acquire()
        lock.release()
        lock.acquire()
        lock.release()

    return fence


def create_rings() -> int:
    """Return the descriptor of new rings, empty."""
    return create_memfd_of("headrace-rings", _NUM_BYTES)


class _Rings:
    """The mapping, as both sides see it. Whole words are read and written at once."""

    def __init__(self, fd: int) -> None:
        data = Mapping(fd, 0, _NUM_BYTES).as_array().data
        self._words = data[:_CREDITS_AT].cast("Q")
        self._credits = data[_CREDITS_AT:_RECORDS_AT].cast("Q")
        self._records = data[_RECORDS_AT:]
        self._fence = make_fence()


class WorkerRings(_Rings):
    """The worker's side: writes records, reads credits.

    Args:
        fd: From `create_rings`. Not kept.

    Attributes:
        num_records: How many records were written in all.
        num_credits: How many credits were taken in all.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.num_records = self.num_credits = 0
        self._num_written = self._num_read = 0  # bytes

    def write(self, record: bytes) -> bool:
        """Write a record, and tell whether there was room for it."""
        num_bytes = len(record)
        if num_bytes > MAX_RECORD_BYTES:
            return False
        num_written = self._num_written
        if num_written + num_bytes - self._num_read > RECORD_BYTES:
            self._num_read = num_written - (num_written - self._words[_RECORDS_READ] & _BYTES_MASK)
            if num_written + num_bytes - self._num_read > RECORD_BYTES:
                return False
        records, start = self._records, num_written % RECORD_BYTES
        if start + num_bytes <= RECORD_BYTES:
            records[start : start + num_bytes] = record
        else:
            num_first = RECORD_BYTES - start
            records[start:], records[: num_bytes - num_first] = record[:num_first], record[num_first:]
        self._num_written = num_written = num_written + num_bytes
        self.num_records = num_records = self.num_records + 1
        if not _IN_ORDER:
            self._fence()
        self._words[_RECORDS_WRITTEN] = (num_records & _COUNT_MASK) << _BYTES_BITS | num_written & _BYTES_MASK
        return True

    def should_wake(self) -> bool:
        """Tell, after a record was written, whether the trainer sleeps; it is told once."""
        self._fence()
        if not self._words[_READER_SLEEPS]:
            return False
        self._words[_READER_SLEEPS] = 0
        return True

    def take_credits(self) -> list[int]:
        """Return the slots that became free since the last call."""
        num_written = self._words[_CREDITS_WRITTEN]
        first = self.num_credits
        if num_written == first:
            return []
        if not _IN_ORDER:
            self._fence()
        self.num_credits = num_written
        return [self._credits[idx % CREDIT_WORDS] for idx in range(first, num_written)]


class TrainerRings(_Rings):
    """The trainer's side: reads records, writes credits.

    Args:
        fd: From `create_rings`. Not kept.

    Attributes:
        num_credits: How many credits were given in all.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.num_credits = 0
        self._seen = 0  # the word of what was written, when it was looked at last

    def read(self) -> tuple[int, bytes]:
        """Return how many records were written since the last call, and these, one after the other."""
        written, seen = self._words[_RECORDS_WRITTEN], self._seen
        if written == seen:
            return 0, b""
        if not _IN_ORDER:
            self._fence()
        start = seen % RECORD_BYTES
        end = start + (written - seen & _BYTES_MASK)
        found = bytes(self._records[start:end])
        if end > RECORD_BYTES:
            found += self._records[: end - RECORD_BYTES]
        self._seen = written
        if not _IN_ORDER:
            self._fence()
        self._words[_RECORDS_READ] = written & _BYTES_MASK
        return (written >> _BYTES_BITS) - (seen >> _BYTES_BITS) & _COUNT_MASK, found

    def say_asleep(self) -> None:
        """Ask to be woken by the next record. Look for records once more after this, and then sleep."""
        self._words[_READER_SLEEPS] = 1
        self._fence()

    def say_awake(self) -> None:
        """Ask not to be woken any more."""
        self._words[_READER_SLEEPS] = 0

    def give_credits(self, slot_idxs: list[int]) -> None:
        """Tell that slots are free: no more at a time than there are slots."""
        number = self.num_credits
        for slot_idx in slot_idxs:
            self._credits[number % CREDIT_WORDS] = slot_idx
            number += 1
        if not _IN_ORDER:
            self._fence()
        self.num_credits = self._words[_CREDITS_WRITTEN] = number
