"""Which columns become which data keys: what the user said, checked against the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.errors import ConfigError, did_you_mean

from .manifest_fields import parse_field
from .table_fields import NumberField, TableField, TextField
from .table_layout import Column, Schema
from .table_recordings import RecordingField

_NUMBER_OPTIONS = ("field", "vocab")
_TEXT_OPTIONS = ("field", "vocab", "labels")
_RECORDING_OPTIONS = ("field", "features", "sample_rate", "channel")


def choose_fields(
    schema: Schema, fields: Mapping[str, Any] | None, *, tag_column: str | None, audio_root: str | None, where: str
) -> list[TableField]:
    """Choose how columns become data keys.

    Args:
        schema: Of the table.
        fields: Data key -> name of a column, or a dict; None: all columns that become arrays, but for that of the tags.
        tag_column: The column of the tags.
        audio_root: See `RecordingField`.
        where: The table, for messages.

    Raises:
        ConfigError: A column does not exist or becomes no array, or an option does not fit its type.
    """
    if fields is None:
        names = dict.fromkeys([*(name for name in schema.specs if name in schema.top), *schema.top])
        usable = [name for name in names if name != tag_column and schema.columns[name].layout is not None]
        targets = {name: {"field": name, **_as_bytes(schema.columns[name])} for name in usable}
        return [_choose(key, target, schema, audio_root, where) for key, target in targets.items()]
    if not isinstance(fields, Mapping):
        raise ConfigError(f"fields is a dict data key -> column, not {fields!r}", where=where)
    return [_choose(key, target, schema, audio_root, where) for key, target in fields.items()]


def _choose(key: str, target: Any, schema: Schema, audio_root: str | None, where: str) -> TableField:
    options = target
    if isinstance(target, str):
        options = {"field": target, **(_as_bytes(schema.column(target, where)) if key == "orth" else {})}
    if not isinstance(options, Mapping) or not isinstance(options.get("field"), str):
        raise ConfigError(
            f"the field of the data key {key!r} cannot be read: {target!r}",
            where=where,
            fix='give the name of a column, or {"field": name, ...}',
        )
    column = schema.column(options["field"], where)
    if column.layout is None:
        raise ConfigError(
            f"the column {column.name!r} has the type {column.arrow_type}, which becomes no array",
            where=where,
            fix="name another column, or a field of it, or convert it to numbers, text or bytes",
        )
    valid = {"recording": _RECORDING_OPTIONS, "text": _TEXT_OPTIONS}.get(column.layout.leaf, _NUMBER_OPTIONS)
    for name in options:
        if name not in valid:
            raise ConfigError(
                f"a column of {column.arrow_type} has no option {name!r}",
                where=f"{where}, data key {key!r}",
                fix=did_you_mean(str(name), valid),
            )
    if column.layout.leaf == "recording":
        return RecordingField(key, column, options, audio_root)
    if column.layout.leaf == "text" and options.get("vocab") != "bytes":
        return TextField(key, column, parse_field(key, dict(options)))
    return _number_field(key, column, schema, options.get("vocab"), where)


def _number_field(key: str, column: Column, schema: Schema, vocab: Any, where: str) -> NumberField:
    labels, num_classes = schema.labels.get(column.name, column.labels), None
    if vocab is not None and _leaf_of(column) not in ("text", "bytes"):
        if isinstance(vocab, list | tuple) and all(isinstance(label, str) for label in vocab):
            labels = list(vocab)
        elif type(vocab) is int and vocab > 0:
            labels, num_classes = None, vocab
        else:
            raise ConfigError(
                f"the vocab of a column of numbers is their number of classes, or a list of labels, not {vocab!r}",
                where=f"{where}, data key {key!r}",
            )
        if np.dtype(_leaf_of(column)).kind not in "iu":
            raise ConfigError(f"{column.arrow_type} are no class indices", where=f"{where}, data key {key!r}")
    declared = schema.specs.get(column.name) if vocab is None else None
    return NumberField(key, column, declared, labels, num_classes)


def _as_bytes(column: Column) -> dict[str, Any]:
    """Return the option by which a text is its UTF-8 bytes."""
    return {"vocab": "bytes"} if _leaf_of(column) == "text" else {}


def _leaf_of(column: Column) -> str:
    return column.layout.leaf if column.layout is not None else ""
