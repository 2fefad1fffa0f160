"""Layouts that the user declares; learns layouts from arrays, and checks arrays against them.

`parse_data_types` reads the dict form (`{"data": {"shape": (None, 40)}}`), `learn_specs` looks at a sequence
instead; `checked_seq` compares a sequence with the specs; `as_array` takes what Python programs have in place of an
array.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.specs import DataSpec, takes_for_classes

_OPTIONS = ("shape", "dtype", "dim", "sparse", "sparse_dim", "feature_dim")
_MISMATCH_FIX = "correct the array, or the specs; only the first axis, time, may differ from sequence to sequence"
_NUMBER_KINDS = "biufc"
_FEW = 32  # numbers, of which Python finds the least and the largest in half of NumPy's time


def parse_data_types(data_types: Mapping[str, DataSpec | Mapping[str, Any]]) -> dict[str, DataSpec]:
    """Read specs by data key.

    Args:
        data_types: Data key -> `DataSpec`, or a dict of these options:
            `shape`: axes of an array, `None` first for time (default: `(None,)`, with `(None, dim)` for dense data);
            `dtype`: default "int32" for sparse data, else "float32";
            `sparse`: whether values are class indices (default: whether `sparse_dim` is given);
            `dim`: number of classes of sparse data, else size of the last axis; `sparse_dim` and `feature_dim` are
            other names for it.

    Raises:
        ConfigError: An unknown option, or options that contradict each other.
    """
    return {key: _parse_data_type(key, options) for key, options in data_types.items()}


def _parse_data_type(key: str, options: DataSpec | Mapping[str, Any]) -> DataSpec:
    if isinstance(options, DataSpec):
        return options
    where = f"data key {key!r}"
    if not isinstance(options, Mapping):
        raise ConfigError(f"a data type is a dict or a DataSpec, not {options!r}", where=where)
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError(
                f"unknown option {name!r} of a data type", where=where, fix=did_you_mean(str(name), _OPTIONS)
            )
    sparse = options.get("sparse", options.get("sparse_dim") is not None)
    if not isinstance(sparse, bool):
        raise ConfigError(f"sparse is True or False, not {sparse!r}", where=where)
    dims = {name: options[name] for name in ("dim", "sparse_dim", "feature_dim") if options.get(name) is not None}
    if len(set(dims.values())) > 1:
        raise ConfigError(f"options that mean the same disagree: {dims}", where=where, fix="give only dim")
    dim = next(iter(dims.values()), None)
    shape = options.get("shape")
    shape = ((None,) if sparse or dim is None else (None, dim)) if shape is None else shape
    if not isinstance(shape, tuple | list) or not all(size is None or _is_size(size) for size in shape):
        raise ConfigError(f"a shape is a tuple of sizes, None for a free axis, not {shape!r}", where=where)
    if dim is not None and not _is_size(dim):
        raise ConfigError(f"dim is a number of classes or features, not {dim!r}", where=where)
    shape, dim = tuple(None if size is None else int(size) for size in shape), None if dim is None else int(dim)
    has_time = bool(shape) and shape[0] is None
    frame_shape = shape[1:] if has_time else shape
    if not sparse:
        last = frame_shape[-1] if frame_shape else 1
        if dim is not None and last is not None and dim != last:
            raise ConfigError(f"dim is {dim}, but the last axis of shape {shape} has {last}", where=where)
        dim = last if last is not None else dim
    dtype = options.get("dtype", "int32" if sparse else "float32")
    spec = DataSpec(dtype=str(dtype), shape=frame_shape, sparse=sparse, dim=dim, has_time=has_time)
    kind = np.dtype(spec.dtype).kind
    if kind not in _NUMBER_KINDS or (sparse and kind not in "iu"):
        raise ConfigError(f"{'sparse data' if sparse else 'data'} cannot have the dtype {dtype!r}", where=where)
    return spec


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 0)


def learn_specs(seq: Mapping[str, Any], where: str) -> dict[str, DataSpec]:
    """Take the layouts from one sequence: the first axis is time, integers with at most that axis are class indices.

    How many classes there are is not known from one sequence: the dim of a sparse key is `None`.
    """
    arrays = {key: as_array(value, None, f"{where}, data key {key!r}") for key, value in seq.items()}
    return {key: learn_spec(array.dtype, array.shape[1:], has_time=array.ndim > 0) for key, array in arrays.items()}


def learn_spec(
    dtype: np.dtype[Any], frame_shape: Sequence[int | None], *, has_time: bool, num_classes: int | None = None
) -> DataSpec:
    """Infer the layout of arrays whose layout was not declared: the one rule that all formats follow.

    Args:
        dtype: Dtype of the arrays, in native byte order.
        frame_shape: Their axes but time; `None` for one that differs.
        has_time: Whether the first axis is time.
        num_classes: The number of classes, if the numbers are classes and it is known.
    """
    shape = tuple(frame_shape)
    if takes_for_classes(dtype, len(shape) + int(has_time)):
        return DataSpec(dtype.name, shape, sparse=True, dim=num_classes, has_time=has_time)
    return DataSpec(dtype.name, shape, dim=shape[-1] if shape else 1, has_time=has_time)


def checked_seq(
    seq: Mapping[str, Any], specs: Mapping[str, DataSpec], *, exact: bool, where: str
) -> dict[str, NDArray[Any]]:
    """Check the layouts of one sequence's arrays, and return them in the order of the specs, in native byte order.

    Args:
        seq: Data key -> array, or what `as_array` takes.
        specs: The expected layouts.
        exact: Whether a data key that has no spec is an error, rather than left out.
        where: What errors name as the origin.

    Raises:
        SourceError: A key is missing or has another layout.
    """
    if not isinstance(seq, Mapping):
        raise SourceError(f"a sequence is a mapping from data keys to arrays, not {type(seq).__name__}", where=where)
    names = set(seq)
    if names != specs.keys() and (exact or not specs.keys() <= names):
        raise SourceError(
            f"the sequence has the data keys {sorted(map(str, seq))}, not {sorted(specs)}",
            where=where,
            fix="give every sequence the same keys, or name the ones to use in the specs",
        )
    arrays = {}
    for key, spec in specs.items():
        value = seq[key]
        is_array = type(value) is np.ndarray and value.dtype.kind in _NUMBER_KINDS
        arrays[key] = array = native(value if is_array else as_array(value, spec, f"{where}, data key {key!r}"))
        mismatch = find_mismatch(array, spec)
        if mismatch:
            raise SourceError(mismatch, where=f"{where}, data key {key!r}", fix=_MISMATCH_FIX)
    return arrays


def find_mismatch(array: NDArray[Any], spec: DataSpec) -> str | None:
    """Describe how an array's layout differs from its spec; `None` if it fits. The numbers are not read."""
    if array.dtype != np.dtype(spec.dtype):
        return f"the dtype is {array.dtype.name}, not {spec.dtype}"
    if array.ndim != spec.ndim:
        return f"the array has {array.ndim} axes, shape {array.shape}, not {spec.ndim}{' with time' * spec.has_time}"
    frame_shape = array.shape[1:] if spec.has_time else array.shape
    for ours, expected in zip(frame_shape, spec.shape, strict=True) if frame_shape != spec.shape else ():
        if expected is not None and ours != expected:
            return f"a frame has the shape {frame_shape}, not {spec.shape}"
    return None


def as_array(value: Any, spec: DataSpec | None, where: str) -> NDArray[Any]:
    """Convert an array, a tensor, a number or a list of numbers to an array.

    A tensor is anything with a `numpy()` method (torch: detached and brought to the CPU first). Numbers and lists
    have no dtype of their own and take that of the spec, if no value changes by it but for rounding.

    Raises:
        SourceError: It is nothing of that kind, or a value does not fit into the dtype of the spec.
    """
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
    elif callable(getattr(value, "numpy", None)):
        for step in ("detach", "cpu"):
            value = getattr(value, step, lambda tensor=value: tensor)()
        array = np.asarray(value.numpy())
    else:
        array = _array_of_numbers(value, spec, where)
    if array.dtype.kind not in _NUMBER_KINDS:
        raise SourceError(
            f"this is not an array of numbers: {type(value).__name__} ({array.dtype})",
            where=where,
            fix="give arrays, tensors or lists of numbers; text as uint8 array of its UTF-8 bytes",
        )
    return array


def dtype_of(value: Any) -> np.dtype[Any] | None:
    """Return the dtype of an array or tensor of numbers; `None` for what has none of its own, such as a list."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype if value.dtype.kind in _NUMBER_KINDS else None
    return as_array(value, None, "").dtype if callable(getattr(value, "numpy", None)) else None


def _array_of_numbers(value: Any, spec: DataSpec | None, where: str) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:  # lists of different lengths, odd objects
        raise SourceError(f"{type(value).__name__} is no array: {error}", where=where) from error
    if spec is None or array.dtype.kind not in "biuf" or array.dtype == np.dtype(spec.dtype):
        return array
    if array.size == 0:  # NumPy takes an empty list for floats
        return array.astype(spec.dtype)
    target = np.dtype(spec.dtype)
    integers = array.dtype.kind in "iu" and target.kind in "iu"
    if not integers and not np.can_cast(array.dtype, target, "same_kind"):
        raise SourceError(f"numbers of kind {array.dtype} do not fit into {target}", where=where)
    cast = array.astype(target)
    if integers and not np.array_equal(cast, array):
        raise SourceError(
            f"a value in {int(array.min())}..{int(array.max())} does not fit into {target}",
            where=where,
            fix="give a wider dtype in the specs",
        )
    return cast


def with_labels(
    specs: Mapping[str, DataSpec], labels: Mapping[str, Sequence[str]], *, exact: bool = True
) -> dict[str, DataSpec]:
    """Fill in unknown numbers of classes from the number of labels.

    Args:
        specs: Data key -> layout.
        labels: Data key -> class labels.
        exact: Whether there must be a label for each class.

    Raises:
        ConfigError: Labels for a key that is not there, or another number of labels than of classes.
    """
    complete = dict(specs)
    for key, names in labels.items():
        if key not in specs:
            raise ConfigError(f"labels for the unknown data key {key!r}", fix=did_you_mean(key, specs))
        if specs[key].sparse and specs[key].dim is None:
            complete[key] = replace(specs[key], dim=len(names) or None)
        elif exact and specs[key].dim != len(names):
            raise ConfigError(f"{key!r} has the dim {specs[key].dim}, but {len(names)} labels")
    return complete


def check_classes(array: NDArray[Any], spec: DataSpec, where: str, *, least: int | None = 0) -> tuple[int, int]:
    """Return the least class index, 0 if none is below it, and the largest, -1 without any; refuse those that are none.

    Args:
        array: Array of a sparse key.
        spec: Spec of the key.
        where: Location, for error messages.
        least: What a class must be at least, if the number of classes is known; `None`: there is no limit.

    Raises:
        SourceError: The number of classes is known, and an index is negative, or not below it.
    """
    if not array.size:
        return 0, -1
    low, high = extremes(array)
    least = low if least is None else least
    if spec.dim is not None and not least <= low <= high < spec.dim:
        raise SourceError(
            f"class indices are in {low}..{high}, and there are {spec.dim} classes",
            where=where,
            fix="correct the data, or the dim in specs, or the labels",
        )
    return min(low, 0), high


def extremes(integers: NDArray[Any]) -> tuple[int, int]:
    """Return the least and the largest of one integer or more."""
    if integers.size <= _FEW:
        numbers = integers.ravel().tolist()
        return min(numbers), max(numbers)
    return int(integers.min()), int(integers.max())


def parse_about(said: Any, what: str, where: str, *, fix: str) -> tuple[dict[str, DataSpec], dict[str, Sequence[str]]]:
    """Read the layouts and labels that a writer stored in or beside its file, see `Writer._about`.

    Args:
        said: JSON data: "specs", data key -> layout; "labels", data key -> class labels.
        what: What it is called in errors.
        where: The file.
        fix: What to do if it is damaged.

    Raises:
        SourceError: It is no such thing.
    """
    try:
        specs = {str(key): DataSpec.from_json(spec) for key, spec in said["specs"].items()}
        return specs, {str(key): [str(label) for label in labels] for key, labels in said["labels"].items()}
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise SourceError(f"{what} cannot be read: {getattr(error, 'what', error)}", where=where, fix=fix) from error


def layout_text(spec: DataSpec) -> str:
    """Return a layout as messages have it: `float32[T, 40]`, with `?` for a free axis."""
    axes = [*(["T"] if spec.has_time else []), *("?" if size is None else str(size) for size in spec.shape)]
    return f"{spec.dtype}[{', '.join(axes)}]"


def native(value: Any) -> Any:
    """Return an array in the byte order of this machine, anything else as it is."""
    is_foreign = isinstance(value, np.ndarray) and not value.dtype.isnative
    return value.astype(value.dtype.newbyteorder("=")) if is_foreign else value


_LOGGER = logging.getLogger("headrace.sources")
_FILES_BY_COLUMN = {
    "audio": "for the recordings of these names give AudioDataset the table (a DataFrame, or a manifest)",
    "image": "for the images of these names give ImageFolderSource their folder, or a list of them",
}
_MAX_NAMED = 10


def tell_unchosen(texts: Iterable[str], left_out: Iterable[str], where: str) -> None:
    """Log, once, what a user may not expect of a table or objects whose columns or fields nobody chose by `fields`.

    Args:
        texts: Names of those that hold texts; paths of recordings or images, most likely, by some names.
        left_out: Names of those that become no arrays.
        where: The table.
    """
    for name in texts:
        if name in _FILES_BY_COLUMN:
            _tell_once(f"{where}: {name!r} holds texts, and their UTF-8 bytes are delivered; {_FILES_BY_COLUMN[name]}")
    names = list(left_out)
    if names:
        more = f", and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        named = ", ".join(map(repr, names[:_MAX_NAMED]))
        _tell_once(f"{where}: what becomes no arrays is left out: {named}{more}; fields= says what is wanted")


@lru_cache(maxsize=1000)
def _tell_once(remark: str) -> None:
    _LOGGER.warning("%s", remark)  # a loader opens a source several times
