"""The trainer's side of method "dedicated": takes the runs of all workers, and lets their sequences take turns.

Invariants: sequence k of the epoch is number k // W of the shard of worker k mod W, as in RETURNN, except that shards
that have ended, and sequences that were skipped, are passed over. All workers cut their shards at the same positions:
the runs with the same number, a round, make one block. An error concerns the sequence after its block.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.engine import Delivered, Run

from .blockwise import Parts, SeqBlock, Values
from .failed_seqs import pass_failed
from .runs import RunResult

Turn = tuple[int, int]
"""Position in the shard, worker: sequences come in this order."""


class ShardRuns(Iterator[tuple[Parts, BaseException | None]]):
    """Iterates over the rounds of one epoch: the sequences, and the error of the one after them.

    Args:
        run: A new run of workers that do `DedicatedWork`.
        num_workers: How many there are, at least 1.

    Attributes:
        num_seqs: Number of sequences of the epoch; `None` if a worker does not know its own.
    """

    def __init__(self, run: Run, num_workers: int) -> None:
        self._run, self._num_workers = run, num_workers
        counts = [delivered.value for delivered in itertools.islice(run, num_workers)]
        self.num_seqs: int | None = None if None in counts else sum(counts)
        self._held: Delivered | None = None  # of the next round

    def __next__(self) -> tuple[Parts, BaseException | None]:
        """Return the next round.

        Raises:
            StopIteration: There is none.
            BaseException: What happened in a worker or to it.
        """
        read: list[tuple[Parts, list[Turn]]] = []
        errors: list[tuple[Turn, BaseException]] = []
        number, worker_idx = None, -1
        while worker_idx < self._num_workers - 1:
            try:
                delivered = self._held or next(self._run, None)
            except Exception as error:
                if not read:
                    raise
                errors.append(((0, worker_idx + 1), error))
                break
            self._held = None
            if delivered is None:
                break
            if number not in (None, delivered.ticket // self._num_workers):
                self._held = delivered
                break
            number, worker_idx = divmod(delivered.ticket, self._num_workers)
            result: RunResult = delivered.value
            parts, error_behind, num_read = pass_failed(self._run, delivered, result[0], result[1])
            if error_behind is not None:
                errors.append(((num_read, worker_idx), error_behind))
            places = [before for before, _ in result[1]]
            turns = [(offset + bisect_right(places, offset), worker_idx) for offset in range(len(parts[0]))]
            read.append((parts, turns))
        if not read:
            raise StopIteration
        self._run.prefetch()
        if not errors:
            return in_turns(read), None
        turn, first_error = min(errors, key=lambda told: told[0])
        return in_turns(read, turn), first_error

    def close(self) -> None:
        """Cancel running work; the workers stay."""
        self._run.close()


def in_turns(read: Sequence[tuple[Parts, list[Turn]]], stop: Turn | None = None) -> Parts:
    """Return sequences of several runs as one, in the order of their turns.

    Args:
        read: Each run, and the turn of each of its sequences.
        stop: Only those before this turn.
    """
    if len(read) == 1 and stop is None:
        return read[0][0]
    places = sorted(
        (turn, number, offset)
        for number, (_, turns) in enumerate(read)
        for offset, turn in enumerate(turns)
        if stop is None or turn < stop
    )
    blocks = [SeqBlock(*parts) for parts, _ in read]
    indices, fracs = [block.corpus_indices for block in blocks], [block.complete_fracs for block in blocks]
    values: dict[str, Values] = {}
    for key in dict.fromkeys(key for parts, _ in read for key in parts[3][0]):
        columns = [
            block.arrays[key] if key in parts[3][0] else None for block, (parts, _) in zip(blocks, read, strict=True)
        ]
        values[key] = _taken(columns, places)
    return (
        [blocks[number].tags[offset] for _, number, offset in places],
        None if set(map(type, indices)) == {type(None)} else _taken(indices, places),
        None if set(map(type, fracs)) == {type(None)} else _taken(fracs, places),
        (values, {}),
    )


def _taken(columns: Sequence[Sequence[Any] | None], places: Sequence[tuple[Turn, int, int]]) -> list[Any]:
    """Return the values at these places; `None` for those of a run that has none."""
    return [None if (column := columns[number]) is None else column[offset] for _, number, offset in places]
