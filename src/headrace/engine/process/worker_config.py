"""What all workers of an executor are told, through a memfd that each of them reads.

Large arrays of the job are not copied into each worker. They lie in the memfd, which a worker maps: all workers share
one copy, and a page that one of them writes to becomes its own. So neither the start nor the memory of a worker depends
on how much data the user's objects hold.

Layout: the number of bytes of the config (uint64), the config, then the arrays, each at a multiple of 64 bytes.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from itertools import accumulate
from pickle import PickleBuffer

import msgspec

from ..memory.memfd import create_memfd

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64  # bytes: what vector instructions like


class WorkerConfig(msgspec.Struct, frozen=True):
    """What a worker has to know before its first ticket.

    Attributes:
        num_workers: How many there are.
        argv: `sys.argv` of the trainer.
        cwd: Where the trainer was when it started the workers; empty if that folder is gone.
        slot_bytes: See `ArenaWriter`, as the next two.
        num_slots: How many slots.
        max_bytes: Limit of the arena.
        job: A parcel with the `Job`.
        buffer_bytes: Sizes of the arrays of the job that are not in the parcel.
        executor: The name of the executor, see `WorkerInfo`.
    """

    num_workers: int
    argv: list[str]
    cwd: str
    slot_bytes: int
    num_slots: int
    max_bytes: int
    job: bytes
    buffer_bytes: list[int]
    executor: str = "process"


def write_worker_config(config: WorkerConfig, buffers: Sequence[PickleBuffer]) -> int:
    """Return the descriptor of a new memfd with a config and the arrays of its job."""
    data = msgspec.msgpack.encode(config)
    parts: list[bytes | memoryview] = [_LENGTH.pack(len(data)) + data, *(buffer.raw() for buffer in buffers)]
    fd = create_memfd("headrace-config")
    try:
        for start, part in zip(_starts([len(part) for part in parts]), parts, strict=False):
            view, position = memoryview(part), start
            while view:
                done = os.pwrite(fd, view, position)
                view, position = view[done:], position + done
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_worker_config(fd: int) -> tuple[WorkerConfig, list[memoryview]]:
    """Return the config of a memfd, and views of the arrays: writable, and what is written is private."""
    (num_bytes,) = _LENGTH.unpack(os.pread(fd, _LENGTH.size, 0))
    mapping = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    head = _LENGTH.size + num_bytes
    config = msgspec.msgpack.decode(mapping[_LENGTH.size : head], type=WorkerConfig)
    starts = _starts([head, *config.buffer_bytes])[1:]
    return config, [mapping[start : start + size] for start, size in zip(starts, config.buffer_bytes, strict=False)]


def _starts(sizes: Sequence[int]) -> list[int]:
    """Return where parts of these sizes begin, and the end."""
    return list(accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0))
