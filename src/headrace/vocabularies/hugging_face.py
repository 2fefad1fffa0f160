"""Tokenizers of Hugging Face, by the library `tokenizers` (`headrace[text]`); `transformers` is not needed.

The file `tokenizer.json` defines everything: how a text is split, the vocabulary, and which special tokens are put
around a text. Nothing is downloaded, and no code of a model is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.utf8 import decode_utf8

from .base import Vocabulary
from .files import parse_literal, read_vocabulary_file

_FILE = "tokenizer.json"
_CONFIG_FILE = "tokenizer_config.json"
_SPECIAL = ("unk_token", "bos_token", "eos_token", "pad_token")


class HuggingFaceTokenizer(Vocabulary):
    """A tokenizer of Hugging Face. Needs `headrace[text]`.

    A text gets the special tokens that the tokenizer puts around one, such as `<s>`. Whatever the file says, texts are
    neither cut nor padded.

    Args:
        huggingface_repo_dir: A folder with `tokenizer.json`, or the path of such a file. If `tokenizer_config.json` is
            beside it, it says which tokens are special.
        map_bos_to_eos: Whether `bos_label_id` is that of the end.
        add_special_tokens: More tokens, whose classes follow those of the tokenizer.
        with_template: Whether a text gets the special tokens around it.
        bpe_dropout: Only 0 is accepted: the library draws from a generator that cannot be seeded.

    Attributes:
        unknown_label_id: Class of unknown text, where the tokenizer knows one, or `None`.
        bos_label_id: Class of a start, or `None`.
        eos_label_id: Class of an end, or `None`.
        pad_label_id: Class of padding, or `None`.

    Raises:
        ConfigError: An option is wrong, or the library is missing.
        SourceError: The file is missing, or is not a tokenizer.
    """

    def __init__(
        self,
        huggingface_repo_dir: str | os.PathLike[str],
        *,
        map_bos_to_eos: bool = False,
        add_special_tokens: Sequence[str] | None = None,
        with_template: bool = True,
        bpe_dropout: float = 0.0,
    ) -> None:
        if bpe_dropout:
            raise ConfigError(
                f"bpe_dropout={bpe_dropout} draws at random without a seed, with other lengths each time, but lengths "
                "are needed before anything is read",
                where="HuggingFaceTokenizer",
                fix="leave it out; a SentencePiece model can draw by a seed, see SentencePieces.sample",
            )
        path = os.path.abspath(huggingface_repo_dir)
        is_folder = os.path.isdir(path)
        self._file = os.path.join(path, _FILE) if is_folder else path
        more = list(add_special_tokens or [])
        if isinstance(add_special_tokens, str) or not all(isinstance(token, str) for token in more):
            raise ConfigError(f"add_special_tokens is {add_special_tokens!r}, not a list of str", where=self._file)
        special = _read_special(os.path.join(os.path.dirname(self._file), _CONFIG_FILE))
        self._options: list[Any] = [bool(map_bos_to_eos), bool(with_template), more, special]
        if is_folder and not os.path.exists(self._file):
            raise SourceError(
                f"the folder has no {_FILE}",
                where=path,
                fix="make it once: transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
            )
        self._load(decode_utf8(read_vocabulary_file(self._file), self._file))

    def _load(self, text: str) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ConfigError(
                "HuggingFaceTokenizer needs the package tokenizers", fix="pip install 'headrace[text]'"
            ) from error
        self._text = text
        map_bos_to_eos, self._with_template, more, special = self._options
        try:
            tokenizer = self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing more specific
            raise SourceError(
                f"this is not a tokenizer: {error}", where=self._file, fix=f"give a {_FILE}, or its folder"
            ) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.add_special_tokens(more)
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        # There may be classes without a token: some models reserve classes for later ones.
        self.labels = [""] * (max(vocab.values(), default=-1) + 1)
        for label, class_idx in vocab.items():
            self.labels[class_idx] = label
        self.unknown_label_id, self.bos_label_id, self.eos_label_id, self.pad_label_id = (
            vocab.get(special[name]) for name in _SPECIAL
        )
        if map_bos_to_eos:
            self.bos_label_id = self.eos_label_id

    @property
    def identity(self) -> list[Any]:
        """Its kind, options, and a digest of the file."""
        return [type(self).__name__, self.dim, *self._options[1:3], xxhash.xxh3_128_hexdigest(self._text.encode())]

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the class indices of a text, `int32[T]`."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=self._with_template).ids, np.int32)

    def decode(self, indices: Iterable[int]) -> str:
        """Return the text of class indices, without special tokens."""
        return str(self._tokenizer.decode(self.check_classes(indices)))

    def __getstate__(self) -> tuple[Any, ...]:
        # With the tokenizer itself: the file may be missing, or another one, where the copy is.
        return self._file, self._options, self._text

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._file, self._options, text = state
        self._load(text)


def _read_special(path: str) -> dict[str, str | None]:
    """Return the special tokens that the file names, if there is one."""
    special: dict[str, str | None] = dict.fromkeys(_SPECIAL)
    if os.path.exists(path):
        config = parse_literal(decode_utf8(read_vocabulary_file(path), path), path)
        for name in _SPECIAL:
            token = config.get(name) if isinstance(config, Mapping) else None
            special[name] = token.get("content") if isinstance(token, Mapping) else token
    return special
