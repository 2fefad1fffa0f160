"""Labels, texts and whole numbers in the fields of a manifest, as arrays.

One label or number a sequence is a scalar: a batch of B has `[B]`. A text is a sequence of classes with time.

One class for each way to encode a field: `ClassField`, `CharField`, `ByteField`, `VocabularyField`; and those of
`json_fields.py` for numbers. `parse_field` chooses by the user's option. They never see audio.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.specs import DataSpec
from headrace.vocabularies.base import FORMS, Vocabulary, init_vocabulary, short_form
from headrace.vocabularies.ends import WithEnds, check_ends

from .codec import Facts
from .codec import Field as Field
from .json_fields import IndexField, JsonField

_FORMS = (
    'valid: a field name, or {"field": name, "vocab": ...}, with None, a list of labels, a dict label -> class, a '
    f'number of classes, "chars" or a vocabulary: {FORMS}'
)
_OPTIONS = ("field", "labels", "vocab")
_NO_ENDS = (None, None, "both")  # bos, eos and adds of `WithEnds`
_SCALAR = "scalar"  # of identities: before, one label was an array of one


class ClassField(Field):
    """One label a sequence, as class index: a scalar, `int32[]`.

    Args:
        name: Name of the field.
        labels: Labels in the order of their classes, or a dict label -> class; if `None`, the sorted distinct values.
    """

    _has_time = False
    _symbols: Sequence[str] = ()  # labels that come after all others

    def __init__(self, name: str, labels: Sequence[str] | Mapping[str, int] | None) -> None:
        self.name, self._is_given = name, labels is not None
        if isinstance(labels, Mapping):
            self._class_of = dict(labels)
            self.labels = _labels_of_mapping(labels, name)
        else:
            self._set_labels(list(labels or []))

    def _set_labels(self, labels: list[str]) -> None:
        if not all(isinstance(label, str) for label in labels) or len(set(labels)) != len(labels):
            raise ConfigError(f"labels of the field {self.name!r} must be different strings: {labels[:10]}")
        self.labels, self._class_of = labels, {label: i for i, label in enumerate(labels)}

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        dim = max(self._class_of.values(), default=-1) + 1
        return DataSpec("int32", sparse=True, dim=dim, has_time=self._has_time)

    @property
    def identity(self) -> list[Any]:
        """Its kind, name, and the number and a digest of the labels that were given."""
        own = [*super().identity, *([] if self._has_time else [_SCALAR])]
        if not self._is_given:
            return own
        vocab = sorted((class_idx, label) for label, class_idx in self._class_of.items())
        return [*own, len(vocab), xxhash.xxh3_128_hexdigest(json.dumps(vocab).encode())]

    def _labels_in(self, text: str) -> Sequence[str]:
        """Return the labels that a text stands for."""
        return (text,)

    def encode(self, value: Any, where: str) -> NDArray[np.int32]:
        """Return the class of the label, `int32[]`; of characters, `int32[T]`."""
        labels = self._labels_in(_checked_text(value, self.name, where))
        try:
            classes = [self._class_of[label] for label in labels]
        except KeyError as error:
            raise SourceError(
                f"the field {self.name!r} has {error.args[0]!r}, which is none of its {len(self._class_of)} labels",
                where=where,
            ) from None
        return np.array(classes if self._has_time else classes[0], dtype=np.int32)

    def note(self, value: Any, where: str, facts: Facts) -> int:
        """Note the labels of one value; return their number."""
        if self._is_given:
            return self.encode(value, where).size
        labels = self._labels_in(_checked_text(value, self.name, where))
        if not facts.keys() >= set(labels):  # nearly all were seen before: half the time of an update
            facts.update(dict.fromkeys(labels, ""))
        return len(labels)

    def conclude(self, facts: Facts) -> None:
        """Take the sorted distinct labels, if none were given."""
        if not self._is_given:
            self._set_labels([*sorted(facts.keys() - set(self._symbols)), *self._symbols])

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:  # noqa: ARG002
        """Take these labels, if none were given."""
        if not self._is_given:
            self._set_labels(list(labels or []))

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what was concluded, which may be large and is in the index: `settle` gives it back.
        return type(self), (self.name, self._class_of if self._is_given else None)


class CharField(ClassField):
    """A text, as class indices of its characters (Unicode code points): `int32[T]`.

    Args:
        name: Name of the field.
        labels: See `ClassField`.
        ends: Options of `WithEnds`, for a start or an end. The classes of its symbols follow those of the characters,
            the start first.

    Raises:
        ConfigError: An option is wrong.
    """

    _has_time = True

    def __init__(
        self, name: str, labels: Sequence[str] | None, ends: tuple[str | None, str | None, str] = _NO_ENDS
    ) -> None:
        super().__init__(name, labels)
        self._ends = bos, eos, adds = ends
        self._symbols = list(dict.fromkeys(symbol for symbol in (bos, eos) if symbol is not None))
        self._before = [bos] if bos is not None and adds in ("both", "bos") else []
        self._behind = [eos] if eos is not None and adds in ("both", "eos") else []

    @property
    def identity(self) -> list[Any]:
        """That of labels, and the ends."""
        return [*super().identity, *self._ends]

    def _labels_in(self, text: str) -> Sequence[str]:
        return [*self._before, *text, *self._behind] if self._symbols else text

    def __reduce__(self) -> tuple[Any, ...]:
        return CharField, (*super().__reduce__()[1], self._ends)


class ByteField(Field):
    """A text, as its UTF-8 bytes: `uint8[T]`, 256 classes."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        return DataSpec("uint8", sparse=True, dim=256)

    def encode(self, value: Any, where: str) -> NDArray[np.uint8]:
        """Return the UTF-8 bytes of a text, `uint8[T]`."""
        return np.frombuffer(_checked_text(value, self.name, where).encode(), dtype=np.uint8).copy()


class VocabularyField(Field):
    """A text, as the class indices of a vocabulary or tokenizer: `int32[T]`."""

    is_slow = True

    def __init__(self, name: str, vocabulary: Vocabulary) -> None:
        self.name, self.vocabulary, self.labels = name, vocabulary, list(vocabulary.labels)

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        return DataSpec("int32", sparse=True, dim=self.vocabulary.dim)

    @property
    def identity(self) -> list[Any]:
        """Its kind and name, and the identity of the vocabulary."""
        return [*super().identity, self.vocabulary.identity]

    def encode(self, value: Any, where: str) -> NDArray[np.int32]:
        """Return the class indices of a text, `int32[T]`."""
        text = _checked_text(value, self.name, where)
        try:
            return self.vocabulary.encode(text)
        except SourceError as error:
            raise SourceError(f"the field {self.name!r}: {error.what}", where=where, fix=error.fix) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return VocabularyField, (self.name, self.vocabulary)


class NumberField(JsonField):
    """A whole number as class index, `int32[]`; the number of classes is the largest and one."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "int32")

    def note(self, value: Any, where: str, facts: Facts) -> int:
        """Note a class; return the length of its array, which is 1."""
        super().note(value, where, {})
        facts.setdefault(value, where)
        return 1

    def conclude(self, facts: Facts) -> None:
        """Take the number of classes, unless there are negative ones."""
        dim = None if min(facts, default=0) < 0 else max(facts, default=-1) + 1
        self._spec = DataSpec("int32", sparse=True, dim=dim, has_time=False)


def parse_field(data_key: str, target: Any, natural: Callable[..., Field] | None = None) -> Field:
    """Return the field class for one target.

    Args:
        data_key: A bare field name means labels, but UTF-8 bytes for the data key "orth", as that key is documented.
            Texts are not taken for labels: where most sequences have a value of their own, of several words, or where
            there are more than 1000 such, the scan refuses them.
        target: A field name, or a dict with "field" and "vocab": `None` (labels: the sorted distinct values), a list
            of labels, a dict label -> class, a number (the field holds class indices below it), "bytes" (UTF-8), or
            "chars", then optionally with "labels", a list of the characters (default: the sorted distinct ones);
            or anything else that `init_vocabulary` takes. "chars" may stand as "vocab" in the dict of a `WithEnds`.
        natural: Makes the field where no vocabulary is asked for, from its name and the options "dtype" and "dim".

    Raises:
        ConfigError: It has another form, or the vocabulary cannot be made.
        SourceError: A file of the vocabulary is missing or wrong.
    """
    where = f"target {data_key!r}"
    if isinstance(target, str):
        make = natural or (ByteField if data_key == "orth" else _guessed)
        return make(target)
    if not isinstance(target, Mapping) or not isinstance(target.get("field"), str):
        raise ConfigError(f"a target cannot be read: {target!r}", where=where, fix=_FORMS)
    is_natural = natural is not None and not target.keys() & {"vocab", "labels"}
    valid = ("field", "dtype", "dim") if is_natural else _OPTIONS
    for option in target:
        if option not in valid:
            raise ConfigError(f"unknown option {option!r}", where=where, fix=did_you_mean(str(option), valid))
    if natural is not None and is_natural:
        return natural(target["field"], target.get("dtype"), target.get("dim"))
    name, vocab, labels = target["field"], target.get("vocab"), target.get("labels")
    if vocab == "chars" and (labels is None or isinstance(labels, list | tuple | str)):
        return CharField(name, labels)
    if labels is not None:
        raise ConfigError(f"labels is for characters, not for {vocab!r}", where=where, fix='give the list as "vocab"')
    if vocab == "bytes":
        return ByteField(name)
    if isinstance(vocab, int) and not isinstance(vocab, bool) and vocab > 0:
        return IndexField(name, vocab)
    if isinstance(vocab, Mapping) and _names_a_class(vocab):
        return _learnt_with_ends(name, vocab) or VocabularyField(name, init_vocabulary(vocab))
    if isinstance(vocab, Vocabulary) or short_form(vocab) is not None:
        return VocabularyField(name, init_vocabulary(vocab))
    if "vocab" not in target:
        return _guessed(name)
    if vocab is None or isinstance(vocab, Mapping | list | tuple):
        return ClassField(name, vocab)
    raise ConfigError(f"the vocab of a target cannot be read: {vocab!r}", where=where, fix=_FORMS)


def _learnt_with_ends(name: str, vocab: Mapping[str, Any]) -> Field | None:
    """Return the field for characters that are learnt, with start or end, if a dict means that."""
    if vocab["class"] not in ("WithEnds", WithEnds) or vocab.get("vocab") != "chars":
        return None
    ends = {"bos": None, "eos": None, "adds": "both", **vocab}
    for option in ends:
        if option not in ("class", "vocab", "bos", "eos", "adds"):
            raise ConfigError(
                f"WithEnds has no option {option!r}", fix=did_you_mean(str(option), ("bos", "eos", "adds"))
            )
    check_ends(ends["bos"], ends["eos"], ends["adds"])
    return CharField(name, None, (ends["bos"], ends["eos"], ends["adds"]))


def _guessed(name: str) -> ClassField:
    """Return the field of values that are taken for labels without having been declared so."""
    field = ClassField(name, None)
    field.guesses_labels = True
    return field


def _names_a_class(vocab: Mapping[str, Any]) -> bool:
    """Tell whether a dict is the config of a vocabulary, and not label -> class, in which "class" may be a label."""
    return isinstance(vocab.get("class"), str | type)


def _labels_of_mapping(classes: Mapping[str, int], name: str) -> list[str] | None:
    """Return labels in the order of their classes, or `None` if several labels share a class or a class has none."""
    for label, class_idx in classes.items():
        if not isinstance(label, str) or type(class_idx) is not int or class_idx < 0:
            raise ConfigError(f"the vocab of the field {name!r} maps {label!r} to {class_idx!r}: need str -> int >= 0")
    in_order = sorted(classes, key=lambda label: classes[label])
    return in_order if [classes[label] for label in in_order] == list(range(len(in_order))) else None


def _checked_text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise SourceError(
            f"the field {name!r} has {value!r}, not a text",
            where=where,
            fix='for class indices give "vocab": the number of classes',
        )
    return value
