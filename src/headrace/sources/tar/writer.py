"""`TarWriter`: writes sequences to one tar archive that WebDataset, Energon and `TarSource` read.

Each data key of each sequence is a member `<tag>.<data key>.npy`. Members are written one after the other, to a
temporary name that becomes the target's at the end, so memory stays small and the target appears whole or not at all.
The same sequences give the same bytes: no times, no users.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from ..shared.data_types import check_classes, checked_seq, learn_specs, native
from ..shared.npy import make_npy_header
from ..shared.writer import FileWriter
from .archive import BLOCK, NOTE_NAME, escape, escape_data_key
from .note import Note

_KINDS = "biufc"
_BUFFER_BYTES = 1 << 20  # written at once; larger ones are no quicker
_MAX_CLASS = 2**63 - 1  # of more, the number of classes cannot be noted
_RECORD_BYTES = 20 * BLOCK  # the size of an archive is a multiple of it by custom


@dataclass(frozen=True, slots=True)
class _Checked:
    """A sequence that the archive can hold: its tag and name there, layouts, arrays, and class indices in them."""

    tag: str
    key: str
    specs: dict[str, DataSpec]
    arrays: dict[str, NDArray[Any]]
    ranges: dict[str, tuple[int, int]]


class TarWriter(FileWriter):
    """Writes one tar archive, sequence by sequence; a context manager, which aborts if its block fails.

    In a tag, `%`, dots, control characters and slashes that are no inner ones are written as `%` and two hexadecimal
    digits (`a.wav` becomes `a%2Ewav`), so that any tag is one name below the root of the archive; `TarSource` gives the
    tag back. A tag cannot come twice. Layouts and labels are kept in the last member, in a folder that WebDataset and
    Energon leave alone.

    Args:
        path: The file to make. Its folder must exist.
        specs: Data key -> layout. Without it, the first sequence says what the keys, dtypes and shapes are.
        labels: Data key -> class labels.
        as_text: Data keys that are UTF-8 bytes (`uint8[T]`), to be written as `<tag>.<data key>.txt`.
        overwrite: Whether an existing file may be replaced.

    Raises:
        ConfigError: An option is wrong, or the file exists.
        SourceError: The folder is missing or cannot be written to.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        as_text: Sequence[str] = (),
        overwrite: bool = False,
    ) -> None:
        super().__init__(path, overwrite=overwrite)
        if isinstance(as_text, str):
            raise ConfigError(f"as_text is a list of data keys, not {as_text!r}", where="TarWriter")
        self._as_text = tuple(as_text)
        self._labels = {key: _checked_labels(key, entries) for key, entries in (labels or {}).items()}
        self._learns_dims = not specs
        self._specs: dict[str, DataSpec] = {}
        self._ranges: dict[str, tuple[int, int]] = {}  # of class indices
        self._seen: set[str] = set()
        if specs:
            self._specs = self._checked_specs(specs)
        self._open()

    def _begin(self) -> None:
        file = open(self._pend().temporary, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115
        self._file: IO[bytes] = self._opened.enter_context(file)

    def _checked(self, tag: str, data: Mapping[str, NDArray[Any]], where: str) -> _Checked:
        key = self._key_of(tag, where)
        data = {data_key: native(value) for data_key, value in data.items()}
        specs = self._specs or self._checked_specs(learn_specs(data, where))
        if not specs:
            raise SourceError("a sequence without data keys cannot be stored", where=where, fix="give it an array")
        arrays = checked_seq(data, specs, exact=True, where=where)
        ranges = {name: _range_of(array, specs[name], f"{where}, data key {name!r}") for name, array in arrays.items()}
        return _Checked(tag, key, specs, arrays, ranges)

    def _put(self, checked: _Checked) -> None:
        self._specs = checked.specs
        parts: list[Any] = []
        for name, array in checked.arrays.items():
            parts += _member(f"{checked.key}.{self._extension(name)}", self._content(name, array))
        self._file.writelines(parts)
        self._seen.add(checked.tag)
        for name, (low, high) in checked.ranges.items():
            lowest, highest = self._ranges.get(name, (0, -1))
            self._ranges[name] = min(low, lowest), max(high, highest)

    def _finish(self) -> None:
        members = {name: self._extension(name) for name in self._specs}
        labels = {name: entries for name, entries in self._labels.items() if name in members}
        note = Note(members, self._final_specs(), labels).to_bytes()
        self._file.writelines([*_member(NOTE_NAME, [note]), bytes(2 * BLOCK)])
        self._file.write(bytes(-self._file.tell() % _RECORD_BYTES))
        self._file.close()

    def _checked_specs(self, specs: Mapping[str, DataSpec]) -> dict[str, DataSpec]:
        """Return layouts that can be stored, with the dims that labels say."""
        checked = {}
        for data_key, spec in specs.items():
            where = f"{self.path}, data key {data_key!r}"
            dtype = np.dtype(spec.dtype)
            if not _is_text(data_key):
                raise ConfigError(f"{data_key!r} cannot be the name of a data key", where=self.path, fix="rename it")
            if dtype.kind not in _KINDS or dtype.char in "gG":
                raise ConfigError(
                    f"arrays of {spec.dtype} cannot be stored", where=where, fix="give numbers of up to 64 bits"
                )
            is_text = spec.dtype == "uint8" and spec.shape == () and spec.has_time
            if data_key in self._as_text and not is_text:
                raise ConfigError(f"as_text is for uint8[T], not {spec}", where=where, fix="leave it out of as_text")
            dim = len(self._labels.get(data_key, ())) or None if spec.dim is None and spec.sparse else spec.dim
            checked[data_key] = replace(spec, dim=dim)
        unknown = sorted({*self._labels, *self._as_text} - set(specs))
        if unknown:
            raise ConfigError(
                f"labels or as_text for {unknown}, but the keys are {sorted(specs)}", where=self.path, fix="rename them"
            )
        return checked

    def _final_specs(self) -> dict[str, DataSpec]:
        """Return the layouts, with the numbers of classes that were seen if nobody said them."""
        specs = dict(self._specs)
        for data_key, (low, high) in self._ranges.items():
            spec = specs[data_key]
            if self._learns_dims and spec.sparse and spec.dim is None and low >= 0 and high < _MAX_CLASS:
                specs[data_key] = replace(spec, dim=high + 1)
        return specs

    def _key_of(self, tag: str, where: str) -> str:
        if tag in self._seen:
            raise SourceError("the tag came before", where=where, fix="tags of one archive differ: give it another")
        return escape(tag)

    def _extension(self, data_key: str) -> str:
        return f"{escape_data_key(data_key)}.{'txt' if data_key in self._as_text else 'npy'}"

    def _content(self, data_key: str, array: NDArray[Any]) -> list[Any]:
        array = np.asarray(array, order="C")
        if data_key in self._as_text:
            return [array.data]
        return [make_npy_header(array.dtype, array.shape), array.data]


def _checked_labels(data_key: str, labels: Sequence[str]) -> list[str]:
    entries = list(labels)
    if isinstance(labels, str) or not all(map(_is_text, entries)):
        raise ConfigError(f"the labels of {data_key!r} are not a list of texts: {entries[:5]}", where="TarWriter")
    return entries


def _is_text(name: Any) -> bool:
    """Tell whether a name can be written as UTF-8."""
    if not isinstance(name, str):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _range_of(array: NDArray[Any], spec: DataSpec, where: str) -> tuple[int, int]:
    """Return the smallest (at most 0) and the largest class index; (0, -1) where there is none."""
    if not spec.sparse or not array.size:
        return 0, -1
    check_classes(array, spec, where)
    return min(int(array.min()), 0), int(array.max())


def _member(name: str, content: Sequence[Any]) -> list[Any]:
    """Return header, content and padding of one member."""
    num_bytes = sum(memoryview(part).nbytes for part in content)
    return [_header(name, num_bytes), *content, _ZEROS[: -num_bytes % BLOCK]]


def _header(name: str, num_bytes: int) -> bytes:
    """Return the header of a plain file: ustar where that can say it, else pax."""
    if not name.isascii() or len(name) > _MAX_USTAR_NAME or num_bytes > _MAX_USTAR_BYTES:
        info = tarfile.TarInfo(name)
        info.size = num_bytes
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    start = name.encode().ljust(_MAX_USTAR_NAME, b"\0") + _OWNER + b"%011o\0" % num_bytes + _NO_TIME
    own_sum = b"%06o\0 " % (sum(start) + 8 * 32 + _SUM_OF_REST)
    return start + own_sum + _REST


_ZEROS = bytes(BLOCK)
_MAX_USTAR_NAME = 100
_MAX_USTAR_BYTES = 8**11 - 1
_OWNER = b"0000644\0" + b"0000000\0" * 2  # permissions, user, group
_NO_TIME = b"00000000000\0"
_REST = (b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2).ljust(BLOCK - 156, b"\0")
_SUM_OF_REST = sum(_REST)
