"""`TarWriter`: writes sequences to one tar archive that WebDataset, Energon and `TarSource` read.

Each data key of each sequence is a member `<tag>.<data key>.npy`. Members are written one after the other, to a
temporary name that becomes the target's at the end, so memory stays small and the target appears whole or not at all.
The same sequences give the same bytes: no times, no users.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import PendingFile
from headrace.specs import DataSpec

from .data_types import checked_seq, learn_specs
from .npy_header import make_npy_header
from .tar_names import NOTE_NAME, escape, escape_data_key
from .tar_note import Note
from .tar_scan import BLOCK
from .writer import Writer

_KINDS = "biufc"
_BUFFER_BYTES = 1 << 20  # written at once; larger ones are no quicker
_RECORD_BYTES = 20 * BLOCK  # the size of an archive is a multiple of it by custom


class TarWriter(Writer):
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
        self._is_open = False
        self.path = os.path.abspath(path)
        self._overwrite = overwrite
        self._check_target()
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
        self._pending = PendingFile(self.path)
        try:
            self._file: IO[bytes] = open(self._pending.temporary, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115
        except OSError as error:
            self._pending.abort()
            raise self._write_error(error) from error
        self._is_open = True

    @property
    def num_seqs(self) -> int:
        """Number of sequences appended so far."""
        return len(self._seen)

    def append(self, tag: str, data: Mapping[str, NDArray[Any]]) -> None:
        """Append one sequence. If it is refused, nothing of it is stored, and the next one may be appended.

        Args:
            tag: Its name, unlike all before.
            data: Data key -> `dtype[T, ...]`, or a scalar or an array of a fixed shape for a key without time.

        Raises:
            SourceError: A key is missing or new, or a dtype or a shape is not that of the sequences before (or of
                `specs`), or a class index is not below the dim, or the tag came before. If the disk is full the writer
                is aborted, too.
            ConfigError: The writer is closed.
        """
        if not self._is_open:
            raise ConfigError("the writer is closed", where=self.path, fix="append before close()")
        where = f"{self.path}, sequence {tag!r}"
        key = self._key_of(tag, where)
        data = {data_key: _native(value) for data_key, value in data.items()}
        specs = self._specs or self._checked_specs(learn_specs(data, where))
        if not specs:
            raise SourceError("a sequence without data keys cannot be stored", where=where, fix="give it an array")
        arrays = checked_seq(data, specs, exact=True, where=where)
        ranges = {name: _range_of(array, specs[name], f"{where}, data key {name!r}") for name, array in arrays.items()}
        self._specs = specs
        parts: list[Any] = []
        for name, array in arrays.items():
            parts += _member(f"{key}.{self._extension(name)}", self._content(name, array))
        self._write(parts)
        self._seen.add(tag)
        for name, (low, high) in ranges.items():
            lowest, highest = self._ranges.get(name, (0, -1))
            self._ranges[name] = min(low, lowest), max(high, highest)

    def close(self) -> None:
        """Write the note, give the file its name. Does nothing after `close` or `abort`.

        Raises:
            SourceError: The disk is full or refuses; nothing is left.
            ConfigError: The file has come into being meanwhile; nothing is left of ours.
        """
        if not self._is_open:
            return
        try:
            self._check_target()
            members = {name: self._extension(name) for name in self._specs}
            labels = {name: entries for name, entries in self._labels.items() if name in members}
            note = Note(members, self._final_specs(), labels).to_bytes()
            self._write([*_member(NOTE_NAME, [note]), bytes(2 * BLOCK)])
            self._write([bytes(-self._file.tell() % _RECORD_BYTES)])
            self._file.close()
            self._pending.commit()
            self._is_open = False
        except OSError as error:
            raise self._write_error(error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Give up and leave nothing. Does nothing after `close` or `abort`."""
        if not self._is_open:
            return
        self._is_open = False
        with contextlib.suppress(OSError):  # what was not written yet may not fit; the descriptor is released
            self._file.close()
        self._pending.abort()

    def __del__(self) -> None:
        if self._is_open:
            warnings.warn(f"a TarWriter of {self.path} was neither closed nor aborted", ResourceWarning, stacklevel=2)
            self.abort()

    def _check_target(self) -> None:
        if os.path.lexists(self.path) and not self._overwrite:
            raise ConfigError("the file exists", where=self.path, fix="give another path, or overwrite=True")

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
            if self._learns_dims and spec.sparse and spec.dim is None and low >= 0:
                specs[data_key] = replace(spec, dim=high + 1)
        return specs

    def _key_of(self, tag: Any, where: str) -> str:
        if not isinstance(tag, str):
            raise SourceError(f"the tag {tag!r} is a {type(tag).__name__}, not a str", where=self.path)
        if not _is_text(tag):
            raise SourceError(f"the tag {tag!r} is not valid Unicode", where=self.path, fix="correct it")
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

    def _write(self, parts: Sequence[Any]) -> None:
        """Write bytes; if that fails, a part may be there, so nothing more can be."""
        try:
            self._file.writelines(parts)
        except BaseException as error:
            self.abort()
            if isinstance(error, OSError):
                raise self._write_error(error) from error
            raise

    def _write_error(self, error: OSError) -> SourceError:
        reason = error.strerror or error
        return SourceError(f"cannot write: {reason}", where=self.path, fix="make room, or write to another folder")


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


def _native(value: Any) -> Any:
    """Return an array in the byte order of this machine, anything else as it is."""
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        return value.astype(value.dtype.newbyteorder("="))
    return value


def _range_of(array: NDArray[Any], spec: DataSpec, where: str) -> tuple[int, int]:
    """Return the smallest (at most 0) and the largest class index; (0, -1) where there is none."""
    if not spec.sparse or not array.size:
        return 0, -1
    low, high = int(array.min()), int(array.max())
    if spec.dim is not None and not 0 <= low <= high < spec.dim:
        raise SourceError(
            f"class indices are in {low}..{high}, and there are {spec.dim} classes",
            where=where,
            fix="correct them, or give the right dim by specs=, or more labels=",
        )
    return min(low, 0), high


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
