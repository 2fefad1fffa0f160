"""`ConcatDataset`: datasets with the same data keys, one after the other."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joint_cases import add_noise, part, prints, row, rows, seq_of, tags

from examples_of_laws import examples
from headrace.batching import Buckets, FrameBudget
from headrace.datasets import init_dataset
from headrace.errors import ConfigError, SourceError
from headrace.loading import DataLoader

SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=4)
ORDERINGS = ["default", "reverse", "random", "laplace:2", "interleave", "random_dataset"]


def concat(sizes, part_options=None, **options):
    names = zip("abcd", sizes, part_options or [{}] * len(sizes), strict=False)
    return {"class": "ConcatDataset", "datasets": [part(name, size, **own) for name, size, own in names], **options}


@given(SIZES, st.sampled_from([{}, {"seq_ordering": "random"}, {"seq_ordering": "sorted", "repeat_epoch": 2}]))
@examples(30)
def test_each_dataset_comes_in_its_own_order_after_the_one_before(sizes, own):
    config = concat(sizes, [own] * len(sizes))
    for epoch in (1, 2):
        expected = [found for inner in config["datasets"] for found in rows(init_dataset(inner), epoch)]
        found = rows(init_dataset(config), epoch)
        assert [(tag, features) for tag, _, features in found] == [(tag, features) for tag, _, features in expected]


@given(SIZES, st.sampled_from(ORDERINGS), st.integers(1, 3), st.integers(1, 3))
@examples(30)
def test_all_sub_epochs_and_shards_together_are_everything_once(sizes, ordering, num_parts, num_shards):
    dataset = init_dataset(concat(sizes, seq_ordering=ordering, partition_epoch=num_parts))
    seen = []
    for shard in range(num_shards):
        dataset.set_sharding(num_shards, shard)
        for epoch in range(1, num_parts + 1):
            seen += tags(dataset, epoch)
    assert sorted(seen) == sorted(dataset.get_all_tags())
    assert len(seen) == sum(sizes) == dataset.get_total_num_seqs()


def test_more_than_ten_datasets_come_in_the_order_of_the_list():
    config = {"class": "ConcatDataset", "datasets": [{**part("a", 1), "tags": [f"t{i}"]} for i in range(12)]}
    assert tags(init_dataset(config), 1) == [f"t{i}" for i in range(12)]


def test_many_datasets_are_split_as_few_are():
    config = {"class": "ConcatDataset", "datasets": [part("a", i % 3) for i in range(30)], "seq_ordering": "random"}
    dataset = init_dataset(config)
    found = rows(dataset, 1)
    assert sorted(corpus_idx for _, corpus_idx, _ in found) == list(range(30))
    for tag, corpus_idx, features in found:
        assert tag == dataset.get_all_tags()[corpus_idx]
        assert features == rows(init_dataset(part("a", 3)), 1)[int(tag[1:])][2]


def test_orders_that_are_given_and_random_access_work():
    dataset = init_dataset(concat([4, 3]))
    assert [found[0] for found in rows(dataset, 1, seq_list=["a2", "b0", "a1"])] == ["a2", "b0", "a1"]
    assert [found[0] for found in rows(dataset, 1, seq_order=[6, 0])] == ["b2", "a0"]
    expected = rows(dataset, 1)
    dataset.init_seq_order(1)
    assert [row(dataset.get_seq(place)) for place in (6, 1, 4)] == [expected[place] for place in (6, 1, 4)]
    assert dataset.get_corpus_seq(5)["data"].tolist() == seq_of("b", 1)["data"].tolist()
    twice = init_dataset({"class": "ConcatDataset", "datasets": [part("a", 2), part("a", 2)]})
    assert tags(twice, 1) == ["a0", "a1"] * 2
    with pytest.raises(SourceError, match="'a1' is not unique"):
        twice.init_seq_order(1, seq_list=["a1"])


def test_layout_and_labels_are_those_of_the_datasets():
    dataset = init_dataset(concat([2, 2]))
    assert dataset.get_data_keys() == ["data", "classes"]
    assert dataset.num_inputs == 2
    assert dataset.num_outputs == {"data": (2, 2), "classes": (999, 1)}
    assert dataset.get_data_shape("data") == [2]
    assert dataset.get_data_dtype("classes") == "int32"
    assert dataset.is_data_sparse("classes")


def test_workers_and_loaders_change_nothing():
    config = concat([7, 0, 6], [{"transform": add_noise}, {}, {}], seq_ordering="random")
    expected = rows(init_dataset(config), 2)
    with init_dataset(
        {"class": "MultiProcDataset", "dataset": config, "num_workers": 2, "buffer_size": 3, "executor": "thread"}
    ) as dataset:
        assert rows(dataset, 2) == expected
    batching = Buckets(FrameBudget(9), num_buckets=2)
    with DataLoader(config, batching=batching) as loader:
        whole = prints(loader, 2)
        state = loader.state_dict()
    with DataLoader(pickle.loads(pickle.dumps(init_dataset(config))), batching=batching, shuffle=False) as loader:
        assert prints(loader, 2) == whole
        loader.load_state_dict(state)
    assert sorted(tag for batch in whole for tag in batch[0]) == sorted(tag for tag, _, _ in expected)


def test_a_loader_may_shuffle_it():
    with DataLoader(concat([9, 9]), batch_size=4, shuffle=True, seed=1) as loader:
        found = [tag for batch in loader for tag in batch.tags]
    assert sorted(found) != found
    assert len(set(found)) == 18


@pytest.mark.parametrize(
    ("datasets", "text"),
    [
        ([], "datasets must be a list"),
        ({}, "datasets must be a list"),
        ([part("a", 2), part("b", 2, ("data",))], "different data keys"),
        ([part("a", 2), {"class": "StaticDataset", "data": [{"data": np.zeros((1, 3), np.float32)}]}], "data keys"),
    ],
)
def test_datasets_that_do_not_fit_are_refused(datasets, text):
    with pytest.raises(ConfigError, match=text):
        init_dataset({"class": "ConcatDataset", "datasets": datasets})
