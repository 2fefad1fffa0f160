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
_OPTIONS_OF = {
    "text": ("field", "vocab", "labels"),
    "recording": ("field", "features", "sample_rate", "channel"),
    "image": ("field", *IMAGE_OPTIONS),
}


class NumberField:
    """Numbers, lists of numbers, or the bytes of texts, as they are stored.

    Args:
        data_key: The data key.
        column: The column.
        labels: Class labels, if there are some.
        num_classes: Number of classes, if the user said it.
        declared: Layout that our writer stored; used where it fits.

    Attributes:
        parts: Fields of the column that are read; "" is the column itself.
        is_plain: Whether an array is a view of what is stored.
        guesses_labels: See `Codec`, as `is_slow` and `learnt`.
        gives_samples: Whether the arrays are samples of audio.
    """

    is_plain = True
    guesses_labels = is_slow = gives_samples = False
    learnt: Any = None
    parts: tuple[str, ...] = ("",)
    spec: DataSpec

    def __init__(
        self,
        data_key: str,
        column: Column,
        labels: Sequence[str] | None = None,
        num_classes: int | None = None,
        declared: DataSpec | None = None,
    ) -> None:
        self.data_key, self.column, self.labels, self._declared = data_key, column, labels, declared
        self._num_classes = num_classes if labels is None or num_classes is not None else len(labels)
        self._checked_dim = None if declared is not None else self._num_classes

    @property
    def identity(self) -> list[Any]:
        """JSON data that names the column and all that changes what an index says of it."""
        return ["numbers", self.column.name, self.column.arrow_type, self._num_classes, list(self.labels or [])]

    @property
    def _axes(self) -> tuple[int | None, ...]:
        assert self.column.layout is not None
        return (self.column.shape or self.column.layout.axes) if self.column.layout.is_numbers else (None,)

    def note(self, cells: Sequence[Cells], facts: Facts) -> NDArray[np.int64]:
        """Note the sizes of axes, and refuse rows that make no array; return the length of each row, `int64[n]`."""
        (own,) = cells
        own.check()
        sizes = dict(own.sizes)
        if own.num_rows and self._axes[:1] not in ((), (None,)):
            sizes[0] = int(own.lengths.min()), int(own.lengths.max())
        for axis, bounds in sizes.items():
            for size in bounds:
                facts.setdefault((axis, size), own.where)
        if own.values.ndim == 1 and not self._axes:
            self._check_classes(own.values, own.where)
        return own.lengths

    def conclude(self, facts: Facts) -> None:
        """Take the layout: an axis that has one size in all rows is of that size, unless it is time."""
        axes = list(self._axes)
        for axis, said in enumerate(axes):
            found = {size: where for (number, size), where in facts.items() if number == axis}
            wrong = [size for size in found if said not in (None, size)]
            if wrong:
                items = f"{min(found)} to {max(found)} items, not {said}"
                what, fix = (
                    f"axis {axis} of the column {self.column.name!r} has {items}",
                    "correct the data, or the schema",
                )
                raise SourceError(what, where=found[wrong[0]], fix=fix)
            if axis and len(found) == 1:
                axes[axis] = next(iter(found))
        assert self.column.layout is not None
        if not self.column.layout.is_numbers:
            spec = DataSpec("uint8", sparse=True, dim=256, is_text=True)
        else:
            has_time = axes[:1] == [None]
            dtype = np.dtype(self.column.layout.leaf)
            spec = learn_spec(dtype, axes[1:] if has_time else axes, has_time=has_time)
            if self._checked_dim is not None:
                spec = replace(spec, sparse=True, dim=self._checked_dim)
        ours = self._declared
        if ours is not None and (ours.dtype, ours.ndim) == (spec.dtype, spec.ndim):
            pairs = zip(axes_of(ours), axes_of(spec), strict=True)
            spec = ours if all(None in pair or pair[0] == pair[1] for pair in pairs) else spec
        self.spec = spec

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:  # noqa: ARG002
        """Take the layout."""
        self.spec, self.labels = spec, labels

    def declare(self, spec: DataSpec) -> None:
        """Take a layout; its classes are checked from now on."""
        self.spec = spec
        if spec.sparse and spec.dim is not None:
            self._checked_dim = spec.dim

    def view(self, cells: Sequence[Cells], row: int) -> NDArray[Any]:
        """Return a view of the value of one row."""
        (own,) = cells
        array = own.view(row)
        if self.spec.has_time and not len(array):  # its other axes are not known from it
            array = array.reshape(0, *(size or 0 for size in self.spec.shape))
        self._check_classes(array, own.where)
        return array

    def _check_classes(self, array: NDArray[Any], where: str) -> None:
        if self._checked_dim is not None:
            spec = DataSpec("int64", sparse=True, dim=self._checked_dim)
            check_classes(array, spec, f"{where}, column {self.column.name!r}")


class CodedField:
    """Texts, recordings or images, of which a codec makes arrays, one by one.

    Args:
        data_key: The data key.
        column: The column.
        codec: The codec.
        root: Folder that the paths of recordings and images without bytes are in; they must not lead out of it.
        may_be_absolute: Whether, without a root, absolute paths are read as they are: those of a dataset that the
            user's own program has made or loaded, whose library would open them, too.
    """

    is_plain = False

    def __init__(
        self, data_key: str, column: Column, codec: Codec, root: str | None = None, *, may_be_absolute: bool = False
    ) -> None:
        assert column.layout is not None
        self.data_key, self.column, self.codec = data_key, column, codec
        self._root, self._may_be_absolute = root, may_be_absolute
        self.is_slow, self.guesses_labels = codec.is_slow, codec.guesses_labels
        self.gives_samples = isinstance(codec, RecordingCodec) and codec.features is None
        self._has_axis, self._is_text = True, column.layout.leaf == "text"
        self.parts = ("bytes", "path") if column.layout.leaf in ("recording", "image") else ("",)

    @property
    def identity(self) -> list[Any]:
        """JSON data that names the column and all that changes what an index says of it."""
        own = [type(self.codec).__name__, self.column.name, *self.codec.identity, self._root]
        return [*own, self.codec.channel] if isinstance(self.codec, RecordingCodec) else own

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
        data = cells[0].view(row).tobytes()
        if self._is_text:
            return text_of(data, self.column.name, where)
        if cells[0].is_null is None or not cells[0].is_null[row]:
            return data
        if len(cells) == 1 or (cells[1].is_null is not None and cells[1].is_null[row]):
            raise SourceError(f"the column {self.column.name!r} is null", where=where, fix="correct or filter the rows")
        name = text_of(cells[1].view(row).tobytes(), self.column.name, where)
        if self._root is not None:
            return str(resolve_inside(self._root, name))
        if self._may_be_absolute and os.path.isabs(name):
            return name
        raise SourceError(
            f"the column {self.column.name!r} has no bytes, only the path {name!r}",
            where=where,
            fix='give the source root=, the folder that the paths are in (root="/": anywhere on this machine); or '
            "store the bytes in the table",
        )

    def note(self, cells: Sequence[Cells], facts: Facts) -> NDArray[np.int64]:
        """Let the codec see all rows of a piece; return the length of each, `int64[n]`."""
        if self._is_text:
            cells[0].check()
        lengths = []
        for row in range(cells[0].num_rows):
            where = f"{cells[0].where}, row {row}"
            lengths.append(self.codec.note(self._value(cells, row, where), where, facts))
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
        where = f"{cells[0].where}, row {row}"
        array = self.codec.encode(self._value(cells, row, where), where)
        return array if self._has_axis else array[:, 0]


TableField = NumberField | CodedField


def text_of(data: bytes, name: str, where: str) -> str:
    """Return a text.

    Raises:
        SourceError: It is not UTF-8, as Arrow's own check does not look at binary columns.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        what = f"the column {name!r} has a value that is not UTF-8: {error}"
        raise SourceError(what, where=where, fix="correct the row") from error


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

    `audio_root` is another name of `root`, and `may_be_absolute` is that of `CodedField`.

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
    tag_field = tag_field or (schema.tag if schema.tag in schema.top else None)  # somebody may have taken it away
    tag = None if tag_field is None else schema.column(tag_field, where)
    if tag is not None and (tag.layout is None or tag.layout.axes or tag.layout.leaf[:3] not in ("tex", "int", "uin")):
        raise ConfigError(
            f"the column {tag_field!r} of {tag.arrow_type} cannot be the tags", where=where, fix="name one of texts"
        )
    targets = _all_fields(schema, tag_field, where) if fields is None else fields
    chosen = [_choose(key, target, schema, root, may_be_absolute, where) for key, target in targets.items()]
    if not chosen and schema.tag is None and not may_be_empty:  # our writer makes files without data keys
        raise ConfigError(
            f"none of the columns {list(schema.top)} becomes an array",
            where=where,
            fix="name those that are wanted, or fields of them, by fields=",
        )
    return TableOptions(chosen, tag, nulls, fields is None, cache_bytes)


def _all_fields(schema: Schema, tag_field: str | None, where: str) -> dict[str, Any]:
    """Return the fields of all columns that become arrays, but for that of the tags; texts as UTF-8 bytes."""
    names = [name for name in dict.fromkeys([*schema.specs, *schema.top]) if name in schema.top and name != tag_field]
    leaves = {name: getattr(schema.columns[name].layout, "leaf", None) for name in names}
    texts = [name for name in names if leaves[name] == "text"]
    tell_unchosen(texts, [name for name in names if leaves[name] is None], where)
    as_bytes = {name: {"vocab": "bytes"} for name in texts}
    return {name: {"field": name, **as_bytes.get(name, {})} for name in names if leaves[name] is not None}


def _choose(key: str, target: Any, schema: Schema, root: str | None, may_be_absolute: bool, where: str) -> TableField:
    """Return the field of a data key."""
    options = {"field": target} if isinstance(target, str) else target
    where_key = f"{where}, data key {key!r}"
    if not isinstance(options, Mapping) or not isinstance(options.get("field"), str):
        fix = 'give the name of a column, or {"field": name, ...}'
        raise ConfigError(f"the field of the data key {key!r} cannot be read: {target!r}", where=where, fix=fix)
    column = schema.column(options["field"], where)
    if column.layout is None:
        raise ConfigError(
            f"the column {column.name!r} has the type {column.arrow_type}, which becomes no array",
            where=where,
            fix="name another column, or a field of it, or convert it to numbers, text or bytes",
        )
    leaf = column.layout.leaf
    if leaf in ("recording", "bytes") and any(name in options for name in IMAGE_OPTIONS):
        leaf = "image"  # the schema does not say it, and these are options of nothing else
    valid = _OPTIONS_OF.get(leaf, ("field", "vocab"))
    for name in options:
        if name not in valid:
            what = f"a column of {column.arrow_type} has no option {name!r}"
            raise ConfigError(what, where=where_key, fix=did_you_mean(str(name), valid))
    codec: Codec
    if leaf in ("recording", "image"):
        said = {**column.options, **options}
        if leaf == "image":
            codec = ImageCodec.parse(f"images of the column {column.name!r}", said)
        else:
            codec = RecordingCodec(said.get("features", "raw"), said.get("sample_rate"), said.get("channel"))
        return CodedField(key, column, codec, root, may_be_absolute=may_be_absolute)
    vocab = options.get("vocab")
    if leaf == "text" and vocab != "bytes" and not (isinstance(target, str) and key == "orth"):
        return CodedField(key, column, parse_field(key, dict(options)))
    labels = schema.labels.get(column.name, column.labels)
    if vocab is None or not column.layout.is_numbers:
        return NumberField(key, column, labels, declared=schema.specs.get(column.name) if vocab is None else None)
    has_labels = isinstance(vocab, list | tuple) and all(isinstance(label, str) for label in vocab)
    if not has_labels and not (type(vocab) is int and vocab > 0):
        what = f"the vocab of a column of numbers is their number of classes, or a list of labels, not {vocab!r}"
        raise ConfigError(what, where=where_key)
    if np.dtype(leaf).kind not in "iu":
        raise ConfigError(f"{column.arrow_type} are not class indices", where=where_key)
    return NumberField(key, column, list(vocab)) if has_labels else NumberField(key, column, num_classes=int(vocab))
