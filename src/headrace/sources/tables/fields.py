"""How the columns of a table become data keys: which ones, by the user's options and the schema, and as what arrays.

`NumberField` takes numbers and bytes as they are: all rows of a piece at once, which takes some 10 ns a row where a
codec takes microseconds. `CodedField` gives texts, recordings and images to a codec, one by one. Each says, when an
index is gathered, how long its arrays are, and then gives the array of one row.
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
from ..shared.fields import parse_field
from .cells import Cells
from .schema import Column, Schema, axes_of

DEFAULT_CACHE_BYTES = 256 << 20
NULLS = ("refuse", "empty")
_NUMBER_OPTIONS = ("field", "vocab")
_OPTIONS_OF = {
    "text": ("field", "vocab", "labels"),
    "recording": ("field", "features", "sample_rate", "channel"),
    "image": ("field", *IMAGE_OPTIONS),
}
Rows = NDArray[np.int64] | None


class NumberField:
    """Numbers, lists of numbers, or the bytes of texts, as they are stored.

    Args:
        data_key: The data key.
        column: The column.
        declared: Layout that our writer stored; used where it fits.
        labels: Class labels, if declared.
        num_classes: Number of classes, if declared.

    Attributes:
        parts: Fields of the column that are read; "" is the column itself.
        is_plain: Whether an array is a view of what is stored.
        guesses_labels: See `Codec`, as `is_slow` and `learnt`.
        gives_samples: Whether the arrays are samples of audio.
        labels: Class labels, if there are some.
    """

    is_plain = True
    guesses_labels = is_slow = gives_samples = False
    learnt: Any = None
    parts: tuple[str, ...] = ("",)
    labels: Sequence[str] | None

    def __init__(
        self,
        data_key: str,
        column: Column,
        declared: DataSpec | None = None,
        labels: Sequence[str] | None = None,
        num_classes: int | None = None,
    ) -> None:
        assert column.layout is not None
        self.data_key, self.column, self.layout = data_key, column, column.layout
        self._declared, self.labels = declared, labels
        self._num_classes = num_classes if labels is None else len(labels)
        self._is_checked = num_classes is not None or (labels is not None and declared is None)
        self._spec: DataSpec | None = None

    @property
    def identity(self) -> list[Any]:
        """JSON data that names the column and all that changes what an index says of it."""
        return ["numbers", self.column.name, self.column.arrow_type, self._num_classes, list(self.labels or [])]

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays, once it is known."""
        assert self._spec is not None
        return self._spec

    def note(self, cells: Sequence[Cells], rows: Rows, facts: Facts) -> NDArray[np.int64]:
        """Note the sizes of axes, and refuse rows that make no array; return the length of each row, `int64[n]`."""
        (own,) = cells
        wrong = own.first_wrong(rows)
        if wrong is not None:
            own.check(wrong, self.column.name)
        lengths = own.lengths() if rows is None else own.lengths()[rows]
        sizes = dict(own.sizes)
        if own.starts is not None and len(lengths) and self._axes[0] is not None:
            sizes[0] = int(lengths.min()), int(lengths.max())
        for axis, bounds in sizes.items():
            for size in bounds:
                facts.setdefault((axis, size), own.where)
        if self._is_checked and own.values.ndim == 1 and own.starts is None:
            self._check_classes(own.values if rows is None else own.values[rows], own.where)
        return lengths

    def conclude(self, facts: Facts) -> None:
        """Take the layout: an axis that has one size in all rows is of that size, unless it is time."""
        axes = list(self._axes)
        for axis, said in enumerate(axes):
            sizes = [size for number, size in facts if number == axis]
            if said is not None and any(size != said for size in sizes):
                found = f"{min(sizes)} to {max(sizes)} items"
                raise SourceError(
                    f"axis {axis} of the column {self.column.name!r} has {found}, not {said}",
                    where=next(where for fact, where in facts.items() if fact[0] == axis and fact[1] != said),
                    fix="correct the data, or their shape in the schema",
                )
            if axis and len(set(sizes)) == 1:
                axes[axis] = sizes[0]
        self._spec = self._spec_of(axes)

    @property
    def _axes(self) -> tuple[int | None, ...]:
        if self.layout.leaf in ("text", "bytes"):
            return (None,)
        return self.column.shape or self.layout.axes

    def _spec_of(self, axes: list[int | None]) -> DataSpec:
        if self.layout.leaf in ("text", "bytes"):
            return self._of_declared(DataSpec("uint8", sparse=True, dim=256, is_text=True))
        has_time = axes[:1] == [None]
        shape = tuple(axes[1:] if has_time else axes)
        spec = self._of_declared(learn_spec(np.dtype(self.layout.leaf), shape, has_time=has_time))
        if self._num_classes is not None and self._declared is None:
            spec = replace(spec, sparse=True, dim=self._num_classes)
        return spec

    def _of_declared(self, found: DataSpec) -> DataSpec:
        """Return what the writer was told, if the values can be that."""
        said = self._declared
        if said is None or (said.dtype, said.ndim) != (found.dtype, found.ndim):
            return found
        axes = zip(axes_of(said), axes_of(found), strict=True)
        return said if all(None in (ours, own) or ours == own for ours, own in axes) else found

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:  # noqa: ARG002
        """Take the layout."""
        self._spec, self.labels = spec, labels

    def declare(self, spec: DataSpec) -> None:
        """Take a layout; its classes are checked from now on."""
        self._spec = spec
        if spec.sparse and spec.dim is not None:
            self._num_classes, self._is_checked = spec.dim, True

    def view(self, cells: Sequence[Cells], row: int) -> NDArray[Any]:
        """Return a view of the value of one row."""
        (own,) = cells
        if own.wrong:
            own.check(row, self.column.name)
        assert self._spec is not None
        array = own.view(row)
        if self._spec.has_time and not len(array):  # its other axes are not known from it
            array = array.reshape(0, *(size or 0 for size in self._spec.shape))
        if self._is_checked:
            self._check_classes(array, own.where)
        return array

    def _check_classes(self, array: NDArray[Any], where: str) -> None:
        spec = DataSpec("int64", sparse=True, dim=self._num_classes or 0)
        check_classes(array, spec, f"{where}, column {self.column.name!r}")


class CodedField:
    """Texts, recordings or images, of which a codec makes arrays, one by one.

    Args:
        data_key: The data key.
        column: The column.
        codec: The codec.
        paths: Of recordings and images: which files may be read where a row has no bytes. `None`: these are texts.
    """

    is_plain = False

    def __init__(self, data_key: str, column: Column, codec: Codec, paths: FilePaths | None = None) -> None:
        self.data_key, self.column, self.codec, self._paths = data_key, column, codec, paths
        self.is_slow, self.guesses_labels = codec.is_slow, codec.guesses_labels
        self.gives_samples = isinstance(codec, RecordingCodec) and codec.features is None
        self._has_axis = True
        has_parts = paths is not None and column.layout is not None and column.layout.leaf != "bytes"
        self.parts = ("bytes", "path") if has_parts else ("",)

    @property
    def identity(self) -> list[Any]:
        """JSON data that names the column and all that changes what an index says of it."""
        if self._paths is None:
            return ["text", *self.codec.identity]
        own = ["recording", self.codec.channel] if isinstance(self.codec, RecordingCodec) else ["image"]
        return [*own, self.column.name, *self.codec.identity, self._paths.root]

    @property
    def labels(self) -> Sequence[str] | None:
        """Those of the codec."""
        return self.codec.labels

    @property
    def learnt(self) -> Any:
        """What the codec has learnt besides."""
        return self.codec.learnt

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays, once it is known."""
        return self.codec.spec

    def _value(self, cells: Sequence[Cells], row: int, where: str) -> Any:
        """Return what the codec gets of a row: a text, the bytes of a file, or its path."""
        data = cells[0]
        if self._paths is None:
            return text_of(data, row, self.column.name)
        if not data.is_null(row):
            return data.view(row).tobytes()
        if len(cells) == 1 or cells[1].is_null(row):
            raise SourceError(f"the column {self.column.name!r} is null", where=where, fix="correct or filter the rows")
        return self._paths.resolve(text_of(cells[1], row, self.column.name), self.column.name, where)

    def note(self, cells: Sequence[Cells], rows: Rows, facts: Facts) -> NDArray[np.int64]:
        """Let the codec see all rows of a piece, or some; return the length of each, `int64[n]`."""
        lengths = []
        for row in range(cells[0].num_rows) if rows is None else rows.tolist():
            at_row = f"{cells[0].where}, row {row}"
            lengths.append(self.codec.note(self._value(cells, row, at_row), at_row, facts))
        return np.array(lengths, np.int64)

    def conclude(self, facts: Facts) -> None:
        """Let the codec take what all rows say."""
        self.codec.conclude(facts)

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:
        """Let the codec take what was concluded before."""
        self.codec.settle(spec, labels, learnt)

    def declare(self, spec: DataSpec) -> None:
        """Take `float32[T]` or `float32[T, 1]` for samples."""
        self._has_axis = bool(spec.shape) or not isinstance(self.codec, RecordingCodec)

    def view(self, cells: Sequence[Cells], row: int) -> NDArray[Any]:
        """Return the array of one row, as a new one."""
        at_row = f"{cells[0].where}, row {row}"
        array = self.codec.encode(self._value(cells, row, at_row), at_row)
        return array if self._has_axis else array[:, 0]


TableField = NumberField | CodedField


def text_of(cells: Cells, row: int, name: str) -> str:
    """Return the text of one row.

    Raises:
        SourceError: It is null, or no UTF-8.
    """
    cells.check(row, name)
    try:
        return cells.view(row).tobytes().decode()
    except UnicodeDecodeError as error:
        what, where = f"the column {name!r} has a value that is not UTF-8: {error}", f"{cells.where}, row {row}"
        raise SourceError(what, where=where, fix="correct the row") from error


@dataclass(frozen=True, slots=True)
class FilePaths:
    """Which files the paths in a column may name, where a row has no bytes.

    Attributes:
        root: Folder that they are relative to, and must not lead out of; `None`: there is none.
        may_be_absolute: Whether, without a root, absolute paths are read as they are: those of a dataset that the
            user's own program has made or loaded, whose library would open them, too.
    """

    root: str | None = None
    may_be_absolute: bool = False

    def resolve(self, name: str, column: str, where: str) -> str:
        """Return the path of a file that a row names.

        Raises:
            SourceError: It may not be read.
        """
        if self.root is not None:
            return str(resolve_inside(self.root, name))
        if self.may_be_absolute and os.path.isabs(name):
            return name
        raise SourceError(
            f"the column {column!r} has no bytes, only the path {name!r}",
            where=where,
            fix='give the source root=, the folder that the paths are in (root="/": anywhere on this machine); or '
            "store the bytes in the table",
        )


def _all_fields(schema: Schema, tag_column: str | None, where: str) -> dict[str, Any]:
    """Return the fields of all columns that become arrays, but for that of the tags."""
    columns = [schema.columns[name] for name in dict.fromkeys([*schema.specs, *schema.top]) if name in schema.top]
    columns = [column for column in columns if column.name != tag_column]
    usable = [column for column in columns if column.layout is not None]
    left_out = [column.name for column in columns if column.layout is None]
    tell_unchosen((column.name for column in usable if _leaf_of(column) == "text"), left_out, where)
    return {column.name: {"field": column.name, **_as_bytes(column)} for column in usable}


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
        said = options if column.mode is None else {"mode": column.mode, **options}
        return CodedField(key, column, ImageCodec.parse(f"images of the column {column.name!r}", said), paths)
    if leaf == "recording":
        rate = options.get("sample_rate") or column.sample_rate
        codec = RecordingCodec(options.get("features", "raw"), rate, options.get("channel"))
        return CodedField(key, column, codec, paths)
    if column.layout.leaf == "text" and options.get("vocab") != "bytes":
        return CodedField(key, column, parse_field(key, dict(options)))
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
        cache_bytes: Bound of the cache of pieces; the last one of each column is kept in any case.
    """

    fields: Sequence[TableField]
    tag: Column | None
    nulls: str
    takes_all: bool
    cache_bytes: int

    @property
    def identity_text(self) -> str:
        """A text that names all that changes an index."""
        fields = [[field.data_key, *field.identity] for field in self.fields]
        return json.dumps([fields, None if self.tag is None else self.tag.name, self.nulls], default=repr)


def _choose_tag(schema: Schema, name: str | None, where: str) -> Column | None:
    """Return the column of the tags: the one that is named, or else the one that our writer made."""
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
    cache_bytes: int = DEFAULT_CACHE_BYTES,
) -> TableOptions:
    """Check the user's options for the columns against the schema of the first table.

    `audio_root` is another name of `root`, and `may_be_absolute` is that of `FilePaths`.

    Raises:
        ConfigError: An option is wrong, or a column does not exist or does not fit.
    """
    if nulls not in NULLS:
        raise ConfigError(f"nulls is {nulls!r}", fix=did_you_mean(str(nulls), NULLS))
    if fields is not None and not isinstance(fields, Mapping):
        raise ConfigError(f"fields is a dict data key -> column, not {fields!r}", where=where)
    tag = _choose_tag(schema, tag_field, where)
    if root is not None and audio_root is not None:
        raise ConfigError("root and audio_root say the same", where=where, fix="give root=")
    root = audio_root if root is None else root
    paths = FilePaths(None if root is None else os.path.abspath(root), may_be_absolute)
    targets = _all_fields(schema, None if tag is None else tag.name, where) if fields is None else fields
    chosen = [_choose(key, target, schema, paths, where) for key, target in targets.items()]
    if not chosen and schema.tag is None and not may_be_empty:  # our writer makes files without data keys
        raise ConfigError(
            f"none of the columns {list(schema.top)} becomes an array",
            where=where,
            fix="name those that are wanted, or fields of them, by fields=",
        )
    return TableOptions(chosen, tag, nulls, fields is None, cache_bytes)
