"""How the members with one extension become the arrays of one data key.

One class for each way: `BytesMembers` (as they are), `ValueMembers` (a text, a number or a value in a JSON object,
encoded by a `Field`), `NpyMembers` and `NpzMembers` in `tar_arrays.py`, and `AudioMembers` in `tar_audio.py`;
`parse_members` in `tar_fields.py` chooses. Each looks at all members once (`scan`, `end_scan`), or is given what was
learnt from them before (`settle`). Nothing that a member holds is executed, whatever its extension: pickles stay bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.specs import DataSpec

from .manifest_fields import Field, IndexField
from .tar_scan import Member, TarBytes
from .utf8 import decode_utf8


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
