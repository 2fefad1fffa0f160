"""Tokenizers of Hugging Face, by the library `tokenizers` (`headrace[text]`); `transformers` is not needed.

The file `tokenizer.json` defines everything: how a text is split, the vocabulary, and which special tokens are put
around a text. Nothing is downloaded, and no code of a model is run. A tokenizer that the user has loaded is taken as
the text that it would save as such a file: what is done to it later changes nothing here.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.locations import is_remote, shown_url
from headrace.files.utf8 import decode_utf8

from .base import Vocabulary, is_tokenizer
from .files import parse_literal, read_vocabulary_file

_FILE = "tokenizer.json"
_CONFIG_FILE = "tokenizer_config.json"
_SPECIAL = ("unk_token", "bos_token", "eos_token", "pad_token")
_SPLITS_SPECIAL = "split_special_tokens"  # whether the text of a special token is split like any other text


class HuggingFaceTokenizer(Vocabulary):
    """A tokenizer of Hugging Face. Needs `headrace[text]`.

    A text gets the special tokens that the tokenizer puts around one, such as `<s>`. Whatever the file says, texts are
    neither cut nor padded.

    Args:
        huggingface_repo_dir: A folder with `tokenizer.json`, or the path of such a file. If `tokenizer_config.json` is
            beside it, it says which tokens are special. Or a `tokenizers.Tokenizer`, or a fast tokenizer of
            transformers, which says so itself.
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
        ConfigError: An option is wrong, the library is missing, or the tokenizer is one in Python, which cannot be
            saved as `tokenizer.json`.
        SourceError: The file is missing, or is not a tokenizer.
    """

    def __init__(
        self,
        huggingface_repo_dir: str | os.PathLike[str] | Any,
        *,
        map_bos_to_eos: bool = False,
        add_special_tokens: Sequence[str] | None = None,
        with_template: bool = True,
        bpe_dropout: float = 0.0,
    ) -> None:
        if bpe_dropout:
            raise _drawing(f"bpe_dropout={bpe_dropout}", "HuggingFaceTokenizer", "leave it out")
        more = list(add_special_tokens or [])
        if isinstance(add_special_tokens, str) or not all(isinstance(token, str) for token in more):
            raise ConfigError(
                f"add_special_tokens is {add_special_tokens!r}, not a list of str", where="HuggingFaceTokenizer"
            )
        if is_tokenizer(huggingface_repo_dir):
            self._file, text, special = _taken_from(huggingface_repo_dir)
        else:
            if is_remote(os.fspath(huggingface_repo_dir)):
                raise ConfigError(
                    "a tokenizer is several files in a folder on this machine, and this is a URL",
                    where=shown_url(os.fspath(huggingface_repo_dir)),
                    fix="make the folder once: transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
                )
            self._file, text, special = _read_from(os.path.abspath(huggingface_repo_dir))
        self._options: list[Any] = [bool(map_bos_to_eos), bool(with_template), more, special]
        self._load(text)

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
        if dropout := getattr(tokenizer.model, "dropout", None):
            raise _drawing(f"the model's dropout={dropout}", self._file, "take it off: tokenizer.model.dropout = None")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = bool(special.get(_SPLITS_SPECIAL))
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
        splits = [_SPLITS_SPECIAL] if self._options[3].get(_SPLITS_SPECIAL) else []
        digest = xxhash.xxh3_128_hexdigest(self._text.encode())
        return [type(self).__name__, self.dim, *self._options[1:3], digest, *splits]

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


def _drawing(what: str, where: str, fix: str) -> ConfigError:
    return ConfigError(
        f"{what} draws at random without a seed, with other lengths each time, but lengths are needed before anything "
        "is read",
        where=where,
        fix=f"{fix}; a SentencePiece model can draw by a seed, see SentencePieces.sample",
    )


def _read_from(path: str) -> tuple[str, str, dict[str, Any]]:
    """Return the file of a path, its text, and the special tokens."""
    file = os.path.join(path, _FILE) if os.path.isdir(path) else path
    special = _read_special(os.path.join(os.path.dirname(file), _CONFIG_FILE))
    if file != path and not os.path.exists(file):
        raise SourceError(
            f"the folder has no {_FILE}",
            where=path,
            fix="make it once: transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
        )
    return file, decode_utf8(read_vocabulary_file(file), file), special


def _taken_from(given: Any) -> tuple[str, str, dict[str, Any]]:
    """Return the name of a tokenizer for messages, what it would save as its file, and the special tokens."""
    name = f"a {type(given).__name__}"
    special: dict[str, Any] = dict.fromkeys(_SPECIAL)
    tokenizer = given
    if not _is_of_library(given):
        tokenizer = getattr(given, "backend_tokenizer", None)
        if tokenizer is None or not _is_of_library(tokenizer):
            raise ConfigError(
                f"{type(given).__name__} is a tokenizer in Python (a slow one), which has no {_FILE}",
                where="vocabulary",
                fix="load the fast one: AutoTokenizer.from_pretrained(..., use_fast=True); or give the path of its "
                "SentencePiece .model, or the classes themselves",
            )
        special = {token: _text_of_token(getattr(given, token, None)) for token in _SPECIAL}
    splits = bool(getattr(tokenizer, "encode_special_tokens", False))
    try:
        copy = importlib.import_module("tokenizers").Tokenizer.from_str(tokenizer.to_str())
    except Exception as error:  # the library raises nothing more specific
        raise ConfigError(
            f"the tokenizer cannot be saved as {_FILE}: {error}",
            where=f"vocabulary, {name}",
            fix="a part of it that is written in Python cannot be sent to workers: use those of the library",
        ) from error
    # Calls of transformers' own switch these on and off: they are no part of what it is.
    copy.no_truncation()
    copy.no_padding()
    return name, copy.to_str(), {**special, **({_SPLITS_SPECIAL: True} if splits else {})}


def _is_of_library(value: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == "tokenizers" for cls in type(value).__mro__)


def _text_of_token(token: Any) -> str | None:
    return None if token is None else str(token)


def _read_special(path: str) -> dict[str, Any]:
    """Return the special tokens that the file names, if there is one."""
    special: dict[str, Any] = dict.fromkeys(_SPECIAL)
    if os.path.exists(path):
        config = parse_literal(decode_utf8(read_vocabulary_file(path), path), path)
        for name in _SPECIAL:
            token = config.get(name) if isinstance(config, Mapping) else None
            special[name] = token.get("content") if isinstance(token, Mapping) else token
    return special
