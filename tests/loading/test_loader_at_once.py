"""Batches that are read straight into their arrays are those that are put together sequence by sequence."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace import HDFDataset, SourceError, StaticDataset
from headrace.batching import Buckets, Chunks, FixedCount, FrameBudget, Pack
from headrace.datasets import CachedDataset
from headrace.engine import EngineOptions, Skipping
from headrace.engine.user.worker_info import current_scope
from headrace.loading import DataLoader
from headrace.sources import HDFWriter, MemorySource
from headrace.specs import DataSpec

pytestmark = pytest.mark.usefixtures("warm_workers")


class OnlyAtOnce(MemorySource):
    """Refuses to be read one by one."""

    def read(self, corpus_idx, data_key):
        raise AssertionError(f"{data_key} of {corpus_idx} was read by itself")

    def read_seq(self, corpus_idx):
        raise AssertionError(f"{corpus_idx} was read by itself")


class BreaksOffAtSeven(MemorySource):
    """Cannot read sequence 7."""

    def read_seq(self, corpus_idx):
        if corpus_idx == 7:
            raise SourceError("truncated")
        return super().read_seq(corpus_idx)

    def read_into(self, corpus_indices, data_key, outs):
        if 7 in corpus_indices:
            raise SourceError("something is truncated")
        super().read_into(corpus_indices, data_key, outs)


class Worded(MemorySource):
    """Has texts."""

    def read(self, corpus_idx, data_key):
        return np.array("abc"[: corpus_idx + 1]) if data_key == "words" else super().read(corpus_idx, data_key)

    def read_seq(self, corpus_idx):
        return {data_key: self.read(corpus_idx, data_key) for data_key in self.specs}

    def read_rows(self, corpus_indices, data_key, out):
        out[...] = [self.read(corpus_idx, data_key) for corpus_idx in corpus_indices.tolist()]


def _unchanged(seq):
    return seq


def _make_seqs(lengths, dtype="float32"):
    rng = np.random.default_rng(len(lengths))
    return [
        {
            "data": rng.integers(1, 99, (length, 3)).astype(dtype),
            "classes": rng.integers(1, 9, length).astype(np.int32),
            "speaker": np.array(number, np.int64),
        }
        for number, length in enumerate(lengths)
    ]


def _assert_same(ours, theirs):
    assert list(ours) == list(theirs)
    for one, other in ((ours.arrays, theirs.arrays), (ours.lengths, theirs.lengths)):
        assert list(one) == list(other)
        for key in one:
            assert (one[key].dtype, one[key].shape) == (other[key].dtype, other[key].shape)
            assert one[key].tobytes() == other[key].tobytes()
    for name in ("tags", "epoch", "position", "step"):
        assert getattr(ours, name) == getattr(theirs, name)
    for name in ("seq_idx", "corpus_idx"):
        assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()
    assert (ours.packing is None) == (theirs.packing is None)
    for name in () if ours.packing is None else ("segment_ids", "positions", "rows", "starts"):
        assert getattr(ours.packing, name).dtype == getattr(theirs.packing, name).dtype
        assert getattr(ours.packing, name).tolist() == getattr(theirs.packing, name).tolist()


def _assert_alike(dataset, batching, **options):
    """Compare all batches with those of a loader that has to look at each sequence."""
    with (
        DataLoader(dataset, batching=batching, **options) as at_once,
        DataLoader(dataset, batching=batching, transform=_unchanged, **options) as one_by_one,
    ):
        ours, theirs = list(at_once), list(one_by_one)
    assert len(ours) == len(theirs) > 0
    for batch, expected in zip(ours, theirs, strict=True):
        _assert_same(batch, expected)


batchings = st.one_of(
    st.builds(FixedCount, st.integers(1, 9)),
    st.builds(FrameBudget, st.integers(10, 300)),
    st.builds(Buckets, st.builds(FrameBudget, st.integers(30, 300)), num_buckets=st.integers(1, 4)),
    st.builds(Pack, st.integers(30, 90), st.integers(1, 4)),
    st.builds(lambda frames: Chunks(FixedCount(5), frames, whole_keys=("classes",)), st.integers(5, 30)),
)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
    batchings,
    st.sampled_from(["float32", "uint8", "int64", "complex64", "bool"]),
    st.fixed_dictionaries({}, optional={"pad_values": st.just({"data": 1, "classes": -1}), "pad_multiple": st.just(8)}),
)
def test_batches_from_memory_are_the_same_in_either_way(lengths, batching, dtype, options):
    if isinstance(batching, Chunks):
        options.pop("pad_values", None)
    lengths = [1, *lengths]  # a budget that nothing fits into is refused
    with StaticDataset(_make_seqs(lengths, dtype), seq_ordering="random") as dataset:
        _assert_alike(dataset, batching, **options)


def _write(path, lengths, **storage):
    with HDFWriter(path, **storage) as writer:
        for number, seq in enumerate(_make_seqs(lengths)):
            writer.append(f"{path.stem}-{number}", {key: seq[key] for key in ("data", "classes")})


@examples(30)
@given(batchings, st.integers(1, 3))
def test_batches_from_files_are_the_same_in_either_way(tmp_path, batching, num_files):
    paths = [tmp_path / f"{number}.hdf" for number in range(num_files)]
    for number, path in enumerate(paths):
        if not path.exists():
            _write(path, [7 * i % 40 + 1 for i in range(number, 20)])
    with HDFDataset(files=paths, seq_ordering="random", index=None) as dataset:
        _assert_alike(dataset, batching)


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("batching", [FrameBudget(3000), Pack(2000, 2)], ids=["padded", "packed"])
def test_batches_of_workers_are_the_same_in_either_way(executor, batching):
    seqs = _make_seqs([int(n) for n in np.random.default_rng(1).integers(1, 1900, 60)])  # rows of more than 4 KiB, too
    with StaticDataset(seqs, seq_ordering="random") as dataset:
        _assert_alike(dataset, batching, executor=executor, num_workers=2)


def test_an_empty_sequence_is_a_row_of_padding():
    with StaticDataset(_make_seqs([0, 3, 0])) as dataset:
        _assert_alike(dataset, FixedCount(1), pad_values={"data": 5})
        _assert_alike(dataset, FixedCount(3), pad_values={"data": 5})


def test_a_plain_source_is_never_read_one_by_one():
    dataset = CachedDataset(source=OnlyAtOnce(_make_seqs([5, 3, 8, 1])))
    with DataLoader(dataset, batching=FixedCount(2)) as loader:
        assert [batch.tags for batch in loader] == [["seq-0", "seq-1"], ["seq-2", "seq-3"]]


def test_a_worker_says_which_sequences_it_reads_a_few_at_a_time():
    places = []

    class Watched(OnlyAtOnce):
        def read_into(self, corpus_indices, data_key, outs):
            places.append((data_key, str(current_scope().item)))
            super().read_into(corpus_indices, data_key, outs)

    dataset = CachedDataset(source=Watched(_make_seqs([2] * 65)))
    with DataLoader(dataset, batching=FixedCount(65)) as loader:
        (batch,) = loader
    assert places == [
        (key, f"tag {tags!r}, epoch 1") for key in ("data", "classes") for tags in ("seq-0 .. seq-63", "seq-64")
    ]
    assert batch["speaker"].tolist() == list(range(65))


@pytest.mark.parametrize(
    "options",
    [
        {"transform": lambda features: {**features, "data": features["data"] * 2}},
        {"window": 3},
        {"cache_byte_size": 10_000},
        {"shuffle_frames_of_nseqs": 0, "cache_byte_size": -1},
    ],
    ids=["transform", "window", "cache", "unlimited cache"],
)
def test_what_a_dataset_does_to_its_sequences_is_in_the_batch(options):
    seqs = [{"data": seq["data"]} for seq in _make_seqs([5, 3, 8, 1])]
    dataset = CachedDataset(source=MemorySource(seqs), **options)
    _assert_alike(dataset, FixedCount(2))
    with DataLoader(dataset, batching=FixedCount(1)) as loader:
        for number, batch in enumerate(loader):
            dataset.init_seq_order(epoch=1)
            np.testing.assert_array_equal(batch["data"][0], dataset.get_data(number, "data"))


def test_a_class_of_ones_own_is_asked_for_each_sequence():
    class Doubled(CachedDataset):
        def get_data(self, seq_idx, key):
            return np.asarray(super().get_data(seq_idx, key) * 2)

    seqs = _make_seqs([5, 3])
    with DataLoader(Doubled(source=MemorySource(seqs)), batching=FixedCount(1)) as loader:
        for seq, batch in zip(seqs, loader, strict=True):
            np.testing.assert_array_equal(batch["data"][0], seq["data"] * 2)


def test_texts_are_a_list_as_ever():
    source = Worded(_make_seqs([5, 3, 4]))
    source.specs = {**source.specs, "words": DataSpec("<U3", has_time=False)}
    with DataLoader(CachedDataset(source=source), batching=FixedCount(3)) as loader:
        (batch,) = loader
    assert batch["words"] == ["a", "ab", "abc"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_one_sequence_that_cannot_be_read_is_named_and_the_others_are_there(num_workers):
    dataset = CachedDataset(source=BreaksOffAtSeven(_make_seqs([4] * 12)))
    with (
        DataLoader(dataset, batching=FixedCount(4), num_workers=num_workers) as loader,
        pytest.raises(SourceError, match="truncated") as raised,
    ):
        list(loader)
    assert "seq-7" in "\n".join(raised.value.__notes__)
    options = EngineOptions(on_error=Skipping(budget=1))
    with DataLoader(dataset, batching=FixedCount(4), num_workers=num_workers, engine_options=options) as loader:
        tags = [batch.tags for batch in loader]
    assert tags == [[f"seq-{i}" for i in range(4)], ["seq-4", "seq-5", "seq-6"], [f"seq-{i}" for i in range(8, 12)]]


def test_a_file_that_is_cut_while_it_is_read_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "corpus.hdf"
    _write(path, [500] * 20)
    with HDFDataset(files=path, index=None) as dataset, DataLoader(dataset, batching=FixedCount(4)) as loader:
        batches = iter(loader)
        next(batches)
        os.truncate(path, os.path.getsize(path) // 3)
        with pytest.raises(SourceError, match=r"corpus\.hdf"):
            list(batches)


def test_a_pad_value_for_no_key_is_refused_as_ever():
    with (
        StaticDataset(_make_seqs([3, 4])) as dataset,
        DataLoader(dataset, batching=FixedCount(2), pad_values={"clases": 1}) as loader,
        pytest.raises(ValueError, match="did you mean 'classes'"),
    ):
        list(loader)
