"""Reads the chunks of a batch: each sequence once, and only the frames needed where its reader can do that.

What a source can only give whole (a text that a vocabulary encodes, a compressed array) is kept for the batches that
need other chunks of it: four texts in 10,000 chunks were encoded 10,000 times.

What comes out is the same as if whole sequences were read and then cut, also where a sequence is not as long as the
plan says. Invariant: what is read for a chunk depends on the other chunks of its batch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import cut_seq, find_cut_keys, frames_to_cut, slice_pad_zeros
from headrace.errors import SourceError

from .reader import FailedSeq, Reader


@dataclass(frozen=True, slots=True)
class SeqChunks:
    """The chunks of one sequence that are in one batch.

    Attributes:
        starts: First frame of each; less than 0 for context before the sequence.
        frames: Frames of each.
        planned: Frames of the sequence, as planned, for each.
    """

    starts: list[int]
    frames: list[int]
    planned: list[int]

    def spans(self, num_frames: int) -> list[tuple[int, int, list[int]]]:
        """Return start and stop of what is read at once, and the chunks that it is for: those that touch each other.

        Args:
            num_frames: Number of frames of the sequence: no span reaches out of it.
        """
        spans: list[tuple[int, int, list[int]]] = []
        for number in sorted(range(len(self.starts)), key=self.starts.__getitem__):
            start = min(max(self.starts[number], 0), num_frames)
            stop = max(min(self.starts[number] + self.frames[number], num_frames), start)
            if spans and start <= spans[-1][1]:
                first, end, members = spans[-1]
                spans[-1] = first, max(end, stop), [*members, number]
            else:
                spans.append((start, stop, [number]))
        return spans


def chunks_by_seq(
    seq_of: NDArray[np.intp], starts: NDArray[np.int64], frames: NDArray[np.int64], planned: NDArray[np.int64]
) -> tuple[list[SeqChunks], list[tuple[int, int]]]:
    """Return the chunks of each sequence of a batch; and for each chunk, of which sequence and which of it it is.

    Args:
        seq_of: Number of the sequence of each chunk, from 0, `int[n]`.
        starts: First frame of each, `int64[n]`.
        frames: Frames of each, `int64[n]`.
        planned: Frames of its sequence, as planned, `int64[n]`.
    """
    by_seq = [SeqChunks([], [], []) for _ in range(int(seq_of.max(initial=-1)) + 1)]
    members = []
    for seq, start, size, length in zip(*(a.tolist() for a in (seq_of, starts, frames, planned)), strict=True):
        chunks = by_seq[seq]
        members.append((seq, len(chunks.starts)))
        chunks.starts.append(start)
        chunks.frames.append(size)
        chunks.planned.append(length)
    return by_seq, members


@dataclass(frozen=True)
class Cutter:
    """Cuts chunks out of sequences.

    Attributes:
        data_key: The key that is cut by; None: that of each sequence.
        key_of_item: Called with a sequence and its name, where there is no such key; returns its own, if it has one.
        whole_keys: Keys that are given in full, see `cut_seq`.
        are_own: Whether each chunk has arrays of its own: a transform may write into them, and chunks may overlap.
    """

    data_key: str | None
    key_of_item: Callable[[Mapping[str, Any], str], str | None]
    whole_keys: tuple[str, ...]
    are_own: bool

    def cut(self, tag: str, seq: Any, chunks: SeqChunks) -> list[Any]:
        """Return the chunks of a whole sequence, data key -> array; a `FailedSeq` for one that does not fit."""
        planned = zip(chunks.starts, chunks.frames, chunks.planned, strict=True)
        return [self._cut(tag, seq, *chunk) for chunk in planned]

    def _cut(self, tag: str, seq: Any, start: int, frames: int, planned: int) -> dict[str, Any] | FailedSeq:
        try:
            key = self._key_of(seq, tag, planned)
            return self._finished(cut_seq(seq, start, frames, key, self.whole_keys))
        except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
            return FailedSeq(error)

    def _key_of(self, seq: Any, tag: str, planned: int) -> str:
        where, key = f"sequence {tag!r}", self.data_key
        if key is None and isinstance(seq, Mapping):
            key = self.key_of_item(seq, where)  # as the plan of a stream does
        if key is None or not isinstance(seq, Mapping):
            raise SourceError("only sequences by data key can be cut into chunks", where=where)
        if key in seq and len(seq[key]) != planned:
            raise SourceError(
                f"{key!r} has {len(seq[key])} frames, but {planned} in the index, by which the chunks were planned",
                where=where,
                fix="do what changes lengths in the transform of the loader, which sees the chunks",
            )
        return key

    def _finished(self, chunk: dict[str, Any]) -> dict[str, Any]:
        if not self.are_own:
            return chunk
        return {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in chunk.items()}

    def read(self, reader: Reader, number: int, chunks: SeqChunks) -> list[dict[str, Any]] | None:
        """Return the chunks of a sequence, of which no other frames are read; None if it has to be read whole.

        Args:
            reader: Started with the sequences of the batch.
            number: Number of the sequence there.
            chunks: Its chunks.
        """
        lengths, key = reader.sliced_frames(number), self.data_key
        if lengths is None or key is None or set(chunks.planned) != {lengths.get(key)}:
            return None  # what does not fit the plan is found out by cutting it
        whole = {
            name: reader.array(number, name)
            for name, frames in lengths.items()
            if frames is None or (name in self.whole_keys and name != key)
        }
        sizes = {name: frames_to_cut(whole[name]) if name in whole else frames for name, frames in lengths.items()}
        cut = find_cut_keys(sizes, key, self.whole_keys)
        found: list[dict[str, Any]] = [{} for _ in chunks.starts]
        spans = chunks.spans(chunks.planned[0])
        for name in lengths:
            if name not in cut:
                value = whole[name] if name in whole else reader.array(number, name)
                for chunk in found:
                    chunk[name] = value
                continue
            for start, stop, members in spans:
                first = 0 if name in whole else start
                piece = whole[name] if name in whole else reader.frames(number, name, start, stop)
                for member in members:
                    begin = chunks.starts[member] - first
                    found[member][name] = slice_pad_zeros(piece, begin, begin + chunks.frames[member])
        return [self._finished(chunk) for chunk in found]
