"""`MultiEpochDataset`: several epochs as one."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joint_cases import add_noise, part, print_of, prints, row, rows, stream, tags

from examples_of_laws import examples
from headrace.batching import Buckets, FixedCount, FrameBudget
from headrace.datasets import init_dataset
from headrace.datasets.reading.reader import ReadRequest
from headrace.errors import ConfigError
from headrace.loading import DataLoader

ORDERINGS = st.sampled_from(["default", "random", "laplace:2", "random_sample", "reverse"])
BATCHINGS = st.sampled_from([FixedCount(3), FrameBudget(9), Buckets(FrameBudget(9), num_buckets=2)])


def multi(inner, multi_epoch, **options):
    return {"class": "MultiEpochDataset", "dataset": inner, "multi_epoch": multi_epoch, **options}


def resumed_anywhere(config, batching, epoch):
    """Return the batches of an epoch; check that those after each position are the same after a resume."""
    with DataLoader(config, batching=batching) as loader:
        whole = prints(loader, epoch)
    for stop in range(1, len(whole)):
        with DataLoader(config, batching=batching) as loader:
            loader.set_epoch(epoch)
            batches = iter(loader)
            before = [print_of(next(batches)) for _ in range(stop)]
            state = loader.state_dict()
        with DataLoader(config, batching=batching) as loader:
            loader.load_state_dict(state)
            assert before + prints(loader) == whole
    return whole


# --- MultiEpochDataset ---


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


@given(st.integers(1, 7), ORDERINGS, st.integers(1, 2), st.integers(1, 3), BATCHINGS)
@examples(10)
def test_a_loader_of_several_epochs_resumes_anywhere(num_seqs, ordering, num_parts, num_epochs, batching):
    inner = part("a", num_seqs, seq_ordering=ordering, partition_epoch=num_parts, transform=add_noise)
    expected = rows(init_dataset(multi(inner, num_epochs)), 2)
    whole = resumed_anywhere(multi(inner, num_epochs), batching, 2)
    found = {place: tag for batch in whole for tag, place in zip(batch[0], batch[1], strict=True)}
    assert [found[place] for place in range(len(expected))] == [tag for tag, _, _ in expected]


def test_workers_read_each_sequence_in_the_epoch_that_it_is_of():
    config = multi(part("a", 5, seq_ordering="random_sample", transform=add_noise), 3)
    expected = rows(init_dataset(config), 2)
    options = {"num_workers": 2, "buffer_size": 4, "executor": "thread"}
    with init_dataset({"class": "MultiProcDataset", "dataset": config, **options}) as dataset:
        assert rows(dataset, 2) == expected
    with DataLoader(config, batching=FixedCount(1), num_workers=2) as loader:
        loader.set_epoch(2)
        found = [(batch.tags[0], batch["data"][0].tolist()) for batch in loader]
    assert found == [(tag, features["data"]) for tag, _, features in expected]


@pytest.mark.parametrize("ordering", ["random", "random_sample"])
def test_parts_of_several_epochs_know_their_order(ordering):
    def noisy(seq, *, rng, **_):
        return {**seq, "data": seq["data"] + np.float32(rng.random_sample())}

    inner = multi(part("a", 5, seq_ordering=ordering, transform=add_noise), 3)
    config = {"class": "PostprocessingDataset", "dataset": inner, "map_seq": noisy}
    expected = rows(init_dataset(config), 2)
    assert len(expected) == 15
    for workers in (0, 2):
        with DataLoader(config, batching=FixedCount(2), num_workers=workers, executor="thread") as loader:
            loader.set_epoch(2)
            found = [
                (tag, batch["data"][i, : batch.lengths["data"][i]].tolist())
                for batch in loader
                for i, tag in enumerate(batch.tags)
            ]
        assert found == [(tag, features["data"]) for tag, _, features in expected]
    dataset = init_dataset(inner)
    place = dataset.start_part(ReadRequest.of(2, np.array([3, 0]), np.array([1, 2]), 4))
    assert list(dataset.get_current_seq_order()) == [3, 0]
    assert dataset.count_occurrences().tolist() == [1, 2]
    assert [dataset.get_corpus_seq_idx(place + i) for i in range(2)] == [3, 0]


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


@pytest.mark.parametrize("options", [{"multi_epoch": 0}, {"multi_epoch": "2"}, {"window": 3}, {"dataset": 3}])
def test_bad_options_of_several_epochs_are_refused(options):
    with pytest.raises(ConfigError):
        init_dataset({**multi(part("a", 2), 2), **options})


def test_a_config_that_contains_itself_is_refused():
    config = multi(part("a", 2), 2)
    config["dataset"] = config
    with pytest.raises(ConfigError, match="contains itself"):
        init_dataset(config)


def test_functions_of_one_sequence_get_the_same_in_a_loader_whatever_is_around_them():
    def mark(seq, *, seq_idx, **_):
        return {**seq, "data": seq["data"] + np.float32(1000 * seq_idx)}

    inner = {"class": "PostprocessingDataset", "dataset": part("a", 5, seq_ordering="random"), "map_seq": mark}
    found = []
    for workers, size in ((0, 1), (0, 3), (2, 2)):
        with DataLoader(multi(inner, 2), batching=FixedCount(size), num_workers=workers, executor="thread") as loader:
            loader.set_epoch(2)
            found.append([(tag, batch["data"][i, 0].tolist()) for batch in loader for i, tag in enumerate(batch.tags)])
    assert found[0] == found[1] == found[2]
