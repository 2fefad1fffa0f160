"""The base class for datasets whose sequences come in blocks: from workers, as far as Headrace goes.

What is documented for each sequence (a window of loaded ones, errors for all others) is kept, but paid for once a
block: while a reader moves on inside one block, `load_seqs` is two comparisons and `get_data` two look-ups, and no
object is made for a sequence unless somebody asks for one.

Invariants: the blocks that are held follow one another, the current one last; each loaded sequence is in one of them.
`_quick_start <= i < _quick_stop` says that all from i on is in the current block, so that nothing older is held.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from headrace.errors import OptionalNotImplementedError

from .cached2 import CachedDataset2
from .seq import DatasetSeq
from .seq_block import SeqBlock

_NOWHERE = sys.maxsize
_NO_SEQS = SeqBlock([], None, None, ({}, {}))


class BlockwiseDataset(CachedDataset2):
    """Sequences collected in order, block by block. A sub-class defines `_next_block`, `_lose_count` and `_restart`."""

    def _reset(self) -> None:
        super()._reset()
        self._block = _NO_SEQS
        self._block_start = self._block_stop = 0
        self._older: list[tuple[int, SeqBlock]] = []  # blocks before it of which something is loaded, with their places
        self._upcoming = 0  # place of the next block
        self._quick_start, self._quick_stop = _NOWHERE, 0

    def _next_block(self, seq_idx: int) -> SeqBlock | None:  # noqa: ARG002 (a contract)
        """Return the next block, or `None` behind the end.

        It begins at the place `_upcoming`, where the one before has ended, unless that is set to another place up to
        `seq_idx`, the sequence that is wanted: what lies before it need not be delivered.
        """
        raise OptionalNotImplementedError(f"{type(self).__name__} must define _next_block")

    def _lose_count(self) -> None:
        """Take note that a block may be lost: the next one is to be asked for by its place."""
        raise OptionalNotImplementedError(f"{type(self).__name__} must define _lose_count")

    def _restart(self) -> None:
        """Be at the start of the epoch again."""
        raise OptionalNotImplementedError(f"{type(self).__name__} must define _restart")

    # --- loading ---

    def load_seqs(self, start: int, end: int) -> None:
        """Get sequences up to `end` (exclusive; may exceed the epoch); drop those before `start`.

        Raises:
            ConfigError: `start` lies before an earlier start.
        """
        if self._quick_start <= start < end <= self._quick_stop:
            self._quick_start = self._load_start = start
            if end > self._next_seq_idx:
                self._next_seq_idx = end
        else:
            super().load_seqs(start, end)

    def _load_seqs(self, start: int, end: int) -> None:
        self._older = [(place, block) for place, block in self._older if place + len(block) > start]
        super()._load_seqs(start, end)
        self._note_quick_part()

    def _collect_next(self, end: int) -> bool:
        seq_idx = self._next_seq_idx
        while seq_idx >= self._block_stop:
            held = self._block, self._block_start, self._block_stop, self._older
            try:
                if not self._advance(seq_idx):
                    return False
            except BaseException:  # Ctrl-C may come between any two steps
                self._block, self._block_start, self._block_stop, self._older = held
                self._lose_count()
                raise
        self._note_quick_part()
        self._next_seq_idx = min(end, self._loadable_stop)
        return True

    def _advance(self, seq_idx: int) -> bool:
        """Make the next block the current one; tell whether there is one."""
        block = self._next_block(seq_idx)
        if block is None:
            return False
        if max(self._load_start, self._block_start) < self._block_stop:
            self._older = [*self._older, (self._block_start, self._block)]
        self._block, self._block_start = block, self._upcoming
        self._block_stop = self._upcoming = self._block_start + len(block)
        return True

    @property
    def _loadable_stop(self) -> int:
        """Where the current block, or the epoch, ends."""
        return self._block_stop if self._num_seqs is None else min(self._block_stop, self._num_seqs)

    def _note_quick_part(self) -> None:
        if self._older:
            self._quick_start, self._quick_stop = _NOWHERE, 0
        else:
            self._quick_start, self._quick_stop = max(self._load_start, self._block_start), self._loadable_stop

    # --- reading ---

    def _locate(self, seq_idx: int) -> tuple[SeqBlock, int]:
        """Return the block of a loaded sequence, and its place there."""
        block, start = self._block, self._block_start
        if seq_idx < start:
            start, block = next((start, block) for start, block in reversed(self._older) if start <= seq_idx)
        return block, seq_idx - start

    def _seq_at(self, seq_idx: int) -> DatasetSeq:
        block, offset = self._locate(seq_idx)
        return block.seq(offset, seq_idx, self._num_seqs)

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return the array of one data key, `dtype[T, ...]`."""
        if self._quick_start <= seq_idx < self._next_seq_idx:
            try:
                array = self._block.arrays[key][seq_idx - self._block_start]
            except KeyError:
                array = None
            if array is not None:
                return array
        return super().get_data(seq_idx, key)

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        self._require(seq_idx)
        block, offset = self._locate(seq_idx)
        return block.tags[offset]

    def _iterate(self, version: int) -> Iterator[DatasetSeq]:
        if self._next_seq_idx:
            self._restart()
        seq_idx = 0
        while True:
            self._check_version(version, seq_idx)
            if not self.is_less_than_num_seqs(seq_idx):
                return
            self.load_seqs(seq_idx, seq_idx + 1)
            yield self._seq_at(seq_idx)
            seq_idx += 1
            # The same for the rest of the block, as long as nobody else moves on in it.
            block, start, num_seqs = self._block, self._block_start, self._num_seqs
            while seq_idx < self._quick_stop and self._quick_start < seq_idx == self._next_seq_idx:
                if self.order_version != version:
                    break
                self._quick_start = self._load_start = seq_idx
                self._next_seq_idx = seq_idx + 1
                yield block.seq(seq_idx - start, seq_idx, num_seqs)
                seq_idx += 1
