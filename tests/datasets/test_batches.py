"""The documented batches and chunks of an epoch."""

import logging
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import NumbersDict
from headrace.datasets import (
    Batch,
    BatchSetGenerator,
    CachedDataset2,
    DatasetSeq,
    StaticDataset,
    batch_to_raw_dict,
    shapes_for_batches,
)
from headrace.datasets.returnn.batch import index_shape_for_batches
from headrace.errors import ConfigError

DOCUMENTED = [5, 3, 8, 2, 9]
NETS = [{}, {"recurrent_net": False}]


def make(lengths, **options):
    """Make "data" of some lengths, and "classes" of the same ones or of those that are given beside them."""
    pairs = [pair if isinstance(pair, tuple) else (pair, pair) for pair in lengths]
    seqs = [
        {"data": np.arange(2 * n, dtype=np.float32).reshape(n, 2) + 1, "classes": np.arange(m, dtype=np.int32) % 100}
        for n, m in pairs
    ]
    return begun(StaticDataset(seqs, input_dim=2, output_dim={"classes": 100}, **options))


def begun(dataset):
    dataset.init_seq_order(epoch=1)
    return dataset


class Stream(CachedDataset2):
    """Three sequences of 2 frames; how many there are is only known at the end."""

    def _collect_single_seq(self, seq_idx):
        if seq_idx >= 3:
            return None
        return DatasetSeq(seq_idx, np.zeros((2, 1), np.float32), seq_tag=f"streamed-{seq_idx}")


def batches_of(dataset, **options):
    generator = dataset.generate_batches(**options)
    batches = []
    while generator.has_more():
        batches.extend(generator.peek_next_n(1))
        generator.advance(1)
    return batches


def groups_in(batches):
    return [[part.seq_idx for part in batch.seqs] for batch in batches]


def groups(dataset, **options):
    return groups_in(batches_of(dataset, **options))


def frames_of(batches):
    return [batch.get_total_num_frames()["data"] for batch in batches]


def chunks_of(dataset, key="data", **options):
    return [(start[key], end[key]) for _, start, end in dataset.iterate_seqs(**options)]


# --- recurrent batches ---


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"batch_size": 10}, [[0, 1], [2], [3], [4]]),
        ({"packed_batch_size": 10}, [[0, 1], [2, 3], [4]]),
        ({"batch_size": 1000, "max_seqs": 2}, [[0, 1], [2, 3], [4]]),
        ({"batch_size": 1000, "max_total_num_seqs": 3}, [[0, 1, 2]]),
        ({"batch_size": 1000, "max_seq_length": 7, "min_seq_length": 3}, [[0, 1]]),
        ({"batch_size": 1000, "max_seq_length": -5}, [[0, 1, 3]]),
        ({"batch_size": 1000, "max_pad_size": 2}, [[0, 1], [2], [3], [4]]),
        ({"batch_size": {"data": 10}}, [[0, 1], [2], [3], [4]]),
    ],
    ids=str,
)
def test_the_documented_groups(limits, expected):
    assert groups(make(DOCUMENTED), **limits) == expected


@given(
    lengths=st.lists(st.integers(0, 30), max_size=25),
    budget=st.integers(1, 80),
    max_seqs=st.integers(1, 6),
    packed=st.booleans(),
)
def test_every_sequence_is_in_exactly_one_batch_within_the_limits(lengths, budget, max_seqs, packed):
    options = {"packed_batch_size" if packed else "batch_size": budget, "max_seqs": max_seqs}
    batches = batches_of(make(lengths), **options)
    assert [seq_idx for group in groups_in(batches) for seq_idx in group] == list(range(len(lengths)))
    for batch in batches:
        used = batch.get_total_num_frames() if packed else batch.get_all_slices_num_frames()
        assert batch.num_slices == 1 or (used["data"] <= budget and batch.num_slices <= max_seqs)


def test_what_is_left_out_is_counted_and_said_once(caplog):
    with caplog.at_level(logging.WARNING, logger="headrace.datasets"):
        generator = make([5, 3]).generate_batches(batch_size=10)
        generator.peek_next_n(99)
        assert generator.report.num_left_out == generator.report.num_alone == 0
        assert not caplog.records
        options = {"batch_size": 10, "max_seq_length": 20, "min_seq_length": 3}
        generator = make([5, 30, 1, 12, 40, 2]).generate_batches(**options)
        assert generator.report.num_left_out == 0
        assert groups_in(generator.peek_next_n(9)) == [[0], [3]]
    report = generator.report
    assert (report.num_too_long, report.num_too_short, report.num_dropped, report.num_alone) == (2, 2, 0, 1)
    assert report.num_left_out == 4
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 3
    assert "'seq-1' is left out: 30 frames of 'data', max_seq_length=20" in texts[0]
    assert "'seq-2' is left out: 1 frames of 'data', min_seq_length=3" in texts[1]
    assert "'seq-3' is a batch of its own: 12 frames of 'data', batch_size=10" in texts[2]
    generator = begun(Stream()).generate_batches(batch_size=4, max_seq_length=1)
    assert not generator.has_more()
    assert generator.report.num_too_long == 3
    assert "'streamed-0' is left out" in caplog.text
    generator = make([5] * 50).generate_batches(packed_batch_size=10, seq_drop=0.5)
    kept = sum(len(batch.seqs) for batch in generator.peek_next_n(99))
    assert 0 < kept < 50
    assert generator.report.num_dropped == 50 - kept


# --- chunks ---


def test_the_documented_chunks():
    assert chunks_of(make([11], chunking="10:5", min_chunk_size=0)) == [(0, 10), (5, 11), (10, 11)]
    assert chunks_of(make([11], chunking="10:5", min_chunk_size=1)) == [(0, 10), (5, 11)]
    assert len(chunks_of(make([11], chunking="10:5"), recurrent_net=False)) == 1
    dataset = StaticDataset([{"data": np.zeros((11, 1), np.float32), "label": np.array([3], np.int32)}], chunking="5")
    assert chunks_of(begun(dataset)) == [(0, 5), (5, 10), (10, 11)]
    assert chunks_of(dataset, "label") == [(0, 1)] * 3


@given(lengths=st.lists(st.integers(0, 30), max_size=12), size=st.integers(1, 12))
def test_chunks_without_overlap_cover_every_frame_once(lengths, size):
    covered = {}
    for seq_idx, start, end in make(lengths, chunking=size).iterate_seqs():
        covered.setdefault(seq_idx, []).extend(range(start["data"], end["data"]))
    assert covered == {i: list(range(n)) for i, n in enumerate(lengths)}


def test_chunks_vary_by_epoch_and_repeat_themselves_where_the_used_keys_are_named():
    dataset = make([1000] * 3, chunking="100", chunking_variance=0.5)

    def sizes(epoch):
        dataset.init_seq_order(epoch=epoch)
        return [end - start for start, end in chunks_of(dataset, used_data_keys=["data"])]

    first = sizes(1)
    assert first != sizes(2)
    assert first == sizes(1)
    assert min(first[:-1]) >= 1
    assert len(set(first)) > 3
    interleaved = zip(dataset.iterate_seqs(), dataset.iterate_seqs(), strict=True)
    assert all(str(left) == str(right) for left, right in interleaved)
    assert groups(dataset, batch_size=400, seq_drop=0.3) == groups(dataset, batch_size=400, seq_drop=0.3)
    unnamed = chunks_of(make([30], chunking="10:5", chunking_variance=0.5))
    assert unnamed == [(0, 10), (5, 15), (10, 20), (15, 25), (20, 30), (25, 30)]


def test_a_chunking_function_of_the_user_is_asked_once_and_all_keys_begin_where_it_says():
    def first_frames(dataset, seq_idx_start, **_):
        seq_idx = seq_idx_start
        while dataset.is_less_than_num_seqs(seq_idx):
            yield seq_idx, NumbersDict(0), NumbersDict({"data": 1, "classes": 1})
            seq_idx += 1

    assert [seq_idx for seq_idx, _, _ in make(DOCUMENTED, chunking=first_frames).iterate_seqs()] == list(range(5))
    (batch,) = batches_of(make([5], chunking=first_frames), batch_size=10)
    assert batch.get_total_num_frames()["classes"] == 1


# --- without recurrence ---


def test_without_recurrence_frames_fill_batches_exactly():
    dataset = make([5, 3, 8])
    batches = batches_of(dataset, recurrent_net=False, batch_size=6)
    assert frames_of(batches) == [6, 6, 4]
    assert [(part.seq_idx, part.seq_start_frame["data"], part.frame_length["data"]) for part in batches[1].seqs] == [
        (1, 1, 2),
        (2, 0, 4),
    ]
    assert [part.batch_frame_offset["data"] for part in batches[1].seqs] == [0, 2]
    assert batch_to_raw_dict(batches[1], dataset=dataset)["classes"].tolist() == [[1, 2, 0, 1, 2, 3]]
    ignored = {"max_seq_length": 4, "min_seq_length": 4, "max_pad_size": 1, "seq_drop": 1.0}
    generator = dataset.generate_batches(recurrent_net=False, batch_size=6, **ignored)
    assert frames_of(generator.peek_next_n(9)) == [6, 6, 4]
    assert generator.report.num_left_out == 0
    # a batch is closed by the sequence after max_seqs
    assert groups(make([1] * 7), recurrent_net=False, batch_size=100, max_seqs=2) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("data", [10, 25, None])
@pytest.mark.parametrize("classes", [10, None])
def test_without_recurrence_all_keys_are_cut_at_the_frames_of_the_smallest_limit(data, classes):
    limit = {key: number for key, number in (("data", data), ("classes", classes)) if number} or 10
    batches = batches_of(make([7] * 4), recurrent_net=False, batch_size=limit)
    assert frames_of(batches) == ([25, 3] if limit == {"data": 25} else [10, 10, 8])
    for batch in batches:
        for part in batch.seqs:
            assert part.seq_start_frame["data"] == part.seq_start_frame["classes"]
            assert part.seq_end_frame["data"] == part.seq_end_frame["classes"] > part.seq_start_frame["data"]
            assert part.batch_frame_offset["data"] == part.batch_frame_offset["classes"]


@given(
    lengths=st.lists(st.integers(0, 30), max_size=12),
    data_limit=st.integers(1, 20),
    classes_limit=st.integers(1, 20) | st.none(),
    max_seqs=st.sampled_from([-1, 1, 2, 5]),
)
def test_without_recurrence_every_frame_is_in_one_batch(lengths, data_limit, classes_limit, max_seqs):
    limit = {"data": data_limit} if classes_limit is None else {"data": data_limit, "classes": classes_limit}
    batches = batches_of(make(lengths), recurrent_net=False, batch_size=limit, max_seqs=max_seqs)
    for key in ("data", "classes"):
        frames = [
            (part.seq_idx, frame)
            for batch in batches
            for part in batch.seqs
            for frame in range(part.seq_start_frame[key], part.seq_end_frame[key])
        ]
        assert frames == [(seq_idx, frame) for seq_idx, n in enumerate(lengths) for frame in range(n)]
    assert all(batch.max_num_frames_per_slice[key] <= number for batch in batches for key, number in limit.items())


def test_without_recurrence_keys_of_different_lengths_are_refused_with_both_lengths():
    what = r"10 frames of 'data' and 4 of 'classes'(?s:.*)seq-0(?s:.*)used_data_keys"
    for limit in ({"data": 15, "classes": 12}, 6):
        with pytest.raises(ConfigError, match=what):
            batches_of(make([(10, 4), (10, 4)]), recurrent_net=False, batch_size=limit)
    batches = batches_of(make([(10, 4)]), recurrent_net=False, batch_size=6, used_data_keys=["data"])
    assert frames_of(batches) == [6, 4]
    # an error does not look like the end of the epoch
    generator = make([6, (4, 3), 4]).generate_batches(recurrent_net=False, batch_size=2)
    generator.advance(1)
    with pytest.raises(ConfigError, match="4 frames of 'data' and 3"):
        generator.peek_next_n(9)
    assert len(generator.peek_next_n(1)) == 1
    generator.advance(1)
    with pytest.raises(ConfigError, match="an error ended"):
        generator.has_more()


def test_without_recurrence_a_key_with_context_fills_its_row_sooner():
    batches = batches_of(make([5, 5], context_window=3), recurrent_net=False, batch_size=10)
    parts = [
        [(part.seq_start_frame[key], part.seq_end_frame[key], part.batch_frame_offset[key]) for part in batch.seqs]
        for batch in batches
        for key in ("data", "classes")
    ]
    assert parts == [[(-1, 6, 0), (-1, 2, 7)], [(0, 5, 0), (0, 5, 7)], [(2, 6, 0)], [(5, 5, 0)]]


# --- generators ---


@pytest.mark.parametrize("options", [{"max_seq_length": 5}, {"max_total_num_seqs": 2}, {}, {"recurrent_net": False}])
def test_progress_ends_at_one_whatever_is_left_out(options):
    for dataset in (make([5, 3, 4, 6]), begun(Stream())):
        generator = dataset.generate_batches(batch_size=6, **options)
        fractions = [generator.completed_frac()]
        while generator.has_more():
            generator.advance(1)
            fractions.append(generator.completed_frac())
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1], fractions.count(1.0)) == (0.0, 1.0, 1)
    generator = make([5, 3]).generate_batches(batch_size=6, max_seq_length=1)
    assert (generator.has_more(), generator.completed_frac()) == (False, 1.0)


def test_a_generator_looks_ahead_without_passing():
    generator = make(DOCUMENTED).generate_batches(batch_size=10)
    assert len(generator.peek_next_n(3)) == 3
    assert generator.get_current_batch_idx() == 0
    generator.advance(2)
    assert generator.get_current_batch_idx() == 2
    assert generator.completed_frac() == pytest.approx(3 / 5)
    with pytest.raises(ConfigError, match="only 2"):
        generator.advance(3)


def test_a_generator_of_an_older_epoch_says_that_it_is_stale():
    dataset = make([4, 4, 4], seq_ordering="random")
    ahead, unread, finished = (dataset.generate_batches(batch_size=4) for _ in range(3))
    assert len(ahead.peek_next_n(2)) == 2
    finished.advance(3)
    dataset.init_seq_order(epoch=2)
    for generator in (ahead, unread):
        asks = generator.has_more, generator.reset, generator.completed_frac
        for ask in (*asks, lambda g=generator: g.peek_next_n(1), lambda g=generator: g.advance(1)):
            with pytest.raises(ConfigError, match="stale"):
                ask()
    assert (finished.has_more(), finished.completed_frac()) == (False, 1.0)
    assert len(batches_of(dataset, batch_size=4)) == 3


@pytest.mark.parametrize(
    "chunking", [None, 2, lambda dataset, **_: ((i, NumbersDict(0), NumbersDict(1)) for i in [0, 1])]
)
def test_a_walk_through_an_older_epoch_says_that_it_is_stale(chunking):
    dataset = make([4, 4], chunking=chunking)
    walks = dataset.iterate_seqs(), dataset.iterate_seqs()
    next(walks[0])
    dataset.finish_epoch()
    dataset.init_seq_order(epoch=2)
    for walk in walks:
        with pytest.raises(ConfigError, match="stale"):
            next(walk)


def test_a_reset_in_mid_epoch_loses_nothing_and_shuffles_without_the_global_generator():
    dataset = make(DOCUMENTED * 4)
    before = random.getstate()
    generator = dataset.generate_batches(batch_size=10, shuffle_batches=True)
    in_order = groups(dataset, batch_size=10)
    generator.advance(2)
    orders = []
    for _ in range(2):
        generator.reset()
        orders.append(groups_in(generator.peek_next_n(1000)))
        assert sorted(orders[-1]) == sorted(in_order)
    assert orders[0] != orders[1]
    assert in_order not in orders
    assert random.getstate() == before
    generator = begun(Stream()).generate_batches(batch_size=4)
    assert [len(batch.seqs) for batch in generator.peek_next_n(9)] == [2, 1]
    with pytest.raises(ConfigError, match="cannot be reset"):
        generator.reset()


def test_any_iterator_of_batches_will_do():
    dataset = make(DOCUMENTED)
    generator = BatchSetGenerator(dataset, iter(batches_of(dataset, batch_size=10)))
    generator.advance(4)
    assert (generator.has_more(), generator.report.num_left_out) == (False, 0)


# --- arrays of batches ---


def test_arrays_of_a_batch_are_padded_with_zeros():
    dataset = make(DOCUMENTED)
    batches = batches_of(dataset, batch_size=10)
    arrays = batch_to_raw_dict(batches[0], dataset=dataset)
    assert arrays["data"].shape == (2, 5, 2)
    np.testing.assert_array_equal(arrays["data"][0], dataset.get_data(0, "data"))
    np.testing.assert_array_equal(arrays["data"][1, :3], dataset.get_data(1, "data"))
    assert not arrays["data"][1, 3:].any()
    assert (arrays["data_seq_lens"].tolist(), arrays["seq_idx"].tolist()) == ([5, 3], [0, 1])
    assert (list(arrays["seq_tag"]), arrays["batch_dim"]) == (["seq-0", "seq-1"], 2)
    shapes = {"data": [2, 5, 2], "classes": [2, 5]}
    assert shapes_for_batches(batches[:1], data_keys=["data", "classes"], dataset=dataset) == shapes
    assert shapes_for_batches([], data_keys=["data"], dataset=dataset) is None
    assert index_shape_for_batches(batches) == (9, 5)  # the longest row by all rows
    assert index_shape_for_batches(batches[:1], "classes") == (5, 2)
    assert index_shape_for_batches([]) == index_shape_for_batches([Batch()]) == (0, 0)
    with pytest.raises(ConfigError, match="'nope'"):
        index_shape_for_batches(batches, "nope")


def test_context_reaches_beyond_the_sequence_and_is_padded_with_zeros():
    dataset = make([3], context_window=4)
    (batch,) = batches_of(dataset, batch_size=100)
    (part,) = batch.seqs
    assert (part.seq_start_frame["data"], part.seq_end_frame["data"]) == (-1, 5)
    arrays = batch_to_raw_dict(batch, dataset=dataset)
    np.testing.assert_array_equal(arrays["data"][0, :, 0], [0, 1, 3, 5, 0, 0])
    np.testing.assert_array_equal(arrays["classes"][0], [0, 1, 2])
    assert dataset.get_start_end_frames_full_seq(0)[0]["data"] == -1


@pytest.mark.parametrize(("frame", "window"), [((), 1), ((2,), 1), ((2,), 3), ((3, 2), 1)])
def test_shapes_are_those_of_the_arrays(frame, window):
    class Frames(CachedDataset2):
        def _collect_single_seq(self, seq_idx):
            return DatasetSeq(seq_idx, np.ones((3 + seq_idx, *frame), np.float32)) if seq_idx < 2 else None

        def get_data_shape(self, key):
            return [*frame[:-1], frame[-1] * self.window] if frame else []

    dataset = begun(Frames(window=window))
    (batch,) = batches_of(dataset, batch_size=10)
    shape = batch_to_raw_dict(batch, dataset=dataset, data_keys=["data"])["data"].shape
    assert shapes_for_batches([batch], data_keys=["data"], dataset=dataset) == {"data": list(shape)}


def test_a_batch_of_some_keys_is_read_for_these_keys():
    dataset = make([5, 3])
    (batch,) = batches_of(dataset, batch_size=10, used_data_keys=["classes"])
    arrays = batch_to_raw_dict(batch, dataset=dataset)
    assert arrays["classes"].shape == (2, 5)
    assert "data" not in arrays
    with pytest.raises(ConfigError, match="without the data key 'data'"):
        batch_to_raw_dict(batch, dataset=dataset, data_keys=["data"])
    with pytest.raises(ConfigError, match="empty"):
        batch_to_raw_dict(Batch(), dataset=dataset)


def test_axes_and_strings_of_different_sizes_are_padded_to_the_largest():
    class Images(CachedDataset2):
        def get_target_list(self):
            return ["text"]

        def get_data_shape(self, key):
            return [None, 2] if key == "data" else []

        def _collect_single_seq(self, seq_idx):
            if seq_idx >= 2:
                return None
            image = np.full((4, 3 + seq_idx, 2), 7, np.float32)
            return DatasetSeq(seq_idx, {"data": image, "text": np.array(["a" * (seq_idx + 1)])})

    dataset = begun(Images())
    (batch,) = batches_of(dataset, batch_size=10)
    arrays = batch_to_raw_dict(batch, dataset=dataset)
    assert arrays["data"].shape == (2, 4, 4, 2)
    assert not arrays["data"][0, :, 3].any()
    assert (arrays["data"][1] == 7).all()
    assert arrays["text"].tolist() == [["a"], ["aa"]]
    with pytest.raises(ConfigError, match="free axis"):
        shapes_for_batches([batch], data_keys=["data"], dataset=dataset)


def test_a_batch_counts_frames_with_and_without_padding():
    batch = Batch()
    assert (batch.start_seq, batch.end_seq, batch.get_num_seqs()) == (None, None, 0)
    dataset = make([4, 6])
    batch.init_with_one_full_sequence(1, dataset)
    assert (batch.start_seq, batch.end_seq, batch.num_slices) == (1, 2, 1)
    with pytest.raises(ConfigError, match="not empty"):
        batch.init_with_one_full_sequence(0, dataset)
    full = batches_of(dataset, batch_size=100)[0]
    assert (frames_of([full]), full.get_all_slices_num_frames()["data"]) == ([10], 12)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "no batch size"),
        ({"batch_size": 0}, "no batch size"),
        ({"batch_size": -1}, "batch_size must be > 0"),
        ({"batch_size": 5, "pruning": 0.1}, "pruning=0.1 is not offered"),
        ({"recurrent_net": False, "packed_batch_size": 5}, "packed_batch_size counts whole sequences"),
        ({"recurrent_net": False, "packed_batch_size": 5, "batch_size": 5}, "packed_batch_size counts"),
        ({"batch_size": 5, "max_seqs": 0}, "max_seqs must be > 0"),
        ({"batch_size": 5, "seq_drop": 1.5}, "seq_drop must be a probability"),
        *(({"batch_size": {"dta": 10}, **net}, "'dta'(?s:.*)did you mean 'data'") for net in NETS),
        *(({"batch_size": 9, "used_data_keys": ["clases"], **net}, "did you mean 'classes'") for net in NETS),
    ],
    ids=str,
)
def test_missing_or_wrong_limits_are_refused(options, match):
    with pytest.raises(ConfigError, match=match):
        batches_of(make(DOCUMENTED), **options)
