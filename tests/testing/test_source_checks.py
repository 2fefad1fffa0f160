import numpy as np
import pytest

from headrace.errors import SourceError
from headrace.index import CorpusIndex
from headrace.sources import HDFSource, HDFWriter, MemorySource, Source
from headrace.specs import DataSpec
from headrace.testing import check_source

LENGTHS = [5, 0, 12, 1, 7]


class GoodSource(Source):
    """A source with everything in lists, which the broken ones below derive from."""

    def __init__(self):
        self.specs = {
            "data": DataSpec("float32", (3,), dim=3),
            "classes": DataSpec("int32", sparse=True, dim=4),
            "speaker": DataSpec("int64", sparse=True, dim=9, has_time=False),
        }
        self.labels = {"classes": list("abcd")}
        rng = np.random.default_rng(0)
        self._seqs = [
            {
                "data": rng.standard_normal((n, 3)).astype(np.float32),
                "classes": rng.integers(0, 4, n, dtype=np.int32),
                "speaker": np.array(n % 9),
            }
            for n in LENGTHS
        ]
        self._index = self.make_index()
        self.is_open = False

    def make_index(self):
        return CorpusIndex.from_columns(
            tags=[f"tag {n}" for n in LENGTHS], lengths={"data": LENGTHS, "classes": LENGTHS, "speaker": [1] * 5}
        )

    @property
    def index(self):
        return self._index

    def stored(self, corpus_idx, data_key):
        if not 0 <= corpus_idx < len(LENGTHS):
            raise IndexError(corpus_idx)
        if data_key not in self.specs:
            raise SourceError(f"no {data_key}")
        return self._seqs[corpus_idx][data_key]

    def read(self, corpus_idx, data_key):
        self.is_open = True
        return self.stored(corpus_idx, data_key).copy()

    def close(self):
        self.is_open = False


class EmptySource(GoodSource):
    def make_index(self):
        return CorpusIndex.from_columns(tags=[], lengths={"data": [], "classes": [], "speaker": []})

    def stored(self, corpus_idx, data_key):
        raise IndexError(corpus_idx)


class NoLengths(GoodSource):
    def make_index(self):
        return CorpusIndex.from_columns(tags=[f"tag {n}" for n in LENGTHS], lengths={})

    def seq_lengths(self, corpus_idx):
        return {key: len(array) if array.ndim else 1 for key, array in self.read_seq(corpus_idx).items()}


class NegativeWithoutDim(GoodSource):
    def __init__(self):
        super().__init__()
        self.labels = {}
        self.specs = {**self.specs, "classes": DataSpec("int32", sparse=True)}
        self._seqs[4]["classes"][0] = -1


@pytest.mark.parametrize("kind", [GoodSource, EmptySource, NoLengths, NegativeWithoutDim])
def test_a_source_that_keeps_the_contract_passes_and_stays_usable(kind):
    check_source(kind())


def test_a_large_source_is_read_in_part_and_its_ends_are():
    read = set()

    class Noting(GoodSource):
        def read(self, corpus_idx, data_key):
            array = super().read(corpus_idx, data_key)
            read.add(corpus_idx)
            return array

        def __reduce__(self):
            return GoodSource, ()

    check_source(Noting(), max_seqs=3)
    assert read == {0, 2, 4}


def test_hdf_and_memory_sources_pass(tmp_path):
    seqs = GoodSource()._seqs
    check_source(MemorySource(seqs, dims={"classes": 4}, labels={"classes": list("abcd")}))
    with HDFWriter(tmp_path / "a.hdf") as writer:
        for i, seq in enumerate(seqs):
            writer.append(f"tag {i}", {"data": seq["data"], "classes": seq["classes"]})
    source = HDFSource(tmp_path / "a.hdf", index=None)
    check_source(source)
    source.close()


# --- each of the following breaks one promise ---


class WrongNumberOfSeqs(GoodSource):
    def __len__(self):
        return 4


class OtherTag(GoodSource):
    def tag(self, corpus_idx):
        return super().tag(corpus_idx).upper()


class WrongIndexLengths(GoodSource):
    def make_index(self):
        return CorpusIndex.from_columns(
            tags=list("abcde"), lengths={"data": LENGTHS, "classes": [5, 0, 12, 2, 7], "speaker": [1] * 5}
        )

    def seq_lengths(self, corpus_idx):
        return {key: len(array) if array.ndim else 1 for key, array in self.read_seq(corpus_idx).items()}


class WrongSeqLengths(GoodSource):
    def seq_lengths(self, corpus_idx):
        return {**super().seq_lengths(corpus_idx), "classes": 3}


class SeqLengthsOfFewerKeys(GoodSource):
    def seq_lengths(self, corpus_idx):
        return {"data": LENGTHS[corpus_idx]}


class OtherDtype(GoodSource):
    def read(self, corpus_idx, data_key):
        array = super().read(corpus_idx, data_key)
        return array.astype(np.float64) if data_key == "data" else array


class OtherFrameShape(GoodSource):
    def read(self, corpus_idx, data_key):
        array = super().read(corpus_idx, data_key)
        return array[:, :2].copy() if data_key == "data" else array


class OtherNumberOfAxes(GoodSource):
    def read(self, corpus_idx, data_key):
        array = super().read(corpus_idx, data_key)
        return array[:, None] if data_key == "classes" else array


class ListInsteadOfArray(GoodSource):
    def read(self, corpus_idx, data_key):
        return super().read(corpus_idx, data_key).tolist()


class ClassBehindTheLast(GoodSource):
    def __init__(self):
        super().__init__()
        self._seqs[2]["classes"][3] = 4


class NegativeClass(GoodSource):
    def __init__(self):
        super().__init__()
        self._seqs[4]["classes"][0] = -1


class TooFewLabels(GoodSource):
    def __init__(self):
        super().__init__()
        self.labels = {"classes": ["a"]}


class LabelsOfNoKey(GoodSource):
    def __init__(self):
        super().__init__()
        self.labels = {"words": ["a"]}


class SpecIsNoSpec(GoodSource):
    def __init__(self):
        super().__init__()
        self.specs = {"data": (3, 2)}


class OtherReadSeq(GoodSource):
    def read_seq(self, corpus_idx):
        seq = super().read_seq(corpus_idx)
        return {**seq, "data": seq["data"] + 1}


class ReadSeqWithoutKey(GoodSource):
    def read_seq(self, corpus_idx):
        return {"data": self.read(corpus_idx, "data")}


class ShiftedSlices(GoodSource):
    def read_slice(self, corpus_idx, data_key, start, end):
        return self.read(corpus_idx, data_key)[max(start - 1, 0) : end]


class WearsOut(GoodSource):
    def __init__(self):
        super().__init__()
        self._reads = 0

    def read(self, corpus_idx, data_key):
        array = super().read(corpus_idx, data_key)
        if (corpus_idx, data_key) == (0, "data"):
            self._reads += 1
            array += self._reads > 11  # more often than the checks before that of repeated reads
        return array


class OnlyForwards(GoodSource):
    def __init__(self):
        super().__init__()
        self._last = -1

    def read(self, corpus_idx, data_key):
        array = super().read(corpus_idx, data_key)
        if corpus_idx < self._last:
            array = array * 0
        self._last = corpus_idx
        return array


class OwnMemory(GoodSource):
    def read(self, corpus_idx, data_key):
        return self.stored(corpus_idx, data_key)


class OwnMemoryInReadSeq(GoodSource):
    def read_seq(self, corpus_idx):
        return {key: self.stored(corpus_idx, key) for key in self.specs}


class OwnMemoryInSlices(GoodSource):
    def read_slice(self, corpus_idx, data_key, start, end):
        return self.stored(corpus_idx, data_key)[start:end]


class ReadOnlyArrays(GoodSource):
    def read(self, corpus_idx, data_key):
        array = super().read(corpus_idx, data_key)
        array.flags.writeable = False
        return array


class ReusedBuffer(GoodSource):
    def __init__(self):
        super().__init__()
        self._buffer = np.zeros((20, 3), np.float32)

    def read(self, corpus_idx, data_key):
        array = super().read(corpus_idx, data_key)
        if data_key != "data":
            return array
        part = self._buffer[: len(array)]
        part[...] = array
        return part


class PickledWithoutSeqs(GoodSource):
    def __reduce__(self):
        return EmptySource, ()


class PickledAsOther(GoodSource):
    def __reduce__(self):
        return ShiftedValues, ()


class ShiftedValues(GoodSource):
    def __init__(self):
        super().__init__()
        self._seqs[0]["data"] += 1


class GoneAfterClose(GoodSource):
    def close(self):
        self._seqs = [{key: array * 0 for key, array in seq.items()} for seq in self._seqs]


class NegativeCountsFromTheEnd(GoodSource):
    def stored(self, corpus_idx, data_key):
        return super().stored(corpus_idx + 5 if corpus_idx < 0 else corpus_idx, data_key)


class WrapsAround(GoodSource):
    def stored(self, corpus_idx, data_key):
        return super().stored(corpus_idx % 5 if corpus_idx >= 0 else corpus_idx, data_key)


class AnyDataKey(GoodSource):
    def stored(self, corpus_idx, data_key):
        return super().stored(corpus_idx, data_key if data_key in self.specs else "data")


class OtherRows(GoodSource):
    def read_rows(self, corpus_indices, data_key, out):
        super().read_rows(corpus_indices[::-1], data_key, out)


class FastRowsOfUnknownLength(GoodSource):
    has_fast_rows = True

    def make_index(self):
        lengths = {"data": LENGTHS, "speaker": [1] * 5}
        return CorpusIndex.from_columns(tags=[f"tag {n}" for n in LENGTHS], lengths=lengths)

    def seq_lengths(self, corpus_idx):
        return {"data": LENGTHS[corpus_idx], "classes": LENGTHS[corpus_idx], "speaker": 1}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (WrongNumberOfSeqs, "len is 4, the index has 5"),
        (OtherTag, "'TAG 5', in the index it is 'tag 5'"),
        (WrongIndexLengths, "sequence 3, data key 'classes': the index says 2 frames, the array has 1"),
        (WrongSeqLengths, "data key 'classes': seq_lengths says 3 frames, the array has 5"),
        (SeqLengthsOfFewerKeys, "seq_lengths has the keys"),
        (OtherDtype, "the dtype is float64, its spec says float32"),
        (OtherFrameShape, r"a frame has the shape \(2,\), its spec says \(3,\)"),
        (OtherNumberOfAxes, "the array has 2 axes, its spec says 1"),
        (ListInsteadOfArray, "read gives list"),
        (ClassBehindTheLast, r"class indices are in 0\.\.4, its spec says 4 classes"),
        (NegativeClass, r"class indices are in -1\.\."),
        (TooFewLabels, "1 labels for the 4 classes"),
        (LabelsOfNoKey, "labels for 'words'"),
        (SpecIsNoSpec, "not a DataSpec"),
        (OtherReadSeq, "read and read_seq give different arrays"),
        (ReadSeqWithoutKey, "read_seq gives"),
        (ShiftedSlices, r"read_slice\(\d+, \d+\) is not that part of read"),
        (WearsOut, "the same array on every read"),
        (OnlyForwards, "the same array on every read"),
        (OwnMemory, "must be the caller's own"),
        (OwnMemoryInReadSeq, "must be the caller's own"),
        (OwnMemoryInSlices, "must be the caller's own"),
        (ReadOnlyArrays, "read-only"),
        (ReusedBuffer, "a later read wrote to an array given out before"),
        (OtherRows, "read_rows and read give different arrays"),
        (FastRowsOfUnknownLength, "has_fast_rows, but with free axes or without lengths"),
        (PickledWithoutSeqs, "pickled, it has 0 sequences"),
        (PickledAsOther, "the pickled copy reads another array"),
        (GoneAfterClose, "after close"),
        (NegativeCountsFromTheEnd, "sequence -1.*not an IndexError"),
        (WrapsAround, "sequence 5.*not an IndexError"),
        (AnyDataKey, "not a SourceError"),
    ],
)
def test_a_source_that_breaks_one_promise_fails_with_that_promise(kind, text):
    with pytest.raises(AssertionError, match=text):
        check_source(kind())
