"""The contract of a vocabulary, from a text to class indices and back, and how one is made of what a user gives.

All kinds are exact functions of the text: the same text has the same indices in every
process and epoch, so that lengths can be known before anything is read. A kind that can draw one of several
segmentations at random has a method `sample`, which takes the generator to draw from.
"""

from __future__ import annotations

import importlib
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.exports import refuse_departed
from headrace.show.card import Card, Shown

# Module and class by the name in a dict, which is RETURNN's. Imported when asked for.
_CLASS_OF = {
    "BytePairEncoding": ("bpe", "BytePairEncoding"),
    "CharacterTargets": ("labels", "CharacterTargets"),
    "HuggingFaceTokenizer": ("hugging_face", "HuggingFaceTokenizer"),
    "LabelVocabulary": ("labels", "LabelVocabulary"),
    "SentencePieces": ("pieces", "SentencePieces"),
    "Utf8ByteTargets": ("labels", "Utf8ByteTargets"),
    "Vocabulary": ("labels", "LabelVocabulary"),
    "WithEnds": ("ends", "WithEnds"),
}
_TOKENIZERS = (  # `BaseTokenizer` wraps a `Tokenizer`
    ("tokenizers", "Tokenizer"),
    ("tokenizers", "BaseTokenizer"),
    ("transformers", "PreTrainedTokenizerBase"),
)
FORMS = (
    '"bytes"; the path of a tokenizer.json, of its folder, or of a SentencePiece .model; a tokenizer of tokenizers or '
    'transformers; a Vocabulary; or a dict of one, such as {"class": "Vocabulary", "vocab_file": "words.txt"}'
)
_MAX_SHOWN = 5  # labels, where a vocabulary shows itself


class Vocabulary(Shown, ABC):
    """Class indices for texts. It may be pickled, and the copy gives the same indices.

    Attributes:
        labels: The text of each class.
        bos_label_id: Class of a start, where it knows one, or `None`.
        eos_label_id: Class of an end, where it knows one, or `None`.
    """

    labels: Sequence[str]
    bos_label_id: int | None = None
    eos_label_id: int | None = None

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make one of a kind: this class is what all have in common.

        Raises:
            ConfigError: It is asked for as the class that is called so in configs.
        """
        if cls is Vocabulary:
            raise ConfigError(
                "Vocabulary is the base of all vocabularies, and makes none itself",
                fix='write init_vocabulary({"class": "Vocabulary", "labels": [...], "unknown_label": None}), '
                'or "vocab_file": "words.txt"',
            )
        if cls.__init__ is object.__init__ and (args or options):
            raise TypeError(f"{cls.__name__}() takes no arguments")
        return super().__new__(cls)

    def _card(self) -> Card:
        first = [repr(label) for label in islice(self.labels, _MAX_SHOWN)]
        more = [", ..."] if self.dim > len(first) else []
        facts = [("classes", f"{self.dim:,} classes"), ("labels", "".join([", ".join(first), *more]))]
        return Card(type(self).__name__, facts)

    @property
    def dim(self) -> int:
        """Number of classes."""
        return len(self.labels)

    @property
    @abstractmethod
    def identity(self) -> list[Any]:
        """JSON data that names its kind, all options, and a digest of its files: equal ones encode equally."""

    @abstractmethod
    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the class indices of a text, `int32[T]`.

        Raises:
            SourceError: A part of the text has no class, and there is none for unknown ones.
        """

    @abstractmethod
    def decode(self, indices: Iterable[int]) -> str:
        """Return the text of class indices.

        Raises:
            SourceError: There is no such class.
        """

    # --- by the names of RETURNN's class ---

    @property
    def num_labels(self) -> int:
        """Number of classes."""
        return self.dim

    def get_seq(self, sentence: str) -> list[int]:
        """Return `encode` of a text as a list."""
        return [int(class_idx) for class_idx in self.encode(sentence)]

    def get_seq_labels(self, seq: Iterable[int]) -> str:
        """Return `decode` of class indices."""
        return self.decode(seq)

    def is_id_valid(self, idx: int) -> bool:
        """Tell whether there is such a class."""
        return 0 <= idx < self.dim

    def id_to_label(self, idx: int, default: Any = KeyError) -> Any:
        """Return the text of a class.

        Args:
            idx: The class.
            default: Returned where there is no such class; the type `KeyError`: that is raised.
        """
        if self.is_id_valid(idx):
            return self.labels[idx]
        if default is KeyError:
            raise KeyError(f"there is no class {idx}: the vocabulary has the classes 0..{self.dim - 1}")
        return default

    def label_to_id(self, label: str, default: Any = KeyError) -> Any:
        """Return the class of a label; `default` as in `id_to_label`. O(number of classes)."""
        found = next((class_idx for class_idx, text in enumerate(self.labels) if text == label), default)
        if found is KeyError:
            raise KeyError(f"{label!r} is none of the {self.dim} labels")
        return found

    def check_classes(self, indices: Iterable[int]) -> list[int]:
        """Return class indices as a list of `int`.

        Raises:
            SourceError: One is no class of this vocabulary.
        """
        classes = np.asarray(indices if hasattr(indices, "__len__") else list(indices))
        if classes.size and classes.dtype.kind not in "iu":
            raise SourceError(f"class indices are whole numbers, not {classes.dtype}")
        outside = (classes < 0) | (classes >= self.dim)
        if outside.any():
            wrong = int(classes[outside][0])
            raise SourceError(f"there is no class {wrong}: the vocabulary has the classes 0..{self.dim - 1}")
        return [int(class_idx) for class_idx in classes]


def init_vocabulary(options: Any) -> Vocabulary:
    """Make a vocabulary, or return the one that was given.

    Args:
        options: A vocabulary; a dict, in which "class" names the kind (default "Vocabulary", and a class of your own
            is given as such) and the rest are its options; "bytes", the UTF-8 bytes; the path of a `tokenizer.json`,
            of its folder, or of a SentencePiece `.model`; a `tokenizers.Tokenizer`, or a fast tokenizer of
            transformers. A field of a source also takes "chars", whose classes are learnt from its texts.

    Raises:
        ConfigError: It is none of these, the kind or an option is unknown, an option is missing, or a library that the
            kind needs is.
        SourceError: A file of the vocabulary is missing or wrong.

    Examples:
        >>> import headrace as hr
        >>> vocabulary = hr.init_vocabulary({"class": "Vocabulary", "labels": ["no", "yes"], "unknown_label": None})
        >>> vocabulary.encode("yes no").tolist()
        [1, 0]
    """
    if isinstance(options, Vocabulary):
        return options
    given = options if isinstance(options, Mapping) else short_form(options)
    if given is None:
        fix = FORMS
        if isinstance(options, str) and options == "chars":
            fix = 'name them: {"class": "CharacterTargets", "labels": [...]}; a field of a source learns them itself'
        raise ConfigError(f"a vocabulary cannot be made from {options!r}", where="vocabulary", fix=fix)
    arguments = dict(given)
    cls = _resolve_class(arguments.pop("class", "Vocabulary"))
    parameters = inspect.signature(cls).parameters
    for name in arguments:
        if name not in parameters:
            raise ConfigError(
                f"{cls.__name__} has no option {name!r}", where="vocabulary", fix=did_you_mean(str(name), parameters)
            )
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{cls.__name__}: {error}", where="vocabulary") from None
    return cls(**arguments)


def short_form(options: Any) -> dict[str, Any] | None:
    """Return the dict that a word, a path or a tokenizer of another library stands for; `None` for anything else."""
    if isinstance(options, str) and options == "bytes":
        return {"class": "Utf8ByteTargets"}
    if is_tokenizer(options):
        return {"class": "HuggingFaceTokenizer", "huggingface_repo_dir": options}
    if not isinstance(options, str | os.PathLike):
        return None
    path = os.fspath(options)
    name = path.removesuffix(".gz") if isinstance(path, str) else ""
    if name.endswith(".model"):
        return {"class": "SentencePieces", "model_file": path}
    if name.endswith(".json") or (name and os.path.isdir(path)):
        return {"class": "HuggingFaceTokenizer", "huggingface_repo_dir": path}
    return None


def is_tokenizer(value: Any) -> bool:
    """Tell whether it is a tokenizer of the library tokenizers, or of transformers; neither is imported."""
    names = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(value).__mro__}
    return not names.isdisjoint(_TOKENIZERS)


def _resolve_class(name: Any) -> type[Vocabulary]:
    if isinstance(name, type) and issubclass(name, Vocabulary):
        return name
    refuse_departed(name, f"the vocabulary {name}")
    if name not in _CLASS_OF:
        raise ConfigError(
            f"unknown class of a vocabulary: {name!r}", where="vocabulary", fix=did_you_mean(str(name), _CLASS_OF)
        )
    module, attribute = _CLASS_OF[name]
    cls: type[Vocabulary] = getattr(importlib.import_module(f"{__package__}.{module}"), attribute)
    return cls
