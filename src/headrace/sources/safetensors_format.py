"""The header of a `.safetensors` file: eight bytes with its size, JSON, then the numbers of all tensors.

Everything the header says is checked before any of it is believed: that the tensors fill the file without gaps and
overlaps shows a torn file, a name that is there twice, and a place outside. See
https://huggingface.co/docs/safetensors for the format. Nothing in it can be executed.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from headrace.errors import SourceError
from headrace.files import open_regular

from .array_table import BFLOAT16, StoredArray
from .npy_format import MAX_AXES, can_be_array

MAX_HEADER_BYTES = 100_000_000  # more is refused by the library, too
METADATA = "__metadata__"
DTYPES = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
    "BF16": "<u2",  # widened to float32 when it is read, which is exact
}
_SIZE_BYTES = 8


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What a header says.

    Attributes:
        tensors: Name -> place and layout, in the order of the header.
        metadata: Its own text, by name.
    """

    tensors: dict[str, StoredArray]
    metadata: dict[str, str]


def read_safetensors_header(path: str) -> SafetensorsHeader:
    """Read and check a header; about 1 us a tensor.

    Raises:
        SourceError: The file is torn, or is not of this format, or has numbers that NumPy has no dtype for.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_SIZE_BYTES)
            num_bytes = int.from_bytes(head, "little")
            if len(head) < _SIZE_BYTES or num_bytes > min(size - _SIZE_BYTES, MAX_HEADER_BYTES):
                what = f"its header would have {num_bytes} bytes, and the file has {size}"
                raise _refusal(f"this is no whole .safetensors file: {what}", path)
            text = os.pread(file.fileno(), num_bytes, _SIZE_BYTES)
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror}", where=path) from error
    try:
        entries: dict[str, msgspec.Raw] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(entries.pop(METADATA, b"{}"), type=dict[str, str])
        decoder = msgspec.json.Decoder(_Tensor)
        tensors = {name: decoder.decode(entry) for name, entry in entries.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(f"the header cannot be read: {error}", path) from error
    # A name that is there twice, of which the last is kept: where it has no numbers, no gap in the file shows it.
    if text.count(b'"data_offsets"') > len(tensors) + ("data_offsets" in tensors):
        raise _refusal("the header has a name twice", path)
    start = _SIZE_BYTES + num_bytes
    _check_places(tensors, size - start, path)
    return SafetensorsHeader({name: _stored(name, entry, start, path) for name, entry in tensors.items()}, metadata)


def _check_places(tensors: dict[str, _Tensor], num_bytes: int, path: str) -> None:
    """Check that the tensors follow one another from the header to the end of the file."""
    end, before = 0, "the header"
    for name, entry in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if entry.data_offsets[0] != end or entry.data_offsets[1] < end:
            where = f"{entry.data_offsets[0]}..{entry.data_offsets[1]}"
            raise _refusal(f"the tensor {name!r} is at bytes {where}, but {before} ends at {end}", path)
        end, before = entry.data_offsets[1], repr(name)
    if end != num_bytes:
        raise _refusal(f"the tensors end at byte {end} after the header, but the file at {num_bytes}", path)


def _stored(name: str, entry: _Tensor, start: int, path: str) -> StoredArray:
    descr = DTYPES.get(entry.dtype)
    if descr is None:
        raise SourceError(
            f"the tensor {name!r} has the dtype {entry.dtype}, which NumPy does not have",
            where=path,
            fix=f"convert it to one of {', '.join(DTYPES)}",
        )
    dtype = np.dtype(descr)
    num_bytes = entry.data_offsets[1] - entry.data_offsets[0]
    if (
        len(entry.shape) > MAX_AXES
        or min(entry.shape, default=0) < 0
        or math.prod(entry.shape) * dtype.itemsize != num_bytes
        or not can_be_array(entry.shape, dtype)
    ):
        raise _refusal(f"the tensor {name!r} is {entry.dtype}{entry.shape} in {num_bytes} bytes", path)
    form = BFLOAT16 if entry.dtype == "BF16" else 0
    return StoredArray(dtype, tuple(entry.shape), start + entry.data_offsets[0], form)


def make_safetensors_header(tensors: dict[str, dict[str, Any]], metadata: dict[str, str]) -> bytes:
    """Return the start of a file: the size and the header, filled up so that the numbers begin at a multiple of 8."""
    text = msgspec.json.encode({METADATA: metadata, **tensors})
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_SIZE_BYTES, "little") + text


def _refusal(what: str, path: str) -> SourceError:
    return SourceError(what, where=path, fix="restore the file: it is torn, damaged, or of another format")
