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
from dataclasses import dataclass, replace
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


def open_hdf5(path: str, *, chunk_cache_bytes: int = 1 << 20) -> h5py.File:
    """Open a file for reading only.

    HDF5's own rules for locks hold: readers share, and a file that a writer has open is refused.

    Raises:
        SourceError: There is no such file, or it is truncated, or not HDF5, or another process is writing to it, or
            parts of it are in other files.
    """
    try:
        file = h5py.File(path, "r", rdcc_nbytes=chunk_cache_bytes)
    except FileNotFoundError as error:
        raise SourceError("there is no such file", where=path, fix="correct the path") from error
    except OSError as error:
        raise SourceError(f"cannot open as HDF5: {error}", where=path, fix=_fix_for(error)) from error
    try:
        _refuse_other_files(file, path)
    except SourceError:
        file.close()
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        file.close()
        raise _unreadable_part(path, error) from error
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
    """Return the object of a name, if there is one, after a look at where it is."""
    found = _follow(root, group, name, path)
    if isinstance(found, h5d.DatasetID):
        properties = found.get_create_plist()
        if properties.get_external_count():
            raise _outside(name, f"has its data in the file {os.fsdecode(properties.get_external(0)[0])!r}", path)
        if properties.get_layout() == h5d.VIRTUAL:
            raise _outside(name, "is a virtual dataset, whose pieces may be in other files", path)
    return found


def _follow(root: h5g.GroupID, group: h5g.GroupID, name: bytes, path: str) -> h5g.GroupID | h5d.DatasetID | None:
    """Go from a group to a name, step by step; None if a step is missing."""
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
        if kind != h5l.TYPE_SOFT:
            other = f" {os.fsdecode(here.links.get_val(step)[0])!r}" if kind == h5l.TYPE_EXTERNAL else ""
            raise _outside(name, f"is a link to the other file{other}", path)
        num_soft_links += 1
        if num_soft_links > _MAX_SOFT_LINKS:
            what = f"the links of {os.fsdecode(name)!r} go round in a circle"
            raise SourceError(what, where=path, fix="write the file again")
        target = here.links.get_val(step)
        here = root if target.startswith(b"/") else here
        steps += target.split(b"/")[::-1]
    return here


def _outside(name: bytes, what: str, path: str) -> SourceError:
    return SourceError(
        f"{os.fsdecode(name)!r} {what}: only data inside the file are read",
        where=path,
        fix="copy the data into the file",
    )


def _fix_for(error: OSError) -> str:
    """Suggest a fix for a file that HDF5 does not open."""
    if isinstance(error, PermissionError | IsADirectoryError):
        return "give the path of a file that you may read"
    if error.errno in TOO_MANY_OPEN:
        return TOO_MANY_OPEN_FIX
    if isinstance(error, BlockingIOError) or "unable to lock file" in str(error):
        return "wait until its writer is done; if nobody writes to it, set HDF5_USE_FILE_LOCKING=FALSE"
    return "write the file again, or copy it again: it is truncated, or not an HDF5 file"


def _unreadable_part(path: str, error: Exception) -> SourceError:
    return SourceError(f"a part of the file cannot be read: {error}", where=path, fix="write or copy the file again")


def hdf5_name(file: h5py.File, data_key: str) -> str:
    """Return the path of a data key inside a file."""
    return "inputs" if data_key == INPUT_KEY and "inputs" in file else f"targets/data/{data_key}"


def read_layout(path: str) -> FileLayout:
    """Read lengths, tags and layouts of one file in bulk, without its data.

    Raises:
        SourceError: The file is missing, truncated or not HDF5, or its parts contradict each other.
    """
    path = os.fspath(path)
    with open_hdf5(path) as file:
        try:
            return _read(file, path)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:  # TypeError: no NumPy dtype for it
            raise _unreadable_part(path, error) from error


def _read(file: h5py.File, path: str) -> FileLayout:
    names = _key_names(file, path)
    table = _length_table(file, names, path)
    labels: dict[str, list[str]] = {}
    columns: dict[str, StoredColumn] = {}
    lengths: dict[str, NDArray[np.int64]] = {}
    for data_key, column_lengths in zip(names, table, strict=True):
        name = hdf5_name(file, data_key)
        key_labels = _labels(file, "labels" if name == "inputs" else f"targets/labels/{data_key}", path)
        if name not in file:
            if column_lengths.any():
                raise SourceError(
                    f"the key {data_key!r} has frames by seqLengths, but no data {name!r}",
                    where=path,
                    fix="write the file again, or remove the attribute from targets/size",
                )
            continue
        column = _stored_column(file, name, path)
        _check_num_frames(data_key, column_lengths, column.num_frames, path)
        dim = _stored_dim(file, data_key, name, path)
        columns[data_key] = replace(column, spec=_with_dim(column.spec, dim, len(key_labels)))
        lengths[data_key] = column_lengths
        if key_labels:
            labels[data_key] = key_labels
    num_seqs = int(file["seqLengths"].shape[0])
    if num_seqs and not columns:
        raise SourceError(
            "the file has neither inputs nor targets/data",
            where=path,
            fix="give a file in RETURNN's HDF layout (docs/how-to/hdf.md)",
        )
    times = None
    if "times" in file and "inputs" in file:
        times = _stored_column(file, "times", path)
        _check_num_frames("times", lengths[INPUT_KEY], times.num_frames, path)
    return FileLayout(path, num_seqs, columns, lengths, labels, _tags(file, num_seqs, path), times)


def _child(file: h5py.File, name: str, kind: type, path: str) -> Any:
    """Return a group or dataset of a file, or None if there is none."""
    child = file.get(name)
    if child is not None and not isinstance(child, kind):
        raise SourceError(f"{name!r} is a {type(child).__name__}, not a {kind.__name__}", where=path)
    return child


def _key_names(file: h5py.File, path: str) -> list[str]:
    """Return the keys in the order of the columns of seqLengths."""
    targets: set[str] = set()
    if _child(file, "targets", h5py.Group, path) is not None:
        data = _child(file, "targets/data", h5py.Group, path)
        size = _child(file, "targets/size", h5py.Group, path)
        targets.update(data.keys() if data is not None else (), size.attrs.keys() if size is not None else ())
    not_text = [name for name in targets if not isinstance(name, str)]
    if not_text:
        raise SourceError(
            f"the name of the target {not_text[0]!r} is not UTF-8", where=path, fix="write the file again"
        )
    if "inputs" not in file:
        return sorted(targets)
    if INPUT_KEY in targets:
        raise SourceError(
            f"both inputs and targets/data/{INPUT_KEY} are there",
            where=path,
            fix=f"a target beside inputs needs a name other than {INPUT_KEY!r}",
        )
    return [INPUT_KEY, *sorted(targets)]


def _length_table(file: h5py.File, names: list[str], path: str) -> list[NDArray[np.int64]]:
    """Read seqLengths and return one checked column `int64[N]` for each key."""
    dataset = _child(file, "seqLengths", h5py.Dataset, path)
    if dataset is None:
        raise SourceError(
            "the file has no seqLengths", where=path, fix="give a file in RETURNN's HDF layout (docs/how-to/hdf.md)"
        )
    if dataset.dtype.kind not in "iuf" or dataset.ndim not in (1, 2):
        found = f"{dataset.dtype}{list(dataset.shape or ())}"
        raise SourceError(
            f"seqLengths is {found}, not a table of whole numbers", where=path, fix="store int32[N, keys]"
        )
    table = _numbers(dataset, path)
    bad = ~np.isfinite(table) | (table < 0) | (table > MAX_FRAMES) | (table != np.floor(table))
    if bad.any():
        where = np.argwhere(bad)[0]
        raise SourceError(
            f"the length {table[tuple(where)]} is not a number of frames",
            where=f"{path}, seqLengths, sequence {where[0]}",
        )
    if table.ndim == 1:  # one number for a sequence: the length of each of its keys
        return [table.astype(np.int64)] * len(names)
    num_columns = table.shape[1]
    dummy = 1 if names in ([], [INPUT_KEY]) and num_columns == len(names) + 1 else 0
    if num_columns != len(names) + dummy:
        raise SourceError(
            f"seqLengths has {num_columns} columns for {len(names)} keys ({', '.join(names)})",
            where=path,
            fix="one column for inputs, then one for each target in sorted order (a spare one if there is no target)",
        )
    return [table[:, idx].astype(np.int64) for idx in range(len(names))]


def _numbers(dataset: h5py.Dataset, path: str) -> NDArray[Any]:
    """Read a table whole, in this machine's number format: NumPy 2.1 crashes where it compares any other with 2**62.

    Fractions become float64, which has room for that number.
    """
    _check_size(dataset, path)
    table = np.asarray(dataset[()])
    return table.astype(np.float64 if table.dtype.kind == "f" else table.dtype.newbyteorder("="), copy=False)


def _check_size(dataset: h5py.Dataset, path: str) -> None:
    """Refuse a dataset that claims far more than is stored of it, before room is made for it."""
    num_bytes, num_stored = dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size()
    chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize if dataset.chunks else 0
    if max(num_bytes, chunk_bytes) > max(_MAX_FILLED_IN_BYTES, num_stored * _MAX_RATIO):
        what = f"{dataset.dtype}{list(dataset.shape)} of {num_bytes} bytes"
        raise SourceError(
            f"{dataset.name} claims to be {what}, but {num_stored} bytes are stored",
            where=path,
            fix="write or copy the file again: rows are missing, or their number is damaged",
        )


def _check_num_frames(data_key: str, lengths: NDArray[np.int64], num_frames: int, path: str) -> None:
    too_long = lengths > num_frames
    if too_long.any():
        seq_idx = int(np.argmax(too_long))
        raise SourceError(
            f"the length {lengths[seq_idx]} of {data_key!r} is more than all {num_frames} frames that are stored",
            where=f"{path}, seqLengths, sequence {seq_idx}",
            fix="write the file again",
        )
    total = int(lengths.sum())
    if total != num_frames:
        raise SourceError(
            f"the lengths of {data_key!r} add up to {total} frames, but {num_frames} are stored",
            where=path,
            fix="write the file again",
        )


def _stored_column(file: h5py.File, name: str, path: str) -> StoredColumn:
    dataset = _child(file, name, h5py.Dataset, path)
    if dataset is None:
        raise SourceError(f"{name!r} cannot be opened", where=path, fix="restore what it links to, or write it again")
    shape, dtype = dataset.shape, dataset.dtype
    if not shape or dtype.kind not in READABLE_KINDS:
        raise SourceError(
            f"{name!r} is {dtype}{list(shape or ())}, not an array of numbers with a time axis",
            where=path,
            fix="store integers, floats or bools; text as uint8 codes",
        )
    _check_size(dataset, path)
    native = dtype.newbyteorder("=")
    sparse = _said_sparse(dataset, path)
    if sparse is None:
        sparse = takes_for_classes(native, len(shape))
    spec = DataSpec(native.name, tuple(shape[1:]), sparse=sparse)
    offset = _plain_offset(dataset, native)
    chunk_bytes = int(np.prod(dataset.chunks)) * dtype.itemsize if dataset.chunks else 0
    return StoredColumn(spec, int(shape[0]), offset, chunk_bytes)


def _said_sparse(dataset: h5py.Dataset, path: str) -> bool | None:
    """Return the attribute by which `HDFWriter` overrides the rule for sparse data; None if there is none."""
    said = dataset.attrs.get("sparse")
    if said is None:
        return None
    if not isinstance(said, bool | np.bool_) or (said and dataset.dtype.kind not in "iu"):
        raise SourceError(
            f"the attribute sparse is {said!r} for {dataset.dtype}", where=f"{path}, {dataset.name}", fix="remove it"
        )
    return bool(said)


def _plain_offset(dataset: h5py.Dataset, native: np.dtype[Any]) -> int:
    """Return the position of the first row if the rows are stored as they are in memory, else `NOT_CONTIGUOUS`."""
    offset = dataset.id.get_offset()  # None: chunked, compact, or nothing was ever written
    if offset is None or native.kind == "b":  # a bool may be any byte to NumPy, so HDF5 has to check
        return NOT_CONTIGUOUS
    if dataset.id.get_storage_size() != dataset.size * native.itemsize:
        return NOT_CONTIGUOUS
    same_type = dataset.id.get_type().equal(h5py.h5t.py_create(native))
    return int(offset) if same_type else NOT_CONTIGUOUS


def _stored_dim(file: h5py.File, data_key: str, name: str, path: str) -> int | None:
    """Return the number of classes or features that the file declares for a key, or None."""
    attributes = file[name].attrs
    said = attributes.get("dim") if "sparse" in attributes else None
    if said is None and attributes.get("sparse"):
        return None  # not known; what other programs want to have is beside it
    if said is not None:
        value, name = said, f"attribute dim of {name}"
    elif name == "inputs":
        if file[name].ndim > 1:
            return None  # the attribute only describes; the last axis counts
        value, name = file.attrs.get("inputPattSize"), "attribute inputPattSize"
    else:
        size = file.get("targets/size")
        value, name = (None if size is None else size.attrs.get(data_key)), f"attribute {data_key} of targets/size"
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.size == 0 or int(array.flat[0]) < 0:
        raise SourceError(f"the {name} is {value!r}, not a dim or [dim, ndim]", where=path, fix="store whole numbers")
    return int(array.flat[0])


def _with_dim(spec: DataSpec, dim: int | None, num_labels: int) -> DataSpec:
    """Fill in the dim: what the file says, else the number of labels (class indices), else the last axis, else 1.

    To look for the largest class index would mean to read all the data: the dim of unlabelled class indices stays
    None, "not known".
    """
    if dim is None:
        num_features = spec.shape[-1] if spec.shape else 1
        dim = (num_labels or None) if spec.sparse else num_features
    return replace(spec, dim=dim)


def _labels(file: h5py.File, name: str, path: str) -> list[str]:
    dataset = _child(file, name, h5py.Dataset, path)
    return [] if dataset is None else _strings(dataset, path)


def _tags(file: h5py.File, num_seqs: int, path: str) -> PackedTags | None:
    dataset = _child(file, "seqTags", h5py.Dataset, path)
    if dataset is None:
        return None
    tags = _strings(dataset, path)
    if len(tags) != num_seqs:
        raise SourceError(
            f"{len(tags)} tags for {num_seqs} sequences", where=f"{path}, seqTags", fix="write the file again"
        )
    return pack_texts(tags)


def _strings(dataset: h5py.Dataset, path: str) -> list[str]:
    """Read strings in bulk, `[N]`, decode as UTF-8, and cut each at its first NUL."""
    is_text = dataset.dtype.kind == "S" or h5py.check_string_dtype(dataset.dtype) is not None
    if not is_text or dataset.ndim != 1:
        raise SourceError(
            f"{dataset.dtype}{list(dataset.shape or ())} is not a list of strings", where=f"{path}, {dataset.name}"
        )
    _check_size(dataset, path)
    raw: list[bytes] = dataset[()].tolist()
    try:
        # All at once: ten times as quick as one by one. A line break inside a string shows in the number of strings.
        strings = b"\n".join(raw).decode().split("\n")
    except UnicodeDecodeError as error:
        idx = next(idx for idx, text in enumerate(raw) if not _decodes(text))
        raise SourceError(f"string {idx} is not UTF-8: {raw[idx]!r}", where=f"{path}, {dataset.name}") from error
    if len(strings) != len(raw):
        strings = [text.decode() for text in raw]
    return [text.partition("\0")[0] for text in strings] if b"\0" in b"".join(raw) else strings


def _decodes(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
