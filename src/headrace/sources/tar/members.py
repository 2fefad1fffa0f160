"""How the members with one extension become the arrays of one data key.

`MemberKey` takes a value out of a member, and its codec makes an array of it: `BytesCodec` (the bytes as they are),
`ArrayCodec` (NumPy's formats: one array, or one of several by name), or one that other formats have, too, for texts,
numbers, recordings and images. `parse_members` chooses, by the user's options or by the extension. Nothing that a
member holds is executed, whatever its extension: pickles stay bytes.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files.utf8 import decode_utf8
from headrace.specs import DataSpec

from ..audio.codec import RecordingCodec
from ..images import EXTENSIONS as IMAGE_EXTENSIONS
from ..images import IMAGE_OPTIONS, ImageCodec
from ..shared.codec import Codec, Facts, layout_of
from ..shared.data_types import check_classes
from ..shared.fields import NumberField, parse_field
from ..shared.json_fields import IndexField, JsonField
from ..shared.npy import HEAD_BYTES, USUAL_BYTES, NpyHeader, parse_any_npy, parse_npy, parse_usual_npy
from .archive import MemberFile

_SAVE_AGAIN = "it is truncated, or something was put behind it: write it again with numpy.save"
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, ValueError)


class BytesCodec(Codec):
    """Members as they are: `uint8[T]`; UTF-8 text has 256 classes, anything else has none."""

    def __init__(self, *, is_text: bool) -> None:
        self._spec = DataSpec("uint8", sparse=True, dim=256, is_text=True) if is_text else DataSpec("uint8", dim=1)

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        return self._spec

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:  # noqa: ARG002
        """Take the layout: the writer of the archive may know it better."""
        self._spec, self.labels = spec, labels

    def note(self, value: MemberFile, where: str, facts: Facts) -> int:  # noqa: ARG002
        """Return the number of bytes."""
        return value.size

    def encode(self, value: bytes, where: str) -> NDArray[Any]:  # noqa: ARG002
        """Return the bytes."""
        return np.frombuffer(value, np.uint8).copy()


class ArrayCodec(Codec):
    """Arrays in NumPy's format. The index sees headers.

    Args:
        ext: The extension.
        name: Name of an array among several, as it was given to `numpy.savez`; `None`: a member is one array.
        vocab: Number of classes, or their labels, if values are class indices; they are then compared with it.
    """

    def __init__(self, ext: str, name: str | None, vocab: int | Sequence[str] | None) -> None:
        self._name, self._vocab = name, vocab
        self._num_classes = vocab if isinstance(vocab, int | None) else len(vocab)
        self.labels = None if isinstance(vocab, int | None) else list(vocab)
        self._what = f"members .{ext}" if name is None else f"arrays {name!r} in members .{ext}"
        self._spec: DataSpec | None = None
        self.learnt: bool | None = None  # whether all are laid out as they are returned

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays; the number of classes is known only if it was said."""
        return self._spec or layout_of({}, self._what, "")

    @property
    def identity(self) -> list[Any]:
        """What the user said."""
        return [self._name, self._vocab]

    def note(self, value: MemberFile, where: str, facts: Facts) -> int:
        """Note the header of an array; return the length of its first axis, 1 without one."""
        size, header = value.size, None
        if self._name is not None:
            head, size = self._read(value, HEAD_BYTES, where)
            header = parse_any_npy(head, where)
        else:
            header = parse_usual_npy(value.head(USUAL_BYTES)) or parse_npy(value.head(HEAD_BYTES), where)
        if header.end != size:
            raise SourceError(
                f"an array of {header.dtype}{list(header.shape)} takes {header.end} bytes with its header, "
                f"and the member has {size}",
                where=where,
                fix=_SAVE_AGAIN,
            )
        is_usual = header.dtype.isnative and not (header.fortran and len(header.shape) > 1)
        facts.setdefault((header.dtype.name, bool(header.shape), header.shape[1:], is_usual), where)
        return header.shape[0] if header.shape else 1

    def conclude(self, facts: Facts) -> None:
        """Take the layout of the first array; the others must have its dtype and number of axes."""
        if not facts:
            return
        fix = "one data key has one dtype and one number of axes: correct the array, or name other fields="
        layouts: Facts = {}
        for fact, where in facts.items():
            layouts.setdefault(fact[:3], where)
        self._spec = layout_of(layouts, self._what, fix, num_classes=self._num_classes)
        free = {fact[2] for fact in facts}
        self.learnt = all(fact[3] for fact in facts) and len(free) == 1

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:
        """Take layout, labels, and whether arrays are laid out as they are returned."""
        self._spec, self.labels, self.learnt = spec, labels, learnt

    def encode(self, value: bytes, where: str) -> NDArray[Any]:
        """Return an array in C order and the byte order of this machine, after a look at its dtype and classes."""
        if self._name is not None:
            value = self._read(io.BytesIO(value), -1, where)[0]
        header: NpyHeader = parse_any_npy(value, where)
        native = header.dtype.newbyteorder("=")
        if header.end != len(value) or native.name != self.spec.dtype:
            raise SourceError(f"the array is now {header.dtype}{list(header.shape)}", where=where, fix=_SAVE_AGAIN)
        flat = np.frombuffer(value, header.dtype, offset=header.num_bytes)
        array = np.array(flat.reshape(header.shape, order="F" if header.fortran else "C"), native, order="C")
        if self._num_classes is not None:
            check_classes(array, self.spec, where)
        return array

    def _read(self, file: IO[bytes] | io.RawIOBase, num_bytes: int, where: str) -> tuple[bytes, int]:
        """Return the first bytes of an array in a zip archive, and its size there."""
        try:
            with zipfile.ZipFile(file) as archive:
                name = f"{self._name}.npy"
                if name not in archive.namelist():
                    there = ", ".join(entry.removesuffix(".npy") for entry in archive.namelist()[:10])
                    raise SourceError(
                        f"there is no array {self._name!r}, only {there}", where=where, fix="name another by fields="
                    )
                info = archive.getinfo(name)
                with archive.open(info) as stream:
                    return stream.read(num_bytes), info.file_size
        except _ZIP_ERRORS as error:
            raise SourceError(
                f"the arrays cannot be read: {error}", where=where, fix="write them again with numpy.savez"
            ) from error


@dataclass(frozen=True)
class MemberKey:
    """How the members with one extension become the arrays of one data key.

    Attributes:
        ext: The extension.
        codec: Makes the arrays: of a value, if `take` is given; else of the bytes of a member.
        take: Returns the text, number or JSON object that the bytes of a member are.
        steps: Names that lead to a value in a JSON object.
        has_stored_layout: Whether the layout that the writer stored holds for these arrays, unless the user said it.
    """

    ext: str
    codec: Codec
    take: Callable[[bytes, str], Any] | None = None
    steps: tuple[str, ...] = ()
    has_stored_layout: bool = False

    @property
    def identity(self) -> list[Any]:
        """JSON data that names everything the user said."""
        # Other codecs have their labels in their own identity, or learn them.
        labels = self.codec.labels if isinstance(self.codec, IndexField) else None
        return [self.ext, self.steps, type(self.codec).__name__, self.codec.identity, labels]

    @property
    def is_plain(self) -> bool:
        """Whether the bytes of an array are the last bytes of its member, as they are."""
        return self.has_stored_layout and self.codec.learnt is not False and None not in self.codec.spec.shape

    def has_value(self, member: MemberFile, where: str) -> bool:
        """Tell whether there is something to encode: a JSON object has the field, and not null."""
        return not self.steps or self.take is None or self._found(member.head(member.size), where) is not None

    def note(self, member: MemberFile, where: str, facts: Facts) -> int:
        """Look at one member; return the length of its array."""
        value = member if self.take is None else self._value(member.head(member.size), where)
        return self.codec.note(value, where, facts)

    def encode(self, data: bytes, where: str) -> NDArray[Any]:
        """Return the array of a member, `dtype[T, ...]`, as a new one."""
        return self.codec.encode(data if self.take is None else self._value(data, where), where)

    def _found(self, data: bytes, where: str) -> Any:
        assert self.take is not None
        return value_in(self.take(data, where), self.steps)

    def _value(self, data: bytes, where: str) -> Any:
        value = self._found(data, where)
        if value is None:
            what = f"there is no field {'.'.join(self.steps)!r} in the object, or it is null"
            raise SourceError(what, where=where, fix="name a field that every sequence has")
        return value


def text_of(data: bytes, where: str) -> str:
    """Return the text that a member is, without the end of its last line."""
    return decode_utf8(data, where).removesuffix("\n").removesuffix("\r")


def number_of(data: bytes, where: str) -> int:
    """Return the whole number that a member is."""
    digits = text_of(data, where).strip()
    if not digits.removeprefix("-").isdecimal() or not digits.isascii() or len(digits) > 19:
        fix = 'give {"field": ..., "vocab": [labels]} by fields=, if it is text'
        raise SourceError(f"the member has {digits[:50]!r}, not a whole number", where=where, fix=fix)
    return int(digits)


def json_of(data: bytes, where: str) -> Any:
    """Return the object that a member is as JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"the member is not JSON: {error}", where=where, fix="write UTF-8, and no NaN") from error


def value_in(value: Any, steps: tuple[str, ...]) -> Any:
    """Return what names lead to in an object; `None` where nothing is."""
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


AUDIO_EXTENSIONS = frozenset(("wav", "flac", "ogg", "oga", "opus", "mp3", "aiff", "aif", "au", "w64", "rf64", "caf"))
_TEXT_EXTENSIONS = frozenset(("txt", "text", "transcript", "lab", "json", "jsn", "jsonl", "csv", "tsv", "srt", "xml"))
_CLASS_EXTENSIONS = frozenset(("cls", "cls2", "class"))
_NUMBER_EXTENSIONS = _CLASS_EXTENSIONS | {"count", "index", "inx", "id"}
_NAMED_EXTENSIONS = frozenset(("json", "jsn", "npz"))  # of members that hold values by name
_FORMS = (
    'valid: an extension such as "npy", "json:name" or "npz:name" for something inside, or {"field": one of these, ...}'
)
_OPTIONS = {"audio": ("features", "sample_rate", "channel"), "image": IMAGE_OPTIONS, "value": ("vocab", "labels")}


def default_data_key(ext: str) -> str:
    """Return the data key of the members with an extension: `x` for `x.npy`, and else the extension itself."""
    name, dot, last = ext.rpartition(".")
    return name if dot and (last.lower() in AUDIO_EXTENSIONS | IMAGE_EXTENSIONS | {"npy", "txt"}) else ext


def parse_fields(fields: Any) -> dict[str, MemberKey]:
    """Choose how each data key is read: `fields` is a dict, or a list of extensions with their usual data keys.

    Raises:
        ConfigError: It has another form, or a field has.
    """
    if isinstance(fields, list | tuple) and all(isinstance(one, str) for one in fields):
        given, fields = fields, {default_data_key(one.removeprefix(".").partition(";")[0]): one for one in fields}
        if len(fields) < len(given):
            raise ConfigError(
                f"two of the fields {given} have the same data key", where="TarSource", fix="give {data key: extension}"
            )
    if not isinstance(fields, Mapping):
        raise ConfigError(
            f"fields cannot be read: {fields!r}",
            where="TarSource",
            fix='give {data key: extension, ...}, or a list of extensions such as ["jpg", "cls"]',
        )
    return {key: parse_members(key, target) for key, target in fields.items()}


def parse_members(data_key: str, target: Any, *, is_found: bool = False) -> MemberKey:
    """Choose how one data key is read.

    Args:
        data_key: Its name, for errors.
        target: An extension; several of images, or of recordings, of which a sequence has one: `"jpg;png"`;
            `"json:name"` for a value in the JSON object of the member with the extension "json" (dots lead into objects
            inside), `"npz:name"` for an array of several; or a dict with that as "field", and "vocab" (see
            `parse_field`; for arrays, a number of classes or a list of labels), or "features", "sample_rate", "channel"
            (see `AudioSource`) for recordings, or "mode" and "size" (see `ImageCodec`) for
            images; their mode "bytes" gives the bytes of the file.
        is_found: Whether it is the extension of members that are there, in which ";" and ":" have no meaning.

    Raises:
        ConfigError: It has another form, or options that do not fit.
    """
    where = f"TarSource(fields=...), data key {data_key!r}"
    options = {"field": target} if isinstance(target, str) else target
    if not isinstance(options, Mapping) or not isinstance(options.get("field"), str) or not options["field"]:
        raise ConfigError(f"a field cannot be read: {target!r}", where=where, fix=_FORMS)
    field, steps = (target, ()) if is_found else split_field(options["field"], where)
    lasts = {one.rpartition(".")[2].lower() for one in ([field] if is_found else field.split(";"))}
    what = "audio" if lasts <= AUDIO_EXTENSIONS else "image" if lasts <= IMAGE_EXTENSIONS else "value"
    for name in options:
        if name not in ("field", *_OPTIONS[what]):
            raise ConfigError(f"unknown option {name!r}", where=where, fix=did_you_mean(str(name), _OPTIONS[what]))
    if what == "audio":
        features, sample_rate = options.get("features", "raw"), options.get("sample_rate")
        return MemberKey(field, RecordingCodec(features, sample_rate, options.get("channel")))
    if what == "image" and options.get("mode") == "bytes" and "size" not in options:
        return MemberKey(field, BytesCodec(is_text=False), has_stored_layout=True)
    if what == "image":
        return MemberKey(field, ImageCodec.parse(f"members .{field}", options))
    if len(lasts) > 1:
        fix = 'of several extensions, all are of images, as in "jpg;png", or all of recordings'
        raise ConfigError(f"a field cannot be read: {field!r}", where=where, fix=fix)
    (last,), vocab = lasts, options.get("vocab")
    if last == "npy" or (last == "npz" and steps):
        codec = ArrayCodec(field, ".".join(steps) or None, _classes_of(vocab, "labels" in options, where))
        return MemberKey(field, codec, has_stored_layout=not steps and vocab is None)
    is_bare = options.keys() == {"field"}
    if steps:
        named = JsonField(options["field"]) if is_bare else parse_field(data_key, options)
        return MemberKey(field, named, json_of, steps)
    if is_bare and last in _NUMBER_EXTENSIONS:
        return MemberKey(
            field, NumberField(field) if last in _CLASS_EXTENSIONS else JsonField(field, "int64"), number_of
        )
    if is_bare:
        return MemberKey(field, BytesCodec(is_text=last in _TEXT_EXTENSIONS), has_stored_layout=True)
    if last in _NUMBER_EXTENSIONS and isinstance(vocab, int | list | tuple):
        num_classes = vocab if isinstance(vocab, int) else len(vocab) or 1
        classes = parse_field(data_key, {"field": field, "vocab": num_classes})
        classes.labels = None if isinstance(vocab, int) else list(vocab)
        return MemberKey(field, classes, number_of)
    return MemberKey(field, parse_field(data_key, {**options, "field": field}), text_of)


def split_field(field: str, where: str) -> tuple[str, tuple[str, ...]]:
    """Return the extension, and the names that lead to a value inside: `json:a.b` is `b` in the object `a`.

    Raises:
        ConfigError: It names nothing.
    """
    ext, colon, path = field.removeprefix(".").partition(":")
    steps = tuple(path.split(".")) if colon else ()
    has_names = ext.rpartition(".")[2].lower() in _NAMED_EXTENSIONS
    if not ext or "/" in ext or (colon and not (has_names and all(steps))):
        raise ConfigError(f"{field!r} names no members", where=where, fix=_FORMS)
    return ext, steps


def _classes_of(vocab: Any, has_labels: bool, where: str) -> int | list[str] | None:
    """Return the number of classes of an array of class indices, or their labels."""
    is_list = isinstance(vocab, list | tuple) and bool(vocab) and all(isinstance(label, str) for label in vocab)
    if has_labels or not (vocab is None or is_list or (type(vocab) is int and vocab > 0)):
        fix = "give the number of classes, or a list of their labels"
        what = f"the vocab of an array of class indices cannot be read: {vocab!r}"
        raise ConfigError(what, where=where, fix=fix)
    return list(vocab) if is_list else vocab
