"""SentencePiece models, by the library of that name (`headrace[text]`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.cache.local_copies import local_copy

from .base import Vocabulary
from .files import read_vocabulary_file


class SentencePieces(Vocabulary):
    """The pieces of a SentencePiece model, as RETURNN's class of this name. Needs `headrace[text]`.

    Args:
        model_file: What the trainer of the library wrote, mostly `*.model`.
        add_bos: Whether each text starts with the model's `<s>`.
        add_eos: Whether each text ends with the model's `</s>`.
        reverse: Whether the pieces come in reverse order; `<s>` and `</s>` stay at the ends.
        control_symbols: Name -> label or class, only looked up, see `special_ids`.
        user_defined_symbols: Name -> label or class, only looked up.
        enable_sampling: Refused: encode in a transform by the library itself.
        alpha: Accepted and ignored, as it is for sampling only.
        nbest_size: Accepted and ignored, as above.
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
                fix="leave it out; read the text as bytes, and encode it by sentencepiece itself in a transform",
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

    def decode(self, indices: Iterable[int]) -> str:
        """Return the text of pieces, joined as the model says."""
        return str(self._processor.decode(self.check_classes(indices)))

    def __getstate__(self) -> tuple[Any, ...]:
        # With the model itself, 100 KiB to a few MiB: the file may be missing, or another one, where the copy is.
        return self._file, self._options, self._symbols, self._model

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._file, self._options, self._symbols, model = state
        self._load(model)
