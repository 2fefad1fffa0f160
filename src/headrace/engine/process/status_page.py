"""A page of shared memory in which a worker writes where in the data it is, so that it can be read after any death.

One writer, any reader, no lock: the writer makes the counter odd, writes, and makes it even. A reader that finds it odd
(the worker died in between, or writes just now) does not know the item. What is written is a run of items; which
of them is the current one is a word of its own, so that moving on in a run is one store. Both are the sign of life.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import MutableSequence, Sequence

from ..memory.memfd import PAGE_BYTES, Mapping, create_memfd_of
from ..user.worker_info import CurrentItem, NumberedTags, item_of_run

_NUM_BYTES = 16 * PAGE_BYTES  # for the tags of a run; only pages that are written take memory
_WORDS = struct.Struct("=4q")  # which item is current, epoch, number of items, bytes of their tags
_COUNTER, _STARVED, _NUMBER = 0, 1, 2  # indices of 8-byte words
_WORDS_AT, _TAGS_AT = 8 * _NUMBER, 48
_NO_EPOCH = -(2**63)
_NO_TAG = -1  # instead of the number of items; less than that: minus one, minus the number of `NumberedTags`
_BY_NUMBER = -(2**63)  # instead of it: the tag is made of the number of the current item
_NUMBER_BYTES = 8
_SEPARATOR = "\0"
_MAX_TAG_BYTES = _NUM_BYTES - _TAGS_AT


def create_status_page() -> int:
    """Return the descriptor of a new page, all zero: no item is known."""
    return create_memfd_of("headrace-status", _NUM_BYTES)


class StatusPage:
    """A mapping of a page, in the worker or in the trainer.

    Args:
        fd: From `create_status_page`. Not kept.
    """

    def __init__(self, fd: int) -> None:
        self._bytes = Mapping(fd, 0, _NUM_BYTES).as_array().data
        self._words = self._bytes[: _WORDS_AT + 8].cast("q")
        self._cursor = self._words[_NUMBER : _NUMBER + 1]
        self._num_writes = 0
        self._form: tuple[str, int | None] | None = None  # form and epoch, while items are published by their numbers

    def write_item(self, tag: str | None, epoch: int | None) -> None:
        """Publish an item; the worker's side only. About 1 us."""
        if tag is None:
            self._write(b"", _NO_TAG, epoch)
        else:
            self._write(tag.encode(errors="replace")[:_MAX_TAG_BYTES], 1, epoch)

    def write_items(self, tags: Sequence[str], epoch: int | None) -> MutableSequence[int] | None:
        """Publish a run of items, the first one as the current; the worker's side only. About 20 ns for each.

        Returns:
            Where to write which one is current, see `ItemRun`; `None` if the tags are too long together.
        """
        if type(tags) is NumberedTags:
            text, num_tags = array("q", tags.numbers).tobytes() + tags.form.encode(), _NO_TAG - len(tags)
        else:
            text, num_tags = _SEPARATOR.join(tags).encode(errors="replace"), len(tags)
            if text.count(0) != num_tags - 1:
                return None
        if len(text) > _MAX_TAG_BYTES:
            return None
        self._write(text, num_tags, epoch)
        return self._cursor  # type: ignore[return-value]  # a memory view is one as far as it goes

    def write_number(self, form: str, number: int, epoch: int | None) -> None:
        """Publish an item with the tag `form.format(number)`; the worker's side only. About 0.4 us in a row of them."""
        if self._form != (form, epoch):
            self._write(form.encode(), _BY_NUMBER, epoch)
            self._form = form, epoch
        self.forget_item()
        self._words[_NUMBER] = number
        self._num_writes += 1
        self._words[_COUNTER] = self._num_writes

    def forget_item(self) -> None:
        """Publish that the item is not known now; the worker's side only. About 0.2 us."""
        if not self._num_writes % 2:  # what is written next is all that makes it even again
            self._num_writes += 1
            self._words[_COUNTER] = self._num_writes

    def _write(self, tags: bytes, num_tags: int, epoch: int | None) -> None:
        words, num_bytes, num_writes, self._form = self._words, len(tags), self._num_writes, None
        if not num_writes % 2:
            num_writes += 1
            words[_COUNTER] = num_writes
        _WORDS.pack_into(self._bytes, _WORDS_AT, 0, _NO_EPOCH if epoch is None else epoch, num_tags, num_bytes)
        self._bytes[_TAGS_AT : _TAGS_AT + num_bytes] = tags
        self._num_writes = words[_COUNTER] = num_writes + 1

    def set_starved(self, starved: bool) -> None:
        """Publish whether the worker waits for a free slot; the worker's side only."""
        self._words[_STARVED] = starved

    @property
    def counter(self) -> int:
        """A number that changes with every item; it grows with every run of items."""
        return (self._words[_COUNTER] << 32) + self._words[_NUMBER]

    @property
    def is_starved(self) -> bool:
        """Whether the worker waits for a free slot."""
        return bool(self._words[_STARVED])

    def read_item(self) -> CurrentItem | None:
        """Return the last item, or None if there was none or it is being written."""
        counter = self._words[_COUNTER]
        number, epoch, num_tags, num_bytes = _WORDS.unpack_from(self._bytes, _WORDS_AT)
        data = bytes(self._bytes[_TAGS_AT : _TAGS_AT + num_bytes])
        if counter == 0 or counter % 2 or self._words[_COUNTER] != counter:
            return None
        known_epoch = None if epoch == _NO_EPOCH else epoch
        if num_tags == _NO_TAG:
            return CurrentItem(None, known_epoch)
        if num_tags == _BY_NUMBER:
            return CurrentItem(data.decode().format(number), known_epoch)
        tags: Sequence[str]
        if num_tags < _NO_TAG:
            num_tags = _NO_TAG - num_tags
            numbers = memoryview(data)[: num_tags * _NUMBER_BYTES].cast("q")
            tags = NumberedTags(data[num_tags * _NUMBER_BYTES :].decode(), numbers)
        else:
            text = data.decode(errors="replace")
            tags = text.split(_SEPARATOR) if num_tags > 1 else [text]
        return item_of_run(tags, known_epoch, min(number, len(tags) - 1))
