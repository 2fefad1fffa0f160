"""Vocabularies that are a list of labels, which are words between spaces, characters, or UTF-8 bytes.

Names, options and indices are those of RETURNN's `Vocabulary`, `CharacterTargets` and `Utf8ByteTargets`. The last needs
no file, has no unknown text, and 256 classes.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.cache.local_copies import local_copy
from headrace.files.utf8 import decode_utf8

from .base import Vocabulary
from .files import digest_of, labels_of_list, parse_literal, read_labels, read_vocabulary_file

Label = str | int
_SPECIAL = ("unknown_label", "bos_label", "eos_label", "pad_label")
_SPECIAL_DICTS = ("control_symbols", "user_defined_symbols")
_DEFAULT_UNKNOWN = "UNK"  # as in RETURNN: if there is no label "UNK", it must be switched off explicitly
NOT_GIVEN: Any = "<not given>"


class LabelledVocabulary(Vocabulary):
    """Base of the vocabularies with a list of labels: the class of each label, and the special ones.

    Attributes:
        unknown_label_id: Class of what is not in the vocabulary; `None`: that is an error.
        bos_label_id: Class that starts a sequence, or `None`.
        eos_label_id: Class that ends one, or `None`.
        pad_label_id: Class for padding, or `None`.
        special_ids: Class of each of `control_symbols` and `user_defined_symbols`.
    """

    unknown_label_id: int | None
    bos_label_id: int | None
    eos_label_id: int | None
    pad_label_id: int | None

    def __init__(
        self,
        labels: Sequence[str],
        class_of: dict[str, int],
        *,
        seq_postfix: Sequence[int] | None,
        special: Mapping[str, Any],
    ) -> None:
        """Take checked labels, and special ones as the user gave them."""
        self.labels = labels
        self._class_of = class_of
        for name in _SPECIAL:
            label = special[name]
            setattr(self, f"{name}_id", None if label is None else self._special_class(name, label))
        self.special_ids = {
            symbol: self._special_class(f"{name}[{symbol!r}]", label)
            for name in _SPECIAL_DICTS
            for symbol, label in (special[name] or {}).items()
        }
        self._postfix = check_postfix(seq_postfix, len(labels))
        self._options: list[Any] = []

    @property
    def identity(self) -> list[Any]:
        """Its kind, options, and a digest of the labels and their classes."""
        options = [self.unknown_label_id, self._postfix.tolist(), *self._options]
        return [type(self).__name__, self.dim, *options, digest_of(list(self.labels), list(self._class_of.items()))]

    @abstractmethod
    def split(self, text: str) -> Iterable[str]:
        """Return the parts of a text, each of which must be a label."""

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the class indices of a text, `int32[T]`."""
        parts = self.split(text)
        class_of = self._class_of
        if self.unknown_label_id is not None:
            unknown = self.unknown_label_id
            classes = [class_of.get(part, unknown) for part in parts]
        else:
            try:
                classes = [class_of[part] for part in parts]
            except KeyError as error:
                raise SourceError(
                    f"{error.args[0]!r} is none of the {self.dim} labels of the vocabulary",
                    fix="add it, or name a label for all that is unknown: unknown_label=",
                ) from None
        indices = np.array(classes, np.int32)
        return np.concatenate([indices, self._postfix]) if self._postfix.size else indices

    def label_to_id(self, label: str, default: Any = KeyError) -> Any:
        """Return the class of a label, see `Vocabulary.label_to_id`. O(1)."""
        return self._class_of[label] if label in self._class_of else super().label_to_id(label, default)

    def _special_class(self, name: str, label: Any) -> int:
        """Return the class of a special label, which is given by its text or its class."""
        if isinstance(label, str) and label in self._class_of:
            return self._class_of[label]
        if type(label) is int and 0 <= label < len(self.labels):
            return label
        hint = f"leave {name} out" if name != "unknown_label" else "give the label for what is unknown, or None"
        raise ConfigError(
            f"{name} is {label!r}, which is none of the {len(self.labels)} labels", where="vocabulary", fix=hint
        )


class LabelVocabulary(LabelledVocabulary):
    """Words of a list, which stand between spaces in a text: "Vocabulary" in a dict.

    Args:
        vocab_file: One label a line, or a dict label -> class as a Python literal or JSON; `.gz` too. A `.json` file
            may also hold a list.
        labels: The labels, instead of a file.
        num_labels: For a check: the number of classes.
        seq_postfix: Class indices that follow each text.
        single_whitespace_split: Whether the text is labels joined by single spaces, where a label may have spaces in
            it (or be empty); without it, any whitespace separates labels.
        special_symbols_via_file: A file with a dict of the special labels below; those given here count first.
        unknown_label: Label, or its class, of every word that is not in the list. The default "UNK" must be in the
            list; `None` makes an unknown word an error.
        bos_label: Label or class that starts a sequence. This and the next four are only looked up, for models that
            ask for them; nothing is added to a text.
        eos_label: Label or class that ends a sequence.
        pad_label: Label or class for padding.
        control_symbols: Name -> label or class.
        user_defined_symbols: Name -> label or class.

    Raises:
        ConfigError: An option is wrong, or a special label is not in the list.
        SourceError: A file is missing or wrong.
    """

    def __init__(
        self,
        vocab_file: str | os.PathLike[str] | None = None,
        *,
        labels: Sequence[str] | None = None,
        num_labels: int | None = None,
        seq_postfix: Sequence[int] | None = None,
        single_whitespace_split: bool = False,
        special_symbols_via_file: str | os.PathLike[str] | None = None,
        unknown_label: Label | None = NOT_GIVEN,
        bos_label: Label | None = None,
        eos_label: Label | None = None,
        pad_label: Label | None = None,
        control_symbols: Mapping[str, Label] | None = None,
        user_defined_symbols: Mapping[str, Label] | None = None,
    ) -> None:
        special = special_labels(
            special_symbols_via_file,
            unknown_label=unknown_label,
            bos_label=bos_label,
            eos_label=eos_label,
            pad_label=pad_label,
            control_symbols=control_symbols,
            user_defined_symbols=user_defined_symbols,
        )
        super().__init__(*labels_from(vocab_file, labels, num_labels), seq_postfix=seq_postfix, special=special)
        self._options = [single_whitespace_split]
        self._found: re.Pattern[str] | None = None
        if single_whitespace_split:  # RETURNN's expression: the time that a word takes grows with the list
            self._found = re.compile(rf"({'|'.join(map(re.escape, self.labels))}|\S+)(?: |$)")

    def split(self, text: str) -> Iterable[str]:
        """Return the words of a text."""
        return text.split() if self._found is None else self._found.findall(text)

    def decode(self, indices: Iterable[int]) -> str:
        """Return the labels with a space between them."""
        return " ".join(self.labels[class_idx] for class_idx in self.check_classes(indices))


class CharacterTargets(LabelledVocabulary):
    """Characters of a list (Unicode code points).

    Args:
        vocab_file: As for `LabelVocabulary`. Labels of several characters never occur.
        labels: The labels, instead of a file.
        num_labels: For a check: the number of classes.
        seq_postfix: Class indices that follow each text.
        unknown_label: Label, or its class, of every character that is not in the list; `None` makes one an error.
        bos_label: Label or class that starts a sequence; only looked up, as `eos_label` and `pad_label`.
        eos_label: Label or class that ends a sequence.
        pad_label: Label or class for padding.

    Raises:
        ConfigError: An option is wrong, or a special label is not in the list.
        SourceError: The file is missing or wrong.
    """

    def __init__(
        self,
        vocab_file: str | os.PathLike[str] | None = None,
        *,
        labels: Sequence[str] | None = None,
        num_labels: int | None = None,
        seq_postfix: Sequence[int] | None = None,
        unknown_label: Label | None = "@",
        bos_label: Label | None = None,
        eos_label: Label | None = None,
        pad_label: Label | None = None,
    ) -> None:
        special = special_labels(
            None, unknown_label=unknown_label, bos_label=bos_label, eos_label=eos_label, pad_label=pad_label
        )
        super().__init__(*labels_from(vocab_file, labels, num_labels), seq_postfix=seq_postfix, special=special)

    def split(self, text: str) -> Iterable[str]:
        """Return the characters of a text."""
        return text

    def decode(self, indices: Iterable[int]) -> str:
        """Return the labels, joined."""
        return "".join(self.labels[class_idx] for class_idx in self.check_classes(indices))


def check_postfix(seq_postfix: Any, num_labels: int) -> NDArray[np.int32]:
    """Return the classes that follow each text, `int32[n]`.

    Raises:
        ConfigError: They are no classes.
    """
    classes = [] if seq_postfix is None else seq_postfix
    if isinstance(classes, str | Mapping) or not hasattr(classes, "__iter__"):
        raise ConfigError(f"seq_postfix is {seq_postfix!r}, not a list of class indices", where="vocabulary")
    for class_idx in classes:
        if type(class_idx) is not int or not 0 <= class_idx < num_labels:
            raise ConfigError(
                f"seq_postfix has {class_idx!r}, not a class index 0..{num_labels - 1}",
                where="vocabulary",
                fix="give classes, not labels",
            )
    return np.array(list(classes), np.int32)


def labels_from(vocab_file: Any, labels: Any, num_labels: int | None) -> tuple[list[str], dict[str, int]]:
    """Return the labels that the user named, one way or the other, and the class of each; check their number."""
    if (vocab_file is None) == (labels is None):
        raise ConfigError("a vocabulary needs either vocab_file= or labels=", where="vocabulary")
    if labels is not None:
        found = labels_of_list(labels() if callable(labels) else labels, "labels=")
    else:
        found = read_labels(vocab_file)
    if num_labels is not None and num_labels != len(found[0]):
        raise ConfigError(
            f"the vocabulary has {len(found[0])} labels, but num_labels is {num_labels}",
            where="labels=" if vocab_file is None else os.fspath(vocab_file),
        )
    return found


def special_labels(path: str | os.PathLike[str] | None, *, unknown_label: Any, **given: Any) -> dict[str, Any]:
    """Return all special labels: those that were given, else those of the file, else the defaults."""
    special: dict[str, Any] = dict.fromkeys((*_SPECIAL, *_SPECIAL_DICTS))
    special["unknown_label"] = _DEFAULT_UNKNOWN
    if path is not None:
        where = local_copy(path)
        in_file = parse_literal(decode_utf8(read_vocabulary_file(where), where), where)
        unknown = sorted(set(in_file) - set(special)) if isinstance(in_file, Mapping) else ["no dict"]
        if unknown:
            raise SourceError(f"unknown special labels: {unknown}", where=where, fix=f"valid: {list(special)}")
        special.update(in_file)
    special.update({name: value for name, value in given.items() if value is not None})
    if unknown_label != NOT_GIVEN:
        special["unknown_label"] = unknown_label
    return special


class Utf8ByteTargets(Vocabulary):
    """The UTF-8 bytes of a text as classes 0..255, as RETURNN's class of this name has them.

    Args:
        seq_postfix: Class indices that follow each text.

    Raises:
        ConfigError: The postfix holds something other than 0..255.
    """

    def __init__(self, seq_postfix: Sequence[int] | None = None) -> None:
        self.labels = [chr(byte) for byte in range(256)]
        self._postfix = check_postfix(seq_postfix, 256)

    @property
    def identity(self) -> list[Any]:
        """Its kind and postfix."""
        return [type(self).__name__, self._postfix.tolist()]

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the bytes of a text, `int32[T]`."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise SourceError(
                f"the text cannot be written as UTF-8: {error.reason} at character {error.start}", fix="correct it"
            ) from error
        return np.concatenate([np.frombuffer(data, np.uint8).astype(np.int32), self._postfix])

    def decode(self, indices: Iterable[int]) -> str:
        """Return the text of bytes; what is not UTF-8 in them is shown as U+FFFD."""
        return bytes(self.check_classes(indices)).decode(errors="replace")
