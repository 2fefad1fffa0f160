"""How the values of a column of a table are laid out, by its Arrow type; and what a schema says besides.

An axis of a list is of variable size, one of a fixed-size list has the size of its type. Invariant: only what becomes
an array without loss has a layout; times, decimals, maps, lists of texts, and complex structures have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.specs import DataSpec

from ..images import MODES
from ..shared.data_types import parse_about

METADATA_KEY = b"headrace"  # in the metadata of a schema: what our writers know of the data keys, as JSON
_HUGGING_FACE_KEY = b"huggingface"


def import_arrow() -> ModuleType:
    """Return pyarrow, with its parts for IPC and Parquet.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            f"Parquet and Arrow need the package pyarrow: {error}", fix="pip install 'headrace[arrow]'"
        ) from error
    return pa  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one value of a column is laid out.

    Attributes:
        axes: Its axes; `None` for one whose size differs from value to value. The first one is time if it is `None`.
        leaf: NumPy dtype name; or "text", "bytes", "recording", "image", which have no axes here.
    """

    axes: tuple[int | None, ...]
    leaf: str


def layout_of(arrow_type: Any) -> Layout | None:
    """Return the layout of the values of an Arrow type, or None if they become no array."""
    if is_fixed_tensor(arrow_type):
        return Layout(tuple(arrow_type.shape), str(_number_name(arrow_type.value_type)))
    arrow_type = getattr(arrow_type, "storage_type", arrow_type)
    types = import_arrow().types
    number = _number_name(arrow_type)
    if number is not None:
        return Layout((), number)
    for leaf, name in (("text", "string"), ("bytes", "binary")):
        if any(getattr(types, f"is_{kind}")(arrow_type) for kind in (name, f"large_{name}", f"{name}_view")):
            return Layout((), leaf)
    if types.is_dictionary(arrow_type):
        return layout_of(arrow_type.value_type)
    if types.is_struct(arrow_type):
        leaves = {field.name: layout_of(field.type) for field in arrow_type}
        is_recording = leaves == {"bytes": Layout((), "bytes"), "path": Layout((), "text")}
        return Layout((), "recording") if is_recording else None
    if not is_any_list(arrow_type):
        return None
    items = layout_of(arrow_type.value_type)
    if items is None or items.leaf in ("text", "bytes", "recording") or types.is_dictionary(arrow_type.value_type):
        return None
    size = arrow_type.list_size if types.is_fixed_size_list(arrow_type) else None
    return Layout((size, *items.axes), items.leaf)


def axes_of(spec: DataSpec) -> list[int | None]:
    """Return the axes of arrays, time included."""
    return [*([None] if spec.has_time else []), *spec.shape]


def is_any_list(arrow_type: Any) -> bool:
    """Tell whether it is a list of Arrow, of whatever kind."""
    return hasattr(arrow_type, "value_field")


def is_list_view(arrow_type: Any) -> bool:
    """Tell whether it is a list whose items may lie in any order."""
    types = import_arrow().types
    return bool(types.is_list_view(arrow_type) or types.is_large_list_view(arrow_type))


def is_fixed_tensor(arrow_type: Any) -> bool:
    """Tell whether it is Arrow's tensor of a fixed shape, of numbers, its axes in order."""
    if getattr(arrow_type, "extension_name", "") != "arrow.fixed_shape_tensor":
        return False
    permutation = arrow_type.permutation
    in_order = permutation is None or list(permutation) == sorted(permutation)
    return in_order and _number_name(arrow_type.value_type) not in (None, "bool")


def has_dictionary(arrow_type: Any) -> bool:
    """Tell whether values of a type, or parts of them, are numbers of entries of a dictionary."""
    arrow_type = getattr(arrow_type, "storage_type", arrow_type)
    if import_arrow().types.is_dictionary(arrow_type):
        return True
    return any(has_dictionary(arrow_type.field(i).type) for i in range(arrow_type.num_fields))


def _number_name(arrow_type: Any) -> str | None:
    """Return the name that NumPy has for a type of numbers or bools; None for any other."""
    types = import_arrow().types
    is_number = types.is_boolean(arrow_type) or types.is_integer(arrow_type) or types.is_floating(arrow_type)
    return np.dtype(arrow_type.to_pandas_dtype()).name if is_number else None


@dataclass(frozen=True, slots=True)
class Column:
    """One column, or one field of a column of structures.

    Attributes:
        name: "column", or "column.field".
        path: The name of the column, then those of fields.
        arrow_type: Text, for messages.
        layout: How its values are laid out.
        shape: Shape of one value, as a feature of Hugging Face says it; None: not said.
        labels: Class labels of its numbers, or None.
        sample_rate: To which its recordings are to be resampled, in Hz; None: not said.
        mode: To which its images are to be converted; None: not said.
    """

    name: str
    path: tuple[str, ...]
    arrow_type: str
    layout: Layout | None
    shape: tuple[int | None, ...] | None = None
    labels: tuple[str, ...] | None = None
    sample_rate: int | None = None
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """What a table has.

    Attributes:
        columns: All that can be named, by name; those that become arrays by themselves, and fields of structures.
        top: The names of the columns themselves, in order.
        specs: Data key -> layout, as a Headrace writer was given it; empty for tables of others.
        labels: Data key -> class labels, from there.
        tag: The column with the tags, from there.
    """

    columns: Mapping[str, Column]
    top: tuple[str, ...]
    specs: Mapping[str, DataSpec]
    labels: Mapping[str, Sequence[str]]
    tag: str | None

    def column(self, name: str, where: str) -> Column:
        """Return a column by name.

        Raises:
            ConfigError: There is none.
        """
        if name not in self.columns:
            raise ConfigError(f"the table has no column {name!r}", where=where, fix=did_you_mean(name, self.columns))
        return self.columns[name]


def read_schema(arrow_schema: Any, where: str) -> Schema:
    """Take from the schema of a table what matters here.

    Raises:
        SourceError: Two columns have one name, or what our writer left there cannot be read.
    """
    metadata = arrow_schema.metadata or {}
    features = _features_of(metadata)
    columns: dict[str, Column] = {}
    try:
        for field in arrow_schema:
            if field.name in columns:
                raise SourceError(f"two columns have the name {field.name!r}", where=where, fix="rename one of them")
            for column in _columns_of(field, (), features.get(field.name)):
                columns.setdefault(column.name, column)
    except UnicodeDecodeError as error:
        raise SourceError(f"the name of a column is not UTF-8: {error}", where=where, fix="is it truncated?") from error
    top = tuple(field.name for field in arrow_schema)
    if METADATA_KEY not in metadata:
        return Schema(columns, top, {}, {}, None)
    what, fix = "the metadata 'headrace' of the schema", "write the file again"
    try:
        ours = json.loads(metadata[METADATA_KEY])
        tag = ours.get("tag")
    except (ValueError, AttributeError, RecursionError) as error:
        raise SourceError(f"{what} cannot be read: {error}", where=where, fix=fix) from error
    return Schema(columns, top, *parse_about(ours, what, where, fix=fix), tag)


def _columns_of(field: Any, parents: tuple[str, ...], feature: Any) -> Iterator[Column]:
    path, layout, kind = (*parents, field.name), layout_of(field.type), _kind_of(feature)
    labels, shape = _hints_of(feature)
    if layout is not None and layout.leaf == "recording" and kind not in (None, "Audio"):
        # Of what is neither, the bytes have a name of their own.
        layout = Layout((), "image") if kind == "Image" else None
    if layout is None or shape is None or not _refines(shape, layout.axes):
        shape = None
    rate = feature.get("sampling_rate") if kind == "Audio" else None
    mode = feature.get("mode") if kind == "Image" else None
    rate, mode = rate if type(rate) is int and rate > 0 else None, mode if mode in MODES else None
    yield Column(".".join(path), path, str(field.type), layout, shape, labels, rate, mode)
    for child in field.type if import_arrow().types.is_struct(field.type) else ():
        own = feature.get(child.name) if isinstance(feature, Mapping) and kind is None else None
        yield from _columns_of(child, path, own)


def _features_of(metadata: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    """Return what Hugging Face's library says of columns; nothing, if it is not what is known of it."""
    try:
        features = json.loads(metadata[_HUGGING_FACE_KEY])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, Mapping) else {}


def _kind_of(feature: Any) -> str | None:
    kind = feature.get("_type") if isinstance(feature, Mapping) else None
    return kind if isinstance(kind, str) else None


def _hints_of(feature: Any) -> tuple[tuple[str, ...] | None, tuple[int | None, ...] | None]:
    """Return the class labels and the shape that a feature names."""
    while isinstance(feature, list | Mapping) and not (isinstance(feature, Mapping) and "_type" not in feature):
        if isinstance(feature, list):
            feature = feature[0] if feature else None
        elif _kind_of(feature) in ("List", "LargeList", "Sequence"):
            feature = feature.get("feature")
        elif _kind_of(feature) == "ClassLabel" and isinstance(feature.get("names"), list):
            return tuple(map(str, feature["names"])), None
        elif str(_kind_of(feature)).startswith("Array") and isinstance(feature.get("shape"), list | tuple):
            return None, tuple(feature["shape"])
        else:
            break
    return None, None


def _refines(shape: tuple[Any, ...], axes: tuple[int | None, ...]) -> bool:
    """Tell whether a shape says no other size than a layout."""
    return len(shape) == len(axes) and all(
        (ours is None or ours == size) and (size is None or (type(size) is int and size >= 0))
        for size, ours in zip(shape, axes, strict=True)
    )
