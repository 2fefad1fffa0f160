"""`TarSource`: random access to sequences in tar archives of the WebDataset format.

An archive is walked through once, for its index; from then on a sequence is read from its place in the file, and
nothing is unpacked to the disk. Read `tar_scan.py` for archives, `tar_names.py` for what makes a sequence,
`tar_fields.py` and `tar_members.py` for how members become arrays, `tar_gather.py` for what is indexed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files.lists.ranges import has_ranges, list_ranges
from headrace.index import CorpusIndex, open_or_build
from headrace.specs import DataSpec

from ..base import Source
from ..shared.plain_files import PlainFiles
from .fields import parse_members, split_field
from .gather import SHARD_AND_KEY, TarOptions, gather_index
from .members import Members

PathLike = str | os.PathLike[str]
_MISSING = ("error", "skip")


@dataclass(frozen=True, slots=True)
class _Column:
    """What the hot path needs of one key, worked out once.

    Attributes:
        members: How bytes become an array.
        is_plain: Whether they are one.
        dtype: Of the arrays.
        frame_shape: Shape of one frame.
        frame_bytes: Size of one frame, where arrays are plain.
        has_time: Whether an array has a first axis of frames.
        ends: `int64[N]`, where each member ends in its file.
        sizes: `int64[N]`, the size of each member.
        lengths: `int32[N]` or `int64[N]`.
    """

    members: Members
    is_plain: bool
    dtype: np.dtype[Any]
    frame_shape: tuple[int, ...]
    frame_bytes: int
    has_time: bool
    ends: memoryview[int]
    sizes: memoryview[int]
    lengths: memoryview[int]


class TarSource(Source):
    """Random access to sequences in tar archives, as WebDataset, Energon and `TarWriter` write them ("shards").

    Consecutive members `<key>.<extension>` with one key are a sequence; the corpus is the sequences of the archives,
    one archive after the other. The key is the tag (where `TarWriter` wrote it, the tag that it was given). It may
    repeat in another archive, but not in one. What an extension makes of a member:

    | extension | array |
    |---|---|
    | `npy` | the array; its first axis is time |
    | `cls`, `cls2`, `class` | a class index: `int32[1]` |
    | `count`, `index`, `inx`, `id` | a number: `int64[1]` |
    | `wav`, `flac`, `ogg`, `opus`, `mp3`, ... | samples: `float32[T, 1]`, or features. Needs `headrace[audio]` |
    | `txt`, `json` and other text | UTF-8 bytes: `uint8[T]`, 256 classes |
    | any other | the bytes: `uint8[T]` |

    Args:
        files: One path, or several; `train-{000000..000099}.tar` is a hundred.
        fields: Data key -> extension, or a dict `{"field": extension, ...}` with options: "vocab" for text and numbers
            (None: labels, the sorted distinct values; a list of labels; "bytes"; "chars"; a number of classes; a
            vocabulary) and for arrays of class indices (their number, or a list of labels), "features", "sample_rate",
            "channel" for recordings, as `AudioSource` takes them. `"json:name"` is a value in the member with the
            extension `json`, `"npz:name"` an array in `npz`. If `None`, all members of the first sequence are data
            keys; `x.npy` is called `x`.
        tag_field: What the tag is: the key if `None`; `"shard/key"` puts the name of the archive before it; else an
            extension or `"json:name"`, for a text.
        missing: `"skip"` leaves out sequences without one of the members, `"error"` refuses them.
        index: `"auto"` keeps the index of a large corpus in the cache folder and finds it there the next time; `None`
            always walks through the archives; a path opens the index that `TarSource(...).index.save(path)` wrote with
            the same options.

    Raises:
        ConfigError: An option is wrong, or does not fit what is there.
        SourceError: An archive is missing, truncated, damaged, compressed, or has members that are no plain files
            inside of it (links, paths that lead out), a member twice, sequences whose members do not follow one
            another, or that have not the same members; or the given index is not one of these files as they are now.
    """

    def __init__(
        self,
        files: PathLike | Sequence[PathLike],
        *,
        fields: Mapping[str, str | Mapping[str, Any]] | None = None,
        tag_field: str | None = None,
        missing: Literal["error", "skip"] = "error",
        index: PathLike | Literal["auto"] | None = "auto",
    ) -> None:
        paths = _paths_of(files)
        if missing not in _MISSING:
            raise ConfigError(f"missing is {missing!r}", where="TarSource", fix=did_you_mean(str(missing), _MISSING))
        if not isinstance(tag_field, str | None):
            raise ConfigError(f"tag_field is a str, not {tag_field!r}", where="TarSource")
        by_name = tag_field is None or tag_field == SHARD_AND_KEY
        options = TarOptions(
            members=None if fields is None else {key: parse_members(key, target) for key, target in fields.items()},
            tag=tag_field if by_name else split_field(tag_field or "", "TarSource(tag_field=...)"),
            missing=missing,
        )
        corpus = open_or_build(paths, lambda: gather_index(paths, options), index=index, kind=options.kind)
        self._attach(options, corpus)

    def _attach(self, options: TarOptions, index: CorpusIndex) -> None:
        """Work out everything that follows from the options and the index."""
        self._options, self._index = options, index
        meta = index.meta
        self.specs: dict[str, DataSpec] = {key: DataSpec.from_json(spec) for key, spec in meta["specs"].items()}
        self.labels: dict[str, Sequence[str]] = dict(meta["labels"])
        self._file_of = _view(index.locator("file"))
        self._sizes = [stamp.size for stamp in index.files]
        self._columns = {key: self._column(key) for key in self.specs}
        self._files = PlainFiles(index.files)

    def _column(self, data_key: str) -> _Column:
        index, spec = self._index, self.specs[data_key]
        members = (self._options.members or {}).get(data_key) or parse_members(
            data_key, index.meta["extensions"][data_key]
        )
        members.settle(spec, self.labels.get(data_key), index.meta["learnt"][data_key])
        dtype = np.dtype(spec.dtype)
        frame_shape = tuple(size or 0 for size in spec.shape)
        return _Column(
            members,
            members.is_plain,
            dtype,
            frame_shape,
            int(np.prod(frame_shape, dtype=np.int64)) * dtype.itemsize,
            spec.has_time,
            _view(index.locator(f"end/{data_key}")),
            _view(index.locator(f"bytes/{data_key}")),
            _view(index.lengths(data_key)),
        )

    @property
    def index(self) -> CorpusIndex:
        """Tags, lengths and places of all sequences."""
        return self._index

    @property
    def files(self) -> tuple[str, ...]:
        """Absolute paths of the archives, in corpus order."""
        return tuple(stamp.path for stamp in self._index.files)

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one sequence, `dtype[T, ...]`, as a new array.

        Raises:
            IndexError: There is no such sequence.
            SourceError: There is no such key, or an archive is gone, changed or damaged.
        """
        column = self._column_of(data_key)
        if not column.is_plain:
            return self._decode(column, data_key, corpus_idx)
        length = column.lengths[corpus_idx]
        file_idx, position = self._locate(column, corpus_idx, length)
        shape = (length, *column.frame_shape) if column.has_time else column.frame_shape
        return self._files.read_array(file_idx, position, shape, column.dtype)

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames start..end of one data key, `dtype[end - start, ...]`.

        Of arrays that lie in the archive as they are (`npy` of one frame shape, bytes), no other frames are read.

        Raises:
            IndexError: There is no such sequence, or not 0 <= start <= end <= its length.
            SourceError: As for `read`.
        """
        column = self._column_of(data_key)
        length = column.lengths[corpus_idx]
        if not 0 <= start <= end <= length:
            raise IndexError(f"frames {start}..{end} of {data_key!r} in a sequence of {length} frames")
        if not column.is_plain or not column.has_time:
            array = self.read(corpus_idx, data_key)
            return array[start:end] if column.has_time else array
        file_idx, position = self._locate(column, corpus_idx, length)
        position += start * column.frame_bytes
        return self._files.read_array(file_idx, position, (end - start, *column.frame_shape), column.dtype)

    @property
    def has_fast_rows(self) -> bool:
        """Yes, if the arrays of all keys lie in the archives as they are returned."""
        return bool(self._columns) and all(column.is_plain for column in self._columns.values())

    def read_rows(self, corpus_indices: NDArray[np.int64], data_key: str, out: NDArray[Any]) -> None:
        """Read one data key of several sequences into one array; no byte of a plain array is copied twice."""
        column = self._column_of(data_key)
        if not column.is_plain:
            super().read_rows(corpus_indices, data_key, out)
            return
        reads = []
        start = 0
        for corpus_idx in corpus_indices.tolist():
            length = column.lengths[corpus_idx]
            reads.append((*self._locate(column, corpus_idx, length), out[start : start + length]))
            start += length
        if start != len(out):
            raise IndexError(f"the frames of {data_key!r} of {len(corpus_indices)} sequences are not {len(out)}")
        self._files.read_many(reads)

    def read_into(self, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Read one data key of several sequences, each into an array of its own."""
        column = self._column_of(data_key)
        if not column.is_plain:
            super().read_into(corpus_indices, data_key, outs)
            return
        reads = []
        for corpus_idx, out in zip(corpus_indices.tolist(), outs, strict=True):
            length = column.lengths[corpus_idx]
            reads.append((*self._locate(column, corpus_idx, length), out))
            if length != len(out):
                raise IndexError(f"{length} frames of {data_key!r} do not fit into {len(out)} rows")
        self._files.read_many(reads)

    def _column_of(self, data_key: str) -> _Column:
        column = self._columns.get(data_key)
        if column is None:
            raise SourceError(
                f"the corpus has no data key {data_key!r}",
                where=", ".join(self.files[:3]),
                fix=did_you_mean(data_key, self._columns),
            )
        return column

    def _locate(self, column: _Column, corpus_idx: int, length: int) -> tuple[int, int]:
        """Return the file of a sequence and the position of its plain array there."""
        file_idx, position, num_bytes = self._member_of(column, corpus_idx)
        array_bytes = length * column.frame_bytes
        if not 0 <= array_bytes <= num_bytes:
            raise self._index.damaged(f"sequence {corpus_idx} has {length} frames in {num_bytes} bytes")
        return file_idx, position + num_bytes - array_bytes

    def _member_of(self, column: _Column, corpus_idx: int) -> tuple[int, int, int]:
        """Return file, position and size of a member."""
        if corpus_idx < 0:
            raise IndexError(f"sequence {corpus_idx}: there are sequences 0..{len(self._file_of) - 1}")
        file_idx, end, num_bytes = self._file_of[corpus_idx], column.ends[corpus_idx], column.sizes[corpus_idx]
        # A damaged index must not read other bytes: what it says is compared with the file, here where it is used.
        if not 0 <= file_idx < len(self._sizes) or not 0 <= num_bytes <= end <= self._sizes[file_idx]:
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in {num_bytes} bytes up to {end}")
        return file_idx, end - num_bytes, num_bytes

    def _decode(self, column: _Column, data_key: str, corpus_idx: int) -> NDArray[Any]:
        file_idx, position, num_bytes = self._member_of(column, corpus_idx)
        data = self._files.read(file_idx, position, num_bytes)
        where = f"{self._index.files[file_idx].path}, tag {self._index.tags[corpus_idx]!r}, .{column.members.ext}"
        array = column.members.decode(data, where)
        length = column.lengths[corpus_idx]
        if column.has_time and len(array) != length:
            raise SourceError(
                f"the length of {data_key!r} was {length} and is {len(array)}",
                where=where,
                fix="the archive changed since it was indexed: open it again",
            )
        return array

    def close(self) -> None:
        """Release files; a later read opens them again. Harmless when called twice."""
        self._files.close()

    def __getstate__(self) -> tuple[TarOptions, CorpusIndex]:
        return self._options, self._index

    def __setstate__(self, state: tuple[TarOptions, CorpusIndex]) -> None:
        self._attach(*state)


def _paths_of(files: Any) -> list[str]:
    if isinstance(files, str | bytes | os.PathLike) or not isinstance(files, Iterable):
        files = [files]
    paths: list[str] = []
    for path in files:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"{path!r} is not a path", where="TarSource(files=...)", fix="give a str or pathlib.Path")
        name = os.fspath(path)
        paths += [name] if not has_ranges(name) or os.path.lexists(name) else list_ranges(name)
    return [os.path.abspath(path) for path in paths]


def _view(column: NDArray[Any]) -> memoryview[int]:
    native = column.dtype.newbyteorder("=")
    # The second step is for the name alone: a memory view reads "int64", and not "little-endian int64".
    return memoryview(column.astype(native, copy=False).view(native))  # type: ignore[arg-type]
