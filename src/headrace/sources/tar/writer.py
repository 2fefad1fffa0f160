"""`TarWriter`, and the metadata that it puts into an archive: layouts, labels, and which member is which data key.

The metadata are a JSON object, the last member, in a folder that readers of the WebDataset format leave alone. Several
archives of one corpus have one each; they must agree, but for the number of classes: each writer saw its own.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from ..shared.data_types import parse_about
from ..shared.npy import make_npy_header
from ..shared.writer import Writer
from .archive import BLOCK, METADATA_NAME, escape
from .members import MemberKey

VERSION = 1


class Metadata:
    """Metadata of one archive, or of several that agree.

    Attributes:
        members: Data key -> extension.
        specs: Data key -> layout, in the order of the keys.
        labels: Data key -> class labels.
        where: The archive, for errors.
    """

    def __init__(
        self, members: dict[str, str], specs: dict[str, DataSpec], labels: Mapping[str, Sequence[str]], where: str = ""
    ) -> None:
        self.members, self.specs, self.labels, self.where = members, specs, labels, where

    def adopt(self, codecs: Mapping[str, MemberKey], lengths: dict[str, NDArray[np.int64]]) -> None:
        """Give codecs the layouts that the writer stored, and set the lengths of keys without a time axis to 1.

        Raises:
            SourceError: The arrays do not have these layouts.
        """
        key_of = {ext: key for key, ext in self.members.items()}
        for own, member_key in codecs.items():
            if not member_key.has_stored_layout or member_key.ext not in key_of:
                continue
            codec, frames, spec = member_key.codec, lengths[own], self.specs[key_of[member_key.ext]]
            if len(frames):
                found = codec.spec
                first = int(frames[0]) if frames.min() == frames.max() else None
                axes = [*([first] if found.has_time else []), *found.shape]
                wanted = [*([None] if spec.has_time else []), *spec.shape]
                fits = len(axes) == len(wanted) and all(w in (None, a) for w, a in zip(wanted, axes, strict=True))
                if found.dtype != spec.dtype or not fits:
                    raise SourceError(
                        f"its metadata says {spec.dtype}{wanted} for {own!r}, and the arrays are {found.dtype}{axes}",
                        where=self.where,
                        fix="the archive was changed after it was written: write it again with TarWriter",
                    )
            codec.settle(spec, self.labels.get(key_of[member_key.ext]), codec.learnt)
            if not spec.has_time:
                frames[:] = 1

    def to_bytes(self) -> bytes:
        """Return it as it is stored."""
        specs = {key: spec.to_json() for key, spec in self.specs.items()}
        return msgspec.json.encode({"version": VERSION, "members": self.members, "specs": specs, "labels": self.labels})


def read_metadata(data: bytes, where: str) -> Metadata:
    """Read what `to_bytes` returned.

    Raises:
        SourceError: It is damaged, or of a later version.
    """
    what, fix = "the metadata of the archive", "write the archive again with TarWriter, or take its metadata out"
    try:
        stored = msgspec.json.decode(data, type=dict[str, Any])
        version, members = stored["version"], msgspec.convert(stored["members"], dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError) as error:
        raise SourceError(f"{what} cannot be read: {error}", where=where, fix=fix) from error
    specs, labels = parse_about(stored, what, where, fix=fix)
    if version != VERSION or members.keys() != specs.keys() or not labels.keys() <= specs.keys():
        wrong = f"{what} contradict each other, or have version {version}, not {VERSION}"
        raise SourceError(wrong, where=where, fix=fix)
    return Metadata({key: members[key] for key in specs}, specs, labels, where)


def merge_metadata(found: list[Metadata]) -> Metadata:
    """Return the merged metadata of several archives of one corpus.

    Raises:
        SourceError: They contradict each other.
    """
    first = found[0]
    specs = dict(first.specs)
    for other in found[1:]:
        for key in [*specs, *(key for key in other.specs if key not in specs)]:
            ours, theirs = (
                (replace(own.specs[key], dim=None), own.labels.get(key), own.members[key]) if key in own.specs else None
                for own in (first, other)
            )
            if ours != theirs:
                raise SourceError(
                    f"the archives are not of one corpus: {key!r} is {ours} in the first, and {theirs}",
                    where=f"{first.where} and {other.where}",
                    fix="write them with the same specs= and labels=, or read them on their own",
                )
            dims = specs[key].dim, other.specs[key].dim
            specs[key] = replace(specs[key], dim=None if None in dims else max(dims))  # type: ignore[type-var]
    return Metadata(first.members, specs, first.labels, first.where)


_BUFFER_BYTES = 1 << 20  # written at once; larger ones are no quicker
_MAX_CLASS = 2**63 - 1  # of more, the number of classes cannot be noted
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

    _has_unique_tags = True
    _learns_classes = True
    _needs_all_labels = False  # a class without a label may come after all others, such as a blank

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        as_text: Sequence[str] = (),
        overwrite: bool = False,
    ) -> None:
        super().__init__(path, specs=specs, labels=labels, overwrite=overwrite)
        if isinstance(as_text, str):
            raise ConfigError(f"as_text is a list of data keys, not {as_text!r}", where="TarWriter")
        self._as_text = tuple(as_text)
        self._open()

    def _begin(self) -> None:
        file = open(self._pend().temporary, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115
        self._file: IO[bytes] = self._opened.enter_context(file)

    def _accept(self, specs: dict[str, DataSpec]) -> dict[str, DataSpec]:
        for data_key in self._as_text:
            spec = specs.get(data_key)
            if spec is None or spec.dtype != "uint8" or spec.shape or not spec.has_time:
                raise ConfigError(
                    f"as_text is for keys of uint8[T], and {data_key!r} is {spec}", where=self.path, fix="leave it out"
                )
        return specs

    def _put(self, tag: str, arrays: dict[str, NDArray[Any]], where: str) -> None:  # noqa: ARG002 - it has room for all
        key, parts = escape(tag), []
        for name, array in arrays.items():
            head = [] if name in self._as_text else [make_npy_header(array.dtype, array.shape)]
            parts += _member(f"{key}.{self._extension(name)}", [*head, array.data])
        self._file.writelines(parts)

    def _finish(self) -> None:
        specs = dict(self.specs)
        for data_key, spec in specs.items():  # the numbers of classes that were seen, if they are not given
            low, high = self._class_range(data_key)
            if not self._given and spec.sparse and spec.dim is None and low >= 0 and high < _MAX_CLASS:
                specs[data_key] = replace(spec, dim=high + 1)
        members = {name: self._extension(name) for name in specs}
        metadata = Metadata(members, specs, self.labels if members else {}).to_bytes()
        self._file.writelines([*_member(METADATA_NAME, [metadata]), bytes(2 * BLOCK)])
        self._file.write(bytes(-self._file.tell() % _RECORD_BYTES))
        self._file.close()

    def _extension(self, data_key: str) -> str:
        name = escape(data_key).replace("/", "%2F").replace(":", "%3A")
        return f"{name}.{'txt' if data_key in self._as_text else 'npy'}"


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
