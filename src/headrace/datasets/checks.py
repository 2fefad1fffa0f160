"""Checks the options of datasets when they are built, and which arguments user-defined classes accept."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.errors import check_count as check_count
from headrace.files.locations import is_url
from headrace.sources.shared.data_types import parse_data_types
from headrace.specs import DataSpec

_LOGGER = logging.getLogger("headrace.datasets")
_remarked: set[str] = set()


def remark_once(remark: str, owner: str | None = None) -> None:
    """Log remarks on options that are legal and have no effect; each text once in a process.

    Args:
        remark: The text.
        owner: The dataset that they are of, shown before it.
    """
    if remark not in _remarked:
        _remarked.add(remark)
        _LOGGER.warning("%s", remark if owner is None else f"{owner}: {remark}")


def is_of_headrace(value: Any) -> bool:
    """Tell whether a class or function is one of this package."""
    return str(getattr(value, "__module__", "")).startswith("headrace.")


def check_source_options(options: Any, valid: Iterable[str], source: str, where: str) -> dict[str, Any]:
    """Return the `source_options` of a dataset, as a dict.

    Args:
        options: What the user gave.
        valid: The names that may be in it.
        source: Class of the source that gets them.
        where: The dataset.

    Raises:
        ConfigError: It is no dict, or has an option that the source does not take.
    """
    if not isinstance(options, Mapping | None):
        raise ConfigError(f"source_options is {options!r}, not a dict", where=where, fix='such as {"name": value}')
    names = set(valid)
    for name in options or ():
        if name not in names:
            fix = did_you_mean(str(name), names)
            raise ConfigError(f"source_options has {name!r}, which {source} does not take", where=where, fix=fix)
    return dict(options or {})


def takes_argument(function: Callable[..., Any], name: str) -> bool:
    """Tell whether a function takes an argument by this name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def check_epoch(epoch: Any) -> int | None:
    """Return an epoch number as an int; `None` stays."""
    return None if epoch is None else check_count("epoch", epoch)


def check_flag(name: str, value: Any) -> bool:
    """Return a bool; anything else is refused, since `"no"` would be true."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name} must be True or False: {value!r}")
    return bool(value)


def check_share(name: str, value: Any) -> float:
    """Return a number in 0..1 as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a number in 0..1: {value!r}")
    return float(value)


def check_path(name: str, value: Any) -> str | None:
    """Return the path of an existing file as text; `None` stays."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name} must be a path: {value!r}")
    path = os.fsdecode(value)
    if not os.path.isfile(path):
        raise SourceError("no such file", where=f"{name}={path!r}")
    return path


def check_window(window: Any, *, supported: bool, owner: str) -> int:
    """Return the number of frames of a window: odd, an even one raised by one."""
    frames = max(check_count("window", window), 1)
    frames += 1 - frames % 2
    if frames > 1 and not supported:
        raise ConfigError(f"{owner} does not support window={window}", fix="leave window at 1")
    return frames


def check_outputs(num_outputs: Any, num_inputs: int, where: str) -> dict[str, tuple[int, int]]:
    """Return `num_outputs` as data key -> (dim, ndim), with "data" among them.

    Args:
        num_outputs: Data key -> (dim, ndim), or -> dim: ndim is then 2 for "data", else 1; or -> a dict, as
            `parse_data_types` takes, where texts (dtype "string") are no data keys; or the dim of "classes" alone.
        num_inputs: Size of a frame of "data", which RETURNN's datasets name only here; 0 if there is no such key.
        where: Location, for error messages.

    Raises:
        ConfigError: It has another form.
    """
    given = num_outputs if isinstance(num_outputs, Mapping) else {"classes": num_outputs}
    outputs: dict[str, tuple[int, int]] = {}
    if num_inputs and "data" not in given:
        outputs["data"] = check_count("num_inputs", num_inputs), 2
    for key, value in given.items():
        if isinstance(value, Mapping):
            if value.get("dtype") != "string":
                outputs[key] = parse_data_types({key: value})[key].num_outputs
            continue
        pair = value if isinstance(value, tuple | list) else (value, 2 if key == "data" else 1)
        if len(pair) != 2:
            raise ConfigError(
                f"num_outputs[{key!r}] must be (dim, ndim) or dim: {value!r}",
                where=where,
                fix='write {"classes": (10, 1)}; ndim counts time, and is 1 for class indices',
            )
        outputs[key] = (
            check_count(f"the dim of num_outputs[{key!r}]", pair[0]),
            check_count(f"the number of axes of num_outputs[{key!r}]", pair[1]),
        )
    return outputs


def declared_spec(dim: Any, ndim: int, dtype: str | None = None) -> DataSpec:
    """Return the layout that (dim, ndim), and perhaps a dtype, declare: class indices where there is only time."""
    if ndim <= 1:
        return DataSpec(dtype or "int32", sparse=True, dim=dim, has_time=ndim == 1)
    return DataSpec(dtype or "float32", (*[None] * (ndim - 2), dim), dim=dim)


def check_tags(seq_list: Any) -> list[str]:
    """Return tags as a list; one text is refused, since its letters would be taken for tags."""
    if isinstance(seq_list, str | bytes):
        raise ConfigError(f"seq_list must be a list of tags, not the text {seq_list!r}", fix=f"write [{seq_list!r}]")
    tags = list(seq_list)
    for tag in tags:
        if not isinstance(tag, str):
            raise ConfigError(f"a tag in seq_list is {tag!r}, not a str")
    return tags


def check_indices(seq_order: Any, num_seqs: int, where: str, *, what: str = "seq_order") -> NDArray[np.int64]:
    """Return corpus indices as `int64[n]`.

    Args:
        seq_order: The indices.
        num_seqs: Size of the corpus.
        where: Location, for error messages.
        what: What they are, for the error.

    Raises:
        ConfigError: They are not whole numbers in one axis, or lie outside of the corpus.
    """
    values = seq_order if isinstance(seq_order, Sequence | np.ndarray) else list(seq_order)
    indices = np.asarray(values)
    if not indices.size and indices.ndim == 1:
        return np.zeros(0, dtype=np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ConfigError(
            f"{what} must be whole numbers in one axis, got {indices.dtype.name} in {indices.ndim} axes",
            where=where,
            fix="give corpus indices; numpy.flatnonzero makes them of a mask",
        )
    wrong = np.flatnonzero((indices < 0) | (indices >= num_seqs))
    if wrong.size:
        raise ConfigError(
            f"{what} holds the corpus index {int(indices[wrong[0]])}, but the corpus has {num_seqs} sequences",
            where=f"{where}, position {int(wrong[0])}",
        )
    return indices.astype(np.int64)


def refuse_cache_manager(is_wanted: bool, where: str) -> None:
    """Refuse RETURNN's option `use_cache_manager`."""
    if is_wanted:
        raise ConfigError(
            "use_cache_manager=True names a service of one site, which Headrace does not know",
            where=where,
            fix="leave it out; give local paths",
        )


def absolute_index(index: Any) -> Any:
    """Return the option `index`: a path as an absolute one, see `absolute_name`; "auto" and `None` stay."""
    return index if index in ("auto", None) else absolute_name(index)


def absolute_name(path: Any) -> str:
    """Return a file name as an absolute path: a copy of the dataset may be opened from another folder. URLs stay.

    Raises:
        ConfigError: It is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"a file is named by a str or a path, not by {path!r}")
    name = os.fsdecode(path)
    return name if is_url(name) else os.path.abspath(name)


def check_key(key: str, known: Mapping[str, Any], where: str) -> None:
    """Refuse a data key that is not there.

    Raises:
        ConfigError: It names those that there are.
    """
    if key not in known:
        raise ConfigError(f"no data key {key!r}", where=where, fix=did_you_mean(key, known))
