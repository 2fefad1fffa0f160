"""The documented batches and chunks of an epoch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.datasets import Batch, CachedDataset2, DatasetSeq, StaticDataset, batch_to_raw_dict, shapes_for_batches
from headrace.errors import ConfigError

DOCUMENTED = [5, 3, 8, 2, 9]


def make(lengths, **options):
    seqs = [
        {"data": np.arange(2 * n, dtype=np.float32).reshape(n, 2) + 1, "classes": np.arange(n, dtype=np.int32) % 100}
        for n in lengths
    ]
    dataset = StaticDataset(seqs, input_dim=2, output_dim={"classes": 100}, **options)
    dataset.init_seq_order(epoch=1)
    return dataset


def batches_of(dataset, **options):
    generator = dataset.generate_batches(**options)
    batches = []
    while generator.has_more():
        batches.extend(generator.peek_next_n(1))
        generator.advance(1)
    return batches


def groups(dataset, **options):
    return [[part.seq_idx for part in batch.seqs] for batch in batches_of(dataset, **options)]


def test_the_documented_groups():
    assert groups(make(DOCUMENTED), batch_size=10) == [[0, 1], [2], [3], [4]]
    assert groups(make(DOCUMENTED), packed_batch_size=10) == [[0, 1], [2, 3], [4]]
    assert groups(make(DOCUMENTED), batch_size=1000, max_seqs=2) == [[0, 1], [2, 3], [4]]
    assert groups(make(DOCUMENTED), batch_size=1000, max_total_num_seqs=3) == [[0, 1, 2]]
    assert groups(make(DOCUMENTED), batch_size=1000, max_seq_length=7, min_seq_length=3) == [[0, 1]]
    assert groups(make(DOCUMENTED), batch_size=1000, max_seq_length=-5) == [[0, 1, 3]]
    assert groups(make(DOCUMENTED), batch_size=1000, max_pad_size=2) == [[0, 1], [2], [3], [4]]
    assert groups(make(DOCUMENTED), batch_size={"data": 10}) == [[0, 1], [2], [3], [4]]


def test_the_documented_chunks():
    for min_size, expected in ((0, [(0, 10), (5, 11), (10, 11)]), (1, [(0, 10), (5, 11)])):
        dataset = make([11], chunking="10:5", min_chunk_size=min_size)
        assert [(start["data"], end["data"]) for _, start, end in dataset.iterate_seqs()] == expected
    assert len(list(make([11], chunking="10:5").iterate_seqs(recurrent_net=False))) == 1


def test_a_label_per_sequence_comes_with_each_chunk():
    dataset = StaticDataset([{"data": np.zeros((11, 1), np.float32), "label": np.array([3], np.int32)}], chunking="5")
    dataset.init_seq_order(epoch=1)
    chunks = list(dataset.iterate_seqs())
    assert [(start["data"], end["data"]) for _, start, end in chunks] == [(0, 5), (5, 10), (10, 11)]
    assert [(start["label"], end["label"]) for _, start, end in chunks] == [(0, 1)] * 3


def test_chunks_vary_by_epoch_and_repeat_themselves():
    def sizes(epoch):
        dataset = make([1000] * 3, chunking="100", chunking_variance=0.5)
        dataset.init_seq_order(epoch=epoch)
        return [end["data"] - start["data"] for _, start, end in dataset.iterate_seqs()]

    assert sizes(1) == sizes(1) != sizes(2)
    assert min(sizes(1)[:-1]) >= 1
    assert len(set(sizes(1))) > 3


def test_a_chunking_function_of_the_user_is_asked_once():
    from headrace.batching import NumbersDict

    def first_frames(dataset, seq_idx_start, **_):
        seq_idx = seq_idx_start
        while dataset.is_less_than_num_seqs(seq_idx):
            yield seq_idx, NumbersDict(0), NumbersDict({"data": 1, "classes": 1})
            seq_idx += 1

    assert [seq_idx for seq_idx, _, _ in make(DOCUMENTED, chunking=first_frames).iterate_seqs()] == list(range(5))


def test_without_recurrence_frames_fill_batches_exactly():
    batches = batches_of(make([5, 3, 8]), recurrent_net=False, batch_size=6)
    assert [batch.get_total_num_frames()["data"] for batch in batches] == [6, 6, 4]
    assert [(part.seq_idx, part.seq_start_frame["data"], part.frame_length["data"]) for part in batches[1].seqs] == [
        (1, 1, 2),
        (2, 0, 4),
    ]
    assert [part.batch_frame_offset["data"] for part in batches[1].seqs] == [0, 2]


def test_context_reaches_beyond_the_sequence_and_is_padded_with_zeros():
    dataset = make([3], context_window=4)
    (batch,) = batches_of(dataset, batch_size=100)
    (part,) = batch.seqs
    assert (part.seq_start_frame["data"], part.seq_end_frame["data"]) == (-1, 5)
    arrays = batch_to_raw_dict(batch, dataset=dataset)
    np.testing.assert_array_equal(arrays["data"][0, :, 0], [0, 1, 3, 5, 0, 0])
    np.testing.assert_array_equal(arrays["classes"][0], [0, 1, 2])
    assert dataset.get_start_end_frames_full_seq(0)[0]["data"] == -1


def test_arrays_of_a_batch_are_padded_with_zeros():
    dataset = make(DOCUMENTED)
    batch = batches_of(dataset, batch_size=10)[0]
    arrays = batch_to_raw_dict(batch, dataset=dataset)
    assert arrays["data"].shape == (2, 5, 2)
    np.testing.assert_array_equal(arrays["data"][0], dataset.get_data(0, "data"))
    np.testing.assert_array_equal(arrays["data"][1, :3], dataset.get_data(1, "data"))
    assert not arrays["data"][1, 3:].any()
    np.testing.assert_array_equal(arrays["data_seq_lens"], [5, 3])
    np.testing.assert_array_equal(arrays["seq_idx"], [0, 1])
    assert list(arrays["seq_tag"]) == ["seq-0", "seq-1"]
    assert arrays["batch_dim"] == 2
    assert shapes_for_batches([batch], data_keys=["data", "classes"], dataset=dataset) == {
        "data": [2, 5, 2],
        "classes": [2, 5],
    }
    assert shapes_for_batches([], data_keys=["data"], dataset=dataset) is None


def test_frames_of_one_row_land_behind_each_other():
    dataset = make([5, 3, 8])
    batch = batches_of(dataset, recurrent_net=False, batch_size=6)[1]
    arrays = batch_to_raw_dict(batch, dataset=dataset)
    np.testing.assert_array_equal(arrays["classes"][0], [1, 2, 0, 1, 2, 3])


def test_a_batch_counts_frames_with_and_without_padding():
    batch = Batch()
    assert (batch.start_seq, batch.end_seq, batch.get_num_seqs()) == (None, None, 0)
    dataset = make([4, 6])
    batch.init_with_one_full_sequence(1, dataset)
    assert (batch.start_seq, batch.end_seq, batch.num_slices) == (1, 2, 1)
    with pytest.raises(ConfigError, match="not empty"):
        batch.init_with_one_full_sequence(0, dataset)
    full = batches_of(dataset, batch_size=100)[0]
    assert full.get_total_num_frames()["data"] == 10
    assert full.get_all_slices_num_frames()["data"] == 12


def test_a_generator_looks_ahead_without_passing():
    generator = make(DOCUMENTED).generate_batches(batch_size=10)
    assert len(generator.peek_next_n(3)) == 3
    assert generator.get_current_batch_idx() == 0
    generator.advance(2)
    assert generator.get_current_batch_idx() == 2
    assert generator.completed_frac() == pytest.approx(3 / 5)
    with pytest.raises(ConfigError, match="only 2"):
        generator.advance(3)


def test_a_reset_in_mid_epoch_loses_nothing_and_shuffles_without_the_global_generator():
    import random

    dataset = make(DOCUMENTED * 4)
    before = random.getstate()
    generator = dataset.generate_batches(batch_size=10, shuffle_batches=True)
    in_order = groups(dataset, batch_size=10)
    generator.advance(2)
    orders = []
    for _ in range(2):
        generator.reset()
        ahead = [[part.seq_idx for part in batch.seqs] for batch in generator.peek_next_n(1000)]
        assert sorted(ahead) == sorted(in_order)
        orders.append(ahead)
    assert orders[0] != orders[1]
    assert in_order not in orders
    assert random.getstate() == before


def test_a_stream_cannot_be_reset():
    class Stream(CachedDataset2):
        def _collect_single_seq(self, seq_idx):
            return DatasetSeq(seq_idx, np.zeros((2, 1), np.float32)) if seq_idx < 3 else None

    dataset = Stream()
    dataset.init_seq_order(epoch=1)
    generator = dataset.generate_batches(batch_size=4)
    assert [len(batch.seqs) for batch in generator.peek_next_n(9)] == [2, 1]
    with pytest.raises(ConfigError, match="cannot be reset"):
        generator.reset()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 0},
        {"batch_size": -1},
        {"batch_size": 5, "pruning": 0.1},
        {"recurrent_net": False, "packed_batch_size": 5},
    ],
)
def test_missing_or_wrong_limits_are_refused(options):
    with pytest.raises(ConfigError):
        make(DOCUMENTED).generate_batches(**options)


@given(
    lengths=st.lists(st.integers(0, 30), max_size=25),
    budget=st.integers(1, 80),
    max_seqs=st.integers(1, 6),
    packed=st.booleans(),
)
def test_every_sequence_is_in_exactly_one_batch_within_the_limits(lengths, budget, max_seqs, packed):
    options = {"packed_batch_size" if packed else "batch_size": budget, "max_seqs": max_seqs}
    batches = batches_of(make(lengths), **options)
    assert [part.seq_idx for batch in batches for part in batch.seqs] == list(range(len(lengths)))
    for batch in batches:
        used = batch.get_total_num_frames() if packed else batch.get_all_slices_num_frames()
        assert batch.num_slices == 1 or (used["data"] <= budget and batch.num_slices <= max_seqs)


@given(lengths=st.lists(st.integers(0, 30), max_size=12), size=st.integers(1, 12))
def test_chunks_without_overlap_cover_every_frame_once(lengths, size):
    covered = {}
    for seq_idx, start, end in make(lengths, chunking=size).iterate_seqs():
        covered.setdefault(seq_idx, []).extend(range(start["data"], end["data"]))
    assert covered == {i: list(range(n)) for i, n in enumerate(lengths)}
