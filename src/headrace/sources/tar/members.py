"""How the members with one extension become the arrays of one data key.

One class for each way: `BytesMembers` (as they are), `ValueMembers` (a text, a number or a value in a JSON object,
encoded by a `Field`), `NpyMembers` and `NpzMembers` (NumPy's formats: one array, or several by name), and
`AudioMembers` in `audio.py`; `parse_members` in `fields.py` chooses. Each looks at all members once (`scan`,
`end_scan`), or is given what was learnt from them before (`settle`). Nothing that a member holds is executed, whatever
its extension: pickles stay bytes.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.utf8 import decode_utf8
from headrace.specs import DataSpec

from ..shared.data_types import learn_spec
from ..shared.fields import Field, IndexField
from ..shared.npy import HEAD_BYTES, USUAL_BYTES, NpyHeader, parse_any_npy, parse_npy, parse_usual_npy
from .archive import Member, MemberFile, TarBytes


class Members(ABC):
    """How the members with one extension become arrays.

    Attributes:
        ext: The extension.
        labels: Class labels, or `None`.
        is_plain: Whether the bytes of an array are the last bytes of its member, as they are.
        takes_notes: Whether the layout that the writer of the archive noted is theirs.
    """

    ext: str
    labels: Sequence[str] | None = None
    is_plain: bool = False
    takes_notes: bool = False

    @property
    @abstractmethod
    def identity(self) -> list[Any]:
        """JSON data that names everything the user said; no scan changes it."""

    @property
    @abstractmethod
    def spec(self) -> DataSpec:
        """Layout of the arrays, once that is known.

        Raises:
            ConfigError: There are no members to tell it from.
        """

    @property
    def learnt(self) -> Any:
        """JSON data: what a scan found that neither the layout nor the labels say."""
        return None

    @abstractmethod
    def scan(self, archive: TarBytes, member: Member, where: str) -> int:
        """Look at one member; return the length of its array."""

    def end_scan(self) -> None:  # noqa: B027 - most have nothing to settle
        """Settle what depends on all members, such as labels."""

    @abstractmethod
    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any) -> None:
        """Take what a scan of the same members found, or what the writer of the archive says, in place of a scan."""

    @abstractmethod
    def decode(self, data: bytes, where: str) -> NDArray[Any]:
        """Return the array of a member, `dtype[T, ...]`, as a new one."""


class BytesMembers(Members):
    """Members as they are: `uint8[T]`; UTF-8 text has 256 classes, anything else has none."""

    is_plain = True
    takes_notes = True

    def __init__(self, ext: str, *, is_text: bool) -> None:
        self.ext = ext
        self._spec = DataSpec("uint8", sparse=True, dim=256) if is_text else DataSpec("uint8", dim=1)

    @property
    def identity(self) -> list[Any]:
        """Its kind and extension."""
        return ["bytes", self.ext, self._spec.sparse]

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        return self._spec

    def scan(self, archive: TarBytes, member: Member, where: str) -> int:  # noqa: ARG002 - the size says it
        """Return the number of bytes."""
        return member.num_bytes

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any) -> None:  # noqa: ARG002
        """Take the layout: the writer may know it better."""
        self._spec, self.labels = spec, labels

    def decode(self, data: bytes, where: str) -> NDArray[Any]:  # noqa: ARG002
        """Return the bytes, `uint8[T]`."""
        return np.frombuffer(data, np.uint8).copy()


class ValueMembers(Members):
    """Members that hold one value each: text, a whole number, or something in a JSON object.

    Args:
        ext: The extension.
        kind: "text", "number" or "json".
        steps: Names that lead into a JSON object.
        field: How a value becomes an array.
    """

    def __init__(self, ext: str, kind: str, steps: tuple[str, ...], field: Field) -> None:
        self.ext = ext
        self._kind, self._steps, self._field = kind, steps, field
        self.labels = field.labels
        # Other fields have their labels in their own identity, or learn them.
        self._labels_given = field.labels if isinstance(field, IndexField) else None

    @property
    def identity(self) -> list[Any]:
        """Its kind, extension, way into JSON, and how values are encoded."""
        return [self._kind, self.ext, list(self._steps), self._field.identity, self._labels_given]

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        return self._field.spec

    def scan(self, archive: TarBytes, member: Member, where: str) -> int:
        """Read the value; return the length of its array."""
        return self._field.scan(self.value(archive.read(member.position, member.num_bytes), where), where)

    def end_scan(self) -> None:
        """Let the field settle its labels."""
        self._field.end_scan()
        self.labels = self._field.labels

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any) -> None:  # noqa: ARG002
        """Let the field take what was learnt."""
        self._field.adopt(spec)
        self._field.settle(labels)
        self.labels = labels

    def value(self, data: bytes, where: str) -> Any:
        """Return the value in a member."""
        if self._kind == "json":
            return _value_in(data, self._steps, where)
        text = decode_utf8(data, where)
        if self._kind == "text":
            return text.removesuffix("\n").removesuffix("\r")
        digits = text.strip()
        if not digits.removeprefix("-").isdecimal() or not digits.isascii() or len(digits) > 19:
            raise SourceError(
                f"the member has {text[:50]!r}, not a whole number",
                where=where,
                fix=f'give {{"field": "{self.ext}", "vocab": [labels]}} by fields=, if it is text',
            )
        return int(digits)

    def decode(self, data: bytes, where: str) -> NDArray[Any]:
        """Return the array of the value."""
        return self._field.encode(self.value(data, where), where)


def _value_in(data: bytes, steps: tuple[str, ...], where: str) -> Any:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"the member is not JSON: {error}", where=where, fix="write UTF-8, and no NaN") from error
    for step in steps:
        if not isinstance(value, dict) or step not in value:
            there = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise SourceError(
                f"there is no field {'.'.join(steps)!r}: no {step!r} in {there}",
                where=where,
                fix="name a field that every sequence has",
            )
        value = value[step]
    return value


def text_of(data: bytes, steps: tuple[str, ...] | None, where: str) -> str:
    """Return a text from a member: all of it, or a value in its JSON object; for tags."""
    if steps is None:
        return decode_utf8(data, where).removesuffix("\n").removesuffix("\r")
    value = _value_in(data, steps, where)
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise SourceError(f"the field {'.'.join(steps)!r} has {value!r}, not a text", where=where)
    return str(value)


_SAVE_AGAIN = "it is truncated, or something was put behind it: write it again with numpy.save"
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, ValueError)


class _Layout:
    """The layout that the arrays of one key have in common, learnt from one after the other.

    Args:
        what: What the arrays are called in messages.
        num_classes: How many classes the values are of; `None` if nobody said.

    Attributes:
        is_uniform: Whether all have the same frame shape, the byte order of this machine, and C order.
    """

    def __init__(self, what: str, num_classes: int | None) -> None:
        self._what, self._num_classes = what, num_classes
        self._usual: tuple[np.dtype[Any], tuple[int, ...]] | None = None  # dtype and frame shape of the first one
        self._spec: DataSpec | None = None
        self.is_uniform = True

    @property
    def spec(self) -> DataSpec:
        """What is known."""
        if self._spec is None:
            raise ConfigError(f"there are no {self._what}, and so no dtype and shape", fix="leave out the data key")
        return self._spec

    def learn(self, header: NpyHeader, where: str) -> int:
        """Look at one header; return the length of its array."""
        shape = header.shape
        if self._usual != (header.dtype, shape[1:]) or not shape or header.fortran:
            self._learn_unlike(header.dtype, shape, header.fortran, where)
        return shape[0] if shape else 1

    def _learn_unlike(self, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool, where: str) -> None:
        """Look at an array that is the first, or not quite like the first."""
        native, has_time, frame_shape = dtype.newbyteorder("="), bool(shape), shape[1:]
        if dtype != native or (fortran and len(shape) > 1):
            self.is_uniform = False
        if self._spec is None:
            self._spec = self._first_spec(native, frame_shape, has_time, where)
            self._usual = dtype, frame_shape
            return
        ours = self._spec
        if (native.name, len(frame_shape), has_time) != (ours.dtype, len(ours.shape), ours.has_time):
            raise SourceError(
                f"this array is {native}{list(shape)}, and the first is {ours.dtype} with {ours.ndim} axes",
                where=where,
                fix="one data key has one dtype and one number of axes: correct the array, or name other fields=",
            )
        free = tuple(old if old == new else None for old, new in zip(ours.shape, frame_shape, strict=True))
        if free != ours.shape:
            self._spec = replace(ours, shape=free, dim=free[-1] if free and not ours.sparse else ours.dim)
            self.is_uniform = False

    def _first_spec(self, dtype: np.dtype[Any], frame_shape: tuple[int, ...], has_time: bool, where: str) -> DataSpec:
        if self._num_classes is not None:
            if dtype.kind not in "iu":
                raise ConfigError(f"vocab is for class indices, and the {self._what} are {dtype}", where=where)
            return DataSpec(dtype.name, frame_shape, True, self._num_classes, has_time)
        return learn_spec(dtype, frame_shape, has_time=has_time)

    def settle(self, spec: DataSpec) -> None:
        """Take what was learnt before."""
        self._spec = spec

    def array(self, data: bytes, where: str) -> NDArray[Any]:
        """Return an array in C order and the byte order of this machine, after a look at its dtype and classes."""
        header = parse_any_npy(data, where)
        native = header.dtype.newbyteorder("=")
        if header.end != len(data) or native.name != self.spec.dtype:
            raise SourceError(f"the array is now {header.dtype}{list(header.shape)}", where=where, fix=_SAVE_AGAIN)
        flat = np.frombuffer(data, header.dtype, offset=header.num_bytes)
        array = np.array(flat.reshape(header.shape, order="F" if header.fortran else "C"), native, order="C")
        if self._num_classes is not None and array.size and not 0 <= array.min() <= array.max() < self._num_classes:
            raise SourceError(
                f"class indices are in {array.min()}..{array.max()}, and there are {self._num_classes} classes",
                where=where,
                fix="correct the array, or the vocab of the field",
            )
        return array


class NpyMembers(Members):
    """One array a member.

    Args:
        ext: The extension.
        vocab: Number of classes, or their labels, if values are class indices; they are then compared with it.
    """

    def __init__(self, ext: str, vocab: int | Sequence[str] | None = None) -> None:
        self.ext = ext
        self._vocab = vocab
        self._layout = _Layout(f"members .{ext}", _num_classes(vocab))
        self.labels = _labels(vocab)

    @property
    def takes_notes(self) -> bool:  # type: ignore[override]
        """What a writer noted counts, unless the user said it."""
        return self._vocab is None

    @property
    def is_plain(self) -> bool:  # type: ignore[override]
        """Whether an array is the last bytes of its member: nothing is to be turned, or to be looked at."""
        return self._vocab is None and self._layout.is_uniform and None not in self._layout.spec.shape

    @property
    def identity(self) -> list[Any]:
        """Its kind, extension and classes."""
        return ["npy", self.ext, self._vocab]

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays; the number of classes is known only if it was said."""
        return self._layout.spec

    @property
    def learnt(self) -> Any:
        """Whether all arrays are laid out as they are returned."""
        return self._layout.is_uniform

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any) -> None:
        """Take layout, labels, and whether arrays are laid out as they are returned."""
        self._layout.settle(spec)
        self._layout.is_uniform = bool(learnt)
        self.labels = labels

    def scan(self, archive: TarBytes, member: Member, where: str) -> int:
        """Read a header; return the length of the first axis, 1 without one."""
        header = parse_usual_npy(archive.read(member.position, min(USUAL_BYTES, member.num_bytes)))
        if header is None:
            header = parse_npy(archive.read(member.position, min(HEAD_BYTES, member.num_bytes)), where)
        _check_size(header, member.num_bytes, where)
        return self._layout.learn(header, where)

    def decode(self, data: bytes, where: str) -> NDArray[Any]:
        """Return the array, as a new one."""
        return self._layout.array(data, where)


class NpzMembers(Members):
    """One array of several in a member, by its name, compressed or not.

    Args:
        ext: The extension.
        name: Of the array, as it was given to `numpy.savez`.
        vocab: As for `NpyMembers`.
    """

    def __init__(self, ext: str, name: str, vocab: int | Sequence[str] | None = None) -> None:
        self.ext = ext
        self._name, self._vocab = name, vocab
        self._layout = _Layout(f"arrays {name!r} in members .{ext}", _num_classes(vocab))
        self.labels = _labels(vocab)

    @property
    def identity(self) -> list[Any]:
        """Its kind, extension, name and classes."""
        return ["npz", self.ext, self._name, self._vocab]

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays; the number of classes is known only if it was said."""
        return self._layout.spec

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any) -> None:  # noqa: ARG002
        """Take layout and labels."""
        self._layout.settle(spec)
        self.labels = labels

    def scan(self, archive: TarBytes, member: Member, where: str) -> int:
        """Read the list of arrays and a header; return the length of the first axis, 1 without one."""
        head, size = self._read(MemberFile(archive, member), HEAD_BYTES, where)
        header = parse_any_npy(head, where)
        _check_size(header, size, where)
        return self._layout.learn(header, where)

    def decode(self, data: bytes, where: str) -> NDArray[Any]:
        """Return the array, as a new one."""
        return self._layout.array(self._read(io.BytesIO(data), -1, where)[0], where)

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


def _num_classes(vocab: int | Sequence[str] | None) -> int | None:
    return vocab if isinstance(vocab, int | None) else len(vocab)


def _labels(vocab: int | Sequence[str] | None) -> list[str] | None:
    return None if isinstance(vocab, int | None) else list(vocab)


def _check_size(header: NpyHeader, num_bytes: int, where: str) -> None:
    end = header.num_bytes + math.prod(header.shape) * header.dtype.itemsize
    if end != num_bytes:
        raise SourceError(
            f"an array of {header.dtype}{list(header.shape)} takes {end} bytes with its header, "
            f"and the member has {num_bytes}",
            where=where,
            fix=_SAVE_AGAIN,
        )
