"""Batches and chunks of an epoch against RETURNN's own, where it is installed: many random limits, same parts."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.datasets import StaticDataset
from headrace.datasets.returnn.batch import index_shape_for_batches

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    PeerStaticDataset = pytest.importorskip("returnn.datasets.generating").StaticDataset
    PeerNumbersDict = pytest.importorskip("returnn.util.basic").NumbersDict

pytestmark = pytest.mark.filterwarnings("ignore")
KEYS = ["data", "classes"]
both_keys = dict.fromkeys(KEYS, 3)
lengths_of_seqs = st.lists(st.integers(0, 20), min_size=1, max_size=15)


def pair(lengths, epoch=1, **options):
    seqs = [{"data": np.zeros((n, 2), np.float32), "classes": np.zeros(n, np.int32)} for n in lengths]
    datasets = []
    for cls in (StaticDataset, PeerStaticDataset):
        dataset = cls(seqs, input_dim=2, output_dim={"classes": 100}, **options)
        dataset.initialize()
        dataset.init_seq_order(epoch=epoch)
        datasets.append(dataset)
    return datasets


def batches_of(dataset, options):
    if isinstance(dataset, PeerStaticDataset) and "min_seq_length" in options:
        options = {**options, "min_seq_length": PeerNumbersDict(options["min_seq_length"])}
    generator = dataset.generate_batches(**options)
    batches = []
    while generator.has_more():
        batches.extend(generator.peek_next_n(1))
        generator.advance(1)
    return batches


def plain(batches):
    """Make the two kinds of batches comparable, by behaviour alone."""
    return [
        (
            batch.num_slices,
            [int(batch.max_num_frames_per_slice[key]) for key in KEYS],
            [int(batch.get_total_num_frames()[key]) for key in KEYS],
            [
                [part.seq_idx, part.batch_slice]
                + [int(part.seq_start_frame[key]) for key in KEYS]
                + [int(part.seq_end_frame[key]) for key in KEYS]
                + [int(part.batch_frame_offset[key]) for key in KEYS]
                for part in batch.seqs
            ],
        )
        for batch in batches
    ]


def check_same(datasets, options):
    ours, theirs = (batches_of(dataset, options) for dataset in datasets)
    if ours and not ours[-1].max_num_frames_per_slice["data"]:
        ours.pop()  # they lose a last batch that has rows but no frames
    assert plain(ours) == plain(theirs)
    for key in KEYS:
        assert index_shape_for_batches(ours, key) == datasets[1].index_shape_for_batches(theirs, key)


@examples(200)
@given(
    lengths=lengths_of_seqs,
    limits=st.fixed_dictionaries(
        {"batch_size": st.integers(1, 50)},
        optional={
            "max_seqs": st.integers(1, 5),
            "max_seq_length": st.integers(1, 15),
            "min_seq_length": st.integers(0, 6),
            "max_pad_size": st.integers(1, 20),
            "seq_drop": st.floats(0, 1),
        },
    ),
    context=st.sampled_from([None, 4, both_keys]),
)
def test_without_recurrence_batches_are_the_same(lengths, limits, context):
    check_same(pair(lengths, context_window=context), {"recurrent_net": False, **limits})


@examples(200)
@given(
    lengths=lengths_of_seqs,
    limits=st.fixed_dictionaries(
        {"batch_size": st.integers(1, 80)},
        optional={
            "max_seqs": st.integers(1, 5),
            "max_seq_length": st.sampled_from([0, 1, 9, 15, -6]),
            "min_seq_length": st.integers(0, 6),
            "max_pad_size": st.integers(1, 20),
            "seq_drop": st.floats(0, 1),
            "packed_batch_size": st.integers(1, 50),
        },
    ),
    context=st.sampled_from([None, 4, both_keys]),
)
def test_rows_are_the_same(lengths, limits, context):
    check_same(pair(lengths, context_window=context), {"recurrent_net": True, **limits})


@examples(100)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    epoch=st.integers(1, 5),
    chunking=st.sampled_from(["10", "10:5", "7:3"]),
    variance=st.floats(0, 1),
    seq_drop=st.sampled_from([0.0, 0.3]),
    limits=st.sampled_from([{}, {"max_seq_length": 7}, {"min_seq_length": 3}]),
)
def test_chunks_drawn_by_lot_are_the_same_in_the_first_pass(lengths, epoch, chunking, variance, seq_drop, limits):
    datasets = pair(lengths, epoch=epoch, chunking=chunking, chunking_variance=variance)
    options = {"recurrent_net": True, "batch_size": 100, "used_data_keys": KEYS, "seq_drop": seq_drop, **limits}
    ours, theirs = (plain(batches_of(dataset, options)) for dataset in datasets)
    assert ours == theirs
    assert plain(batches_of(datasets[0], options)) == ours


@examples(50)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    epoch=st.integers(1, 5),
    chunking=st.sampled_from(["10", "10:5", "7:3"]),
    variance=st.floats(0, 1),
    used_data_keys=st.sampled_from([KEYS, None]),
)
def test_a_walk_has_their_chunks_each_time(lengths, epoch, chunking, variance, used_data_keys):
    ours, theirs = pair(lengths, epoch=epoch, chunking=chunking, chunking_variance=variance)

    def walk(dataset):
        chunks = dataset.iterate_seqs(used_data_keys=used_data_keys)
        return [(seq_idx, [int(n[key]) for n in (start, end) for key in KEYS]) for seq_idx, start, end in chunks]

    first = walk(theirs)
    assert walk(ours) == first
    assert walk(ours) == first


@pytest.mark.parametrize("recurrent_net", [True, False])
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=15), limit=st.integers(1, 10))
@examples(30)
def test_a_limit_of_sequences_is_theirs_without_the_one_too_many(recurrent_net, lengths, limit):
    ours, theirs = pair(lengths)
    options = {"recurrent_net": recurrent_net, "batch_size": 30}
    found = batches_of(ours, {**options, "max_total_num_seqs": limit + 1})
    assert plain(found) == plain(batches_of(theirs, {**options, "max_total_num_seqs": limit}))


def test_what_they_refuse_we_refuse():
    for dataset in pair([5, 3]):
        for options in ({"packed_batch_size": 5}, {"max_seqs": 0}, {"batch_size": -1}):
            with pytest.raises((AssertionError, ValueError)):
                batches_of(dataset, {"recurrent_net": False, "batch_size": 6, **options})
