"""`VariableDataset` (another dataset in each epoch), `MultiEpochDataset` (several epochs as one), `AnythingDataset`."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_cases import Stream, add_noise, part, print_of, prints, row, rows, stream, tags

from headrace.batching import Buckets, FixedCount, FrameBudget, NumbersDict
from headrace.datasets import AnythingDataset, DummyDataset, VariableDataset, init_dataset
from headrace.datasets.reading.reader import ReadRequest
from headrace.errors import ConfigError, OptionalNotImplementedError
from headrace.loading import DataLoader

ORDERINGS = st.sampled_from(["default", "random", "laplace:2", "random_sample", "reverse"])
BATCHINGS = st.sampled_from([FixedCount(3), FrameBudget(9), Buckets(FrameBudget(9), num_buckets=2)])


def growing(*, epoch, **_):
    """Return another dataset in each epoch."""
    return part("abc"[epoch % 3], 4 + epoch % 3, seq_ordering="random", transform=add_noise)


def variable(**options):
    return {"class": "VariableDataset", "get_dataset": growing, **options}


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


# --- VariableDataset ---


def test_each_epoch_is_that_of_the_dataset_which_the_function_returns():
    dataset = init_dataset(variable())
    for epoch in (1, 2, 3, 4, 2):
        assert rows(dataset, epoch) == rows(init_dataset(growing(epoch=epoch)), epoch)
    dataset.init_seq_order(3)
    assert list(dataset.get_current_seq_order()) == [seq.corpus_idx for seq in dataset.iterate_epoch()]
    assert [found[0] for found in rows(dataset, 3, seq_list=["a2", "a0"])] == ["a2", "a0"]
    assert [found[0] for found in rows(dataset, 4, seq_order=[1])] == ["b1"]


def test_a_dataset_stays_open_for_as_long_as_its_config_is_among_the_last_ones():
    made = []

    class Noted(DummyDataset):
        def __init__(self, **options):
            made.append(options["num_seqs"])
            super().__init__(3, 2, **options)

    def get_dataset(epoch):
        return {"class": Noted, "num_seqs": 1 + epoch % 2}

    for size, expected in ((1, [2, 1, 2, 1]), (2, [2, 1])):
        made.clear()
        dataset = VariableDataset(get_dataset=get_dataset, dataset_lru_cache_size=size)
        assert [len(tags(dataset, epoch)) for epoch in (1, 1, 2, 3, 4)] == [2, 2, 1, 2, 1]
        assert made == expected


def test_configs_with_arrays_are_told_apart():
    def get_dataset(epoch, **_):
        return {"class": "StaticDataset", "data": [{"data": np.full((2, 2), epoch % 2, np.float32)}]}

    dataset = VariableDataset(get_dataset=get_dataset, dataset_lru_cache_size=2)
    assert [seq["data"][0, 0] for epoch in (1, 2, 1, 2, 4) for seq in dataset.epoch(epoch)] == [1, 0, 1, 0, 0]


def test_a_config_that_is_changed_in_place_is_another_one():
    config = {"class": "DummyDataset", "input_dim": 3, "output_dim": 2, "num_seqs": 0, "seq_len": 2}

    def get_dataset(epoch, **_):
        config["num_seqs"] = epoch
        return config

    dataset = VariableDataset(get_dataset=get_dataset)
    assert [len(tags(dataset, epoch)) for epoch in (1, 2, 5)] == [1, 2, 5]


def test_tags_are_told_only_if_they_are_the_same_in_all_epochs():
    dataset = init_dataset(variable())
    with pytest.raises(OptionalNotImplementedError, match="always_same_tags"):
        dataset.get_all_tags()
    with pytest.raises(OptionalNotImplementedError, match="always_same_tags"):
        dataset.get_total_num_seqs()

    def get_dataset(epoch, **_):
        return part("a", 3, seq_ordering="reverse" if epoch % 2 else "default")

    dataset = init_dataset({"class": "VariableDataset", "get_dataset": get_dataset, "always_same_tags": True})
    assert list(dataset.get_all_tags()) == ["a0", "a1", "a2"]
    assert dataset.get_total_num_seqs() == 3
    meta = {
        "class": "MetaDataset",
        "datasets": {"x": dataset, "y": {**part("b", 3), "tags": ["a2", "a0", "a1"]}},
        "data_map": {"data": ("x", "data"), "classes": ("y", "classes")},
        "seq_order_control_dataset": "x",
    }
    meta = init_dataset(meta)
    assert [tags(meta, epoch) for epoch in (1, 2)] == [["a2", "a1", "a0"], ["a0", "a1", "a2"]]


def test_shards_and_the_seed_offset_are_passed_on():
    whole = tags(init_dataset(variable(random_seed_offset=3)), 2)
    assert whole == tags(init_dataset({**growing(epoch=2), "random_seed_offset": 3}), 2)
    dataset = init_dataset(variable(random_seed_offset=3))
    parts = []
    for shard in range(2):
        dataset.set_sharding(2, shard)
        assert (dataset.num_shards, dataset.shard_index) == (2, shard)
        parts += tags(dataset, 2)
        assert tags(copy.deepcopy(dataset), 2) == tags(dataset, 2)
    assert parts == whole


@given(BATCHINGS, st.integers(1, 4))
@settings(max_examples=8)
def test_a_loader_of_a_variable_dataset_resumes_anywhere(batching, epoch):
    whole = resumed_anywhere(variable(), batching, epoch)
    assert sorted(tag for batch in whole for tag in batch[0]) == sorted(tags(init_dataset(growing(epoch=epoch)), epoch))


def test_workers_of_a_variable_dataset_change_nothing():
    expected = [rows(init_dataset(variable()), epoch) for epoch in (1, 2, 3)]
    options = {"num_workers": 2, "buffer_size": 3}
    with init_dataset({"class": "MultiProcDataset", "dataset": variable(), **options}) as dataset:
        assert [rows(dataset, epoch) for epoch in (1, 2, 3)] == expected
    with DataLoader(variable(), batching=FixedCount(2), num_workers=2) as loader:
        for epoch, found in enumerate(expected, 1):
            assert [tag for batch in prints(loader, epoch) for tag in batch[0]] == [tag for tag, _, _ in found]


def test_a_variable_dataset_may_return_streams():
    def get_dataset(epoch, **_):
        return stream("ab"[epoch % 2], 3 + epoch)

    config = {"class": "VariableDataset", "get_dataset": get_dataset}
    with DataLoader(config, batching=FixedCount(2)) as loader:
        assert [tag for batch in prints(loader, 2) for tag in batch[0]] == [f"a{i}" for i in range(5)]
        assert [tag for batch in prints(loader, 3) for tag in batch[0]] == [f"b{i}" for i in range(6)]


def test_a_state_may_be_asked_for_while_streams_are_read_that_are_never_equal():
    class Own:
        pass

    class Marked(Stream):
        def __init__(self, mark, **options):
            super().__init__(**options)

    config = {
        "class": "VariableDataset",
        "get_dataset": lambda epoch, **_: {"class": Marked, "mark": Own(), "name": "a", "num_seqs": 7 + epoch},
    }
    with DataLoader(config, batching=FixedCount(2)) as loader:
        loader.set_epoch(2)
        found, states = [], []
        for batch in loader:
            found += batch.tags
            states.append(loader.state_dict())
    assert found == [f"a{i}" for i in range(9)][: len(found)]
    assert len(found) == 9
    assert len({state["position"] for state in states}) == len(states)


def test_a_state_may_be_asked_for_while_several_variable_epochs_are_read():
    config = multi(variable(), 3)
    for epoch in (1, 2):
        with DataLoader(config, batching=FixedCount(2), window_seqs=2) as loader:
            whole = prints(loader, epoch)
        for first in range(len(whole)):
            with DataLoader(config, batching=FixedCount(2), window_seqs=2) as loader:
                loader.set_epoch(epoch)
                found = []
                for batch in loader:
                    found.append(print_of(batch))
                    if len(found) > first:
                        loader.state_dict()
            assert found == whole


def test_a_state_of_a_variable_dataset_knows_the_dataset_of_its_epoch():
    def other(*, epoch, **_):
        return growing(epoch=epoch + (epoch == 2))

    with DataLoader(variable(), batching=FixedCount(2)) as loader:
        states = {}
        for epoch in (2, 3):
            loader.set_epoch(epoch)
            batches = iter(loader)
            next(batches)
            states[epoch] = loader.state_dict()
            list(batches)
    with DataLoader({"class": "VariableDataset", "get_dataset": other}, batching=FixedCount(2)) as loader:
        loader.load_state_dict(states[3])
        with pytest.raises(Exception, match="order"):
            loader.load_state_dict(states[2])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"get_dataset": 3}, "must be a function"),
        ({"dataset_lru_cache_size": 0}, "at least 1"),
        ({"always_same_tags": "no"}, "True or False"),
        ({"get_dataset": lambda **_: None}, "returned no dataset: NoneType"),
        ({"get_dataset": lambda **_: {"class": "Nonsense"}}, "unknown dataset class"),
        ({"window": 3}, "does not support window"),
    ],
)
def test_bad_options_of_a_variable_dataset_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        init_dataset({**variable(), **options})


def test_what_does_not_fit_the_first_dataset_is_refused_with_its_epoch():
    def get_dataset(epoch, **_):
        return part("a", 2, ("data", "classes") if epoch < 3 else ("data",))

    dataset = VariableDataset(get_dataset=get_dataset)
    tags(dataset, 2)
    with pytest.raises(ConfigError, match=r"(?s)data keys \['data'\].*epoch 3"):
        dataset.init_seq_order(3)
    with pytest.raises(ConfigError, match="let get_dataset return it"):
        dataset.seq_ordering = "random"
    with pytest.raises(ConfigError, match="need an epoch"):
        dataset.init_seq_order(seq_list=["a0"])


def test_an_error_of_the_function_is_passed_on_with_the_epoch():
    def get_dataset(epoch, **_):
        if epoch == 2:
            raise KeyError("two")
        return part("a", 1)

    dataset = VariableDataset(get_dataset=get_dataset, name="changing")
    with pytest.raises(KeyError, match="two") as caught:
        dataset.init_seq_order(2)
    assert caught.value.__notes__ == ["get_dataset of 'changing', epoch 2"]


def test_options_without_an_effect_are_said(caplog):
    init_dataset(variable(name="quiet", partition_epoch=4))
    init_dataset(multi(part("a", 2), 2, name="loud", seq_ordering="random"))
    assert "partition_epoch=4 of VariableDataset quiet has no effect" in caplog.text
    assert "seq_ordering='random' of MultiEpochDataset loud has no effect" in caplog.text


# --- MultiEpochDataset ---


@given(st.integers(0, 7), ORDERINGS, st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=30)
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
@settings(max_examples=10)
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
    assert dataset.get_num_timesteps() == NumbersDict(
        {key: sum(len(f[key]) for _, _, f in rows(dataset, 1)) for key in ("data", "classes")}
    )


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
    for config in (multi(inner, 2), {"class": "VariableDataset", "get_dataset": lambda **_: inner}):
        found = []
        for workers, size in ((0, 1), (0, 3), (2, 2)):
            with DataLoader(config, batching=FixedCount(size), num_workers=workers, executor="thread") as loader:
                loader.set_epoch(2)
                found.append(
                    [(tag, batch["data"][i, 0].tolist()) for batch in loader for i, tag in enumerate(batch.tags)]
                )
        assert found[0] == found[1] == found[2]


# --- AnythingDataset ---


def test_zeros_have_every_tag_and_every_place():
    keys = {"data": {"shape": (None, 3), "dim": 3, "dtype": "float32"}, "classes": {"dim": 5, "sparse": True}}
    dataset = init_dataset({"class": "AnythingDataset", "data_keys": keys})
    assert dataset.num_outputs == {"data": (3, 2), "classes": (5, 1)}
    dataset.init_seq_order(1, seq_list=["x", "y"])
    seqs = list(dataset.iterate_epoch())
    assert [seq.seq_tag for seq in seqs] == ["x", "y"]
    assert (seqs[0]["data"].tolist(), seqs[0]["data"].dtype) == ([[0, 0, 0]], np.float32)
    assert (seqs[0]["classes"].tolist(), seqs[0]["classes"].dtype) == ([0], np.int32)
    dataset.init_seq_order(1, seq_order=[7, 3])
    assert [dataset.get_tag(place) for place in range(2)] == ["seq-7", "seq-3"]
    with pytest.raises(IndexError, match="outside an epoch of 2"):
        dataset.get_data(2, "data")
    dataset.init_seq_order(1)
    assert dataset.is_less_than_num_seqs(10**9)
    dataset.init_seq_order()
    assert dataset.num_seqs == 0


def test_a_meta_dataset_with_zeros_is_loaded_as_any_other():
    config = {
        "class": "MetaDataset",
        "datasets": {
            "a": part("a", 7, seq_ordering="random"),
            "zeros": {"class": "AnythingDataset", "data_keys": {"data": {"shape": (None, 4), "dim": 4}}},
        },
        "data_map": {"data": ("a", "data"), "zeros": ("zeros", "data")},
        "seq_order_control_dataset": "a",
    }
    found = []
    for workers in (0, 2):
        with DataLoader(config, batching=FixedCount(3), num_workers=workers, executor="thread") as loader:
            found.append(prints(loader, 1))
    assert found[0] == found[1]
    assert found[0][0][2]["zeros"][0] == (3, 1, 4)


@pytest.mark.parametrize(
    "keys", [{}, {"data": 3}, {"data": {"shape": (None, "x")}}, {"data": {"dim": 2, "dtype": "f"}}]
)
def test_bad_layouts_of_zeros_are_refused(keys):
    if keys.get("data") == {"dim": 2, "dtype": "f"}:
        keys = {"data": {"dim": 2, "dtype": "float33"}}
    with pytest.raises(ConfigError):
        AnythingDataset(data_keys=keys)


def test_an_epoch_is_asked_about_and_read_without_the_current_one_being_left():
    asked = []

    def get_dataset(epoch, **_):
        asked.append(epoch)
        return part("a", 4, seq_ordering="reverse" if epoch % 2 else "default")

    dataset = init_dataset({"class": "VariableDataset", "get_dataset": get_dataset, "always_same_tags": True})
    dataset.init_seq_order(epoch=1)
    for _ in range(3):
        order, _ = dataset.get_epoch_order(2)
        dataset.get_corpus(2)
    reader = dataset.make_reader()
    reader.start(ReadRequest.of(2, order.block(1, 3)))
    assert [reader.read(0).corpus_idx, reader.read(1).corpus_idx] == [1, 2]
    assert list(dataset.get_current_seq_order()) == [3, 2, 1, 0]
    assert asked.count(2) == 1
