"""`Codec`: makes the arrays of one data key from what a format stores.

What all values of a corpus say together (labels, a layout, a sample rate) is gathered as *facts*: a dict from each
fact, such as a label or a shape, to where it was seen first. The facts of several parts are joined by `join_facts`, so
that it does not matter which process looked at which part. `conclude` takes the facts of all values once, `settle` what
was concluded before, from an index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from .data_types import layout_text, learn_spec

Facts = dict[Any, str]  # by what can be hashed


def join_facts(facts: Facts, others: Facts) -> None:
    """Add the facts of the values that follow."""
    for fact, where in others.items():
        facts.setdefault(fact, where)


class Codec(ABC):
    """How the values of one data key become arrays.

    Attributes:
        labels: Class labels, or `None`.
        is_slow: Whether encoding takes many times as long as reading, as with a vocabulary.
        learnt: JSON data: what was concluded that neither the layout nor the labels say.
        guesses_labels: Whether values are taken for labels without having been declared so; see `make_index`.
    """

    labels: Sequence[str] | None = None
    is_slow: bool = False
    guesses_labels: bool = False
    learnt: Any = None

    @property
    @abstractmethod
    def spec(self) -> DataSpec:
        """Layout of the arrays, once it is known.

        Raises:
            ConfigError: There was no value to learn it from.
        """

    @property
    def identity(self) -> list[Any]:
        """What the user specified, as JSON data; values do not change it. [] if the codec's owner has it."""
        return []

    @abstractmethod
    def encode(self, value: Any, where: str) -> NDArray[Any]:
        """Return the array of one value, `dtype[T, ...]`, as a new one; `SourceError` if it has none."""

    def note(self, value: Any, where: str, facts: Facts) -> int:  # noqa: ARG002 - most learn nothing
        """Add what one value says of all; return the length of its array, 1 without a time axis."""
        return self.encode(value, where).size

    def conclude(self, facts: Facts) -> None:  # noqa: B027 - most learn nothing
        """Take what all values say.

        Raises:
            HeadraceError: They do not fit together.
        """

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:  # noqa: B027 - as above
        """Take what was concluded of the same values before."""


class FileCodec(Codec):
    """How files of one kind become arrays: recordings, images. What all say together is in their headers."""

    @abstractmethod
    def look(self, value: Any, where: str) -> Any:
        """Return what the header of a file says, given by path, bytes, or as an open file. Threads may call it."""

    @abstractmethod
    def note_look(self, found: Any, where: str, facts: Facts) -> int:
        """Add what `look` returned to the facts; return the length of the array."""

    def note(self, value: Any, where: str, facts: Facts) -> int:
        """Look at a file, and note what it says."""
        return self.note_look(self.look(value, where), where, facts)


class Field(Codec):
    """How the values of one field of a record become arrays.

    Attributes:
        name: Name of the field.
    """

    name: str

    @property
    def identity(self) -> list[Any]:
        """Its kind and name."""
        return [type(self).__name__, self.name]


def found_by(codecs: Mapping[str, Codec]) -> dict[str, Any]:
    """Return what `make_index` takes of codecs, after `conclude`."""
    learnt = {key: codec.learnt for key, codec in codecs.items() if codec.learnt is not None}
    return {
        **({"learnt": learnt} if learnt else {}),
        "specs": {key: codec.spec for key, codec in codecs.items()},
        "labels": {key: list(codec.labels) for key, codec in codecs.items() if codec.labels is not None},
        "guessed": [key for key, codec in codecs.items() if codec.guesses_labels],
        "vocabularies": {key: codec.identity for key, codec in codecs.items() if codec.is_slow},
    }


def layout_of(facts: Facts, what: str, fix: str, *, num_classes: int | None = None) -> DataSpec:
    """Return the layout that arrays have in common: that of the first; axes but time that differ are free.

    Args:
        facts: (name of a dtype, whether the first axis is time, sizes of the others) -> where it was seen first.
        what: What the arrays are called in messages.
        fix: What to do about an array of another layout.
        num_classes: Number of classes, if the user declared it.

    Raises:
        SourceError: One differs from the first in its dtype or number of axes; both are named.
        ConfigError: There was no array; or the user said how many classes there are, and these are no integers.
    """
    if not facts:
        raise ConfigError(
            f"there are no {what}, and so no dtype and shape", fix="check the path, or leave out the data key"
        )
    (dtype, has_time, shape), first = next(iter(facts.items()))
    free = list(shape)
    for (other, also_time, sizes), where in facts.items():
        if (other, also_time, len(sizes)) != (dtype, has_time, len(free)):
            raise SourceError(
                f"{what}: this is {layout_text(DataSpec(other, sizes, has_time=also_time))}, and "
                f"{layout_text(DataSpec(dtype, shape, has_time=has_time))} is wanted",
                where=f"{where}, compared with {first}",
                fix=fix,
            )
        free = [size if size == own else None for size, own in zip(free, sizes, strict=True)]
    if num_classes is None:
        return learn_spec(np.dtype(dtype), free, has_time=has_time)
    if np.dtype(dtype).kind not in "iu":
        raise ConfigError(f"vocab is for class indices, and the {what} are {dtype}", where=first)
    return DataSpec(dtype, tuple(free), True, num_classes, has_time)
