"""Segmentations of a text drawn at random from a unigram model of SentencePiece, the same for the same generator.

The library can draw, too, but its generator gives other numbers in each process for the same seed, so that what a
sequence becomes would depend on the worker.

Algorithm: Kudo (2018), "Subword Regularization": a segmentation has a probability proportional to the exponential of
alpha times the sum of the scores of its pieces. Summed forward over all places of the text, then drawn backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.errors import ConfigError

_UNIGRAM = 1  # of the enum `model_type`, whose default it is
_USER_DEFINED = 4  # of the enum `type` of a piece
_UNKNOWN_PENALTY = 10.0  # what the library takes off the least score for a character that no piece has


class UnigramSampler:
    """Draws segmentations. The model is taken apart once, when it is built: some seconds per million pieces.

    Args:
        processor: The processor of the library.
        model: The model itself.
        where: Its file, for errors.

    Raises:
        ConfigError: The model is of another kind, or has symbols that are never cut.
    """

    def __init__(self, processor: Any, model: bytes, where: str) -> None:
        _check_kind(model, where)
        self._unknown: int = processor.unk_id()
        self._pieces: dict[str, tuple[int, float]] = {}
        self._bytes: dict[int, int] = {}
        for class_idx in range(processor.get_piece_size()):
            piece = processor.id_to_piece(class_idx)
            if processor.is_byte(class_idx):
                self._bytes[int(piece[3:5], 16)] = class_idx  # <0x41>
            elif not (
                processor.is_control(class_idx) or processor.is_unknown(class_idx) or processor.is_unused(class_idx)
            ):
                self._pieces[piece] = class_idx, processor.get_score(class_idx)
        self._longest = max(map(len, self._pieces), default=1)
        self._penalty = min((score for _, score in self._pieces.values()), default=0.0) - _UNKNOWN_PENALTY

    def sample(self, text: str, rng: np.random.Generator, alpha: float) -> list[int]:
        """Return the classes of the pieces of a normalized text. O(characters x length of the longest piece)."""
        ending_at: list[list[tuple[int, int, float]]] = [[] for _ in range(len(text) + 1)]
        total = [0.0] + [-math.inf] * len(text)  # log of the sum over all ways to get there
        for start in range(len(text)):
            for stop in range(start + 1, min(start + self._longest, len(text)) + 1):
                piece = self._pieces.get(text[start:stop])
                if piece is None and stop == start + 1:
                    piece = self._unknown, self._penalty
                if piece is not None:
                    weight = total[start] + alpha * piece[1]
                    ending_at[stop].append((start, piece[0], weight))
                    total[stop] = _log_of_sum(total[stop], weight)
        classes: list[tuple[int, str]] = []
        stop = len(text)
        while stop:
            start, class_idx = _draw(ending_at[stop], total[stop], rng)
            classes.append((class_idx, text[start:stop]))
            stop = start
        return list(self._spelt(classes[::-1]))

    def _spelt(self, classes: list[tuple[int, str]]) -> Iterator[int]:
        """Spell unknown characters by their bytes, if the model has these; else several in a row are one."""
        previous = None
        for class_idx, text in classes:
            if class_idx != self._unknown:
                yield class_idx
            elif self._bytes:
                yield from (self._bytes[byte] for byte in text.encode())
            elif previous != self._unknown:
                yield class_idx
            previous = class_idx


def _draw(ways: list[tuple[int, int, float]], total: float, rng: np.random.Generator) -> tuple[int, int]:
    """Return start and class of one of the pieces that end at a place, drawn by their weights."""
    left = rng.random()
    for start, class_idx, weight in ways:
        left -= math.exp(weight - total)
        if left < 0:
            return start, class_idx
    return ways[-1][:2]  # what rounding left over


def _log_of_sum(first: float, second: float) -> float:
    """Return the logarithm of the sum of two numbers whose logarithms are given; the second is finite."""
    high, low = max(first, second), min(first, second)
    return high + math.log1p(math.exp(low - high))


def _check_kind(model: bytes, where: str) -> None:
    kind = _UNIGRAM
    for number, value in _fields(model):
        if number == 1 and any(field == (3, _USER_DEFINED) for field in _fields(value)):
            raise ConfigError("segmentations cannot be drawn from a model with user-defined symbols", where=where)
        if number == 2:
            kind = dict(_fields(value)).get(3, _UNIGRAM)
    if kind != _UNIGRAM:
        raise ConfigError(
            "segmentations can be drawn from a unigram model only, and this is of another kind",
            where=where,
            fix="train with model_type='unigram'",
        )


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Walk through the fields of a message in the wire format of Protocol Buffers: number, and int or bytes."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        wire_type = key & 7
        if wire_type == 0:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        num_bytes = {1: 8, 5: 4}.get(wire_type)
        if num_bytes is None:
            num_bytes, position = _varint(message, position)
        yield key >> 3, message[position : position + num_bytes]
        position += num_bytes


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value, shift, position = value | (byte & 127) << shift, shift + 7, position + 1
        if byte < 128:
            return value, position
