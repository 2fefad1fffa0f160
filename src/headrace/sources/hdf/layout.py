"""What one HDF5 file in RETURNN's layout (docs/how-to/hdf.md) holds: keys, dtypes, lengths, tags, where bytes are.

The layout (RETURNN's): `inputs` is the key "data", `targets/data/<key>` are the others, each with all sequences one
after the other along the first axis. `seqLengths[N, C]` has a column for `inputs`, if there are any, then one for
each target key in sorted order. A file without targets has one more column, which means nothing. `seqTags[N]` names
the sequences. Attributes and groups that only describe (`inputPattSize`, `targets/size`, `targets/labels`, `labels`)
may be missing here. `read_layout` reads no data of a sequence.

An HDF5 file can name other files of the machine as the location of its data: by links, as raw bytes ("external
storage"), or as pieces of a dataset ("virtual dataset"). So a file from elsewhere could make a program read, and pass
on, what the author of that file has no access to; and changes of those files would go unnoticed. Links that stay inside
the file are followed, here by hand: HDF5 is asked to open a name only after every link on the way was seen to stay
inside.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5g, h5l, h5o
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX
from headrace.index import PackedTags, pack_texts
from headrace.specs import DataSpec, takes_for_classes

INPUT_KEY = "data"
READABLE_KINDS = "biufc"
NOT_CONTIGUOUS = -1
MAX_FRAMES = 1 << 62  # of one sequence; beyond it is a damaged number, which must not wrap around
# What was never written is filled in by HDF5, and what is constant is packed to almost nothing: a file of 2 KiB may
# claim any number of rows. More bytes than this, and than this many for each that is stored, are taken for damage.
_MAX_FILLED_IN_BYTES = 64 << 20
_MAX_RATIO = 1 << 15  # zstd packs blocks of 128 KiB into 4 bytes; deflate does 1 : 1032

_MAX_SOFT_LINKS = 100  # on the way to one object; with more it is a circle

# Everything that readers of RETURNN's HDF layout open: these, and every member of the groups.
_NAMES = (b"inputs", b"seqLengths", b"seqTags", b"times", b"labels", b"targets/size")
_GROUPS = (b"targets/data", b"targets/labels")
_HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)  # TypeError: there is no NumPy dtype for it


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """Where the frames of one key are.

    Attributes:
        spec: Layout of the key.
        num_frames: Number of rows stored, of all sequences.
        byte_offset: Position of the first row in the file, if the rows lie there plainly, one after the other, in
            this machine's number format; else `NOT_CONTIGUOUS`.
        chunk_bytes: Size of one unpacked HDF5 chunk, 0 without chunks.
    """

    spec: DataSpec
    num_frames: int
    byte_offset: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Layout of one file, known without reading a sequence.

    Attributes:
        path: The file.
        num_seqs: Number of sequences.
        columns: Data key -> where it is; "data" first, then the targets by name.
        lengths: Data key -> `int64[N]`.
        labels: Data key -> class labels, for those that have some.
        tags: Tags in file order, or None if the file has none.
        times: The column `times` (as many rows as `inputs`), if the file has one.
    """

    path: str
    num_seqs: int
    columns: dict[str, StoredColumn]
    lengths: dict[str, NDArray[np.int64]]
    labels: dict[str, list[str]]
    tags: PackedTags | None
    times: StoredColumn | None


_AGAIN = "write or copy the file again"


def open_hdf5(path: str, *, chunk_cache_bytes: int = 1 << 20) -> h5py.File:
    """Open a file for reading only.

    HDF5's own rules for locks hold: readers share, and a file that a writer has open is refused.

    Raises:
        SourceError: There is no such file, or it is truncated, or not HDF5, or another process is writing to it, or
            parts of it are in other files.
    """
    try:
        file = h5py.File(path, "r", rdcc_nbytes=chunk_cache_bytes)
    except OSError as error:
        fix = "check the path, or write or copy the file again: it is truncated, or not an HDF5 file"
        if error.errno in TOO_MANY_OPEN:
            fix = TOO_MANY_OPEN_FIX
        elif isinstance(error, BlockingIOError) or "unable to lock file" in str(error):
            fix = "wait until its writer is done; if nobody writes to it, set HDF5_USE_FILE_LOCKING=FALSE"
        raise SourceError(f"cannot open as HDF5: {error}", where=path, fix=fix) from error
    try:
        _refuse_other_files(file, path)
    except BaseException as error:
        file.close()
        if isinstance(error, _HDF5_ERRORS):
            raise SourceError(f"a part of the file cannot be read: {error}", where=path, fix=_AGAIN) from error
        raise
    return file


def _refuse_other_files(file: h5py.File, path: str) -> None:
    """Look at every part of the layout, and read none: some 10 us for each.

    Raises:
        SourceError: A part is in another file, or its links go round in a circle.
    """
    root = h5g.open(file.id, b"/")
    for name in _NAMES:
        _check_inside(root, root, name, path)
    for group_name in _GROUPS:
        group = _check_inside(root, root, group_name, path)
        for name in list(group) if isinstance(group, h5g.GroupID) else ():
            _check_inside(root, group, name, path)


def _check_inside(root: h5g.GroupID, group: h5g.GroupID, name: bytes, path: str) -> h5g.GroupID | h5d.DatasetID | None:
    """Return the object of a name, if there is one, after a look at where it is: step by step from the group."""
    here, steps, num_soft_links = group, name.split(b"/")[::-1], 0
    while steps:
        step = steps.pop()
        if step in (b"", b"."):
            continue
        if not isinstance(here, h5g.GroupID) or not here.links.exists(step):
            return None
        kind = here.links.get_info(step).type
        if kind == h5l.TYPE_HARD:
            here = h5o.open(here, step)
            continue
        num_soft_links += 1
        if kind != h5l.TYPE_SOFT or num_soft_links > _MAX_SOFT_LINKS:
            raise _outside(name, "links go round in a circle" if kind == h5l.TYPE_SOFT else "is a link", path)
        target = here.links.get_val(step)
        here = root if target.startswith(b"/") else here
        steps += target.split(b"/")[::-1]
    if isinstance(here, h5d.DatasetID):
        properties = here.get_create_plist()
        if properties.get_external_count() or properties.get_layout() == h5d.VIRTUAL:
            raise _outside(name, "is a dataset", path)
    return here


def _outside(name: bytes, what: str, path: str) -> SourceError:
    what = f"{os.fsdecode(name)!r} {what} that leads out of the file: only data inside the file are read"
    return SourceError(what, where=path, fix="copy the data into the file")


def hdf5_name(file: h5py.File, data_key: str) -> str:
    """Return the path of a data key inside a file."""
    return "inputs" if data_key == INPUT_KEY and "inputs" in file else f"targets/data/{data_key}"


def read_layout(path: str) -> FileLayout:
    """Read lengths, tags and layouts of one file in bulk, without its data.

    Raises:
        SourceError: The file is missing, truncated or not HDF5, or its parts contradict each other.
    """
    with open_hdf5(path) as file:
        try:
            return _LayoutReader(file, path).read()
        except _HDF5_ERRORS as error:
            raise SourceError(f"a part of the file cannot be read: {error}", where=path, fix=_AGAIN) from error


class _LayoutReader:
    """Reads the layout of an open file, and checks each part of it.

    Args:
        file: The file.
        path: Its path.
    """

    def __init__(self, file: h5py.File, path: str) -> None:
        self._file, self._path = file, path

    def read(self) -> FileLayout:
        """Return the layout."""
        file, names = self._file, self._key_names()
        labels: dict[str, list[str]] = {}
        columns: dict[str, StoredColumn] = {}
        lengths: dict[str, NDArray[np.int64]] = {}
        for data_key, column_lengths in zip(names, self._length_table(names), strict=True):
            name = hdf5_name(file, data_key)
            key_labels = self._strings("labels" if name == "inputs" else f"targets/labels/{data_key}")
            if name in file:
                columns[data_key] = self._column(name, data_key, column_lengths, len(key_labels or ()))
                lengths[data_key] = column_lengths
                if key_labels:
                    labels[data_key] = key_labels
            elif column_lengths.any():
                raise self._wrong(f"the key {data_key!r} has frames by seqLengths, but no data {name!r}")
        num_seqs = int(file["seqLengths"].shape[0])
        if num_seqs and not columns:
            raise self._wrong("the file has neither inputs nor targets/data")
        tags = self._strings("seqTags")
        if tags is not None and len(tags) != num_seqs:
            raise self._wrong(f"{len(tags)} tags for {num_seqs} sequences")
        has_times = "times" in file and "inputs" in file
        times = self._column("times", "times", lengths[INPUT_KEY], 0) if has_times else None
        packed = None if tags is None else pack_texts(tags)
        return FileLayout(self._path, num_seqs, columns, lengths, labels, packed, times)

    def _wrong(self, what: str) -> SourceError:
        return SourceError(what, where=self._path, fix=f"{_AGAIN}, in RETURNN's HDF layout (docs/how-to/hdf.md)")

    def _child(self, name: str, kind: type) -> Any:
        """Return a group or dataset, or None if there is none; a dataset that claims too much is refused."""
        child = self._file.get(name)
        if child is not None and not isinstance(child, kind):
            raise self._wrong(f"{name!r} is a {type(child).__name__}, not a {kind.__name__}")
        if isinstance(child, h5py.Dataset) and child.shape:
            chunk_bytes = math.prod(child.chunks or (0,)) * child.dtype.itemsize
            num_bytes, num_stored = child.size * child.dtype.itemsize, child.id.get_storage_size()
            if max(num_bytes, chunk_bytes) > max(_MAX_FILLED_IN_BYTES, num_stored * _MAX_RATIO):
                what = f"{child.dtype}{list(child.shape)} of {num_bytes} bytes"
                raise self._wrong(f"{name} claims to be {what}, but {num_stored} bytes are stored")
        return child

    def _key_names(self) -> list[str]:
        """Return the keys in the order of the columns of seqLengths."""
        targets: set[str] = set()
        if self._child("targets", h5py.Group) is not None:
            data, size = self._child("targets/data", h5py.Group), self._child("targets/size", h5py.Group)
            targets.update(() if data is None else data.keys(), () if size is None else size.attrs.keys())
        not_text = [name for name in targets if not isinstance(name, str)]
        if not_text:
            raise self._wrong(f"the name of the target {not_text[0]!r} is not UTF-8")
        if "inputs" not in self._file:
            return sorted(targets)
        if INPUT_KEY in targets:
            raise self._wrong(f"both inputs and targets/data/{INPUT_KEY} are there")
        return [INPUT_KEY, *sorted(targets)]

    def _length_table(self, names: list[str]) -> list[NDArray[np.int64]]:
        """Read seqLengths and return one checked column `int64[N]` for each key."""
        dataset = self._child("seqLengths", h5py.Dataset)
        if dataset is None:
            raise self._wrong("the file has no seqLengths")
        if dataset.dtype.kind not in "iuf" or dataset.ndim not in (1, 2):
            raise self._wrong(f"seqLengths is {_form(dataset)}, not a table of whole numbers")
        # In this machine's number format: NumPy 2.1 crashes where it compares any other with 2**62.
        native = np.dtype(np.float64) if dataset.dtype.kind == "f" else dataset.dtype.newbyteorder("=")
        table = np.asarray(dataset[()]).astype(native, copy=False)
        bad = ~np.isfinite(table) | (table < 0) | (table > MAX_FRAMES) | (table != np.floor(table))
        if bad.any():
            seq_idx, *column = np.argwhere(bad)[0].tolist()
            raise self._wrong(f"the length {table[seq_idx, *column]} of sequence {seq_idx} is not a number of frames")
        if table.ndim == 1:  # one number for a sequence: the length of each of its keys
            return [table.astype(np.int64)] * len(names)
        num_columns = table.shape[1]
        has_spare_column = names in ([], [INPUT_KEY]) and num_columns == len(names) + 1
        if num_columns != len(names) + has_spare_column:
            raise self._wrong(f"seqLengths has {num_columns} columns for {len(names)} keys ({', '.join(names)})")
        return [table[:, idx].astype(np.int64) for idx in range(len(names))]

    def _column(self, name: str, data_key: str, lengths: NDArray[np.int64], num_labels: int) -> StoredColumn:
        dataset = self._child(name, h5py.Dataset)
        if dataset is None:
            raise self._wrong(f"{name!r} cannot be opened")
        shape, dtype = dataset.shape, dataset.dtype
        if not shape or dtype.kind not in READABLE_KINDS:
            raise self._wrong(f"{name!r} is {_form(dataset)}, not an array of numbers with a time axis")
        if int(lengths.max(initial=0)) > shape[0] or int(lengths.sum()) != shape[0]:
            total = sum(lengths.tolist())
            raise self._wrong(f"the lengths of {data_key!r} add up to {total} frames, but {shape[0]} are stored")
        native = dtype.newbyteorder("=")
        sparse = dataset.attrs.get("sparse")  # by which `HDFWriter` overrides the rule
        if sparse is not None and (not isinstance(sparse, bool | np.bool_) or (sparse and dtype.kind not in "iu")):
            raise self._wrong(f"the attribute sparse of {name!r} is {sparse!r} for {dtype}")
        is_sparse = takes_for_classes(native, len(shape)) if sparse is None else bool(sparse)
        dim = None if name == "times" else self._stored_dim(dataset, data_key, name)
        # To look for the largest class index would mean to read all the data: without labels, the dim is not known.
        dim = dim if dim is not None else (num_labels or None) if is_sparse else shape[-1] if shape[1:] else 1
        spec = DataSpec(native.name, tuple(shape[1:]), sparse=is_sparse, dim=dim)
        chunk_bytes = math.prod(dataset.chunks) * dtype.itemsize if dataset.chunks else 0
        return StoredColumn(spec, int(shape[0]), _plain_offset(dataset, native), chunk_bytes)

    def _stored_dim(self, dataset: h5py.Dataset, data_key: str, name: str) -> int | None:
        """Return the number of classes or features that the file declares for a key, or None."""
        if "sparse" in dataset.attrs and (dataset.attrs["sparse"] or "dim" in dataset.attrs):
            value, name = dataset.attrs.get("dim"), f"attribute dim of {name}"
        elif name == "inputs":  # the attribute only describes; of dense input the last axis counts
            value, name = None if dataset.ndim > 1 else self._file.attrs.get("inputPattSize"), "attribute inputPattSize"
        else:
            size = self._file.get("targets/size")
            value, name = (None if size is None else size.attrs.get(data_key)), f"attribute {data_key} of targets/size"
        if value is None:
            return None
        array = np.asarray(value)
        if array.dtype.kind not in "iu" or array.size == 0 or int(array.flat[0]) < 0:
            raise self._wrong(f"the {name} is {value!r}, not a dim or [dim, ndim]")
        return int(array.flat[0])

    def _strings(self, name: str) -> list[str] | None:
        """Read strings in bulk, `[N]`, decode as UTF-8, and cut each at its first NUL; None if there are none."""
        dataset = self._child(name, h5py.Dataset)
        if dataset is None:
            return None
        is_text = dataset.dtype.kind == "S" or h5py.check_string_dtype(dataset.dtype) is not None
        if not is_text or dataset.ndim != 1:
            raise self._wrong(f"{name} is {_form(dataset)}, not a list of strings")
        try:
            return [text.decode().partition("\0")[0] for text in dataset[()].tolist()]
        except UnicodeDecodeError as error:
            raise self._wrong(f"{name} has a string that is not UTF-8: {error}") from error


def _form(dataset: h5py.Dataset) -> str:
    return f"{dataset.dtype}{list(dataset.shape or ())}"


def _plain_offset(dataset: h5py.Dataset, native: np.dtype[Any]) -> int:
    """Return the position of the first row if the rows are stored as they are in memory, else `NOT_CONTIGUOUS`."""
    offset = dataset.id.get_offset()  # None: chunked, compact, or nothing was ever written
    is_whole = dataset.id.get_storage_size() == dataset.size * native.itemsize
    # A bool may be any byte to NumPy, so HDF5 has to check.
    if offset is None or native.kind == "b" or not is_whole:
        return NOT_CONTIGUOUS
    return int(offset) if dataset.id.get_type().equal(h5py.h5t.py_create(native)) else NOT_CONTIGUOUS
