"""Checks the user's options for the columns of a table against its schema: which columns become which data keys.

`TableOptions` is the outcome; `choose_options` makes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import ConfigError, did_you_mean

from ..images import IMAGE_OPTIONS
from ..shared.data_types import tell_unchosen
from ..shared.fields import parse_field
from .fields import FilePaths, ImageField, NumberField, RecordingField, TableField, TextField
from .schema import Column, Schema

NULLS = ("refuse", "empty")
_NUMBER_OPTIONS = ("field", "vocab")
_OPTIONS_OF = {
    "text": ("field", "vocab", "labels"),
    "recording": ("field", "features", "sample_rate", "channel"),
    "image": ("field", *IMAGE_OPTIONS),
}


def choose_fields(
    schema: Schema, fields: Mapping[str, Any] | None, *, tag_column: str | None, paths: FilePaths, where: str
) -> list[TableField]:
    """Choose how columns become data keys.

    Args:
        schema: Schema of the table.
        fields: Data key -> name of a column, or a dict; None: all columns that become arrays, but for that of the tags.
        tag_column: The column of the tags.
        paths: Paths of files that the table only names.
        where: The table, for messages.

    Raises:
        ConfigError: A column does not exist or becomes no array, or an option does not fit its type.
    """
    if fields is None:
        names = dict.fromkeys([*(name for name in schema.specs if name in schema.top), *schema.top])
        usable = [name for name in names if name != tag_column and schema.columns[name].layout is not None]
        left_out = [name for name in names if name != tag_column and name not in usable]
        tell_unchosen((name for name in usable if _leaf_of(schema.columns[name]) == "text"), left_out, where)
        targets = {name: {"field": name, **_as_bytes(schema.columns[name])} for name in usable}
        return [_choose(key, target, schema, paths, where) for key, target in targets.items()]
    if not isinstance(fields, Mapping):
        raise ConfigError(f"fields is a dict data key -> column, not {fields!r}", where=where)
    return [_choose(key, target, schema, paths, where) for key, target in fields.items()]


def _choose(key: str, target: Any, schema: Schema, paths: FilePaths, where: str) -> TableField:
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
    leaf = column.layout.leaf
    if leaf in ("recording", "bytes") and any(name in options for name in IMAGE_OPTIONS) and not column.layout.axes:
        leaf = "image"  # the schema does not say it, and these are options of nothing else
    valid = _OPTIONS_OF.get(leaf, _NUMBER_OPTIONS)
    for name in options:
        if name not in valid:
            raise ConfigError(
                f"a column of {column.arrow_type} has no option {name!r}",
                where=f"{where}, data key {key!r}",
                fix=did_you_mean(str(name), valid),
            )
    if leaf == "image":
        return ImageField(key, column, options, paths)
    if leaf == "recording":
        return RecordingField(key, column, options, paths)
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
            raise ConfigError(f"{column.arrow_type} are not class indices", where=f"{where}, data key {key!r}")
    declared = schema.specs.get(column.name) if vocab is None else None
    return NumberField(key, column, declared, labels, num_classes)


def _as_bytes(column: Column) -> dict[str, Any]:
    """Return the option by which a text is its UTF-8 bytes."""
    return {"vocab": "bytes"} if _leaf_of(column) == "text" else {}


def _leaf_of(column: Column) -> str:
    return column.layout.leaf if column.layout is not None else ""


@dataclass(frozen=True)
class TableOptions:
    """How the rows of tables become sequences, for good: it is pickled with a source.

    Attributes:
        fields: Of each data key.
        tag: The column with the tags; None: they are made up.
        nulls: What a null is: `"refuse"` or `"empty"`.
        takes_all: Whether all columns are wanted that become arrays, of whatever name.
    """

    fields: Sequence[TableField]
    tag: Column | None
    nulls: str
    takes_all: bool

    @property
    def identity_text(self) -> str:
        """A text that names all that changes an index."""
        fields = [[field.data_key, *field.identity] for field in self.fields]
        return json.dumps([fields, None if self.tag is None else self.tag.name, self.nulls], default=repr)


def choose_tag(schema: Schema, tag_field: str | None, where: str) -> Column | None:
    """Return the column of the tags: the one that is named, or else the one that our writer made.

    Raises:
        ConfigError: There is no such column, or it has neither texts nor whole numbers.
    """
    name = tag_field
    if name is None:
        if schema.tag not in schema.top:  # of another writer, or somebody took the column away
            return None
        name = str(schema.tag)
    column = schema.column(name, where)
    layout = column.layout
    if layout is None or layout.axes or (layout.leaf != "text" and np.dtype(layout.leaf).kind not in "iu"):
        raise ConfigError(
            f"the column {name!r} of {column.arrow_type} cannot be the tags", where=where, fix="name a column of texts"
        )
    return column


def choose_options(
    schema: Schema,
    where: str,
    *,
    fields: Mapping[str, Any] | None,
    tag_field: str | None,
    nulls: str,
    root: str | os.PathLike[str] | None,
    audio_root: str | os.PathLike[str] | None = None,
    may_be_absolute: bool = False,
    may_be_empty: bool = False,
) -> TableOptions:
    """Check the user's options for the columns against the schema of the first table.

    `audio_root` is another name of `root`, and `may_be_absolute` is that of `FilePaths`.

    Raises:
        ConfigError: An option is wrong, or a column does not exist or does not fit.
    """
    if nulls not in NULLS:
        raise ConfigError(f"nulls is {nulls!r}", fix=did_you_mean(str(nulls), NULLS))
    tag = choose_tag(schema, tag_field, where)
    if root is not None and audio_root is not None:
        raise ConfigError("root and audio_root say the same", where=where, fix="give root=")
    root = audio_root if root is None else root
    paths = FilePaths(None if root is None else os.path.abspath(root), may_be_absolute)
    chosen = choose_fields(schema, fields, tag_column=None if tag is None else tag.name, paths=paths, where=where)
    if not chosen and schema.tag is None and not may_be_empty:  # our writer makes files without data keys
        raise ConfigError(
            f"none of the columns {list(schema.top)} becomes an array",
            where=where,
            fix="name those that are wanted, or fields of them, by fields=",
        )
    return TableOptions(chosen, tag, nulls, takes_all=fields is None)
