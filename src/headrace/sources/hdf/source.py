"""`HDFSource` gives random access to sequences in HDF5 files of the layout of RETURNN's `HDFDataset`.

The sequences of the files follow one another. All files must have the same keys, with the same dtype, frame shape and
dim; where they differ, both files and both values are named. (RETURNN lets later files have more targets and drops them
with a warning.) A file without sequences and without keys agrees with all. Everything a reader needs goes into the
index, so that a corpus with a fresh index is opened without touching HDF5.

Rows that lie plainly in a file are read as bytes into a new array (see `shared/plain_files.py`): no HDF5 call, no lock
of HDF5. All others go through HDF5; chunks without filters only at first (see `chunks.py`). Read `layout.py` for the
layout.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.errors import OptionalNotImplementedError, SourceError
from headrace.files import TOO_MANY_OPEN, FileStamp
from headrace.index import CorpusIndex, GeneratedTags, PackedTags, Tags, chain_tags, pack_texts
from headrace.specs import DataSpec

from ..base import check_corpus_idx
from ..shared.data_types import layout_text
from ..shared.open_files import MAX_OPEN_FILES, check_stamp, older_half
from ..shared.parts import count_workers, map_parts
from ..shared.paths import Files, IndexOption, list_paths
from ..shared.plain_files import PlainFiles
from ..shared.source import IndexedSource, PlainKey, column_view, make_index
from .chunks import CHUNKS_PER_READ, PlainChunks, find_chunks, num_chunks
from .layout import INPUT_KEY, NOT_CONTIGUOUS, FileLayout, StoredColumn, hdf5_name, open_hdf5, read_layout

# Chunk caches, for each data key: of the open files together at least (1 MiB each for up to 16, which is HDF5's own
# default, and less each for more), of one file at most, and of the open files together at most.
_MIN_CACHES_BYTES = 16 << 20
_MAX_CHUNK_CACHE_BYTES = 64 << 20
_MAX_CACHES_BYTES = 1 << 30

_TIMES = None  # as a data key: the dataset `times`


class FileHandles(PlainFiles):
    """Readers of rows of the files of one corpus: by position, and through HDF5. Not thread-safe.

    At most a fixed number of files is open at a time: those that have been open longest are closed first, and where the
    system allows fewer, fewer are kept open. HDF5 handles are opened again in a forked process.

    Args:
        stamps: The files as they were when they were indexed.
        chunk_bytes: Size of the largest unpacked chunk in each file, 0 for none.
    """

    def __init__(self, stamps: Sequence[FileStamp], chunk_bytes: Sequence[int]) -> None:
        super().__init__(stamps)
        self._chunk_bytes = chunk_bytes
        self._hdf5_files: dict[int, tuple[h5py.File, dict[str | None, h5py.Dataset]]] = {}
        self._hdf5_pid = os.getpid()
        self._chunks: dict[tuple[int, str | None], PlainChunks | None] = {}
        self._reads_left: dict[tuple[int, str | None], float] = {}  # through HDF5, until chunks are looked for

    def read_hdf5(
        self, file_idx: int, data_key: str | None, start: int, stop: int, dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Read rows start..stop of a data key (None: of `times`) through HDF5, in this machine's number format.

        A chunked dataset without filters that is read often is read as bytes from then on.

        Raises:
            SourceError: As for `read`, or a chunk cannot be unpacked.
        """
        chunks = self._chunks.get((file_idx, data_key))
        where = chunks and chunks.locate(start, stop)
        if chunks and where:
            position, shape = where
            num_bytes = math.prod(shape) * dtype.itemsize
            return chunks.rows(self.read_sized(file_idx, position, num_bytes, shape, dtype), start, stop)
        if self._hdf5_pid != os.getpid():
            self._hdf5_files, self._hdf5_pid = {}, os.getpid()
        file, datasets = self._hdf5_files.get(file_idx) or self._open_hdf5(file_idx)
        try:
            dataset = datasets.get(data_key)
            if dataset is None:  # to look it up by name takes ten times as long as a read
                name = "times" if data_key is _TIMES else hdf5_name(file, data_key)
                dataset = datasets[data_key] = file[name]
            rows: NDArray[Any] = dataset[start:stop]
            if chunks is None:
                self._count_read(file_idx, data_key, dataset)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise SourceError(
                f"cannot read frames {start}..{stop} of {data_key or 'times'!r}: {error}",
                where=self._stamps[file_idx].path,
                fix="write or copy the file again",
            ) from error
        return rows if rows.dtype == dtype else rows.astype(dtype)

    def _count_read(self, file_idx: int, data_key: str | None, dataset: h5py.Dataset) -> None:
        """Find out where the chunks are once the dataset was read so often that this pays."""
        key = file_idx, data_key
        left = self._reads_left.get(key) or num_chunks(dataset) / CHUNKS_PER_READ or math.inf
        self._reads_left[key] = left - 1
        if left <= 1:
            self._reads_left[key], self._chunks[key] = math.inf, find_chunks(dataset)

    def _open_hdf5(self, file_idx: int) -> tuple[h5py.File, dict[str | None, h5py.Dataset]]:
        stamp = self._stamps[file_idx]
        check_stamp(stamp)
        num_open = min(len(self._stamps), MAX_OPEN_FILES)
        # Four chunks: neighbours in a file share one; with less than one it would be unpacked for each sequence.
        cache_bytes = max(4 * self._chunk_bytes[file_idx], _MIN_CACHES_BYTES // max(num_open, 16))
        cache_bytes = min(cache_bytes, _MAX_CHUNK_CACHE_BYTES)
        if len(self._hdf5_files) >= min(MAX_OPEN_FILES, _MAX_CACHES_BYTES // cache_bytes):
            self._hdf5_files.pop(next(iter(self._hdf5_files)))[0].close()
        while True:
            try:
                file = open_hdf5(stamp.path, chunk_cache_bytes=cache_bytes)
            except SourceError as error:
                if getattr(error.__cause__, "errno", None) not in TOO_MANY_OPEN or not self.close_older_half():
                    raise
            else:
                check_stamp(stamp, file.id.get_vfd_handle())
                opened = self._hdf5_files[file_idx] = file, {}
                return opened

    def close_older_half(self) -> bool:
        """Close half of the handles of each kind, so that others find room, too; return whether there were any."""
        closed_plain = super().close_older_half()
        hdf5 = older_half(self._hdf5_files) if self._hdf5_pid == os.getpid() else []
        for file_idx in hdf5:
            self._hdf5_files.pop(file_idx)[0].close()
        return closed_plain or bool(hdf5)

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        super().close()
        inherited = self._hdf5_pid != os.getpid()
        files, self._hdf5_files = self._hdf5_files, {}
        for file, _ in () if inherited else files.values():
            file.close()


INDEX_KIND = "returnn-hdf5/3"  # with the version of what `_meta` and the locators say
_MIN_SHARED_FILES = 500  # seconds of work; fewer are read before processes have started


def gather_index(paths: Sequence[str]) -> CorpusIndex:
    """Read lengths, tags and layout of all files once.

    Costs a few milliseconds a file and about 0.05 s per 100 k sequences.

    Raises:
        SourceError: A file is missing, truncated or not in RETURNN's layout, or two files disagree.
    """
    layouts = list(
        map_parts(read_layout, paths, num_workers=count_workers(len(paths), pays=len(paths) >= _MIN_SHARED_FILES))
    )
    specs = _common_specs(layouts)
    labels: dict[str, list[str]] = {}
    for layout in layouts:
        labels = {**layout.labels, **labels}  # the first file that has some wins
    num_seqs = [layout.num_seqs for layout in layouts]
    locators = {"file": np.repeat(np.arange(len(paths), dtype=np.int32), num_seqs)}
    lengths: dict[str, NDArray[Any]] = {}
    for data_key in specs:
        per_file = [layout.lengths[data_key] for layout in layouts if layout.columns]
        lengths[data_key] = np.concatenate(per_file)
        locators[f"frame:{data_key}"] = np.concatenate([np.cumsum(part) - part for part in per_file])
    return make_index(
        specs=specs,
        labels={key: labels[key] for key in specs if key in labels},
        tags=_all_tags(layouts),
        lengths=lengths,
        locators=locators,
        **_meta(layouts, specs),
    )


def _common_specs(layouts: Sequence[FileLayout]) -> dict[str, DataSpec]:
    """Return the specs that all files share; a dim that only some files know counts for all."""
    filled = [layout for layout in layouts if layout.columns or layout.num_seqs]
    specs = {key: column.spec for layout in filled[:1] for key, column in layout.columns.items()}
    for layout in filled[1:]:
        where = f"{filled[0].path}, {layout.path}"
        if list(layout.columns) != list(specs):
            raise SourceError(
                f"the files have different keys: {list(specs)}, but {list(layout.columns)}",
                where=where,
                fix="remove or write the keys that are missing on one side, or open the files as separate corpora",
            )
        for key, column in layout.columns.items():
            spec, other = specs[key], column.spec
            dim = other.dim if spec.dim is None else spec.dim
            specs[key] = replace(spec, dim=dim)
            if specs[key] != (replace(other, dim=dim) if other.dim is None else other):
                ours, theirs = (f"{layout_text(each)} with dim {each.dim}" for each in (specs[key], other))
                raise SourceError(
                    f"the files differ in the key {key!r}: {ours}, but {theirs}",
                    where=where,
                    fix="convert one of them, or open the files as separate corpora",
                )
    return specs


def _all_tags(layouts: Sequence[FileLayout]) -> Tags:
    """Join the tags; a sequence of a file without tags is called `seq-<corpus_idx>`."""
    num_seqs = sum(layout.num_seqs for layout in layouts)
    if all(layout.tags is None for layout in layouts):
        return GeneratedTags(num_seqs)
    tags: list[PackedTags] = []
    stop = 0
    for layout in layouts:
        start, stop = stop, stop + layout.num_seqs
        named = layout.tags
        tags.append(pack_texts(GeneratedTags(stop).block(start, stop)) if named is None else named)
    return chain_tags(tags)


def _meta(layouts: Sequence[FileLayout], specs: Mapping[str, DataSpec]) -> dict[str, Any]:
    """Return where the rows of each key are in each file; and `times`, if every file with sequences has it alike."""

    def extents(columns: Sequence[StoredColumn | None]) -> dict[str, Any]:
        return {
            "byte_offsets": [NOT_CONTIGUOUS if column is None else column.byte_offset for column in columns],
            "num_frames": [0 if column is None else column.num_frames for column in columns],
        }

    times = {None if layout.times is None else layout.times.spec for layout in layouts if layout.columns}
    spec = times.pop() if INPUT_KEY in specs and len(times) == 1 else None
    return {
        "extents": {key: extents([layout.columns.get(key) for layout in layouts]) for key in specs},
        "chunk_bytes": [max((of.chunk_bytes for of in layout.columns.values()), default=0) for layout in layouts],
        "times": spec and {"spec": spec.to_json(), **extents([layout.times for layout in layouts])},
    }


@dataclass(frozen=True, slots=True)
class _Column:
    """Precomputed values of one key, for fast reads.

    Attributes:
        name: The data key; None for `times`.
        dtype: Dtype of the arrays to return.
        frame_shape: Shape of one row.
        row_bytes: Size of one row.
        extents: For each file, the position of the first row, or -1 where the rows have to be read through HDF5; and
            how many rows it has.
        rows: `int64[N]`, the first row of each sequence in its file.
        lengths: `int32[N]` or `int64[N]`.

    Columns are held as memory views: one number is had from them in less than half the time that NumPy takes.
    """

    name: str | None
    dtype: np.dtype[Any]
    frame_shape: tuple[int | None, ...]
    row_bytes: int
    extents: list[tuple[int, int]]
    rows: memoryview[int]
    lengths: memoryview[int]


class HDFSource(IndexedSource):
    """Random access to the sequences of one or more HDF5 files.

    The corpus is the sequences of the files, one file after the other. Missing descriptions are made up for: without
    `seqTags` the tags are `seq-<corpus_idx>`, without a stored dim it is the size of the last axis (class indices:
    the number of labels, else unknown, `None`). All files must have the same keys and layouts.

    Args:
        files: One path, or several.
        index: `"auto"` keeps the index of a large corpus in the cache folder and finds it there the next time; `None`
            always gathers it from the files, in memory; a path opens the index that `headrace index` wrote there.

    Raises:
        SourceError: A file is missing, truncated, not in RETURNN's layout, disagrees with another, or has parts in
            other files (external storage, external links, virtual datasets); or the given index is not one of these
            files as they are now.
    """

    def __init__(self, files: Files, *, index: IndexOption = "auto") -> None:
        paths = list_paths(files, "HDFSource", may_be_empty=True)
        self._open(None, paths, lambda: gather_index(paths), index=index, kind=INDEX_KIND)

    def _prepare(self) -> None:
        meta = self._index.meta
        self._file_of = column_view(self._index.locator("file"))
        self._num_files = len(self._index.files)
        self._columns = {key: self._column(key, key, spec, meta["extents"][key]) for key, spec in self.specs.items()}
        for key, column in self._columns.items():
            if None not in column.frame_shape and all(offset >= 0 or not rows for offset, rows in column.extents):
                self._plain[key] = PlainKey.of(self.specs[key], self._index.lengths(key))
        times = meta["times"]
        self._times = times and self._column(None, INPUT_KEY, DataSpec.from_json(times["spec"]), times)

    def _prepare_files(self) -> None:
        self._files: FileHandles = FileHandles(self._index.files, self._index.meta["chunk_bytes"])

    def _column(self, name: str | None, length_key: str, spec: DataSpec, stored: Any) -> _Column:
        dtype = np.dtype(spec.dtype)
        row_bytes = int(np.prod([size or 0 for size in spec.shape], dtype=np.int64)) * dtype.itemsize
        rows = column_view(self._index.locator(f"frame:{length_key}"))
        lengths = column_view(self._index.lengths(length_key))
        extents = list(zip(stored["byte_offsets"], stored["num_frames"], strict=True))
        return _Column(name, dtype, spec.shape, row_bytes, extents, rows, lengths)

    def reads_slices(self, data_key: str) -> bool:
        """Yes: HDF5 itself finds the chunks that hold some frames."""
        return data_key in self.specs

    @property
    def has_fast_rows(self) -> bool:
        """Yes, unless a shape has free axes: neighbours in a file are read at once, also through HDF5."""
        return all(None not in spec.shape for spec in self.specs.values())

    def read_rows(self, corpus_indices: NDArray[np.int64], data_key: str, out: NDArray[Any]) -> None:
        """Read one data key of several sequences into one array; neighbours in a file are read at once."""
        if data_key in self._plain or data_key not in self.specs:
            super().read_rows(corpus_indices, data_key, out)
            return
        column, indices = self._columns[data_key], self._checked_indices(corpus_indices)
        done = stop = 0
        while done < len(indices):
            first = indices[done]
            file_idx, row = self._file_of[first], column.rows[first]
            end = row
            while (
                done < len(indices) and self._file_of[indices[done]] == file_idx and column.rows[indices[done]] == end
            ):
                num_rows = column.lengths[indices[done]]
                if num_rows < 0:
                    raise self._index.damaged(f"the length of {data_key!r} of sequence {indices[done]} is {num_rows}")
                end, done = end + num_rows, done + 1
            start, stop = stop, stop + end - row
            if stop <= len(out):
                out[start:stop] = self._read_frames(column, first, row, end - row)
        if stop != len(out):
            raise IndexError(f"{stop} frames of {data_key!r} do not fit into {len(out)} rows")

    def read_times(self, corpus_idx: int) -> NDArray[Any]:
        """Return the stored `times` of one sequence, `dtype[T, ...]`, as many rows as "data" has frames.

        Raises:
            OptionalNotImplementedError: The files have no `times`, or not all of them.
        """
        times = self._times
        if times is None:
            raise OptionalNotImplementedError("this corpus has no times", where=", ".join(self.files[:3]))
        check_corpus_idx(corpus_idx, self._num_seqs)
        return self._read_frames(times, corpus_idx, times.rows[corpus_idx], times.lengths[corpus_idx])

    def _load(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        return self._load_part(corpus_idx, data_key, 0, self._columns[data_key].lengths[corpus_idx])

    def _load_part(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        column = self._columns[data_key]
        return self._read_frames(column, corpus_idx, column.rows[corpus_idx] + start, end - start)

    def _read_frames(self, column: _Column, corpus_idx: int, row: int, num_rows: int) -> NDArray[Any]:
        """Return rows of a file, from the first of a sequence on or from a later one."""
        file_idx, position = self._position(column, corpus_idx, row, num_rows)
        if position < 0 and num_rows:
            return self._files.read_hdf5(file_idx, column.name, row, row + num_rows, column.dtype)
        shape = (num_rows, *(size or 0 for size in column.frame_shape))  # no axis is free here
        return self._files.read_sized(file_idx, position, num_rows * column.row_bytes, shape, column.dtype)

    def _locate(self, corpus_idx: int, data_key: str) -> tuple[int, int, int]:
        column = self._columns[data_key]
        num_rows = column.lengths[corpus_idx]
        file_idx, position = self._position(column, corpus_idx, column.rows[corpus_idx], num_rows)
        return file_idx, position, num_rows * column.row_bytes

    def _position(self, column: _Column, corpus_idx: int, row: int, num_rows: int) -> tuple[int, int]:
        """Return the file of a sequence and the position of a row in it; -1 if it has to be read through HDF5."""
        file_idx = self._file_of[corpus_idx]
        # A damaged index must not read other frames: the columns of its file are checked here, where they are used.
        if not 0 <= file_idx < self._num_files:
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in file {file_idx} of {self._num_files}")
        byte_offset, num_frames = column.extents[file_idx]
        if not 0 <= row <= row + num_rows <= num_frames:
            what = f"frames {row}..{row + num_rows} of the {num_frames} in {self.files[file_idx]}"
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in {what}")
        return file_idx, -1 if byte_offset < 0 else byte_offset + row * column.row_bytes
