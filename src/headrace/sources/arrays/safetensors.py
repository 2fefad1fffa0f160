"""Sequences in `.safetensors` files, many in a file, or a file for each.

Headers are read when the index is built, then only the bytes that were asked for; the package safetensors is not
needed. A header is eight bytes with its size, then JSON; the numbers of all tensors follow. Everything it says is
checked before any of it is believed: that the tensors fill the file without gaps and overlaps shows a truncated file, a
name that is there twice, and a position outside. See https://huggingface.co/docs/safetensors for the format. Nothing in
it can be executed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import xxhash

from headrace.errors import ConfigError, SourceError
from headrace.files import FileStamp, open_regular
from headrace.index import CorpusIndex
from headrace.specs import DataSpec

from ..shared.data_types import parse_about, parse_data_types, with_labels
from ..shared.folder import (
    LazyStamps,
    ListedFile,
    Listing,
    for_each,
    list_corpus_files,
    read_part,
)
from ..shared.npy import MAX_AXES, can_be_array
from ..shared.paths import Files, IndexOption
from ..shared.plain_files import PlainFiles
from ..shared.source import column_view, make_index
from .source import BFLOAT16, ArrayTable, PlainArraySource, StoredArray, fields_of, renamed

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
        tensors: Name -> position and layout, in the order of the header.
        metadata: Its own text, by name.
    """

    tensors: dict[str, StoredArray]
    metadata: dict[str, str]


def _read_listed(read: Callable[[str], SafetensorsHeader], file: ListedFile) -> SafetensorsHeader:
    header = read(file.path)
    read_part(*file, 0)
    return header


def read_safetensors_header(path: str) -> SafetensorsHeader:
    """Read and check a header; about 1 us a tensor.

    Raises:
        SourceError: The file is truncated, or is not of this format, or has numbers that NumPy has no dtype for.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_SIZE_BYTES)
            num_bytes = int.from_bytes(head, "little")
            if len(head) < _SIZE_BYTES or num_bytes > min(size - _SIZE_BYTES, MAX_HEADER_BYTES):
                what = f"its header would have {num_bytes} bytes, and the file has {size}"
                raise _refusal(f"this is not a complete .safetensors file: {what}", path)
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
    _check_positions(tensors, size - start, path)
    return SafetensorsHeader({name: _stored(name, entry, start, path) for name, entry in tensors.items()}, metadata)


def _check_positions(tensors: dict[str, _Tensor], num_bytes: int, path: str) -> None:
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
    return SourceError(what, where=path, fix="restore the file: it is truncated, damaged, or of another format")


INDEX_KIND = "safetensors/1"
ABOUT = "headrace"  # the entry of the metadata that a Headrace writer makes
LAYOUTS = ("names", "file")
_SUFFIX = ".safetensors"


class SafetensorsSource(PlainArraySource):
    """The tensors of `.safetensors` files.

    Two layouts are known. `"names"`: a tensor is called `<tag>/<key>`, and a file has any number of sequences, in the
    order in which their names first occur. `"file"`: each file is a sequence, its tag is its path without the suffix,
    and the tensors have the names of the keys. The first axis is time; a tensor without axes is a key without a time
    axis. bfloat16 becomes float32, which is exact.

    Args:
        files: A file, a folder (with its sub-folders), or a list of files.
        layout: See above.
        fields: Data key -> name of the tensor (without the tag); `None` takes all, under their own names.
        specs: Data key -> layout, for what the tensors do not say: how many classes there are, or that an axis may
            differ (`None` in the shape). What `SafetensorsWriter` was told is in its file.
        labels: Data key -> class labels.
        index: `"auto"` keeps the index of a large corpus in the cache folder; `None` always reads the headers; a path
            opens the index that `source.index.save(path)` wrote.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A file is missing, truncated or damaged, has a tag twice, or sequences that are not alike; or the
            given index is not one of these files as they are now.
    """

    def __init__(
        self,
        files: Files,
        *,
        layout: Literal["names", "file"] = "names",
        fields: Mapping[str, Any] | None = None,
        specs: Mapping[str, DataSpec | Mapping[str, Any]] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        index: IndexOption = "auto",
    ) -> None:
        if layout not in LAYOUTS:
            raise ConfigError(f"unknown layout {layout!r}", where="SafetensorsSource", fix=f"one of {LAYOUTS}")
        is_file = isinstance(files, str | os.PathLike) and not os.path.isdir(files)
        listing = list_corpus_files([files] if is_file else files, (_SUFFIX,), "SafetensorsSource")  # type: ignore[list-item]
        names, said = fields_of(fields, "SafetensorsSource"), parse_data_types(specs or {})
        own_labels: dict[str, Sequence[str]] = {key: list(entries) for key, entries in (labels or {}).items()}
        what = json.dumps([names, {key: spec.to_json() for key, spec in said.items()}, own_labels])
        kind = f"{INDEX_KIND} {layout} {xxhash.xxh3_128_hexdigest(what.encode())}"
        gather = _Gathering(listing, names, said, own_labels)
        if layout == "file":
            self._open(listing.root, listing, gather.one_a_file, index=index, kind=kind)
        else:
            paths = [listing.path(number) for number in range(len(listing.names))]
            self._open(listing.root, paths, gather.by_names, index=index, kind=kind)

    def _prepare(self) -> None:
        super()._prepare()
        is_one_a_file = self._index.meta["layout"] == "file"
        self._files_of_seqs = None if is_one_a_file else column_view(self._index.locator("file"))
        self._num_files = len(self._index.files)

    def _prepare_files(self) -> None:
        self._files = PlainFiles(_stamps(self.root, self._index) if self._files_of_seqs is None else self._index.files)

    def _file_of(self, corpus_idx: int, data_key: str) -> int:  # noqa: ARG002 - all keys are in one file
        if self._files_of_seqs is None:
            return corpus_idx
        file_idx = self._files_of_seqs[corpus_idx]
        if not 0 <= file_idx < self._num_files:
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in file {file_idx} of {self._num_files}")
        return file_idx


def _stamps(root: str, index: CorpusIndex) -> LazyStamps:
    """Return what the file of each sequence was. Not a method: see `numpy_folder.py`."""
    sizes, times = index.locator("size0"), index.locator("time0")

    def stamp_of(corpus_idx: int) -> FileStamp:
        path = os.path.join(root, index.tags[corpus_idx] + _SUFFIX)
        return FileStamp(path, int(sizes[corpus_idx]), int(times[corpus_idx]), digest="")

    return LazyStamps(index.num_seqs, stamp_of)


class _Gathering:
    """Makes the index of some files."""

    def __init__(
        self,
        listing: Listing,
        fields: dict[str, str] | None,
        specs: dict[str, DataSpec],
        labels: dict[str, Sequence[str]],
    ) -> None:
        self._listing = listing
        self._fields, self._specs, self._labels = fields, specs, labels

    def one_a_file(self) -> CorpusIndex:
        """Take each file for a sequence."""
        listing = self._listing
        headers = self._read_headers(read_safetensors_header)
        table = ArrayTable(self._specs, self._fields)
        for number, header in enumerate(headers):
            table.add(listing.names[number].removesuffix(_SUFFIX), header.tensors, listing.path(number))
        sizes, times = np.array(listing.sizes, np.int64), np.array(listing.times, np.int64)
        return self._index(table, {"size0": sizes, "time0": times}, "file")

    def by_names(self) -> CorpusIndex:
        """Take each name for a tag and a key."""
        headers = self._read_headers(read_safetensors_header)
        self._take_about(headers)
        table = ArrayTable(self._specs, self._fields)
        file_of: list[int] = []
        first_file: dict[str, int] = {}
        for number, header in enumerate(headers):
            path = self._listing.path(number)
            for tag, arrays in _by_tag(header, path).items():
                if first_file.setdefault(tag, number) != number:
                    twice = f"{self._listing.path(first_file[tag])}, {path}"
                    raise SourceError(f"two files have the sequence {tag!r}", where=twice, fix="rename one of them")
                table.add(tag, arrays, f"{path}, sequence {tag!r}")
                file_of.append(number)
        return self._index(table, {"file": np.array(file_of, np.int32)}, "names")

    def _read_headers(self, read: Callable[[str], SafetensorsHeader]) -> list[SafetensorsHeader]:
        return for_each(partial(_read_listed, read), self._listing.files())

    def _take_about(self, headers: Sequence[SafetensorsHeader]) -> None:
        """Take layouts and labels that a Headrace writer put into the first file; what the user said counts more."""
        if not headers or ABOUT not in headers[0].metadata:
            return
        what, where = "what the file says of itself", self._listing.path(0)
        try:
            said = msgspec.json.decode(headers[0].metadata[ABOUT])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise SourceError(f"{what} cannot be read: {error}", where=where) from error
        specs, labels = parse_about(said, what, where, fix="write the file again")
        self._specs = {**renamed(specs, self._fields), **self._specs}
        self._labels = {**renamed(labels, self._fields), **self._labels}

    def _index(self, table: ArrayTable, locators: dict[str, Any], layout: str) -> CorpusIndex:
        lengths = table.lengths()
        specs = with_labels({key: table.specs[key] for key in lengths}, self._labels)
        where = table.locators()
        return make_index(
            specs=specs,
            labels=self._labels,
            tags=table.tags,
            lengths=lengths,
            locators={**where, **locators},
            forms={key: [f"form:{key}" in where, False] for key in specs},
            layout=layout,
        )


def _by_tag(header: SafetensorsHeader, path: str) -> dict[str, dict[str, StoredArray]]:
    """Group tensors by tag, in the order in which tags first occur."""
    found: dict[str, dict[str, StoredArray]] = {}
    for name, array in header.tensors.items():
        tag, mark, key = name.rpartition("/")
        if not mark or not key:
            raise SourceError(
                f"the tensor {name!r} is not called <tag>/<key>", where=path, fix='layout="file": a file is a sequence'
            )
        found.setdefault(tag, {})[key] = array
    return found
