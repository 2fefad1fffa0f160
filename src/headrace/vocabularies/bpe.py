"""Byte pair encoding, by a list of merges or with random segmentations.

`BytePairEncoding` reads merges as the tool subword-nmt writes them. Algorithm: Sennrich, Haddow and Birch (2016),
"Neural Machine Translation of Rare Words with Subword Units": a word starts as its characters, the last one marked, and
as long as two neighbours are a pair of the list, the pair that comes first there is joined, wherever it is in the word.
A part that the vocabulary lacks is taken apart again, as it was joined, until its parts are there or single characters.

`SamplingBytePairEncoding` draws from a list of labels, anew each time a text is read. A vocabulary elsewhere is a
function of the text, so that lengths are known before anything is read. This one needs a generator, and only a dataset
has one, for each sequence and epoch. So it encodes a text to its UTF-8 bytes, which are about as many as the text can
have parts; the dataset turns them into parts when it reads them, see `DrawnClasses`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.cache.local_copies import local_copy
from headrace.files.utf8 import decode_utf8
from headrace.rng import wants_rng

from .files import digest_of, read_vocabulary_file
from .labels import NOT_GIVEN, Label, LabelledVocabulary, labels_from, special_labels

_END = "</w>"  # marks the last character of a word in the list of merges
_JOINT = "@@"  # stands after a part of a word that is not the last one
_MAX_CACHED_WORDS = 1 << 16  # most running text is of fewer words; about 10 MiB


class BytePairEncoding(LabelledVocabulary):
    """Parts of words, by a list of merges and a vocabulary of the parts. Words stand between spaces.

    Args:
        vocab_file: The parts, as for `LabelVocabulary`; those that another follows end with "@@".
        bpe_file: The merges, one pair a line, with or without a first line such as "#version: 0.2".
        num_labels: For a check: the number of classes.
        seq_postfix: Class indices that follow each text.
        unknown_label: Label, or its class, of every part that is not in the vocabulary; `None` makes one an error.
        bos_label: Label or class that starts a sequence; only looked up, as `eos_label` and `pad_label`.
        eos_label: Label or class that ends a sequence.
        pad_label: Label or class for padding.

    Raises:
        ConfigError: An option is wrong, or a special label is not in the list.
        SourceError: A file is missing or wrong.
    """

    def __init__(
        self,
        vocab_file: str | os.PathLike[str],
        bpe_file: str | os.PathLike[str],
        seq_postfix: Sequence[int] | None = None,
        *,
        num_labels: int | None = None,
        unknown_label: Label | None = "UNK",
        bos_label: Label | None = None,
        eos_label: Label | None = None,
        pad_label: Label | None = None,
    ) -> None:
        special = special_labels(
            None, unknown_label=unknown_label, bos_label=bos_label, eos_label=eos_label, pad_label=pad_label
        )
        super().__init__(*labels_from(vocab_file, None, num_labels), seq_postfix=seq_postfix, special=special)
        self._ranks, self._marks_apart = _read_merges(bpe_file)
        self._options = [digest_of(list(self._ranks)), self._marks_apart]
        self._pair_of = {first + second: (first, second) for first, second in reversed(self._ranks)}
        self._parts_of: dict[str, tuple[str, ...]] = {}

    def split(self, text: str) -> Iterable[str]:
        """Return the parts of the words of a text."""
        for word in text.split():
            parts = self._parts_of.get(word)
            if parts is None:
                if len(self._parts_of) >= _MAX_CACHED_WORDS:
                    self._parts_of.clear()
                parts = self._parts_of[word] = self._split_word(word)
            yield from parts

    def _split_word(self, word: str) -> tuple[str, ...]:
        parts = [*word, _END] if self._marks_apart else [*word[:-1], word[-1] + _END]
        ranks = self._ranks
        while len(parts) > 1:
            pairs = pairwise(parts)
            best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                break
            parts = _joined(parts, best)
        if len(parts) > 1 and parts[-1] == _END:  # joined to nothing
            parts.pop()
            parts[-1] += _END
        return tuple(label for part in parts for label in self._known_parts(part))

    def _known_parts(self, part: str) -> Iterable[str]:
        """Return the labels of a part; those of what it was joined from, if it is no label."""
        label = part.removesuffix(_END) if part.endswith(_END) else part + _JOINT
        if label in self._class_of or part not in self._pair_of:
            return (label,)
        first, second = self._pair_of[part]
        return (*self._known_parts(first), *self._known_parts(second))

    def decode(self, indices: Iterable[int]) -> str:
        """Return the words, their parts joined again."""
        text = " ".join(self.labels[class_idx] for class_idx in self.check_classes(indices))
        return text.replace(_JOINT + " ", "").removesuffix(_JOINT)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts_of": {}}


def _joined(parts: list[str], pair: tuple[str, str]) -> list[str]:
    """Return the parts with every occurrence of a pair joined, from left to right."""
    joined: list[str] = []
    position = 0
    while position < len(parts):
        if tuple(parts[position : position + 2]) == pair:
            joined.append(pair[0] + pair[1])
            position += 2
        else:
            joined.append(parts[position])
            position += 1
    return joined


def _read_merges(path: str | os.PathLike[str]) -> tuple[dict[tuple[str, str], int], bool]:
    """Return the rank of each pair, and whether the mark of a word's end is a symbol of its own (version 0.1)."""
    where = local_copy(path)
    lines = decode_utf8(read_vocabulary_file(where), where).split("\n")
    version = lines[0].removeprefix("#version:").strip() if lines[0].startswith("#version:") else None
    if version not in (None, "0.1", "0.2"):
        raise SourceError(
            f"merges of version {version!r}", where=where, fix="those of versions 0.1 and 0.2 can be read"
        )
    ranks: dict[tuple[str, str], int] = {}
    for line_number, line in enumerate(lines, start=1):
        if (line_number == 1 and version is not None) or not line.strip("\r "):
            continue
        pair = tuple(line.strip("\r ").split(" "))
        if len(pair) != 2:
            raise SourceError(
                f"{line!r} is not a pair of parts", where=f"{where}, line {line_number}", fix="give the file of merges"
            )
        ranks.setdefault((pair[0], pair[1]), len(ranks))
    return ranks, version != "0.2"


Features = dict[str, NDArray[Any]]


class SamplingBytePairEncoding(LabelledVocabulary):
    """A random segmentation of words into labels. Options are those of RETURNN's class.

    A word is walked through by characters. Where a part may end, it continues by default, so that parts are long; with
    a probability of `breadth_prob`, drawn at each character, it ends. Where a choice leads to no end of the word, the
    search backtracks to the last alternative. RETURNN draws from one generator in the order of reading, here each
    sequence has its own: with probabilities of 0 and 1 the parts are the same.

    Args:
        vocab_file: The parts, as for `LabelVocabulary`.
        breadth_prob: See above, 0 to 1.
        seq_postfix: Class indices that follow each text.
        label_postfix_merge_symbol: What the label of a part that another one follows ends with; "@@" if neither this
            nor the next option is given, `None` for none.
        word_prefix_symbol: What the label of the first part of a word begins with, such as "▁"; `None` for none.
        num_labels: For a check: the number of classes.
        unknown_label: Label, or its class, of every word that has no parts; `None` makes one an error.
        bos_label: Label or class that starts a sequence; only looked up, as `eos_label` and `pad_label`.
        eos_label: Label or class that ends a sequence.
        pad_label: Label or class for padding.

    Raises:
        ConfigError: An option is wrong, or a special label is not in the list.
        SourceError: A file is missing or wrong.
    """

    needs_draws = True

    def __init__(
        self,
        vocab_file: str | os.PathLike[str],
        breadth_prob: float,
        seq_postfix: Sequence[int] | None = None,
        label_postfix_merge_symbol: str | None = NOT_GIVEN,
        word_prefix_symbol: str | None = NOT_GIVEN,
        *,
        num_labels: int | None = None,
        unknown_label: Label | None = "UNK",
        bos_label: Label | None = None,
        eos_label: Label | None = None,
        pad_label: Label | None = None,
    ) -> None:
        special = special_labels(
            None, unknown_label=unknown_label, bos_label=bos_label, eos_label=eos_label, pad_label=pad_label
        )
        super().__init__(*labels_from(vocab_file, None, num_labels), seq_postfix=seq_postfix, special=special)
        is_number = isinstance(breadth_prob, int | float) and not isinstance(breadth_prob, bool)
        if not is_number or not 0 <= breadth_prob <= 1:
            raise ConfigError(f"breadth_prob is a probability, not {breadth_prob!r}", where="vocabulary")
        if label_postfix_merge_symbol is NOT_GIVEN:
            label_postfix_merge_symbol = _JOINT if word_prefix_symbol is NOT_GIVEN else None
        self._prefix = (None if word_prefix_symbol is NOT_GIVEN else word_prefix_symbol) or ""
        self._joint = label_postfix_merge_symbol or ""
        if self._prefix and self._joint:
            raise ConfigError(
                f"word_prefix_symbol={self._prefix!r}, label_postfix_merge_symbol={self._joint!r}: only one can be",
                where="vocabulary",
                fix="give one of them",
            )
        self.breadth_prob = float(breadth_prob)
        self._options = ["drawn", self._joint, self._prefix, self.breadth_prob]
        joint = self._joint
        self._joined = {label.removesuffix(joint) for label in self._class_of if joint and label.endswith(joint)}
        self._ends = {label for label in self._class_of if not (joint and label.endswith(joint))}
        self._starts = {start for label in self._joined | self._ends for start in self._starts_of(label)}

    def _starts_of(self, label: str) -> Iterable[str]:
        """Return the prefixes of a label; the symbol of a word's start counts as one character."""
        first = len(self._prefix) if self._prefix and label.startswith(self._prefix) else 1
        return (label[:end] for end in range(first, len(label) + 1))

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the UTF-8 bytes of a text instead of its parts, `int32[T]`; see `draw`."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def split(self, text: str) -> Iterable[str]:
        """Return the longest parts of the words of a text, as with `breadth_prob=0`."""
        return [part for word in text.split() for part in self._parts(word, lambda: False)]

    def draw(self, stored: NDArray[Any], rng: np.random.Generator) -> NDArray[np.int32]:
        """Return the classes of a text, `int32[T]`, drawn anew.

        Args:
            stored: The result of `encode`, in any dtype of at least 8 bits.
            rng: The generator.

        Raises:
            SourceError: A word has no parts, and there is no label for unknown ones.
        """
        prob = self.breadth_prob
        turns: Callable[[], bool] = (lambda: rng.random() <= prob) if 0 < prob < 1 else lambda: prob > 0
        text = stored.astype(np.uint8).tobytes().decode()
        classes = [self._class_of[part] for word in text.split() for part in self._parts(word, turns)]
        return np.concatenate([np.array(classes, np.int32), self._postfix])

    def _parts(self, word: str, turns: Callable[[], bool]) -> list[str]:
        """Return the parts of a word; `turns` says at each character whether ending a part is tried first."""
        ways: list[tuple[tuple[str, ...], str, int]] = []  # finished parts, the unfinished part, its end in the word
        if not self._prefix or self._prefix in self._starts:
            ways.append(((), self._prefix, 0))
        while ways:
            parts, part, end = ways.pop()
            char, further = word[end], []
            may_end = part in self._joined if self._joint else bool(self._prefix) and part in self._ends
            if may_end and char in self._starts:
                further.append(((*parts, part + self._joint), char, end + 1))
            if part + char in self._starts:
                further.append((parts, part + char, end + 1))
            found = None
            for way in reversed(further) if turns() else further:
                if way[2] < len(word):
                    ways.append(way)
                elif way[1] in self._ends:
                    found = [*way[0], way[1]]
            if found is not None:
                return found
        if self.unknown_label_id is None:
            raise SourceError(
                f"the word {word!r} cannot be made of the {self.dim} labels of the vocabulary",
                fix="name a label for such words: unknown_label=",
            )
        return [self.labels[self.unknown_label_id]]

    def decode(self, indices: Iterable[int]) -> str:
        """Return the words, their parts joined again."""
        parts = [self.labels[class_idx] for class_idx in self.check_classes(indices)]
        if self._prefix:
            return "".join(parts).replace(self._prefix, " ").strip()
        text = " ".join(parts)
        return text.replace(self._joint + " ", "").removesuffix(self._joint) if self._joint else text


class DrawnClasses:
    """The `transform` of a dataset whose vocabulary draws: turns the bytes of its texts into classes.

    Args:
        vocabulary: The vocabulary.
        key: The data key that it is for.
        transform: The user's own transform; called afterwards.
        delayed: Data key for the same classes shifted by one -> the class that comes first; `None` for none.
    """

    def __init__(
        self,
        vocabulary: SamplingBytePairEncoding,
        key: str,
        transform: Callable[..., Mapping[str, NDArray[Any]]] | None = None,
        delayed: tuple[str, int] | None = None,
    ) -> None:
        self._vocabulary, self._key, self._transform, self._delayed = vocabulary, key, transform, delayed
        self._passes_rng = transform is not None and wants_rng(transform)

    def __call__(self, features: Features, *, rng: np.random.Generator) -> Mapping[str, NDArray[Any]]:
        """Return a sequence with classes that are drawn."""
        dtype = features[self._key].dtype
        classes = self._vocabulary.draw(features[self._key], rng).astype(dtype)
        features = {**features, self._key: classes}
        if self._delayed is not None:
            key, start = self._delayed
            features[key] = np.concatenate([[start], classes[:-1]]).astype(dtype) if len(classes) else classes.copy()
        if self._transform is None:
            return features
        return self._transform(features, rng=rng) if self._passes_rng else self._transform(features)
