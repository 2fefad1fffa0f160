"""`MultiEpochDataset`: several epochs as one."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joint_cases import add_noise, part, prints, row, rows, stream, tags

from examples_of_laws import examples
from headrace.batching import FixedCount
from headrace.datasets import MultiEpochDataset, init_dataset
from headrace.datasets.reading.reader import ReadRequest
from headrace.errors import ConfigError
from headrace.loading import DataLoader

ORDERINGS = st.sampled_from(["default", "random", "laplace:2", "random_sample", "reverse"])


def multi(inner, multi_epoch, **options):
    return {"class": "MultiEpochDataset", "dataset": inner, "multi_epoch": multi_epoch, **options}


def loaded(config, batch_size, num_workers, executor="thread"):
    """Return tag and data of the sequences of epoch 2, as a loader delivers them."""
    batching = FixedCount(batch_size)
    with DataLoader(config, batching=batching, num_workers=num_workers, executor=executor) as loader:
        loader.set_epoch(2)
        return [
            (tag, data[:length].tolist())
            for batch in loader
            for tag, data, length in zip(batch.tags, batch["data"], batch.lengths["data"], strict=True)
        ]


@given(st.integers(0, 7), ORDERINGS, st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
@examples(30)
def test_several_epochs_are_read_in_a_row(num_seqs, ordering, num_parts, num_epochs, epoch):
    inner = part("a", num_seqs, seq_ordering=ordering, partition_epoch=num_parts, transform=add_noise)
    alone = init_dataset(inner)
    numbers = range((epoch - 1) * num_epochs + 1, epoch * num_epochs + 1)
    expected = [found for number in numbers for found in rows(alone, number)]
    dataset = init_dataset(multi(inner, num_epochs))
    assert rows(dataset, epoch) == expected
    assert dataset.num_seqs == len(expected)
    assert list(dataset.get_current_seq_order()) == [corpus_idx for _, corpus_idx, _ in expected]
    assert dataset.get_total_num_seqs() == num_seqs
    dataset.init_seq_order(epoch)
    for place in range(0, len(expected), 2):  # in rising order, as promised
        dataset.load_seqs(place, place + 1)
        assert row(dataset.get_seq(place)) == expected[place]


def test_workers_read_each_sequence_in_the_epoch_that_it_is_of():
    config = multi(part("a", 5, seq_ordering="random_sample", transform=add_noise), 3)
    expected = rows(init_dataset(config), 2)
    options = {"num_workers": 2, "buffer_size": 4, "executor": "thread"}
    with init_dataset({"class": "MultiProcDataset", "dataset": config, **options}) as dataset:
        assert rows(dataset, 2) == expected
    assert loaded(config, 1, 2, "process") == [(tag, features["data"]) for tag, _, features in expected]


class Own(MultiEpochDataset):
    """A user's own class: it is given its parts by the epoch API."""

    def get_seq(self, seq_idx):
        seq = super().get_seq(seq_idx)
        assert f"a{self.get_corpus_seq_idx(seq_idx)}" == seq.tag
        return seq


@pytest.mark.parametrize("cls", ["MultiEpochDataset", Own])
@pytest.mark.parametrize("ordering", ["random", "random_sample"])
def test_parts_of_several_epochs_know_their_order(ordering, cls):
    def noisy(seq, *, rng, **_):
        return {**seq, "data": seq["data"] + np.float32(rng.random_sample())}

    inner = {**multi(part("a", 5, seq_ordering=ordering, transform=add_noise), 3), "class": cls}
    config = {"class": "PostprocessingDataset", "dataset": inner, "map_seq": noisy}
    expected = [(tag, features["data"]) for tag, _, features in rows(init_dataset(config), 2)]
    assert len(expected) == 15
    for workers in (0, 2):
        assert loaded(config, 2, workers) == expected
    dataset = init_dataset(inner)
    dataset.start_part(ReadRequest.of(2, np.array([3, 0]), np.array([1, 2]), 4))
    assert dataset.count_occurrences().tolist() == [1, 2]


def test_an_order_that_is_given_is_read_once():
    dataset = init_dataset(multi(part("a", 5), 3))
    assert [tag for tag, _, _ in rows(dataset, 2, seq_list=["a4", "a1"])] == ["a4", "a1"]
    assert [tag for tag, _, _ in rows(dataset, 2, seq_order=[0, 0])] == ["a0", "a0"]
    assert rows(dataset, 1) == rows(pickle.loads(pickle.dumps(dataset)), 1)


def test_streams_are_read_several_times_and_empty_sub_epochs_are_legal():
    dataset = init_dataset(multi(stream("a", 3), 2))
    assert tags(dataset, 1) == ["a0", "a1", "a2"] * 2
    assert dataset.num_seqs == 6
    assert tags(init_dataset(multi(stream("a", 0), 3)), 1) == []
    assert tags(init_dataset(multi(part("a", 2, partition_epoch=5), 5)), 1) == ["a0", "a1"]
    with DataLoader(multi(stream("a", 3), 2), batching=FixedCount(4)) as loader:
        assert [batch[0] for batch in prints(loader, 1)] == [["a0", "a1", "a2", "a0"], ["a1", "a2"]]


def test_shards_are_those_of_the_inner_dataset():
    whole = tags(init_dataset(multi(part("a", 6), 2)), 1)
    shards = [init_dataset(multi(part("a", 6), 2, _num_shards=2, _shard_index=shard)) for shard in range(2)]
    assert sorted(tag for dataset in shards for tag in tags(dataset, 1)) == sorted(whole)


SELF_CONTAINED = multi(None, 2)
SELF_CONTAINED["dataset"] = SELF_CONTAINED


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"multi_epoch": 0}, "multi_epoch"),
        ({"multi_epoch": "2"}, "multi_epoch"),
        ({"window": 3}, "window"),
        ({"dataset": 3}, "dataset"),
        (SELF_CONTAINED, "contains itself"),
    ],
)
def test_bad_options_of_several_epochs_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        init_dataset({**multi(part("a", 2), 2), **options})


def test_functions_of_one_sequence_get_the_same_in_a_loader_whatever_is_around_them():
    def mark(seq, *, seq_idx, **_):
        return {**seq, "data": seq["data"] + np.float32(1000 * seq_idx)}

    inner = {"class": "PostprocessingDataset", "dataset": part("a", 5, seq_ordering="random"), "map_seq": mark}
    found = [loaded(multi(inner, 2), *how) for how in ((1, 0), (3, 0), (2, 2))]
    assert found[0] == found[1] == found[2]
