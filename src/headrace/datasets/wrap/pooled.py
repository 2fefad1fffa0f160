"""`PooledReader`: reads sequences by their corpus indices through the workers of a `MultiProcDataset`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Protocol

import numpy as np

from headrace.errors import SourceError

from ..base import Dataset
from ..reading.reader import GivenOrder, Reader, ReadRequest
from ..seq import DatasetSeq
from .blockwise import SeqBlock
from .ordered_runs import OrderedRuns, ReadBlock


class Pool(Protocol):
    """A dataset whose workers read any sequences of another one."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def inner(self) -> Dataset:
        """The dataset that they read."""

    def look_ahead(self) -> int:
        """Return how many sequences all workers together may read ahead."""

    def read_blocks(self, wanted: ReadRequest, first: int) -> OrderedRuns:
        """Let the workers read a request from a number on; it ends when another reader takes them over."""


class PooledReader(Reader):
    """Returns sequences that workers read ahead, in the order of a request.

    They begin anew at a sequence that is asked for out of turn. What their policy on errors leaves out is an error
    here: sequences are asked for by number, and another one must not come in its place.

    Args:
        pool: It has the workers. If another reader takes them over, they begin again here when more is read.
    """

    gives_own = True
    is_sequential = True  # it costs least in rising order

    def __init__(self, pool: Pool) -> None:
        self._pool, self._wanted = pool, ReadRequest.of(None, np.zeros(0, np.int64))
        self._forget()

    def _forget(self) -> None:
        self._blocks: OrderedRuns | None = None
        self._error: BaseException | None = None  # of the sequence after the current block
        self._first, self._asked = 0, np.zeros(0, np.int64)  # what the current block should hold
        self._block: SeqBlock | None = None
        self._offsets: list[int | None] | None = None  # in the block, of what was asked; `None`: all came

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next; the workers begin when something is read."""
        if wanted.tags is not None:
            order, counted = self._pool.inner.get_epoch_order(wanted.epoch, GivenOrder(wanted.tags))
            wanted = dataclasses.replace(wanted, order=order, occurrences=counted)
        self._wanted = wanted
        self._forget()

    def tags(self) -> list[str] | None:
        """Ask the corpus for the tags."""
        if self._wanted.tags is not None:
            return list(self._wanted.tags)
        corpus = self._pool.inner.get_corpus()
        return corpus.tags_of(self._wanted.indices) if corpus.is_indexed else None

    def read(self, number: int) -> DatasetSeq:
        """Return a sequence; workers begin anew if it is far from those that they read."""
        if not self._first <= number < self._first + len(self._asked):
            self._go_to(number)
        at = number - self._first
        offset = at if self._offsets is None else self._offsets[at]
        if offset is None:
            raise self._left_out(number)
        assert self._block is not None
        seq = self._block.seq(offset, number, None)
        if self._wanted.tags is not None and seq.seq_tag != self._wanted.tags[number]:
            raise SourceError(
                f"{self._wanted.tags[number]!r} was asked for, and {seq.seq_tag!r} came",
                where=f"inner dataset of {self._pool.name!r}, sequence {number}",
            )
        return seq

    def _go_to(self, number: int) -> None:
        """Make the block of a sequence the current one."""
        stop = self._first + len(self._asked)
        error, self._error = self._error, None
        if error is not None and number == stop:
            raise error
        blocks, is_new = self._blocks, False
        self._blocks = None  # until the next block is here: after an error they begin anew
        if blocks is None or error is not None or not stop <= number < stop + self._pool.look_ahead():
            blocks, is_new = self._pool.read_blocks(self._wanted, number), True
        while True:
            found = next(blocks, None)
            if found is not None and found.number <= number:
                stop = self._take(found)
                if number < stop:
                    break
                if found.error is None:
                    continue
                if is_new or number == stop:
                    raise found.error
            elif found is not None or is_new:
                raise self._left_out(number)
            # another reader took them over, or a sequence before the one that is wanted has failed
            blocks, is_new = self._pool.read_blocks(self._wanted, number), True
        self._blocks, self._error = blocks, found.error

    def _take(self, read: ReadBlock) -> int:
        """Make a block the current one; return the number of the sequence after it."""
        first, asked, block = read.number, read.asked, SeqBlock(*read.parts)
        self._first, self._asked, self._block, self._offsets = first, asked, block, None
        if len(block) != len(asked):  # some were left out: which ones is known by the corpus indices
            came, wanted = list(block.corpus_indices or ()), asked.tolist()
            num_came, num_wanted = Counter(came), Counter(wanted)
            self._offsets, offset = [], 0
            for corpus_idx in wanted:
                is_here = offset < len(came) and came[offset] == corpus_idx
                # Of one that is there several times, and not as often as it should be, it is not known which did come.
                is_sure = is_here and num_came[corpus_idx] == num_wanted[corpus_idx]
                self._offsets.append(offset if is_sure else None)
                offset += is_here
        return first + len(asked)

    def _left_out(self, number: int) -> SourceError:
        tags = self.tags()
        name = f"corpus index {self._wanted.order[number]}" if tags is None else repr(tags[number])
        return SourceError(
            f"workers have left out a sequence that failed, as their engine_options say: {name}",
            where=f"MultiProcDataset {self._pool.name!r}, a part of a dataset that needs all of its sequences",
            fix="give on_error=Skipping() to the DataLoader, or to the outermost dataset, in its place",
        )
