"""Small corpora that `check_format` writes: layouts of every kind, with sequences, labels, tags, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.specs import DataSpec

Seq = tuple[str, dict[str, NDArray[Any]]]

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_DTYPES = ("bool", *_INTEGERS, "float16", "float32", "float64", "complex64", "complex128")
_LENGTHS = (3, 0, 1, 6)

# Each comes back as it is, or is refused.
TAGS = (
    *("plain", "two words", "a.b", "a..b", "a/b", "a//b", "a\\b", "/a", "../a", ".hidden", "doc-3", "x" * 300),
    *("\u00fc-\u8a9e-\U0001f3b5", "e\u0301", "\u00e9", "tab\there", "line\nend", "line\r\nend", "line\u2028end"),
    *("nul\0", "", " ", " a ", "'\"", "{}", "%s", "con:", "-", "plain", "plain/more"),
)
BAD_TAGS: tuple[Any, ...] = (b"bytes", 7, None, "half a pair \ud800")


@dataclass(frozen=True)
class Corpus:
    """Sequences of one layout.

    Attributes:
        specs: Data key -> layout.
        seqs: Tag and arrays of each.
        labels: Data key -> class labels.
        tells_specs: Whether the writer is told the layout, rather than learning it from the first sequence.
    """

    specs: dict[str, DataSpec]
    seqs: list[Seq]
    labels: dict[str, list[str]] = field(default_factory=dict)
    tells_specs: bool = True

    def __str__(self) -> str:
        labels = f" with labels {self.labels}" if self.labels else ""
        return f"{self.specs}{labels}{'' if self.tells_specs else ', learnt'}"

    @property
    def lacks_labels(self) -> bool:
        """Whether classes come after those with labels."""
        return any(len(labels) < (self.specs[key].dim or 0) for key, labels in self.labels.items())

    @property
    def kind(self) -> tuple[object, ...]:
        """What corpora that a format treats alike have in common."""
        keys = [(spec.sparse, bool(spec.shape), spec.has_time) for spec in self.specs.values()]
        return tuple(keys), bool(self.labels), self.tells_specs


def corpora() -> Iterator[Corpus]:
    """Yield corpora of all layouts; where the numbers alone say the layout, also as one that is learnt."""
    rng = np.random.default_rng(0)
    for specs, labels in _layouts():
        seqs: list[Seq] = []
        for length in _LENGTHS:
            arrays = {key: _array_of(spec, length, len(labels.get(key, ())), rng) for key, spec in specs.items()}
            seqs.append((f"seq-{length}", arrays))
        corpus = Corpus(specs, seqs, labels)
        yield corpus
        if all(not spec.shape and spec.has_time for spec in specs.values()):
            yield replace(corpus, tells_specs=False)
    yield replace(corpus, seqs=[])
    yield replace(corpus, seqs=[], tells_specs=False)


def _layouts() -> Iterator[tuple[dict[str, DataSpec], dict[str, list[str]]]]:
    """Yield layouts and labels."""
    for dtype in _DTYPES:
        yield {"data": DataSpec(dtype, dim=1)}, {}
        yield {"data": DataSpec(dtype, (2,), dim=2)}, {}
        yield {"data": DataSpec(dtype, (2,), dim=2, has_time=False)}, {}
    for dtype in _INTEGERS:
        yield {"classes": DataSpec(dtype, sparse=True)}, {}
    classes, five = DataSpec("int32", sparse=True, dim=5), list("abcde")
    yield {"classes": classes}, {}
    yield {"classes": classes}, {"classes": five}
    yield {"classes": classes}, {"classes": ["\u00fc", "", "a b", "line\nend", "<blank>"]}
    yield {"classes": classes}, {"classes": ["fewer"]}
    yield {"classes": replace(classes, dim=None)}, {"classes": five}
    yield {"classes": replace(classes, has_time=False)}, {}
    yield {"data": DataSpec("float32", dim=1, has_time=False)}, {}
    yield {"data": DataSpec("float32", (3, 1), dim=1)}, {}
    yield {"data": DataSpec("float32", (2, None))}, {}
    yield {"data": DataSpec("float32", (1,), dim=1), "orth": DataSpec("uint8", sparse=True, dim=256)}, {}
    yield {"data": DataSpec("float32", (4,), dim=4), "classes": classes}, {"classes": five}


def _array_of(spec: DataSpec, length: int, num_labels: int, rng: np.random.Generator) -> NDArray[Any]:
    shape = [*([length] if spec.has_time else []), *(int(rng.integers(1, 4)) if n is None else n for n in spec.shape)]
    dtype = np.dtype(spec.dtype)
    if spec.sparse:
        return rng.integers(0, min(spec.dim or num_labels or 100, 100), shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape).astype(bool))
    return np.asarray(rng.standard_normal(shape) + (1j if dtype.kind == "c" else 0)).astype(dtype)


def wrong_seqs(corpus: Corpus, *, is_first: bool) -> Iterator[tuple[str, Any]]:
    """Yield what cannot be a sequence of a corpus, each with a name.

    Args:
        corpus: The corpus.
        is_first: Whether the layout is still to be learnt, so that any numbers are right.
    """
    arrays = corpus.seqs[0][1]
    yield "an empty dict", {}
    yield "None", None
    if not is_first:
        yield "one key too many", {**arrays, "more": next(iter(arrays.values()))}
    for key, array in arrays.items():
        for wrong in (np.array(["a", "b"]), np.array([None, {}]), np.array(["2020-01-01"], "datetime64[D]")):
            yield f"an array of {wrong.dtype}", {**arrays, key: wrong}
        if not is_first:
            yield "one key too few", {name: value for name, value in arrays.items() if name != key}
            for what, wrong in _wrong_arrays(corpus, key, array):
                yield what, {**arrays, key: wrong}


def _wrong_arrays(corpus: Corpus, data_key: str, array: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    spec = corpus.specs[data_key]
    yield "two axes too many", array[..., None, None]
    yield "another kind of numbers", array.astype(np.complex64 if array.dtype.kind != "c" else bool)
    if spec.shape and spec.shape[-1] is not None:
        yield "a longer frame", np.concatenate([array, array], axis=-1)
    num_classes = len(corpus.labels.get(data_key, ())) or (spec.dim if corpus.tells_specs else None)
    if spec.sparse and num_classes is not None and np.can_cast(np.min_scalar_type(num_classes), array.dtype):
        yield "a class beyond the last", np.full_like(array, max(num_classes, spec.dim or 0))
