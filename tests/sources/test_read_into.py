"""Several sequences at once, each into an array of its own: the same as one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SourceError
from headrace.index import CorpusIndex
from headrace.sources import HDFSource, MemorySource, Source
from headrace.specs import DataSpec

LENGTHS = [3, 0, 5, 1]  # of the sequences that `write_layout` writes
KINDS = ["plain", "packed", "two files", "memory", "own"]


class OwnSource(Source):
    """Knows nothing of reading many at once."""

    def __init__(self, seqs, lengths=None):
        self.specs, self.labels = {"data": DataSpec("float32", (4,), dim=4), "classes": DataSpec("int32")}, {}
        self._seqs = seqs
        lengths = [len(seq["data"]) for seq in seqs] if lengths is None else lengths
        self._index = CorpusIndex.from_columns(
            tags=[str(i) for i in range(len(seqs))], lengths={"data": lengths, "classes": lengths}
        )

    @property
    def index(self):
        return self._index

    def read(self, corpus_idx, data_key):
        return self._seqs[corpus_idx][data_key].copy()


def _seqs():
    rows = np.arange(9 * 4, dtype=np.float32).reshape(9, 4)
    stops = np.cumsum(LENGTHS)[:-1]
    parts = zip(np.split(rows, stops), np.split(np.arange(9, dtype=np.int32), stops), strict=True)
    return [{"data": data, "classes": classes} for data, classes in parts]


@pytest.fixture(params=KINDS)
def source(request, tmp_path, write_layout):
    if request.param == "memory":
        yield MemorySource(_seqs())
    elif request.param == "own":
        yield OwnSource(_seqs())
    else:
        storage = {"chunks": True, "compression": "gzip"} if request.param == "packed" else {}
        num_files = 2 if request.param == "two files" else 1
        paths = [write_layout(tmp_path / f"{i}.hdf", **storage) for i in range(num_files)]
        opened = HDFSource(paths, index=None)
        yield opened
        opened.close()


@given(st.data())
def test_arrays_of_their_own_hold_what_is_read_one_by_one(source, data):
    indices = np.array(data.draw(st.lists(st.integers(0, len(source) - 1), max_size=12)), np.int64)
    for key, spec in source.specs.items():
        expected = [source.read(corpus_idx, key) for corpus_idx in indices.tolist()]
        padded = np.full((len(indices), 7, *spec.shape), 9, spec.dtype)
        outs = [row[1 : 1 + len(array)] for row, array in zip(padded, expected, strict=True)]
        source.read_into(indices, key, outs)
        for row, array in zip(padded, expected, strict=True):
            np.testing.assert_array_equal(row[1 : 1 + len(array)], array)
            assert (row[0] == 9).all()
            assert (row[1 + len(array) :] == 9).all()


@pytest.mark.parametrize("source", ["plain", "packed", "memory"], indirect=True)
def test_a_sequence_or_a_key_that_there_is_not_is_refused(source):
    outs = [np.empty(0, np.int32)]
    for wrong in (-1, len(source)):
        with pytest.raises(IndexError):
            source.read_into(np.array([wrong]), "classes", outs)
    with pytest.raises(SourceError, match="did you mean 'classes'"):
        source.read_into(np.array([1]), "clases", outs)


@pytest.mark.parametrize("source", ["plain", "packed"], indirect=True)
def test_frames_of_the_next_sequence_are_not_read(source):
    for length in (2, 4):
        with pytest.raises(IndexError, match=f"3 frames of 'classes' do not fit into {length} rows"):
            source.read_into(np.array([0]), "classes", [np.empty(length, np.int32)])


def test_an_array_of_another_length_is_refused_by_a_source_that_reads_one_by_one():
    source = OwnSource(_seqs(), lengths=[3, 0, 4, 1])
    with pytest.raises(SourceError, match=r"'data' of sequence 2 is float32 of the shape \(5, 4\)"):
        source.read_into(np.array([2]), "data", [np.empty((4, 4), np.float32)])
    with pytest.raises(SourceError, match="is int32"):
        source.read_into(np.array([0]), "classes", [np.empty(3, np.int64)])
