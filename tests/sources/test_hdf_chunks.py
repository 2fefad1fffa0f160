"""Chunked HDF5 datasets without filters: after a few reads through HDF5 their rows are read as bytes."""

import os

import h5py
import numpy as np
import pytest

from headrace.errors import SourceError
from headrace.sources import HDFSource

NUM_SEQS, SEQ_FRAMES = 40, 7
NUM_FRAMES = NUM_SEQS * SEQ_FRAMES


def write(path, frames, *, step=50, **options):
    """Write two datasets that grow in turn, as RETURNN's writer does: their chunks come in several runs."""
    classes = np.arange(NUM_FRAMES, dtype=np.int32)
    with h5py.File(path, "w", userblock_size=options.pop("userblock_size", 0)) as file:
        for name, rows in (("inputs", frames), ("targets/data/classes", classes)):
            file.create_dataset(name, (0, *rows.shape[1:]), rows.dtype, maxshape=(None,) * rows.ndim, **options[name])
        for stop in range(step, NUM_FRAMES + step, step):
            for name, rows in (("inputs", frames[:stop]), ("targets/data/classes", classes[:stop])):
                start = file[name].shape[0]
                file[name].resize(len(rows), axis=0)
                file[name][start:] = rows[start:]
                file.flush()
        file["seqLengths"] = np.full((NUM_SEQS, 2), SEQ_FRAMES, np.int32)
    return path, classes


def read_all(source, data_key):
    return [source.read(idx, data_key) for idx in range(NUM_SEQS)]


def assert_seqs(found, rows):
    for array, wanted in zip(found, np.split(rows, NUM_SEQS), strict=True):
        assert (array.dtype, array.shape) == (wanted.dtype.newbyteorder("="), wanted.shape)
        assert np.array_equal(array, wanted)
        assert array.flags.owndata
        assert array.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", ">f4"])
@pytest.mark.parametrize(
    ("frame_shape", "chunks"),
    [((), (11,)), ((6,), (11, 6)), ((6,), (11, 4)), ((6,), (11, 8)), ((3, 5), (4, 2, 3)), ((6,), (1, 6))],
)
def test_rows_of_plain_chunks_are_those_of_hdf5(tmp_path, dtype, frame_shape, chunks):
    frames = np.random.RandomState(1).randint(0, 100, (NUM_FRAMES, *frame_shape)).astype(dtype)
    options = {"inputs": {"chunks": chunks}, "targets/data/classes": {"chunks": (16,)}}
    path, classes = write(tmp_path / "a.hdf", frames, **options)
    source = HDFSource(path, index=None)
    for _ in range(3):
        assert_seqs(read_all(source, "data"), frames)
        assert_seqs(read_all(source, "classes"), classes)
    assert ((0, "data") in source._files._chunks) == (dtype not in ("bool", ">f4"))
    assert (0, "classes") in source._files._chunks


@pytest.mark.parametrize("change", [{"compression": "gzip"}, {"shuffle": True}, {"fletcher32": True}, {}])
def test_what_is_not_stored_plainly_is_left_to_hdf5(tmp_path, change):
    frames = np.arange(NUM_FRAMES * 6, dtype=np.float32).reshape(-1, 6)
    options = {name: {"chunks": True, **change} for name in ("inputs", "targets/data/classes")}
    path, classes = write(tmp_path / "a.hdf", frames, **options, userblock_size=0 if change else 512)
    source = HDFSource(path, index=None)
    for _ in range(3):
        assert_seqs(read_all(source, "data"), frames)
        assert_seqs(read_all(source, "classes"), classes)
    assert not source._files._chunks


def test_chunks_that_were_never_written_are_filled_in_by_hdf5(tmp_path):
    path = tmp_path / "a.hdf"
    with h5py.File(path, "w") as file:
        inputs = file.create_dataset("inputs", (NUM_FRAMES, 2), np.float32, chunks=(10, 2), fillvalue=3)
        inputs[:70] = 1
        file["seqLengths"] = np.full((NUM_SEQS, 2), SEQ_FRAMES, np.int32)
    frames = np.full((NUM_FRAMES, 2), 3, np.float32)
    frames[:70] = 1
    source = HDFSource(path, index=None)
    for _ in range(3):
        assert_seqs(read_all(source, "data"), frames)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_file_that_changes_after_its_chunks_were_found_is_refused(tmp_path, is_cut):
    frames = np.zeros((NUM_FRAMES, 6), np.float32)
    options = {name: {"chunks": True} for name in ("inputs", "targets/data/classes")}
    path, _ = write(tmp_path / "a.hdf", frames, **options)
    source = HDFSource(path, index=None)
    for _ in range(2):
        read_all(source, "data")
    assert source._files._chunks
    if is_cut:
        os.truncate(path, 3000)
    else:
        source.close()
        os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match=r"before the|changed since it was indexed"):
        read_all(source, "data")
