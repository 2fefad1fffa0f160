"""The columns of a table by its Arrow schema: how their values are laid out, and what else the schema says of them.

An axis of a list is of variable size, one of a fixed-size list has the size of its type. Invariant: only what becomes
an array without loss has a layout; times, decimals, maps, lists of texts, and complex structures have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.specs import DataSpec

from ..images import MODES
from ..shared.data_types import parse_about

METADATA_KEY = b"headrace"  # in the metadata of a schema: what our writers know of the data keys, as JSON
_FILES = {"Audio": "recording", "Image": "image"}  # feature of Hugging Face -> what a file in a column is


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
class CellType:
    """How one value of a column is laid out.

    Attributes:
        axes: Its axes; `None` for one whose size differs from value to value. The first one is time if it is `None`.
        leaf: NumPy dtype name; or "text", "bytes", "recording", "image", which have no axes here.
    """

    axes: tuple[int | None, ...]
    leaf: str

    @property
    def is_numbers(self) -> bool:
        """Whether it is a number, or an array of them."""
        return self.leaf not in ("text", "bytes", *_FILES.values())


def layout_of(arrow_type: Any) -> CellType | None:
    """Return the layout of the values of an Arrow type, or None if they become no array."""
    types = import_arrow().types
    if getattr(arrow_type, "extension_name", "") == "arrow.fixed_shape_tensor":
        items, order = layout_of(arrow_type.value_type), list(arrow_type.permutation or [])
        return CellType(tuple(arrow_type.shape), items.leaf) if items is not None and order == sorted(order) else None
    arrow_type = getattr(arrow_type, "storage_type", arrow_type)
    if types.is_boolean(arrow_type) or types.is_integer(arrow_type) or types.is_floating(arrow_type):
        return CellType((), np.dtype(arrow_type.to_pandas_dtype()).name)
    for leaf, name in (("text", "string"), ("bytes", "binary")):
        if any(getattr(types, f"is_{kind}")(arrow_type) for kind in (name, f"large_{name}", f"{name}_view")):
            return CellType((), leaf)
    if types.is_dictionary(arrow_type):
        return layout_of(arrow_type.value_type)
    if types.is_struct(arrow_type):
        leaves = {one.name: layout_of(one.type) for one in arrow_type}
        is_file = leaves == {"bytes": CellType((), "bytes"), "path": CellType((), "text")}
        return CellType((), "recording") if is_file else None
    items = layout_of(arrow_type.value_type) if hasattr(arrow_type, "value_field") else None
    if items is None or not items.is_numbers or types.is_dictionary(arrow_type.value_type):
        return None
    if hasattr(arrow_type.value_type, "permutation"):  # lists of tensors, whose axes are one of the lists below
        return None
    return CellType((getattr(arrow_type, "list_size", None), *items.axes), items.leaf)


def axes_of(spec: DataSpec) -> list[int | None]:
    """Return the axes of arrays, time included."""
    return [*([None] if spec.has_time else []), *spec.shape]


def has_dictionary(arrow_type: Any) -> bool:
    """Tell whether values of a type, or parts of them, are numbers of entries of a dictionary."""
    arrow_type = getattr(arrow_type, "storage_type", arrow_type)
    if import_arrow().types.is_dictionary(arrow_type):
        return True
    return any(has_dictionary(arrow_type.field(i).type) for i in range(arrow_type.num_fields))


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column, or one field of a column of structures.

    Attributes:
        name: "column", or "column.field".
        path: The name of the column, then those of fields.
        type: Of Arrow, for messages.
        layout: How its values are laid out.
        shape: Shape of one value, as a feature of Hugging Face says it; None: not said.
        labels: Class labels of its numbers, or None.
        options: Of its recordings or images, as a feature says them.
        specs: Layout of its arrays, as a Headrace writer was given it.
    """

    name: str
    path: tuple[str, ...]
    type: str
    layout: CellType | None
    shape: tuple[int | None, ...] | None = None
    labels: Sequence[str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    specs: DataSpec | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """What a table has.

    Attributes:
        columns: All that can be named, by name; those that become arrays by themselves, and fields of structures.
        top: The names of the columns themselves; those of a Headrace writer in the order of its data keys.
        tag: The column with the tags, if a Headrace writer made them.
        is_ours: Whether a Headrace writer made the table.
    """

    columns: Mapping[str, TableColumn]
    top: tuple[str, ...]
    tag: str | None = None
    is_ours: bool = False

    def column(self, name: str, where: str) -> TableColumn:
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
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        features = None
    features = features if isinstance(features, Mapping) else {}
    columns: dict[str, TableColumn] = {}
    try:
        top = [one.name for one in arrow_schema]
    except UnicodeDecodeError as error:
        raise SourceError(f"the name of a column is not UTF-8: {error}", where=where, fix="is it truncated?") from error
    for one in arrow_schema:
        if one.name in columns:
            raise SourceError(f"two columns have the name {one.name!r}", where=where, fix="rename one of them")
        for column in _columns_of(one, (), features.get(one.name)):
            columns.setdefault(column.name, column)
    if METADATA_KEY not in metadata:
        return Schema(columns, tuple(top))
    what, fix = "the metadata 'headrace' of the schema", "write the file again"
    try:
        ours = json.loads(metadata[METADATA_KEY])
        tag = ours.get("tag")
    except (ValueError, AttributeError, RecursionError) as error:
        raise SourceError(f"{what} cannot be read: {error}", where=where, fix=fix) from error
    specs, labels = parse_about(ours, what, where, fix=fix)
    for name in specs.keys() & columns.keys():  # somebody may have taken some away
        columns[name] = replace(columns[name], specs=specs[name], labels=labels.get(name, columns[name].labels))
    top = [name for name in dict.fromkeys([*specs, *top]) if name in top]
    return Schema(columns, tuple(top), tag if tag in top else None, is_ours=True)


def _columns_of(one: Any, parents: tuple[str, ...], feature: Any) -> Iterator[TableColumn]:
    """Yield a column and the fields of it; a feature is what Hugging Face's library says of it."""
    path, layout = (*parents, one.name), layout_of(one.type)
    kind = feature.get("_type") if isinstance(feature, Mapping) else None
    kind = kind if isinstance(kind, str) else None
    said: dict[str, Any] = {}
    if layout is not None and layout.leaf == "recording" and kind is not None:
        layout = CellType((), _FILES[kind]) if kind in _FILES else None  # of others, the bytes have a name of their own
        rate, mode = feature.get("sampling_rate"), feature.get("mode")
        if kind == "Audio" and type(rate) is int and rate > 0:
            said["options"] = {"sample_rate": rate}
        elif kind == "Image" and mode in MODES:
            said["options"] = {"mode": mode}
    elif layout is not None:
        said = _said_by(feature, layout.axes)
    yield TableColumn(".".join(path), path, str(one.type), layout, **said)
    for child in one.type if import_arrow().types.is_struct(one.type) else ():
        own = feature.get(child.name) if isinstance(feature, Mapping) and kind is None else None
        yield from _columns_of(child, path, own)


def _said_by(feature: Any, axes: tuple[int | None, ...]) -> dict[str, Any]:
    """Return the class labels, or the shape, that a feature names, where they fit the layout."""
    while isinstance(feature, list) or (
        isinstance(feature, Mapping) and feature.get("_type") in ("List", "LargeList", "Sequence")
    ):
        feature = (feature or [None])[0] if isinstance(feature, list) else feature.get("feature")
    kind = str(feature.get("_type")) if isinstance(feature, Mapping) else ""
    if kind == "ClassLabel" and isinstance(feature.get("names"), list):
        return {"labels": tuple(map(str, feature["names"]))}
    shape = feature.get("shape") if kind.startswith("Array") else None
    if not isinstance(shape, list | tuple) or len(shape) != len(axes):
        return {}
    pairs = zip(shape, axes, strict=True)
    fits = all((axis is None or axis == n) and (n is None or (type(n) is int and n >= 0)) for n, axis in pairs)
    return {"shape": tuple(shape)} if fits else {}
