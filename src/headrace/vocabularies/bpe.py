"""Byte pair encoding by a list of merges, as the tool subword-nmt writes them.

Algorithm: Sennrich, Haddow and Birch (2016), "Neural Machine Translation of Rare Words with Subword Units": a word
starts as its characters, the last one marked, and as long as two neighbours are a pair of the list, the pair that comes
first there is joined, wherever it is in the word. A part that the vocabulary lacks is taken apart again, as it was
joined, until its parts are there or single characters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files.cache.local_copies import local_copy
from headrace.files.utf8 import decode_utf8

from .files import digest_of, read_vocabulary_file
from .labels import Label, LabelledVocabulary, labels_from, special_labels

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
