"""The arrays of many sequences, as columns: what each key is, and where the bytes of each array are.

All sequences must have the same keys, with the same dtype and frame shape; where two differ, both are named. An axis
may differ only if the caller said so (`None` in its spec): a matrix that lies the wrong way round must not pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.specs import DataSpec

from .data_types import parse_data_types

# How bytes become numbers where they are not just the numbers in C order; sums of these.
FORTRAN, SWAPPED, DEFLATED, BFLOAT16 = 1, 2, 4, 8
_Said = TypeVar("_Said")
_WIDE = np.dtype(np.float32)  # what bfloat16, which NumPy does not have, becomes


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of one sequence.

    Attributes:
        dtype: As stored, with its byte order; uint16 for bfloat16.
        shape: With time, if it has some.
        at: Where its bytes begin in their file.
        form: See above.
        packed: Bytes that it takes, if it is deflated (then it begins with its header).
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    at: int
    form: int = 0
    packed: int = 0

    @property
    def numbers(self) -> np.dtype[Any]:
        """The dtype that a reader gets."""
        return _WIDE if self.form & BFLOAT16 else self.dtype.newbyteorder("=")


class ArrayTable:
    """Takes down the arrays of sequences, in the order of the corpus.

    Args:
        specs: Layouts, see `parse_data_types`; where a data key has none, the first sequence says it.
        fields: Data key -> name of the stored array; `None` takes all under their own names.
    """

    def __init__(self, specs: Mapping[str, Any] | None, fields: Mapping[str, str] | None) -> None:
        self.specs = parse_data_types(specs or {})
        self._fields = fields
        unknown = sorted(set(self.specs) - set(self.specs if fields is None else fields))
        if unknown:
            raise ConfigError(f"there is a spec for {unknown[0]!r}", fix=did_you_mean(unknown[0], fields or ()))
        self._names: dict[str, str] | None = None if fields is None else dict(fields)
        self._columns: dict[str, list[StoredArray]] = {}
        self._first = ""  # the sequence that others are compared with
        self.tags: list[str] = []

    def add(self, tag: str, arrays: Mapping[str, StoredArray], where: str) -> None:
        """Take down one sequence.

        Raises:
            SourceError: Its arrays are not like those before.
        """
        if self._names is None:
            self._names = {name: name for name in arrays}
            unknown = sorted(set(self.specs) - set(arrays))
            if unknown:
                fix = did_you_mean(unknown[0], arrays)
                raise SourceError(f"there is a spec for {unknown[0]!r}, which is not there", where=where, fix=fix)
        if not self._columns:
            self._first = where
            self._columns = {key: [] for key in self._names}
        missing = [name for name in self._names.values() if name not in arrays]
        extra = set(arrays) - set(self._names.values()) if self._fields is None else set()
        if missing or extra:
            raise SourceError(
                f"the sequence has the arrays {sorted(arrays)}, but {sorted(self._names.values())} are wanted",
                where=where + self._compared_with(where),
                fix="give every sequence the same arrays, or name those to use by fields=",
            )
        for key, name in self._names.items():
            array = arrays[name]
            self._check(key, array, where)
            self._columns[key].append(array)
        self.tags.append(tag)

    def _check(self, key: str, array: StoredArray, where: str) -> None:
        spec = self.specs.get(key)
        if spec is None:
            self.specs[key] = _learn(array)
            return
        shape = array.shape[1:] if spec.has_time else array.shape
        fits = array.numbers == np.dtype(spec.dtype) and len(array.shape) == spec.ndim
        if not fits or any(want not in (None, size) for want, size in zip(spec.shape, shape, strict=True)):
            raise SourceError(
                f"{key!r} is {array.numbers.name}{list(array.shape)}, but {_text(spec)} is wanted",
                where=where + self._compared_with(where),
                fix="convert one of them; where an axis may differ, give specs= with None for it",
            )

    def _compared_with(self, where: str) -> str:
        return f", compared with {self._first}" if self._first not in ("", where) else ""

    @property
    def columns(self) -> dict[str, list[StoredArray]]:
        """Data key -> its array in each sequence; without sequences, the keys that were said."""
        return self._columns or {key: [] for key in self._names or self.specs}

    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return data key -> frames of each sequence, `int64[N]`; 1 without time."""
        has_time = {key: key in self.specs and self.specs[key].has_time for key in self.columns}
        return {
            key: np.array([array.shape[0] if has_time[key] else 1 for array in arrays], np.int64)
            for key, arrays in self.columns.items()
            if key in self.specs
        }

    def locators(self) -> dict[str, NDArray[Any]]:
        """Return the columns that say where each array is, see `array_source.py`."""
        columns: dict[str, NDArray[Any]] = {}
        for key, arrays in self.columns.items():
            columns[f"at:{key}"] = np.array([array.at for array in arrays], np.int64)
            if any(array.form for array in arrays):
                columns[f"form:{key}"] = np.array([array.form for array in arrays], np.uint8)
            if any(array.form & DEFLATED for array in arrays):
                columns[f"packed:{key}"] = np.array([array.packed for array in arrays], np.int64)
            spec = self.specs.get(key)
            for axis, size in enumerate(spec.shape if spec else ()):
                if size is None:
                    sizes = [array.shape[axis + int(self.specs[key].has_time)] for array in arrays]
                    columns[f"axis{axis}:{key}"] = np.array(sizes, np.int64)
        return columns


def fields_of(fields: Mapping[str, Any] | None, owner: str) -> dict[str, str] | None:
    """Read the option `fields`: data key -> name of an array, or `{"field": name}`.

    Raises:
        ConfigError: It has another form.
    """
    if fields is None:
        return None
    if not isinstance(fields, Mapping):
        raise ConfigError(f"fields is a dict from data keys to names of arrays, not {fields!r}", where=owner)
    names = {}
    for key, field in fields.items():
        name = field.get("field") if isinstance(field, Mapping) and set(field) == {"field"} else field
        if not isinstance(name, str) or not isinstance(key, str):
            raise ConfigError(
                f"the field of {key!r} cannot be read: {field!r}", where=owner, fix="give the name of an array"
            )
        names[key] = name
    return names


def renamed(said: Mapping[str, _Said], fields: Mapping[str, str] | None) -> dict[str, _Said]:
    """Return what files say of their arrays by the data keys that these have, see `fields_of`."""
    return dict(said) if fields is None else {key: said[name] for key, name in fields.items() if name in said}


def with_labels(specs: Mapping[str, DataSpec], labels: Mapping[str, Sequence[str]]) -> dict[str, DataSpec]:
    """Return the specs, with the number of classes by that of the labels where it is not known.

    Raises:
        ConfigError: Labels for a key that is not there, or not so many as there are classes.
    """
    complete = dict(specs)
    for key, names in labels.items():
        if key not in specs:
            raise ConfigError(f"labels for the unknown data key {key!r}", fix=did_you_mean(key, specs))
        if specs[key].sparse and specs[key].dim is None:
            complete[key] = replace(specs[key], dim=len(names))
        elif specs[key].dim != len(names):
            raise ConfigError(f"{key!r} has the dim {specs[key].dim}, but {len(names)} labels")
    return complete


def _learn(array: StoredArray) -> DataSpec:
    """Take the layout of a first array: the first axis is time; how many classes there are is not known."""
    dtype, shape = array.numbers, array.shape
    sparse = dtype.kind in "iu" and len(shape) <= 1
    dim = None if sparse else (shape[-1] if len(shape) > 1 else 1)
    return DataSpec(dtype.name, tuple(shape[1:]), sparse=sparse, dim=dim, has_time=bool(shape))


def _text(spec: DataSpec) -> str:
    axes = [*(["T"] if spec.has_time else []), *("?" if size is None else str(size) for size in spec.shape)]
    return f"{spec.dtype}[{', '.join(axes)}]"
