"""Sources whose arrays are plain bytes in files, and the table of where these bytes are.

All sequences must have the same keys, with the same dtype and frame shape; where two differ, both are named. An axis
may differ only if the caller said so (`None` in its spec): a matrix that lies the wrong way round must not pass.

Columns of the index, for each data key k: `at:k`, where its bytes begin; `form:k`, where they are not just numbers in C
order (see `FORTRAN` and the others); `packed:k`, how many bytes a deflated array takes; `axisA:k`, the size of a free
axis. An array that is plain is read by one `pread` of exactly what was asked for.
"""

from __future__ import annotations

import math
import zlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.specs import DataSpec

from ..shared.codec import SpecLearner
from ..shared.data_types import parse_data_types
from ..shared.npy import HEAD_BYTES, parse_npy
from ..shared.source import IndexedSource, PlainKey, column_view

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
    """Collects where the arrays of sequences are, in the order of the corpus.

    Args:
        specs: Layouts, see `parse_data_types`; where a data key has none, the first sequence says it.
        fields: Data key -> name of the stored array; `None` takes all under their own names.
    """

    def __init__(self, specs: Mapping[str, Any] | None, fields: Mapping[str, str] | None) -> None:
        given = parse_data_types(specs or {})
        self._learners = {key: _learner(key, spec) for key, spec in given.items()}
        self._fields = fields
        unknown = sorted(set(given) - set(given if fields is None else fields))
        if unknown:
            raise ConfigError(f"there is a spec for {unknown[0]!r}", fix=did_you_mean(unknown[0], fields or ()))
        self._names: dict[str, str] | None = None if fields is None else dict(fields)
        self._columns: dict[str, list[StoredArray]] = {}
        self._first = ""  # the sequence that others are compared with
        self.tags: list[str] = []

    def add(self, tag: str, arrays: Mapping[str, StoredArray], where: str) -> None:
        """Add one sequence.

        Raises:
            SourceError: Its arrays are not like those before.
        """
        if self._names is None:
            self._names = {name: name for name in arrays}
            unknown = sorted(set(self._learners) - set(arrays))
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
                where=where if self._first == where else f"{where}, compared with {self._first}",
                fix="give every sequence the same arrays, or name those to use by fields=",
            )
        for key, name in self._names.items():
            array = arrays[name]
            if key not in self._learners:
                self._learners[key] = _learner(key, None)
            self._learners[key].learn(array.numbers, array.shape, where)
            self._columns[key].append(array)
        self.tags.append(tag)

    @property
    def specs(self) -> dict[str, DataSpec]:
        """Data key -> layout, as far as it is known."""
        return {key: learner.known for key, learner in self._learners.items() if learner.known is not None}

    @property
    def columns(self) -> dict[str, list[StoredArray]]:
        """Data key -> its array in each sequence; without sequences, the keys that were said."""
        return self._columns or {key: [] for key in self._names or self._learners}

    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return data key -> frames of each sequence, `int64[N]`; 1 without a time axis."""
        specs = self.specs
        return {
            key: np.array([array.shape[0] if specs[key].has_time else 1 for array in arrays], np.int64)
            for key, arrays in self.columns.items()
            if key in specs
        }

    def locators(self) -> dict[str, NDArray[Any]]:
        """Return the columns that say where each array is, see `PlainArraySource`."""
        columns: dict[str, NDArray[Any]] = {}
        specs = self.specs
        for key, arrays in self.columns.items():
            columns[f"at:{key}"] = np.array([array.at for array in arrays], np.int64)
            if any(array.form for array in arrays):
                columns[f"form:{key}"] = np.array([array.form for array in arrays], np.uint8)
            if any(array.form & DEFLATED for array in arrays):
                columns[f"packed:{key}"] = np.array([array.packed for array in arrays], np.int64)
            spec = specs.get(key)
            for axis, size in enumerate(spec.shape if spec else ()):
                if size is None:
                    sizes = [array.shape[axis + int(specs[key].has_time)] for array in arrays]
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


def _learner(key: str, given: DataSpec | None) -> SpecLearner:
    fix = "convert one of them; where an axis may differ, give specs= with None for it"
    return SpecLearner(repr(key), given, fix=fix)


@dataclass(frozen=True, slots=True)
class _Column:
    """Precomputed values of one key, for fast reads."""

    spec: DataSpec
    dtype: np.dtype[Any]
    lengths: memoryview[int]
    at: memoryview[int]
    forms: memoryview[int] | None
    packed: memoryview[int] | None
    axes: dict[int, memoryview[int]]


class PlainArraySource(IndexedSource):
    """Reads the arrays of an index. A sub-class opens the index, and says which file is meant; its options are a root.

    Keys are plain if all their arrays are, and have no free axis; of others, arrays that are plain are still read by
    exactly the bytes that are asked for.
    """

    _options: str

    def _prepare(self) -> None:
        self._folder_key = self._index.meta.get("folder_key")
        self._columns = {key: self._column(key) for key in self.specs if key != self._folder_key}
        for key, column in self._columns.items():
            if column.forms is None and not column.axes:
                self._plain[key] = PlainKey.of(column.spec, self._index.lengths(key))

    def _column(self, key: str) -> _Column:
        spec, index = self.specs[key], self._index
        about = index.meta["forms"].get(key, [False, False])
        return _Column(
            spec,
            np.dtype(spec.dtype),
            column_view(index.lengths(key)),
            column_view(index.locator(f"at:{key}")),
            column_view(index.locator(f"form:{key}")) if about[0] else None,
            column_view(index.locator(f"packed:{key}")) if about[1] else None,
            {a: column_view(index.locator(f"axis{a}:{key}")) for a, size in enumerate(spec.shape) if size is None},
        )

    def reads_slices(self, data_key: str) -> bool:
        """Yes, if all arrays of the key are stored as their numbers in C order."""
        column = self._columns.get(data_key)
        return column is not None and column.forms is None

    @property
    def has_fast_rows(self) -> bool:
        """Yes, if all stored keys are plain."""
        return bool(self._columns) and all(key in self._plain for key in self._columns)

    @property
    def root(self) -> str:
        """The folder that the files are relative to."""
        return self._options

    @abstractmethod
    def _file_of(self, corpus_idx: int, data_key: str) -> int:
        """Return the number of the file that holds an array."""

    def _locate(self, corpus_idx: int, data_key: str) -> tuple[int, int, int]:
        position = self._columns[data_key].at[corpus_idx]
        if position < 0:
            raise self._index.damaged(f"it says that {data_key!r} of sequence {corpus_idx} is at byte {position}")
        plain = self._plain.get(data_key)
        num_bytes = 0 if plain is None else plain.lengths[corpus_idx] * plain.frame_bytes
        return self._file_of(corpus_idx, data_key), position, num_bytes

    def _load(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        if data_key == self._folder_key:
            return np.array([int(self._index.locator("folder")[corpus_idx])], np.int32)
        column = self._columns[data_key]
        return self._load_part(corpus_idx, data_key, 0, column.lengths[corpus_idx])

    def _load_part(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        if data_key == self._folder_key:
            return self._load(corpus_idx, data_key)[start:end]
        column = self._columns[data_key]
        if end < start:
            raise self._index.damaged(f"the length of {data_key!r} of sequence {corpus_idx} is {end}")
        free = column.axes
        frame_shape = tuple(free[a][corpus_idx] if size is None else size for a, size in enumerate(column.spec.shape))
        form = column.forms[corpus_idx] if column.forms is not None else 0
        if form:
            shape = (column.lengths[corpus_idx], *frame_shape) if column.spec.has_time else frame_shape
            whole = self._read_form(column, corpus_idx, data_key, shape, form)
            return np.asarray(whole[start:end] if column.spec.has_time else whole, order="C")
        shape = (end - start, *frame_shape) if column.spec.has_time else frame_shape
        file_idx, position, _ = self._locate(corpus_idx, data_key)
        position += start * math.prod(frame_shape) * column.dtype.itemsize
        return self._files.read_array(file_idx, position, shape, column.dtype)

    def _read_form(
        self, column: _Column, corpus_idx: int, data_key: str, shape: tuple[int, ...], form: int
    ) -> NDArray[Any]:
        """Return an array that is not stored as its numbers in C order."""
        has_no_packed = form & DEFLATED and column.packed is None
        if not 0 < form < 2 * BFLOAT16 or has_no_packed or (form & BFLOAT16 and column.dtype != np.float32):
            raise self._index.damaged(f"it says that {data_key!r} of sequence {corpus_idx} has the form {form}")
        stored = np.dtype(np.uint16) if form & BFLOAT16 else column.dtype
        file_idx, position, _ = self._locate(corpus_idx, data_key)
        size = math.prod(shape)
        if form & DEFLATED:
            assert column.packed is not None
            packed = self._files.read(file_idx, position, column.packed[corpus_idx])
            where = f"{self._index.tags[corpus_idx]!r}, data key {data_key!r}"
            flat = _inflated(packed, size * stored.itemsize, where).view(stored)
        else:
            flat = self._files.read_array(file_idx, position, (size,), stored)
        if form & SWAPPED:
            flat.byteswap(inplace=True)
        if form & BFLOAT16:
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
        return flat.reshape(shape, order="F" if form & FORTRAN else "C")


def _inflated(packed: bytes, num_bytes: int, where: str) -> NDArray[np.uint8]:
    """Return the numbers of a deflated `.npy`, without its header."""
    try:
        unpack = zlib.decompressobj(-zlib.MAX_WBITS)
        content = unpack.decompress(packed, num_bytes + HEAD_BYTES)
        begin = parse_npy(content[:HEAD_BYTES], where).num_bytes
    except zlib.error as error:
        raise SourceError(f"a compressed array is damaged: {error}", where=where, fix="restore the file") from error
    if len(content) != begin + num_bytes:
        raise SourceError(
            f"a compressed array has {len(content) - begin} bytes, not {num_bytes}", where=where, fix="restore the file"
        )
    return np.frombuffer(content, np.uint8, offset=begin).copy()
