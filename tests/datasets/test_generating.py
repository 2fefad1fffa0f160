"""Toy data: pure functions of (epoch seed, sequence)."""

import math
import pickle

import numpy as np
import pytest

from headrace.datasets import DummyDataset, Task12AXDataset, answers_12ax
from headrace.errors import ConfigError, OptionalNotImplementedError


def contents(dataset, epoch):
    return {seq.corpus_idx: (seq["data"].tobytes(), seq["classes"].tobytes()) for seq in dataset.epoch(epoch)}


def test_dummy_data_follow_their_formula():
    dataset = DummyDataset(input_dim=3, output_dim=4, num_seqs=5, seq_len=6)
    seq = list(dataset.epoch(1))[2]
    for t in range(6):
        assert seq["classes"][t] == (2 + 18 + t) % 4
        for d in range(3):
            j = t * 3 + d
            assert seq["data"][t, d] == np.float32(((2 + j) % 10 - 5) * 0.1)
    assert (seq["data"].dtype, seq["classes"].dtype) == (np.float32, np.int32)


def test_the_answers_of_12ax_on_a_stream_worked_out_by_hand():
    assert "".join(answers_12ax("1AX2AXBY1BYAZX")) == "LLRLLLLRLLLLLR"  # Z is a distractor, as 3 and C are


def test_12ax_data_are_the_same_in_any_order_and_on_any_shard():
    plain = contents(Task12AXDataset(num_seqs=40), 3)
    assert contents(Task12AXDataset(num_seqs=40, seq_ordering="random"), 3) == plain
    half = contents(Task12AXDataset(num_seqs=40, _num_shards=2, _shard_index=1), 3)
    assert half.items() <= plain.items()
    assert len(half) == 20
    assert contents(pickle.loads(pickle.dumps(Task12AXDataset(num_seqs=40))), 3) == plain
    assert contents(Task12AXDataset(num_seqs=40), 4) != plain


def test_12ax_sequences_hold_both_answers_and_fit_their_layout():
    dataset = Task12AXDataset(num_seqs=50)
    seqs = list(dataset.epoch(1))
    assert all(10 <= len(seq["data"]) <= 100 for seq in seqs)
    assert set(np.concatenate([seq["classes"] for seq in seqs])) == {0, 1}
    assert all((seq["data"].sum(axis=1) == 1).all() for seq in seqs)
    assert set(np.concatenate([seq["data"].argmax(axis=1) for seq in seqs])) == set(range(9))
    for seq in seqs:
        symbols = dataset.serialize_data("data", seq["data"].argmax(axis=1))
        assert dataset.serialize_data("classes", seq["classes"]) == "".join(answers_12ax(symbols))


def test_sorting_toy_data_sorts_them():
    lengths = [len(seq["data"]) for seq in Task12AXDataset(num_seqs=30, seq_ordering="sorted").epoch(2)]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 5


def test_an_infinite_dataset_goes_on_and_knows_it():
    dataset = DummyDataset(input_dim=1, output_dim=2, num_seqs=math.inf)
    dataset.init_seq_order(epoch=1)
    assert dataset.num_seqs == math.inf
    assert dataset.is_less_than_num_seqs(10**6)
    stream = dataset.epoch(1)
    assert [next(stream).corpus_idx for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OptionalNotImplementedError):
        dataset.get_total_num_seqs()


@pytest.mark.parametrize(
    "options", [{"seq_ordering": "random"}, {"partition_epoch": 2}, {"repeat_epoch": 2}, {"num_seqs": 1.5}]
)
def test_what_an_infinite_dataset_cannot_do_is_refused(options):
    with pytest.raises(ConfigError):
        DummyDataset(**{"input_dim": 1, "output_dim": 2, "num_seqs": math.inf, **options})


def test_explicit_tags_are_the_made_up_ones():
    dataset = DummyDataset(input_dim=1, output_dim=2, num_seqs=5)
    dataset.init_seq_order(epoch=1, seq_list=["seq-4", "seq-1"])
    assert [dataset.get_corpus_seq_idx(i) for i in range(2)] == [4, 1]
    for wrong in ("seq-x", "other-1", "seq-9"):
        with pytest.raises(ConfigError):
            dataset.init_seq_order(epoch=1, seq_list=[wrong])


def test_sorted_toy_data_are_sorted_in_every_epoch():
    dataset = Task12AXDataset(num_seqs=12, seq_ordering="sorted")
    for epoch in (1, 2, 3):
        lengths = [len(seq["data"]) for seq in dataset.epoch(epoch)]
        assert lengths == sorted(lengths)


def test_a_filter_counts_for_toy_data_as_well(tmp_path):
    keep = tmp_path / "keep.txt"
    keep.write_text("seq-3\nseq-1\n")
    dataset = DummyDataset(input_dim=1, output_dim=2, num_seqs=10, seq_list_filter_file=keep)
    assert (dataset.get_total_num_seqs(), list(dataset.get_all_tags())) == (2, ["seq-1", "seq-3"])
    assert [seq.tag for seq in dataset.epoch(1)] == ["seq-1", "seq-3"]


@pytest.mark.parametrize("tag", ["seq-²", "seq-03", "seq--1", "seq-"])
def test_tags_that_only_look_generated_are_refused(tag):
    with pytest.raises(ConfigError, match="no sequence is tagged"):
        DummyDataset(input_dim=1, output_dim=2, num_seqs=10).init_seq_order(epoch=1, seq_list=[tag])


def test_a_number_of_classes_is_positive():
    with pytest.raises(ConfigError, match="output_dim"):
        DummyDataset(input_dim=1, output_dim=0, num_seqs=10)
