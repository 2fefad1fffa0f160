"""How the columns of a table become data keys: which ones, by the user's options and the schema, and as what arrays.

A `TableField` gives the values of its column to a codec: texts, recordings and images one by one, which takes
microseconds a row; numbers and bytes, which are taken as they are, all of a piece at once (`NumberCodec`), 10 ns a row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import resolve_inside
from headrace.specs import DataSpec

from ..audio.codec import RecordingCodec
from ..images import IMAGE_OPTIONS, ImageCodec
from ..shared.codec import Codec, Facts
from ..shared.data_types import check_classes, learn_spec, tell_unchosen
from ..shared.fields import ByteField, parse_field
from .cells import Cells
from .schema import Schema, TableColumn, axes_of

DEFAULT_CACHE_BYTES = 256 << 20
NULLS = ("refuse", "empty")
_RECORDING_OPTIONS = ("field", "features", "sample_rate", "channel")


class NumberCodec(Codec):
    """Numbers, lists of numbers, or the bytes of texts, as they are stored.

    Args:
        column: The column.
        vocab: Number of classes, or their labels, if the user said it.
    """

    def __init__(self, column: TableColumn, vocab: int | Sequence[str] | None = None) -> None:
        assert column.layout is not None
        self._column, self._layout = column, column.layout
        self.labels = column.labels if vocab is None else None if isinstance(vocab, int) else vocab
        self._declared = column.specs if vocab is None else None  # by our writer, who checked the classes
        num_classes = vocab if isinstance(vocab, int) else len(self.labels) if self.labels is not None else None
        self._num_classes = num_classes if self._declared is None else None
        self._axes = (column.shape or column.layout.axes) if column.layout.is_numbers else (None,)
        self._spec = DataSpec("uint8", sparse=True, dim=256, is_text=True)

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays, once it is known."""
        return self._spec

    @property
    def identity(self) -> list[Any]:
        """What the user or the schema say of classes."""
        return [self._num_classes, list(self.labels or [])]

    def note_all(self, cells: Cells, facts: Facts) -> NDArray[np.int64]:
        """Note the sizes of axes, and refuse rows that make no array; return the length of each row, `int64[n]`."""
        cells.check()
        sizes = dict(cells.sizes)
        if cells.num_rows and self._axes[:1] not in ((), (None,)):
            sizes[0] = int(cells.lengths.min()), int(cells.lengths.max())
        for axis, bounds in sizes.items():
            for size in bounds:
                facts.setdefault((axis, size), cells.where)
        if not self._axes:
            self._check_classes(cells.values, cells.where)
        return cells.lengths

    def conclude(self, facts: Facts) -> None:
        """Take the layout: an axis that has one size in all rows is of that size, unless it is time."""
        axes = list(self._axes)
        for axis, said in enumerate(axes):
            found = {size: where for (number, size), where in facts.items() if number == axis}
            wrong = [size for size in found if said not in (None, size)]
            if wrong:
                items = f"{min(found)} to {max(found)} items, not {said}"
                what = f"axis {axis} of the column {self._column.name!r} has {items}"
                raise SourceError(what, where=found[wrong[0]], fix="correct the data, or their shape in the schema")
            if axis and len(found) == 1:
                axes[axis] = next(iter(found))
        if self._layout.is_numbers:
            has_time = axes[:1] == [None]
            self._spec = learn_spec(np.dtype(self._layout.leaf), axes[has_time:], has_time=has_time)
            if self._num_classes is not None:
                self._spec = replace(self._spec, sparse=True, dim=self._num_classes)
        ours = self._declared
        if ours is not None and (ours.dtype, ours.ndim) == (self._spec.dtype, self._spec.ndim):
            pairs = zip(axes_of(ours), axes_of(self._spec), strict=True)
            self._spec = ours if all(None in pair or pair[0] == pair[1] for pair in pairs) else self._spec

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:  # noqa: ARG002
        """Take the layout; classes are checked, whoever says how many there are, but our writer."""
        self._spec, self.labels = spec, labels
        if spec.sparse and not spec.is_text and spec != self._declared:
            self._num_classes = spec.dim

    def encode(self, value: NDArray[Any], where: str) -> NDArray[Any]:
        """Return a view of a row as it is given out, but for a copy."""
        if self._spec.has_time and not len(value):  # its other axes are not known from it
            value = value.reshape(0, *(size or 0 for size in self._spec.shape))
        self._check_classes(value, where)
        return value

    def _check_classes(self, array: NDArray[Any], where: str) -> None:
        if self._num_classes is not None:
            spec = DataSpec("int64", sparse=True, dim=self._num_classes)
            check_classes(array, spec, f"{where}, column {self._column.name!r}")


@dataclass(frozen=True)
class TableField:
    """A column as a data key.

    Attributes:
        data_key: The data key.
        column: The column.
        codec: Makes the arrays.
        root: Folder that the paths of recordings and images without bytes are in; they must not lead out of it.
        may_be_absolute: Whether, without a root, absolute paths are read as they are: those of a dataset that the
            user's own program has made or loaded, whose library would open them, too.
    """

    data_key: str
    column: TableColumn
    codec: Codec
    root: str | None = None
    may_be_absolute: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether an array is a view of what is stored."""
        return isinstance(self.codec, NumberCodec)

    @property
    def _leaf(self) -> str:
        assert self.column.layout is not None
        return self.column.layout.leaf

    @property
    def parts(self) -> tuple[str, ...]:
        """The fields of the column that are read; "" is the column itself."""
        return ("bytes", "path") if self._leaf in ("recording", "image") else ("",)

    def note(self, cells: Sequence[Cells], facts: Facts) -> NDArray[np.int64]:
        """Note what all rows of a piece say; return the length of the array of each, `int64[n]`."""
        if isinstance(self.codec, NumberCodec):
            return self.codec.note_all(cells[0], facts)
        if self._leaf == "text":
            cells[0].check()
        lengths = np.zeros(cells[0].num_rows, np.int64)
        for row in range(len(lengths)):
            where = f"{cells[0].where}, row {row}"
            lengths[row] = self.codec.note(self._value(cells, row, where), where, facts)
        return lengths

    def read(self, cells: Sequence[Cells], row: int) -> NDArray[Any]:
        """Return the array of one row, as a view if it is plain."""
        if isinstance(self.codec, NumberCodec):
            return self.codec.encode(cells[0].view(row), cells[0].where)
        where = f"{cells[0].where}, row {row}"
        return self.codec.encode(self._value(cells, row, where), where)

    def _value(self, cells: Sequence[Cells], row: int, where: str) -> Any:
        """Return a text, the bytes of a file, or its path."""
        if self._leaf == "text":
            return cells[0].text(row)
        if not cells[0].is_null[row]:
            return cells[0].view(row).tobytes()
        if len(cells) == 1 or cells[1].is_null[row]:
            raise SourceError(f"the column {self.column.name!r} is null", where=where, fix="correct or filter the rows")
        name = cells[1].text(row)
        if self.root is not None:
            return str(resolve_inside(self.root, name))
        if self.may_be_absolute and os.path.isabs(name):
            return name
        raise SourceError(
            f"the column {self.column.name!r} has no bytes, only the path {name!r}",
            where=where,
            fix='give the source root=, the folder that the paths are in (root="/": anywhere on this machine); or '
            "store the bytes in the table",
        )


@dataclass(frozen=True)
class TableOptions:
    """How the rows of tables become sequences, for good: it is pickled with a source.

    Attributes:
        fields: Of each data key.
        tag: The column with the tags; None: they are made up.
        nulls: What a null is: `"refuse"` or `"empty"`.
        takes_all: Whether all columns are wanted that become arrays, of whatever name.
        cache_bytes: Bound of the cache of pieces; the last one of each column is kept in any case.
    """

    fields: Sequence[TableField]
    tag: TableColumn | None
    nulls: str
    takes_all: bool
    cache_bytes: int

    @property
    def identity_text(self) -> str:
        """A text that names all that changes an index."""
        fields = [
            [one.data_key, one.column.name, one.column.type, type(one.codec).__name__, one.codec.identity, one.root]
            for one in self.fields
        ]
        return json.dumps([fields, None if self.tag is None else self.tag.name, self.nulls], default=repr)


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
    cache_bytes: int = DEFAULT_CACHE_BYTES,
) -> TableOptions:
    """Check the user's options for the columns against the schema of the first table.

    `audio_root` is another name of `root`, and `may_be_absolute` is that of `TableField`.

    Raises:
        ConfigError: An option is wrong, or a column does not exist or does not fit.
    """
    if nulls not in NULLS:
        raise ConfigError(f"nulls is {nulls!r}", fix=did_you_mean(str(nulls), NULLS))
    if fields is not None and not isinstance(fields, Mapping):
        raise ConfigError(f"fields is a dict data key -> column, not {fields!r}", where=where)
    if root is not None and audio_root is not None:
        raise ConfigError("root and audio_root say the same", where=where, fix="give root=")
    root = audio_root if root is None else root
    root = None if root is None else os.path.abspath(root)
    tag_field = tag_field or schema.tag
    tag = None if tag_field is None else schema.column(tag_field, where)
    if tag is not None and (tag.layout is None or tag.layout.axes or tag.layout.leaf[:3] not in ("tex", "int", "uin")):
        raise ConfigError(
            f"the column {tag_field!r} of {tag.type} cannot be the tags", where=where, fix="name one of texts"
        )
    targets = _all_fields(schema, tag_field, where) if fields is None else fields
    chosen = [
        TableField(key, *_choose(key, target, schema, where), root, may_be_absolute) for key, target in targets.items()
    ]
    if not chosen and not schema.is_ours and not may_be_empty:  # our writer makes files without data keys
        raise ConfigError(
            f"none of the columns {list(schema.top)} becomes an array",
            where=where,
            fix="name those that are wanted, or fields of them, by fields=",
        )
    return TableOptions(chosen, tag, nulls, fields is None, cache_bytes)


def _all_fields(schema: Schema, tag_field: str | None, where: str) -> dict[str, Any]:
    """Return the fields of all columns that become arrays, but for that of the tags; texts as UTF-8 bytes."""
    leaves = {name: getattr(schema.columns[name].layout, "leaf", None) for name in schema.top if name != tag_field}
    texts = [name for name, leaf in leaves.items() if leaf == "text"]
    tell_unchosen(texts, [name for name, leaf in leaves.items() if leaf is None], where)
    vocabs = {name: {"vocab": "bytes"} for name in texts}
    return {name: {"field": name, **vocabs.get(name, {})} for name, leaf in leaves.items() if leaf is not None}


def _choose(key: str, target: Any, schema: Schema, where: str) -> tuple[TableColumn, Codec]:
    """Return the column of a data key, and what makes its arrays."""
    options = {"field": target} if isinstance(target, str) else target
    if not isinstance(options, Mapping) or not isinstance(options.get("field"), str):
        fix = 'give the name of a column, or {"field": name, ...}'
        raise ConfigError(f"the field of the data key {key!r} cannot be read: {target!r}", where=where, fix=fix)
    column = schema.column(options["field"], where)
    if column.layout is None:
        raise ConfigError(
            f"the column {column.name!r} has the type {column.type}, which becomes no array",
            where=where,
            fix="name another column, or a field of it, or convert it to numbers, text or bytes",
        )
    leaf, where = column.layout.leaf, f"{where}, data key {key!r}"
    if leaf == "text":
        field = parse_field(key, target)
        return column, NumberCodec(column) if type(field) is ByteField else field
    if leaf in ("recording", "bytes") and any(name in options for name in IMAGE_OPTIONS):
        leaf = "image"  # the schema does not say it, and these are options of nothing else
    valid = {"image": ("field", *IMAGE_OPTIONS), "recording": _RECORDING_OPTIONS}.get(leaf, ("field", "vocab"))
    for name in options:
        if name not in valid:
            what = f"a column of {column.type} has no option {name!r}"
            raise ConfigError(what, where=where, fix=did_you_mean(str(name), valid))
    said = {**column.options, **options}
    if leaf == "image":
        return column, ImageCodec.parse(f"images of the column {column.name!r}", said)
    if leaf == "recording":
        return column, RecordingCodec(said.get("features", "raw"), said.get("sample_rate"), said.get("channel"))
    vocab: Any = options.get("vocab") if leaf != "bytes" else None
    is_list = isinstance(vocab, list | tuple) and all(isinstance(label, str) for label in vocab)
    if vocab is not None and not is_list and not (type(vocab) is int and vocab > 0):
        what = f"the vocab of a column of numbers is their number of classes, or a list of labels, not {vocab!r}"
        raise ConfigError(what, where=where)
    if vocab is not None and np.dtype(leaf).kind not in "iu":
        raise ConfigError(f"{column.type} are not class indices", where=where)
    return column, NumberCodec(column, list(vocab) if is_list else vocab)
