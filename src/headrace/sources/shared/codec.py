"""`Codec`: makes the arrays of one data key from what a format stores; `SpecLearner`: learns the layout of such arrays.

A codec that has to learn (labels, a layout, a sample rate) is shown all values once, when an index is made (`scan`,
`end_scan`), and is given from then on what was learnt (`settle`); then it encodes one value at a time. What a value is,
depends on the format: a text, a number, the bytes of a recording.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from .data_types import layout_text, learn_spec


class Codec(ABC):
    """How the values of one data key become arrays.

    Attributes:
        labels: Class labels, or `None`.
        must_see_all: Whether one process has to scan all values: what scans of parts have found cannot be joined.
        is_slow: Whether encoding takes many times as long as reading, as with a vocabulary.
        guesses_labels: Whether values are taken for labels without having been declared so; see `make_index`.
    """

    labels: Sequence[str] | None = None
    must_see_all: bool = True
    is_slow: bool = False
    guesses_labels: bool = False

    @property
    @abstractmethod
    def spec(self) -> DataSpec:
        """Layout of the arrays, once it is known.

        Raises:
            ConfigError: There was no value to learn it from.
        """

    @property
    def identity(self) -> list[Any]:
        """What the user specified, as JSON data; scans do not change it. [] if the codec's owner has it."""
        return []

    @property
    def learnt(self) -> Any:
        """JSON data: what a scan found that neither the layout nor the labels say."""
        return None

    @abstractmethod
    def encode(self, value: Any, where: str) -> NDArray[Any]:
        """Return the array of one value, `dtype[T, ...]`, as a new one; `SourceError` if it has none."""

    def scan(self, value: Any, where: str) -> int:
        """Learn from one value of the corpus; return the length of its array, 1 without a time axis."""
        return len(self.encode(value, where))

    @property
    def scanned(self) -> Any:
        """What the scan has found so far, for `join` in another process."""
        return None

    def join(self, scanned: Any) -> None:  # noqa: B027 - most keep nothing
        """Take what the scan of other values has found; the same twice does no harm.

        Raises:
            HeadraceError: The values do not fit together.
        """

    def end_scan(self) -> None:  # noqa: B027 - most have nothing to settle
        """Settle what depends on all values, such as labels."""

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:  # noqa: B027 - as above
        """Take what a scan of the same values found, in place of a scan."""


def found_by(codecs: Mapping[str, Codec]) -> dict[str, Any]:
    """Return the options `specs`, `labels`, `guessed` and `vocabularies` of `make_index`, after the scan."""
    return {
        "specs": {key: codec.spec for key, codec in codecs.items()},
        "labels": {key: list(codec.labels) for key, codec in codecs.items() if codec.labels is not None},
        "guessed": [key for key, codec in codecs.items() if codec.guesses_labels],
        "vocabularies": {key: codec.identity for key, codec in codecs.items() if codec.is_slow},
    }


class SpecLearner:
    """The layout that the arrays of one data key have in common, learnt from one after the other.

    The first array says it, unless the user did; the others must have its dtype and its axes.

    Args:
        what: What the arrays are called in messages.
        given: Layout that the user declared; a free axis (`None`) may have any size.
        num_classes: Number of classes, if the user declared it.
        fix: What to do about an array of another layout.

    Attributes:
        known: The layout, as far as it is known.
        has_freed: Whether an axis differed and became free.
    """

    def __init__(
        self,
        what: str,
        given: DataSpec | None = None,
        *,
        num_classes: int | None = None,
        fix: str,
    ) -> None:
        self._what, self._num_classes, self._fix = what, num_classes, fix
        self.known = given
        self.has_freed = False
        self._first = ""  # where others are compared with it
        self._usual: tuple[Any, ...] | None = None  # what was seen before, and fits

    @property
    def spec(self) -> DataSpec:
        """The layout.

        Raises:
            ConfigError: There was no array.
        """
        if self.known is None:
            raise ConfigError(
                f"there are no {self._what}, and so no dtype and shape", fix="check the path, or leave out the data key"
            )
        return self.known

    def settle(self, spec: DataSpec) -> None:
        """Take what was learnt before."""
        self.known = spec

    def join(self, spec: DataSpec | None) -> None:
        """Take what was learnt from other arrays; `None`: there were none.

        Raises:
            SourceError: They do not fit those that were seen here.
        """
        if self.known is None or spec is None:
            self.known = self.known or spec
        else:
            shape = tuple(-1 if size is None else size for size in spec.shape)  # no size: what is free becomes free
            self._compare(self.known, np.dtype(spec.dtype), (0, *shape) if spec.has_time else shape, "", spec.has_time)

    def learn(self, dtype: np.dtype[Any], shape: tuple[int, ...], where: str, *, has_time: bool | None = None) -> None:
        """Learn from one array.

        Args:
            dtype: In any byte order.
            shape: With time, if it has some.
            where: Location, for error messages.
            has_time: Whether the first axis is time; `None`: as that of the first array, if it has an axis.

        Raises:
            SourceError: It is not like those before.
            ConfigError: The user said how many classes there are, and these are no integers.
        """
        seen = dtype, shape[1:], len(shape), has_time
        if seen == self._usual:
            return
        native = dtype.newbyteorder("=")
        if self.known is None:
            self.known = self._first_spec(native, shape, bool(shape) if has_time is None else has_time, where)
            self._first = where
        else:
            self._compare(self.known, native, shape, where, has_time)
        if self.known.has_time:
            self._usual = seen

    def _first_spec(self, dtype: np.dtype[Any], shape: tuple[int, ...], has_time: bool, where: str) -> DataSpec:
        frame_shape = shape[has_time:]
        if self._num_classes is None:
            return learn_spec(dtype, frame_shape, has_time=has_time)
        if dtype.kind not in "iu":
            raise ConfigError(f"vocab is for class indices, and the {self._what} are {dtype}", where=where)
        return DataSpec(dtype.name, frame_shape, True, self._num_classes, has_time)

    def _compare(
        self, spec: DataSpec, dtype: np.dtype[Any], shape: tuple[int, ...], where: str, has_time: bool | None
    ) -> None:
        fits = dtype.name == spec.dtype and len(shape) == spec.ndim and has_time in (None, spec.has_time)
        if not fits:
            raise SourceError(
                f"{self._what}: this is {dtype.name}{list(shape)}, and {layout_text(spec)} is wanted",
                where=where + (f", compared with {self._first}" if self._first not in ("", where) else ""),
                fix=self._fix,
            )
        sizes = shape[spec.has_time :]
        free = tuple(want if want == size else None for want, size in zip(spec.shape, sizes, strict=True))
        if free != spec.shape:
            self.has_freed = True
            self.known = replace(spec, shape=free, dim=free[-1] if free and not spec.sparse else spec.dim)
