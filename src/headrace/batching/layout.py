"""How the sequences of a batch are laid out in arrays, padded to the longest or stacked.

A column is what one data key holds in all sequences of a batch. It knows the sizes of its values before they are
written, so that the arrays can be allocated first, and then writes each value once, to its final memory. Values come
from memory (`ArrayColumn`) or, in `loading`, from a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, check_count, did_you_mean
from headrace.order.policy import set_field
from headrace.specs import DataSpec

from .windows import slice_pad_zeros


class Column(ABC):
    """The values of one key in all sequences of a batch: arrays of one dtype with the same inner axes.

    Attributes:
        key: The data key.
        num_seqs: Number of values.
        dtype: Dtype of all values.
        inner: The shape of a value without its time axis.
        lengths: Frames of each, `int32[n]`; None if there is no time axis.
    """

    key: str
    num_seqs: int
    dtype: np.dtype[Any]
    inner: tuple[int, ...]
    lengths: NDArray[np.int32] | None

    @abstractmethod
    def write(self, outs: Sequence[NDArray[Any]]) -> None:
        """Write each value into an array of its dtype and shape, in C order; only if there is a time axis."""

    @abstractmethod
    def stack(self, out: NDArray[Any]) -> None:
        """Write all values into one array, `dtype[n, ...]`; only if there is no time axis."""

    def fill(self, out: NDArray[Any]) -> None:
        """Write all values into one array, `dtype[n, T, ...]`; only if each has T frames."""
        self.write(list(out))


class ArrayColumn(Column):
    """Values that are in memory.

    Args:
        key: The data key.
        arrays: The values, at least one, or numbers as one array; the caller ensures that they fit together.
        has_time: Whether the first axis is time.
    """

    def __init__(self, key: str, arrays: Sequence[NDArray[Any]] | NDArray[Any], *, has_time: bool) -> None:
        self.key, self.num_seqs = key, len(arrays)
        self.dtype, self.inner = arrays[0].dtype, arrays[0].shape[has_time:]
        self.lengths = np.fromiter(map(len, arrays), np.int32, len(arrays)) if has_time else None
        self._arrays = arrays

    def write(self, outs: Sequence[NDArray[Any]]) -> None:
        """Copy each value."""
        for out, array in zip(outs, self._arrays, strict=True):
            out[...] = array

    def stack(self, out: NDArray[Any]) -> None:
        """Copy all values."""
        arrays = self._arrays
        if isinstance(arrays, np.ndarray):
            out[...] = arrays
        elif out.ndim > 1 and out.flags.c_contiguous:
            np.concatenate(arrays, out=out.reshape(out.shape[0] * out.shape[1], *out.shape[2:]))
        else:
            for row, array in enumerate(arrays):
                out[row] = array

    def fill(self, out: NDArray[Any]) -> None:
        """Copy all values."""
        self.stack(out)


@dataclass(frozen=True, slots=True)
class TextColumn:
    """Texts or objects: there is no dtype, and there are no inner axes.

    Attributes:
        key: The data key.
        values: Values of each sequence, as they were given.
    """

    key: str
    values: Sequence[Any]

    def texts(self) -> list[Any]:
        """Return them as plain values."""
        return [value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value for value in self.values]


Seq: TypeAlias = Mapping[str, Any]
Allocate: TypeAlias = Callable[[str, tuple[int, ...], np.dtype[Any]], NDArray[Any]]
_TEXT_TYPES = frozenset((str, bytes))
_NUMBER_TYPES = frozenset((bool, int, float, complex, *(np.dtype(char).type for char in "?bhilqBHILQefdFD")))
_TEXT_KINDS = "USO"  # texts, and arrays of objects: not for a model as they are
_dtype, _shape = attrgetter("dtype"), attrgetter("shape")
_SMALL_ROW_BYTES = 4096  # on average: up to this, filling all with padding first is faster than only the gaps


@dataclass(frozen=True)
class LayoutOptions:
    """How arrays are padded.

    Args:
        specs: By data key; a key without a time axis is stacked and not padded. Without a spec, the first axis
            of an array is time.
        pad_values: By data key; 0 for the others.
        multiple_of: Round the number of frames of a padded array up to a multiple, for example 8.

    Raises:
        ConfigError: `multiple_of` is not a positive integer.

    Examples:
        >>> import numpy as np
        >>> from headrace.batching import LayoutOptions, pad_batch
        >>> options = LayoutOptions(pad_values={"data": -1}, multiple_of=4)
        >>> pad_batch([{"data": np.array([1, 2])}], options).arrays["data"].tolist()
        [[1, 2, -1, -1]]
    """

    specs: Mapping[str, DataSpec] = field(default_factory=dict)
    pad_values: Mapping[str, Any] = field(default_factory=dict)
    multiple_of: int = 1

    def __post_init__(self) -> None:
        """Check the number."""
        set_field(self, "multiple_of", check_count("layout: multiple_of", self.multiple_of, minimum=1))

    def has_time(self, key: str) -> bool:
        """Tell whether the first axis of a key is time, according to the specs."""
        return key not in self.specs or self.specs[key].has_time


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Arrays of a batch of B sequences.

    Attributes:
        arrays: By data key: `any[B, T, ...]` if padded, `any[B, ...]` if stacked, a list of B texts or objects.
        lengths: Frames of each sequence, `int32[B]`, by data key; for padded keys only.

    Examples:
        >>> import numpy as np
        >>> from headrace.batching import pad_batch
        >>> pad_batch([{"data": np.array([1, 2])}]).lengths["data"].tolist()
        [2]
    """

    arrays: dict[str, NDArray[Any] | list[Any]]
    lengths: dict[str, NDArray[np.int32]]


def pad_batch(
    seqs: Sequence[Seq],
    options: LayoutOptions | None = None,
    *,
    allocate: Allocate | None = None,
    tags: Sequence[str] | None = None,
) -> PaddedBatch:
    """Lay out the sequences of a batch, one row each.

    Args:
        seqs: Arrays, numbers or texts by data key; the same keys in each.
        options: What to pad with, and how far.
        allocate: Called as `allocate(key, shape, dtype)` for each array; its result is filled, whatever was in it.
        tags: Names of the sequences, for errors.

    Raises:
        SourceError: Sequences do not fit together: different keys, dtypes or inner axes. Key and sequences are named.
        ConfigError: A pad value does not suit its key, or what was allocated has another shape or dtype.

    Examples:
        >>> import numpy as np
        >>> from headrace.batching import pad_batch
        >>> batch = pad_batch([{"data": np.array([1, 2])}, {"data": np.array([3])}])
        >>> batch.arrays["data"].tolist(), batch.lengths["data"].tolist()
        ([[1, 2], [3, 0]], [2, 1])
    """
    options = LayoutOptions() if options is None else options
    return pad_columns(gather_columns(seqs, options, tags), options, checked_allocate(allocate))


def pad_columns(columns: Mapping[str, Column | TextColumn], options: LayoutOptions, allocate: Allocate) -> PaddedBatch:
    """Lay out the columns of a batch, see `pad_batch`; allocated arrays are not checked."""
    batch = PaddedBatch({}, {})
    for key, column in columns.items():
        batch.arrays[key] = lay_out(column, options, allocate)
        if isinstance(column, Column) and column.lengths is not None:
            batch.lengths[key] = column.lengths
    return batch


def lay_out(column: Column | TextColumn, options: LayoutOptions, allocate: Allocate) -> NDArray[Any] | list[Any]:
    """Return the values of a key one row each: padded, stacked, or a list of texts."""
    if isinstance(column, TextColumn):
        return column.texts()
    if column.lengths is None:
        out = allocate(column.key, (column.num_seqs, *column.inner), column.dtype)
        column.stack(out)
        return out
    frames = -(-int(column.lengths.max()) // options.multiple_of) * options.multiple_of
    out = allocate(column.key, (column.num_seqs, frames, *column.inner), column.dtype)
    pad_value = pad_value_of(column, options) if options.pad_values else np.zeros((), column.dtype)[()]
    lengths = column.lengths.tolist()
    if lengths.count(frames) == len(lengths):  # there is nothing to be padded
        column.fill(out)
        return out
    if out.nbytes <= column.num_seqs * _SMALL_ROW_BYTES:
        out[...] = pad_value
    else:
        for row, length in zip(out, lengths, strict=True):
            row[length:] = pad_value
    column.write([row[:length] for row, length in zip(out, lengths, strict=True)])
    return out


def gather_columns(
    seqs: Sequence[Seq], options: LayoutOptions, tags: Sequence[str] | None
) -> dict[str, Column | TextColumn]:
    """Return the columns of a batch by data key, in the order of the first sequence; none for no sequences.

    Raises:
        SourceError: Sequences do not fit together.
        ConfigError: A pad value is for an unknown key.
    """
    if not seqs:
        return {}
    keys, keys_of_first = list(seqs[0]), seqs[0].keys()
    for row, seq in () if len(set(map(tuple, seqs))) == 1 else enumerate(seqs):  # mostly in one order, too
        if seq.keys() != keys_of_first:
            odd = sorted(seq.keys() ^ keys_of_first)
            raise SourceError(
                f"the sequences of a batch have different data keys: {odd[0]!r} is not in all of them",
                where=name_seqs(tags, 0, row),
            )
    unknown = [key for key in options.pad_values if key not in seqs[0]]
    if unknown:
        raise ConfigError(f"pad_values has no such data key: {unknown[0]!r}", fix=did_you_mean(unknown[0], keys))
    return {key: _gather_column(key, [seq[key] for seq in seqs], options, tags) for key in keys}


def _gather_column(
    key: str, values: list[Any], options: LayoutOptions, tags: Sequence[str] | None
) -> Column | TextColumn:
    kinds = set(map(type, values))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind in _TEXT_TYPES:
        return TextColumn(key, values)
    if kind in _NUMBER_TYPES:
        numbers = np.asarray(values)
        if numbers.dtype == kind:  # no integer is too large for it
            return ArrayColumn(key, numbers, has_time=False)
    try:
        arrays: list[NDArray[Any]] = values
        if kind is not np.ndarray:
            arrays = [value if type(value) is np.ndarray else np.asarray(value) for value in values]
    except ValueError as error:  # nested lists of unequal lengths
        raise SourceError(f"the data key {key!r} holds something that is not an array: {error}") from None
    if kind is list and [] in values:  # an empty list says no dtype: that of the others counts
        dtype = next((array.dtype for array in arrays if array.size), arrays[0].dtype)
        arrays = [array if array.size else array.astype(dtype) for array in arrays]
    first = arrays[0]
    if first.dtype.kind in _TEXT_KINDS and all(array.dtype.kind in _TEXT_KINDS for array in arrays):
        return TextColumn(key, values)
    has_time = first.ndim > 0 and options.has_time(key)
    if all(map(is_, map(_dtype, arrays), repeat(first.dtype))):  # mostly they are alike, and have few shapes
        inner = {(len(shape), shape[has_time:]) for shape in set(map(_shape, arrays))}
        if len(inner) == 1:
            return ArrayColumn(key, arrays, has_time=has_time)
    layouts = [(array.dtype, array.ndim, array.shape[has_time:]) for array in arrays]
    if layouts.count(layouts[0]) < len(layouts):
        row, layout = next((row, layout) for row, layout in enumerate(layouts) if layout != layouts[0])
        whats = zip(("dtype", "number of axes", "shape"), layouts[0], layout, strict=True)
        what, ours, theirs = next(difference for difference in whats if difference[1] != difference[2])
        raise SourceError(
            f"the data key {key!r} has another {what} in two sequences of a batch: {ours} and {theirs}",
            where=name_seqs(tags, 0, row),
            fix="only the first axis, time, may differ in length; make them equal in a transform (images of a file: "
            "size=[height, width] of the source or field), or give collate=",
        )
    return ArrayColumn(key, arrays, has_time=has_time)


def name_seqs(tags: Sequence[str] | None, *rows: int) -> str:
    """Name sequences of a batch, by their numbers in it, for an error."""
    return " and ".join(f"sequence {row} of the batch" if tags is None else repr(tags[row]) for row in rows)


def pad_value_of(column: Column, options: LayoutOptions) -> Any:
    """Return the pad value of a key.

    Raises:
        ConfigError: The dtype of the key cannot hold it.
    """
    value = options.pad_values.get(column.key, 0)
    with np.errstate(all="ignore"):
        try:
            held = np.asarray(value).astype(column.dtype)
            if column.dtype.kind in "fc":  # may be rounded, but not to infinity
                is_held = held.ndim == 0 and bool(np.isinf(held) == np.isinf(value))
            else:
                is_held = held.ndim == 0 and bool(held == value)
        except (TypeError, ValueError, OverflowError):
            is_held = False
    if not is_held:
        raise ConfigError(f"the pad value {value!r} does not fit into {column.dtype}", where=f"data key {column.key!r}")
    return held[()]


def checked_allocate(allocate: Allocate | None) -> Allocate:
    """Return the default allocator, or the user's with its results checked.

    Raises:
        ConfigError: Raised by the allocator: a result has not the requested shape and dtype.
    """
    if allocate is None:
        return _new_array

    def allocate_checked(key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        out = allocate(key, shape, dtype)
        if out.shape != shape or out.dtype != dtype or not out.flags.writeable:
            raise ConfigError(
                f"the output for {key!r} must be a writable {dtype} of shape {shape}, got {out.dtype} of shape "
                f"{out.shape}"
            )
        return out

    return allocate_checked


def _new_array(key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:  # noqa: ARG001
    return np.empty(shape, dtype)


def cut_seq(seq: Seq, start: int, frames: int, data_key: str, whole_keys: Sequence[str] = ()) -> dict[str, Any]:
    """Cut a chunk out of a sequence, as a plan has it.

    Args:
        seq: Values by data key.
        start: First frame; less than 0 for context before the sequence.
        frames: Length of the chunk; frames outside of the sequence are zeros.
        data_key: The key that is the reference. All keys with as many frames are cut alike; texts, scalars and arrays
            of at most one frame are given in full.
        whole_keys: Keys that are given in full, whatever their length.

    Returns:
        Values by data key; views where no zeros are needed.

    Raises:
        ConfigError: There is no such reference, or a key has another number of frames, so that its part of the chunk is
            unknown.
    """
    num_frames = {key: frames_to_cut(value) for key, value in seq.items()}
    if data_key in seq and np.ndim(seq[data_key]):  # a row of texts can be the reference
        num_frames[data_key] = len(seq[data_key])
    cut = find_cut_keys(num_frames, data_key, whole_keys)
    return {
        key: slice_pad_zeros(np.asarray(value), start, start + frames) if key in cut else value
        for key, value in seq.items()
    }


def frames_to_cut(value: Any) -> int | None:
    """Return how many frames a value has; `None` if it is a text or a scalar, which cannot be cut."""
    array = np.asarray(value)
    return None if array.ndim == 0 or array.dtype.kind in _TEXT_KINDS else len(array)


def find_cut_keys(
    num_frames: Mapping[str, int | None], data_key: str, whole_keys: Sequence[str] = ()
) -> frozenset[str]:
    """Return the keys of a sequence that are cut with the reference; the others are given in full, see `cut_seq`.

    Args:
        num_frames: Data key -> frames, `None` for what cannot be cut.
        data_key: The key that is the reference.
        whole_keys: Keys that are given in full, whatever their length.

    Raises:
        ConfigError: As `cut_seq`.
    """
    if data_key not in num_frames:
        raise ConfigError(f"no data key {data_key!r} to cut by", fix=did_you_mean(data_key, num_frames))
    wanted = num_frames[data_key]
    if wanted is None:
        raise ConfigError(f"the data key {data_key!r} has no time axis to cut by", fix="name another in data_key")
    cut = set()
    for key, frames in num_frames.items():
        if key != data_key and (frames is None or key in whole_keys):
            continue
        if frames == wanted:
            cut.add(key)
        elif frames is not None and frames > 1:
            raise ConfigError(
                f"the data key {key!r} has {frames} frames and {data_key!r} has {wanted}: it cannot be cut",
                fix=f"name {key!r} in whole_keys=(...) of Chunks, or drop it in a transform, or do not cut",
            )
    return frozenset(cut)
