"""A page of shared memory in which a worker writes where in the data it is, so that it can be read after any death.

One writer, any reader, no lock: the writer makes the counter odd, writes, and makes it even. A reader that finds it odd
(the worker died in between, or writes just now) knows nothing of the place. The counter is also the sign of life.
"""

from __future__ import annotations

import os
import struct

from .memory import PAGE_BYTES, Mapping, create_memfd, extend_memfd
from .worker_info import Place

_COUNTER = struct.Struct("=Q")
_FLAG = struct.Struct("=Q")
_PLACE = struct.Struct("=qi")  # epoch, bytes of the tag
_FLAG_AT, _PLACE_AT, _TAG_AT = 8, 16, 28
_NO_EPOCH = -(2**63)
_MAX_TAG_BYTES = PAGE_BYTES - _TAG_AT


def create_status_page() -> int:
    """Return the descriptor of a new page, all zero: no place is known."""
    fd = create_memfd("headrace-status")
    try:
        extend_memfd(fd, PAGE_BYTES)
    except BaseException:
        os.close(fd)
        raise
    return fd


class StatusPage:
    """A mapping of a page, in the worker or in the trainer.

    Args:
        fd: From `create_status_page`. Not kept.
    """

    def __init__(self, fd: int) -> None:
        self._bytes = Mapping(fd, 0, PAGE_BYTES).as_array().data
        self._counter = 0

    def write_place(self, place: Place) -> None:
        """Publish a place; the worker's side only. About 1 us."""
        page = self._bytes
        self._counter += 1
        _COUNTER.pack_into(page, 0, self._counter)
        tag = b"" if place.tag is None else place.tag.encode(errors="replace")[:_MAX_TAG_BYTES]
        epoch = _NO_EPOCH if place.epoch is None else place.epoch
        _PLACE.pack_into(page, _PLACE_AT, epoch, -1 if place.tag is None else len(tag))
        page[_TAG_AT : _TAG_AT + len(tag)] = tag
        self._counter += 1
        _COUNTER.pack_into(page, 0, self._counter)

    def set_starved(self, starved: bool) -> None:
        """Publish whether the worker waits for a free slot; the worker's side only."""
        _FLAG.pack_into(self._bytes, _FLAG_AT, int(starved))

    @property
    def counter(self) -> int:
        """A number that grows with every place."""
        counter: int = _COUNTER.unpack_from(self._bytes, 0)[0]
        return counter

    @property
    def is_starved(self) -> bool:
        """Whether the worker waits for a free slot."""
        return bool(_FLAG.unpack_from(self._bytes, _FLAG_AT)[0])

    def read_place(self) -> Place | None:
        """Return the last place, or None if there was none or it is being written."""
        counter = self.counter
        epoch, num_bytes = _PLACE.unpack_from(self._bytes, _PLACE_AT)
        tag = None if num_bytes < 0 else bytes(self._bytes[_TAG_AT : _TAG_AT + num_bytes]).decode(errors="replace")
        if counter == 0 or counter % 2 or self.counter != counter:
            return None
        return Place(tag, None if epoch == _NO_EPOCH else epoch)
