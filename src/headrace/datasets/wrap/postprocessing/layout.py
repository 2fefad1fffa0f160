"""The layout that sequences of a `PostprocessingDataset` must have, and checks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, TransformError
from headrace.sources.shared.data_types import find_mismatch, parse_data_types
from headrace.specs import DataSpec

from ...base import Dataset
from ...cached2 import CachedDataset2
from ...parts import spec_of
from ...seq import DatasetSeq
from .functions import META_KEYS

_IGNORED = ("batch_dim_axis", "time_dim_axis", "feature_dim_axis", "available_for_inference", "version", "name")


@dataclass(frozen=True)
class MappedLayout:
    """The layout of all data keys.

    Attributes:
        specs: Layouts by data key.
        any_dtype: Data keys whose dtype is not known: nothing is asked of it.
        is_declared: Whether the user has said it, and other data keys are left out; else it is that of the inner
            dataset.
    """

    specs: Mapping[str, DataSpec]
    any_dtype: frozenset[str] = field(default_factory=frozenset)
    is_declared: bool = False

    def check(self, result: Mapping[str, Any], tag: str, where: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of a sequence that a function has made, in the order of the data keys.

        Args:
            result: What it returned.
            tag: Tag of the sequence, for messages.
            where: What else to say, for messages.

        Raises:
            TransformError: They are not as they should be.
        """
        location = f"sequence {tag!r}, {where}"
        found = {
            key: value
            for key, value in result.items()
            if key not in META_KEYS and (key in self.specs or not _is_text(value))
        }
        is_whole = found.keys() >= self.specs.keys() if self.is_declared else found.keys() == self.specs.keys()
        if not is_whole:
            raise TransformError(
                f"the function made the data keys {sorted(map(str, found))}, and not {sorted(self.specs)}",
                where=location,
                fix="make those that map_outputs says" if self.is_declared else "give map_outputs where they change",
            )
        return {key: self._checked(key, found[key], location) for key in self.specs}

    def _checked(self, key: str, array: Any, location: str) -> NDArray[Any]:
        spec = self.specs[key]
        if not isinstance(array, np.ndarray):
            raise TransformError(
                f"the function made a {type(array).__name__} for {key!r}, not a NumPy array",
                where=location,
                fix="wrap it with numpy.asarray",
            )
        if key in self.any_dtype:
            spec = replace(spec, dtype=array.dtype.str)
        wrong = find_mismatch(array, spec)
        if wrong is not None:
            source = "map_outputs" if self.is_declared else "the inner dataset"
            raise TransformError(
                f"{key!r} is not what {source} says: {wrong}",
                where=location,
                fix="correct the function, or say in map_outputs what it makes",
            )
        return array


def arrays_of(result: Mapping[str, Any], layout: MappedLayout | None, tag: str, where: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a sequence that a function has made, checked as far as the layout is known.

    Raises:
        TransformError: They are not as they should be.
    """
    if layout is not None:
        return layout.check(result, tag, where)
    arrays = {key: value for key, value in result.items() if key not in META_KEYS and not _is_text(value)}
    return DatasetSeq(0, arrays, seq_tag=tag).features


def frac_of(result: Mapping[str, Any], tag: str, where: str) -> float | None:
    """Return the progress of the epoch that a function reports; `None` if it reports none.

    Raises:
        TransformError: It is not in 0..1.
    """
    value = result.get("complete_frac")
    if value is None:
        return None
    frac = float(value)
    if not 0 <= frac <= 1:
        raise TransformError(f"complete_frac is {frac}, not in 0..1", where=f"sequence {tag!r}, {where}")
    return frac


def _is_text(value: Any) -> bool:
    """Tell whether a value is a text, which a function gets and which is no data key, see `Dataset.get_text_keys`."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "U" and not value.ndim


def layout_of(dataset: Dataset) -> MappedLayout | None:
    """Return the layout of a dataset; `None` if it shows it with its first sequence."""
    if dataset.num_outputs is None:
        return None
    specs: dict[str, DataSpec] = {}
    for key in dataset.get_data_keys():
        spec = spec_of(dataset, key)
        if spec is None:
            return None
        specs[key] = spec
    return MappedLayout(specs, frozenset() if dataset.get_corpus().knows_dtypes else frozenset(specs))


def parse_outputs(map_outputs: Any) -> MappedLayout:
    """Read the option `map_outputs`: data key -> dict, as `parse_data_types` takes, or with "dims".

    "dims" are numbers, `None` for a free one, or objects with such a number in `dimension`.

    Raises:
        ConfigError: The option has another form.
    """
    if not isinstance(map_outputs, Mapping) or not map_outputs:
        raise ConfigError(
            f"map_outputs is a dict, data key -> layout, got {map_outputs!r}",
            fix='write {"data": {"dim": 42}}, or {"data": {"shape": (None, 42), "dtype": "float32"}}',
        )
    reserved = sorted(set(map_outputs) & set(META_KEYS))
    if reserved:
        raise ConfigError(f"map_outputs names {reserved}, which each sequence has anyway", fix="leave them out")
    types = {str(key): _with_shape(str(key), options) for key, options in map_outputs.items()}
    return MappedLayout(parse_data_types(types), is_declared=True)


def _with_shape(key: str, options: Any) -> Any:
    if not isinstance(options, Mapping):
        return options
    options = {name: value for name, value in options.items() if name not in _IGNORED}
    for name in ("sparse_dim", "feature_dim"):
        if name in options:
            options[name] = _size(options[name])
    if "dims" in options:
        if "shape" in options:
            raise ConfigError("dims and shape say the same", where=f"map_outputs, data key {key!r}")
        options["shape"] = tuple(map(_size, options.pop("dims")))
    return options


def _size(dim: Any) -> Any:
    return dim.dimension if hasattr(dim, "dimension") else dim


def check_keys(dataset: Dataset, layout: MappedLayout | None) -> None:
    """Refuse an inner dataset with data keys that have the names of other entries of a sequence.

    Raises:
        SourceError: It has one.
    """
    taken = sorted(set(layout.specs if layout is not None else ()) & set(META_KEYS))
    if taken:
        raise SourceError(
            f"the inner dataset has the data keys {taken}, and the function gets something else under these names",
            where=f"dataset {dataset.name!r}",
            fix="rename them, for example by the data_map of a MetaDataset",
        )


class LaidOut(CachedDataset2):
    """Answers about data keys by a layout, or without one by the first sequence."""

    _layout: MappedLayout | None = None

    def _take_layout(self, layout: MappedLayout | None, inner: Dataset) -> None:
        """Take the layout of what comes out; class labels are those of the inner dataset, where they fit."""
        self._layout = layout
        if layout is None:
            return
        self.num_outputs = {key: spec.num_outputs for key, spec in layout.specs.items()}
        self.num_inputs = self.num_outputs["data"][0] if "data" in self.num_outputs else 0
        own = inner.num_outputs or {}
        self.labels = {
            key: labels
            for key, labels in inner.labels.items()
            if key in layout.specs and key in own and inner.get_data_dim(key) == layout.specs[key].dim
        }

    @property
    def _specs(self) -> dict[str, DataSpec]:
        """The layout of the data keys whose dtype is known."""
        layout = self._layout
        return {} if layout is None else {k: spec for k, spec in layout.specs.items() if k not in layout.any_dtype}

    @property
    def _knows_dtypes(self) -> bool:
        """Whether the dtypes that this dataset names are those of its arrays."""
        return self._layout is not None and not self._layout.any_dtype

    def _layout_of(self, key: str) -> DataSpec | None:
        return None if self._layout is None else self._layout.specs.get(key)

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        layout = self._layout
        if layout is not None and key in layout.any_dtype and self._is_loaded(self._load_start):
            return self._first_seq().get_data(key).dtype.name
        return super().get_data_dtype(key)
