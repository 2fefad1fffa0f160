"""SentencePiece models, by the library of that name (`headrace[text]`), and segmentations drawn from them.

The library can draw, too, but its generator gives other numbers in each process for the same seed, so that what a
sequence becomes would depend on the worker. `UnigramSampler` gives the same for the same generator. Algorithm: Kudo
(2018), "Subword Regularization": a segmentation has a probability proportional to the exponential of alpha times the
sum of the scores of its pieces. Summed forward over all positions of the text, then drawn backward.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.cache.local_copies import local_copy

from .base import Vocabulary
from .files import read_vocabulary_file

_UNIGRAM = 1  # of the enum `model_type`, whose default it is
_USER_DEFINED = 4  # of the enum `type` of a piece
_UNKNOWN_PENALTY = 10.0  # what the library subtracts from the lowest score for a character that no piece has


class UnigramSampler:
    """Draws segmentations. The model is parsed once, when this is built: some seconds per million pieces.

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
    """Return start and class of one of the pieces that end at a position, drawn by their weights."""
    left = rng.random()
    for start, class_idx, weight in ways:
        left -= math.exp(weight - total)
        if left < 0:
            return start, class_idx
    return ways[-1][:2]  # what rounding left over


def _log_of_sum(first: float, second: float) -> float:
    """Return the logarithm of the sum of two numbers given as logarithms; the second is finite."""
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


class SentencePieces(Vocabulary):
    """The pieces of a SentencePiece model, as RETURNN's class of this name. Needs `headrace[text]`.

    Args:
        model_file: What the trainer of the library wrote, mostly `*.model`.
        add_bos: Whether each text starts with the model's `<s>`.
        add_eos: Whether each text ends with the model's `</s>`.
        reverse: Whether the pieces come in reverse order; `<s>` and `</s>` stay at the ends.
        control_symbols: Name -> label or class, only looked up, see `special_ids`.
        user_defined_symbols: Name -> label or class, only looked up.
        enable_sampling: Refused: use `sample` in a transform.
        alpha: Only for sampling; accepted, so that one dict serves for training and test.
        nbest_size: Only for sampling; accepted, as above.
        out_type: Accepted and ignored: the output is always class indices.

    Attributes:
        unknown_label_id: Class of what the model cannot spell.
        bos_label_id: Class of `<s>`, or `None`.
        eos_label_id: Class of `</s>`, or `None`.
        pad_label_id: Class of padding, or `None`.
        special_ids: Class of each of `control_symbols` and `user_defined_symbols`.

    Raises:
        ConfigError: An option is wrong, or the library is missing.
        SourceError: The file is missing, or is not a model.
    """

    def __init__(
        self,
        model_file: str | os.PathLike[str],
        *,
        add_bos: bool = False,
        add_eos: bool = False,
        reverse: bool = False,
        control_symbols: Mapping[str, str | int] | None = None,
        user_defined_symbols: Mapping[str, str | int] | None = None,
        enable_sampling: bool = False,
        alpha: float = 0.1,
        nbest_size: int = -1,
        out_type: Any = int,
    ) -> None:
        del alpha, nbest_size, out_type
        if enable_sampling:
            raise ConfigError(
                "enable_sampling=True gives a text another length each time, but plans need lengths before anything is "
                "read",
                where="SentencePieces",
                fix="leave it out; read the bytes of the text, too, and draw in a transform: sample(text, rng)",
            )
        self._file = local_copy(model_file)
        self._options = {"add_bos": bool(add_bos), "add_eos": bool(add_eos), "reverse": bool(reverse)}
        self._symbols = {**(control_symbols or {}), **(user_defined_symbols or {})}
        self._load(read_vocabulary_file(self._file))

    def _load(self, model: bytes) -> None:
        try:
            import sentencepiece
        except ImportError as error:
            raise ConfigError(
                "SentencePieces needs the package sentencepiece", fix="pip install 'headrace[text]'"
            ) from error
        self._model = model
        self._sampler: UnigramSampler | None = None
        try:
            processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
            num_pieces = processor.get_piece_size() if model else 0
        except (RuntimeError, OSError, ValueError, TypeError) as error:
            raise self._no_model(str(error)) from error
        if not num_pieces:
            raise self._no_model("it has no pieces")
        self._processor = processor
        self.labels = [processor.id_to_piece(class_idx) for class_idx in range(num_pieces)]
        ids = (processor.unk_id(), processor.bos_id(), processor.eos_id(), processor.pad_id())
        self.unknown_label_id, self.bos_label_id, self.eos_label_id, self.pad_label_id = (
            class_idx if class_idx >= 0 else None for class_idx in ids
        )
        for name, class_idx in (("add_bos", self.bos_label_id), ("add_eos", self.eos_label_id)):
            if self._options[name] and class_idx is None:
                raise ConfigError(f"{name}=True, but the model has no such piece", where=self._file)
        self.special_ids = {name: self._special_class(name, label) for name, label in self._symbols.items()}

    def _special_class(self, name: str, label: str | int) -> int:
        if isinstance(label, str) and label in self.labels:
            return self.labels.index(label)
        if type(label) is int and 0 <= label < len(self.labels):
            return label
        raise ConfigError(f"the symbol {name!r} is {label!r}, which is not a piece of the model", where=self._file)

    def _no_model(self, reason: str) -> SourceError:
        return SourceError(f"this is not a SentencePiece model: {reason}", where=self._file, fix="give the .model file")

    @property
    def identity(self) -> list[Any]:
        """Its kind, options, and a digest of the model."""
        return [type(self).__name__, self.dim, *self._options.values(), xxhash.xxh3_128_hexdigest(self._model)]

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the class indices of the pieces of a text, `int32[T]`."""
        return np.array(self._processor.encode(text, out_type=int, **self._options), np.int32)

    def sample(self, text: str, rng: np.random.Generator, *, alpha: float = 0.1) -> NDArray[np.int32]:
        """Return the class indices of a segmentation drawn at random, `int32[T]`: see `UnigramSampler`.

        In a transform that has the parameter `rng`, the draw depends on seed, epoch and sequence only.

        Args:
            text: The text.
            rng: What to draw from.
            alpha: 0 for all segmentations alike; the larger, the more likely the best one.

        Raises:
            ConfigError: The model is not a unigram model.
        """
        if self._sampler is None:
            self._sampler = UnigramSampler(self._processor, self._model, self._file)
        pieces = self._sampler.sample(self._processor.normalize(text), rng, alpha)
        first = [self.bos_label_id] if self._options["add_bos"] else []
        last = [self.eos_label_id] if self._options["add_eos"] else []
        return np.array([*first, *(pieces[::-1] if self._options["reverse"] else pieces), *last], np.int32)

    def decode(self, indices: Iterable[int]) -> str:
        """Return the text of pieces, joined as the model says."""
        return str(self._processor.decode(self.check_classes(indices)))

    def __getstate__(self) -> tuple[Any, ...]:
        # With the model itself, 100 KiB to a few MiB: the file may be missing, or another one, where the copy is.
        return self._file, self._options, self._symbols, self._model

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._file, self._options, self._symbols, model = state
        self._load(model)
