"""`MultiProcDataset`: the inner dataset's stream, whoever loads it."""

import contextlib
import copy
import json
import os
import pickle
import signal

import numpy as np
import pytest

from headrace import DataLoader, FixedCount
from headrace.datasets import (
    CachedDataset2,
    DatasetSeq,
    MapDatasetBase,
    MultiProcDataset,
    StaticDataset,
    init_dataset,
)
from headrace.engine import EngineOptions, Raising, Skipping
from headrace.errors import CacheError, ConfigError, HeadraceError, SourceError, WorkerDiedError
from headrace.sources import MemorySource

pytestmark = pytest.mark.usefixtures("warm_workers")

EXECUTORS = ["inline", "thread", "process"]
METHODS = ["seq_order", "dedicated"]
SKIPPING = EngineOptions(on_error=Skipping())


def add_noise(features, rng):
    return {**features, "data": features["data"] + rng.normal(size=features["data"].shape).astype(np.float32)}


def fail_at_7(features):
    if features["data"][0, 0] == 7:
        raise ZeroDivisionError("seven")
    return features


class Words(MapDatasetBase):
    """A map-style dataset, built in each worker."""

    def __len__(self):
        return 23

    def __getitem__(self, i):
        data = np.full((i * 5 % 11 + 1, 2), i, dtype=np.float32)
        return {"data": data, "classes": np.full(len(data), i % 3, dtype=np.int32)}

    def get_seq_len(self, i):
        return i * 5 % 11 + 1


class Unknown(CachedDataset2):
    """A stream of numbers below `size`, of which a shard has every n-th; only if `told` it says how many there are."""

    def __init__(self, size=13, told=False, fails_at=None, **options):
        super().__init__(**options)
        self.num_outputs = {"data": (1, 2)}
        self.size, self.told, self.fails_at = size, told, fails_at

    def supports_sharding(self):
        return True

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        if self.told:
            self._num_seqs = self.size
        return True

    def number_of(self, seq_idx):
        return seq_idx * self.num_shards + self.shard_index

    def _collect_single_seq(self, seq_idx):
        number = self.number_of(seq_idx)
        if number == self.fails_at:
            raise ZeroDivisionError(f"number {number}")
        if number >= self.size:
            return None
        return DatasetSeq(seq_idx, np.full((2, 1), number, np.float32), seq_tag=f"n{number}")


WORDS = {"class": "MapDataset", "map_dataset": Words}
RANDOM_WORDS = {**WORDS, "seq_ordering": "random"}
FAILING_WORDS = {**WORDS, "transform": fail_at_7}
UNKNOWN = {"class": Unknown}


def static(num_seqs, shape=(2, 1), **options):
    """Describe a dataset whose sequences hold their numbers."""
    data = [{"data": np.full(shape, i, np.float32)} for i in range(num_seqs)]
    return {"class": "StaticDataset", "data": data, **options}


def stream(dataset, epoch):
    return [
        (
            seq.seq_idx,
            seq.tag,
            seq.corpus_idx,
            seq.complete_frac,
            {key: (value.dtype, value.tolist()) for key, value in seq.features.items()},
        )
        for seq in dataset.epoch(epoch)
    ]


@pytest.fixture
def open_dataset():
    opened = []

    def open_(config, num_workers=2, buffer_size=8, sharding_method="seq_order", **options):
        dataset = MultiProcDataset(config, num_workers, buffer_size, sharding_method, **options)
        opened.append(dataset)
        dataset.initialize()
        return dataset

    yield open_
    for dataset in opened:
        dataset.close()


@pytest.mark.sample(12)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize(
    "config",
    [
        {**WORDS, "seq_ordering": "laplace:3", "partition_epoch": 2},
        {**WORDS, "seq_ordering": "random_sample", "transform": add_noise},
        {**WORDS, "seq_ordering": "random", "repeat_epoch": 2, "transform": add_noise},
        {**WORDS, "shuffle_frames_of_nseqs": 3},
    ],
)
def test_the_stream_is_that_of_the_inner_dataset(open_dataset, config, num_workers, executor):
    inner, outer = init_dataset(config), open_dataset(config, num_workers, executor=executor)
    for epoch in (1, 2, 1, 4):
        assert stream(outer, epoch) == stream(inner, epoch)
        assert list(outer.get_current_seq_order()) == list(inner.get_current_seq_order())
        assert outer.num_seqs == inner.num_seqs


@pytest.mark.sample(5)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3, 5])
def test_dedicated_delivers_everything_once_though_shards_are_uneven_and_of_unknown_length(
    open_dataset, executor, num_workers
):
    dataset = open_dataset(UNKNOWN, num_workers, 2, sharding_method="dedicated", executor=executor)
    first = stream(dataset, 1)
    assert sorted(tag for _, tag, *_ in first) == sorted(f"n{i}" for i in range(13))
    assert [seq_idx for seq_idx, *_ in first] == list(range(13))
    assert stream(dataset, 1) == first
    assert dataset.num_seqs == 13


@pytest.mark.sample(3)
@pytest.mark.parametrize("buffer_size", [1, 4, 100])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_dedicated_workers_take_turns_after_each_sequence(open_dataset, executor, buffer_size):
    dataset = open_dataset(WORDS, 3, buffer_size, sharding_method="dedicated", executor=executor)
    expected = [0, 8, 16, 1, 9, 17, 2, 10, 18, 3, 11, 19, 4, 12, 20, 5, 13, 21, 6, 14, 22, 7, 15]
    dataset.init_seq_order(epoch=1)
    assert dataset.num_seqs == 23
    seqs = [(seq.tag, seq.corpus_idx, int(seq["data"][0, 0])) for seq in dataset.epoch(1)]
    assert seqs == [(f"seq-{i}", i, i) for i in expected]


@pytest.mark.parametrize("buffer_size", [1, 4, 100])
def test_dedicated_workers_that_skip_a_sequence_keep_the_order_of_the_others(open_dataset, buffer_size):
    options = {"sharding_method": "dedicated", "executor": "thread"}
    tags = [seq.tag for seq in open_dataset(WORDS, 2, buffer_size, **options).epoch(1)]
    dataset = open_dataset(FAILING_WORDS, 2, buffer_size, engine_options=SKIPPING, **options)
    assert [seq.tag for seq in dataset.epoch(1)] == [tag for tag in tags if tag != "seq-7"]

    dataset, found = open_dataset(FAILING_WORDS, 2, buffer_size, **options), []
    with pytest.raises(ZeroDivisionError):
        found.extend(seq.tag for seq in dataset.epoch(1))
    assert found == tags[: tags.index("seq-7")]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_layout_corpus_given_orders_and_places_are_those_of_the_inner_dataset(open_dataset, executor):
    inner, outer = init_dataset(RANDOM_WORDS), open_dataset(RANDOM_WORDS, 2, 2, executor=executor)
    assert outer.get_data_keys() == inner.get_data_keys()
    for key in inner.get_data_keys():
        for ask in ("get_data_dim", "get_data_dtype", "is_data_sparse", "get_data_shape"):
            assert getattr(outer, ask)(key) == getattr(inner, ask)(key)
    assert list(outer.get_all_tags()) == list(inner.get_all_tags())
    assert outer.get_total_num_seqs() == outer.get_total_num_seqs(fast=True) == 23
    assert outer.num_outputs == inner.num_outputs
    assert outer.supports_seq_order_sorting()
    outer.init_seq_order(epoch=1, seq_order=[5, 3, 5])
    assert [outer.get_tag(i) for i in range(outer.num_seqs)] == ["seq-5", "seq-3", "seq-5"]
    outer.init_seq_order(epoch=1, seq_list=["seq-7", "seq-0"])
    assert [float(outer.get_data(i, "data")[0, 0]) for i in range(2)] == [7, 0]
    inner.init_seq_order(epoch=1)
    outer.init_seq_order(epoch=1)
    for seq_idx in (0, 1, 9, 21, 22):
        outer.load_seqs(seq_idx, seq_idx + 1)
        np.testing.assert_array_equal(outer.get_data(seq_idx, "data"), inner.get_data(seq_idx, "data"))
    assert not outer.is_less_than_num_seqs(23)
    assert next(outer.epoch(5)).tag
    outer.finish_epoch(free_resources=True)
    assert stream(outer, 6) == stream(inner, 6)


@pytest.mark.parametrize(
    ("config", "method", "order", "text"),
    [
        (WORDS, "dedicated", {"seq_order": [1]}, "dedicated"),
        (WORDS, "dedicated", {"seq_list": ["seq-1"]}, "dedicated"),
        (UNKNOWN, "seq_order", {}, 'fix: use sharding_method="dedicated"'),
    ],
)
def test_orders_that_a_method_cannot_have_are_refused(open_dataset, config, method, order, text):
    dataset = open_dataset(config, sharding_method=method, executor="inline")
    with pytest.raises(ConfigError, match=text):
        dataset.init_seq_order(epoch=1, **order)


class Unasked(Words):
    """Nobody asks it for the length of each of its items."""

    def get_seq_len(self, i):
        raise AssertionError("asked")


@pytest.fixture
def noted():
    """Return a config, and a list of what its transform gets."""
    seen = []

    def note(features):
        seen.append(int(features["data"][0, 0]))
        return features

    return {"class": "MapDataset", "map_dataset": Unasked, "transform": note}, seen


@pytest.mark.parametrize("limit", [{}, {"max_bytes": 1 << 20}])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_loaded_twice_and_what_is_jumped_over_is_not_where_the_order_is_known(
    open_dataset, noted, method, limit
):
    config, seen = noted
    dataset = open_dataset(config, 0, 1, method, **limit)
    dataset.init_seq_order(epoch=1)
    assert dataset.num_seqs == len(list(dataset.iterate_epoch())) == 23
    assert seen == list(range(23))
    seen.clear()
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(20, 21)
    assert seen == ([20] if method == "seq_order" else list(range(21)))


@pytest.mark.sample(4)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("config", "options"), [(RANDOM_WORDS, None), (FAILING_WORDS, SKIPPING)])
def test_workers_that_are_closed_in_mid_epoch_come_back_where_it_was(open_dataset, executor, method, config, options):
    outer = open_dataset(config, 2, 4, executor=executor, sharding_method=method, engine_options=options)
    whole = stream(outer, 2)
    read = []
    for seq in outer.epoch(2):
        read.append(seq)
        if len(read) in (3, 4, 12):
            outer.close_workers()
    assert [(seq.seq_idx, seq.tag) for seq in read] == [seq[:2] for seq in whole]


@pytest.mark.sample(3)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", METHODS)
def test_shards_of_the_outer_dataset_divide_the_corpus(open_dataset, executor, method):
    options, parts = {"sharding_method": method, "executor": executor}, []
    for shard in range(3):
        dataset = open_dataset(WORDS, 2, 4, _num_shards=3, _shard_index=shard, **options)
        parts += [seq.corpus_idx for seq in dataset.epoch(1)]
    assert sorted(parts) == list(range(23))
    dataset.set_sharding(3, 0)
    assert len(list(dataset.epoch(1))) == 8


@pytest.mark.parametrize("method", METHODS)
def test_outer_options_are_defaults_for_the_inner_dataset_and_those_set_later_count(open_dataset, method):
    outer = {"seq_ordering": "reverse", "partition_epoch": 7}
    dataset = open_dataset({**WORDS, "partition_epoch": 3}, 1, executor="inline", sharding_method=method, **outer)
    assert (dataset.partition_epoch, dataset.seq_ordering) == (3, "reverse")
    before = [seq.tag for epoch in (1, 2, 3) for seq in dataset.epoch(epoch)]
    dataset.seq_ordering = "default"
    assert [seq.tag for epoch in (1, 2, 3) for seq in dataset.epoch(epoch)] == before[::-1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_workers": -1}, "num_workers"),
        ({"buffer_size": 0}, "buffer_size"),
        ({"sharding_method": "other"}, "seq_order"),
        ({"dataset": []}, "a dataset, or described by a dict, got list"),
        ({"dataset": StaticDataset([]), "partition_epoch": 2}, "which is made already"),
        ({"dataset": {**WORDS, "seq_orderng": 1}}, "seq_orderng"),
        ({"max_bytes_per_worker": 0}, "max_bytes_per_worker must be at least 1"),
        ({"max_bytes_per_worker": 9, "max_bytes": 9}, "two names of one option"),
        ({"max_bytes": 0}, "max_bytes must be at least 1"),
        ({"max_bytes": "1G"}, "max_bytes must be an integer"),
        ({"max_bytes": 1 << 30, "executor": "thread"}, "executor='thread' has none"),
    ],
)
def test_wrong_options_are_refused(arguments, text):
    with pytest.raises(HeadraceError, match=text):
        MultiProcDataset(**{"dataset": WORDS, "num_workers": 2, "buffer_size": 2, **arguments}).initialize()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_hook_runs_in_each_worker_before_its_dataset_is_built(open_dataset, executor, tmp_path):
    def note(info):
        (tmp_path / f"{info.worker_idx}-of-{info.num_workers}").touch()

    dataset = open_dataset(WORDS, 2, 4, executor=executor, worker_init=note)
    assert len(list(dataset.epoch(1))) == 23
    assert {path.name for path in tmp_path.iterdir()} == {"0-of-2", "1-of-2"}


def test_the_buffer_bounds_how_far_workers_are_ahead_whatever_the_engine_options(open_dataset, noted):
    config, seen = noted
    dataset = open_dataset(config, 1, 4, executor="thread", engine_options=SKIPPING)
    assert next(dataset.epoch(1)).seq_idx == 0
    assert len(seen) <= 2 * 4
    assert MultiProcDataset(WORDS, num_workers=1).buffer_size == 100


class Listed(Unknown):
    """A data set of the user's own that tells its order as a plain list."""

    def supports_sharding(self):
        return False

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        self.order = [] if epoch is None else list(range(12, -1, -1)) if seq_order is None else list(seq_order)
        self._num_seqs = len(self.order)
        return True

    def get_current_seq_order(self):
        return self.order

    def number_of(self, seq_idx):
        return self.order[seq_idx]


@pytest.mark.sample(3)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("num_workers", "buffer_size"), [(0, 3), (1, 1), (3, 8)])
def test_an_order_told_as_a_list_will_do_and_a_failure_is_named_alike(
    open_dataset, executor, num_workers, buffer_size, tmp_path
):
    quarantine = tmp_path / "bad.jsonl"
    options = EngineOptions(on_error=Skipping(quarantine=quarantine))
    dataset = open_dataset(
        {"class": Listed, "fails_at": 5}, num_workers, buffer_size, executor=executor, engine_options=options
    )
    assert [seq.tag for seq in dataset.epoch(1)] == [f"n{i}" for i in range(12, -1, -1) if i != 5]
    assert json.loads(quarantine.read_text())["tag"] == "(sequence 7, corpus index 5)"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_whoever_reads_by_index_while_iterating_gets_the_right_sequence_or_an_error(open_dataset, executor):
    dataset = open_dataset(RANDOM_WORDS, 2, 4, executor=executor)
    tags = [seq.tag for seq in init_dataset(RANDOM_WORDS).epoch(1)]
    for seq in dataset.epoch(1):
        assert dataset.get_tag(seq.seq_idx) == seq.tag == tags[seq.seq_idx]
        assert dataset.get_data(seq.seq_idx, "data") is seq["data"]
        ahead = min(seq.seq_idx + 2, 22)
        assert dataset.get_tag(ahead) == tags[ahead]
        if seq.seq_idx > 5:
            with pytest.raises(ConfigError, match="gone"):
                dataset.get_data(0, "data")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", METHODS)
def test_an_error_keeps_its_type_names_the_sequence_and_reading_can_go_on_behind_it(open_dataset, executor, method):
    options = EngineOptions(on_error=Raising())
    dataset = open_dataset(FAILING_WORDS, 1, 1, sharding_method=method, executor=executor, engine_options=options)
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, 7)
    with pytest.raises(ZeroDivisionError, match="seven") as caught:
        dataset.load_seqs(6, 8)
    assert "seq-7" in "".join(caught.value.__notes__)
    assert dataset.get_tag(6) == "seq-6"
    if method == "seq_order":
        dataset.load_seqs(8, 9)
        assert dataset.get_tag(8) == "seq-8"
    else:  # the shard is read from its start
        with pytest.raises(ZeroDivisionError, match="seven"):
            dataset.load_seqs(8, 9)
    with pytest.raises(ZeroDivisionError, match="seven"):
        list(dataset.iterate_epoch())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_sequences_left_out_places_count_what_is_left_wherever_reading_begins(open_dataset, num_workers):
    dataset = open_dataset(FAILING_WORDS, num_workers, 4, engine_options=SKIPPING)
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(10, 11)
    assert dataset.get_tag(10) == "seq-11"


COMPOSED = {
    "combined": lambda part: {
        "class": "CombinedDataset",
        "datasets": {"a": part},
        "data_map": {("a", key): key for key in ("data", "classes")},
    },
    "meta": lambda part: {
        "class": "MetaDataset",
        "datasets": {"a": part},
        "data_map": {key: ("a", key) for key in ("data", "classes")},
        "seq_order_control_dataset": "a",
    },
    "multi_epoch": lambda part: {"class": "MultiEpochDataset", "dataset": part, "multi_epoch": 2},
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("compose", COMPOSED.values(), ids=COMPOSED)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sequence_left_out_inside_of_another_dataset_is_an_error_and_no_other_one(compose, num_workers):
    part = {"class": "MultiProcDataset", "num_workers": num_workers, "buffer_size": 6, "dataset": FAILING_WORDS}
    with init_dataset(compose({**part, "engine_options": SKIPPING})) as dataset:
        seqs = dataset.epoch(1)
        assert [(seq.tag, int(seq["data"][0, 0])) for _, seq in zip(range(7), seqs, strict=False)] == [
            (f"seq-{number}", number) for number in range(7)
        ]
        with pytest.raises(SourceError, match=r"workers have left out .* 'seq-7'"):
            next(seqs)
        dataset.init_seq_order(epoch=1)
        dataset.load_seqs(8, 9)
        assert (dataset.get_tag(8), dataset.get_data(8, "data")[0, 0]) == ("seq-8", 8)
        if compose is COMPOSED["combined"]:
            return
        wanted = ["seq-3", "seq-3", "seq-7", "seq-8", "seq-7", "seq-3", "seq-7", "seq-8"]
        dataset.init_seq_order(epoch=1, seq_list=wanted)
        for place, tag in enumerate(wanted):
            if tag == "seq-7":
                with pytest.raises(SourceError, match="left out"):
                    dataset.load_seqs(place, place + 1)
            else:
                dataset.load_seqs(place, place + 1)
                assert (dataset.get_tag(place), f"seq-{dataset.get_data(place, 'data')[0, 0]:.0f}") == (tag, tag)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_those_who_share_it_read_any_sequences_in_any_order_while_an_epoch_is_read(open_dataset, num_workers):
    config = {**RANDOM_WORDS, "transform": add_noise}
    part, plain = open_dataset(config, num_workers, 5), init_dataset(config)
    of_epoch = {epoch: {seq.tag: seq["data"].tobytes() for seq in plain.epoch(epoch)} for epoch in (1, 2)}
    wanted = [5, 22, 0, 7, 8, 9, 10], range(20)
    others = [init_dataset(COMPOSED["meta"](part)) for _ in wanted]
    for other, numbers in zip(others, wanted, strict=True):
        other.init_seq_order(epoch=2, seq_list=[f"seq-{number}" for number in numbers])

    def check(place):  # each takes the workers from the others
        for other, numbers in zip(others, wanted, strict=True):
            other.load_seqs(place, place + 1)
            assert other.get_data(place, "data").tobytes() == of_epoch[2][f"seq-{numbers[place]}"]

    for seq, place in zip(part.epoch(1), (0, 1, 3, 4, 6), strict=False):
        assert seq["data"].tobytes() == of_epoch[1][seq.tag]
        check(place)


class NotCopied(StaticDataset):
    """It can be made of a config as often as one likes, but not copied."""

    def __copy__(self):
        raise OSError("there are no copies")


def test_threads_of_a_loader_make_their_datasets_of_the_config():
    config = {**static(9), "class": NotCopied}
    part = {"class": "MultiProcDataset", "dataset": config, "num_workers": 2, "buffer_size": 3, "executor": "thread"}
    with DataLoader(part, batching=FixedCount(3)) as loader:
        assert [tag for batch in loader for tag in batch.tags] == [f"seq-{number}" for number in range(9)]


class Renamed(StaticDataset):
    """A data set of the user's own that changes what is read."""

    def get_seq(self, seq_idx):
        seq = super().get_seq(seq_idx)
        seq.features["data"] = seq.features["data"] + 1
        return seq


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", METHODS)
def test_a_sub_class_that_changes_how_sequences_are_read_is_obeyed(open_dataset, executor, method):
    dataset = open_dataset({**static(9), "class": Renamed}, 1, 4, sharding_method=method, executor=executor)
    assert [float(seq["data"][0, 0]) for seq in dataset.epoch(1)] == list(range(1, 10))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", METHODS)
def test_sequences_that_are_read_together_are_those_of_the_inner_dataset(open_dataset, executor, method):
    data = [
        {"data": np.full((i % 4, 3), i, np.float32), "classes": np.arange(i % 4, dtype=np.int32), "who": np.array(i)}
        for i in range(30)
    ]
    config = {"class": "StaticDataset", "data": data, "seq_ordering": "random_sample"}
    dataset = open_dataset(config, 1, 8, sharding_method=method, executor=executor)
    assert stream(dataset, 1) == stream(init_dataset(config), 1)


def test_arrays_belong_to_the_reader_who_may_keep_and_change_them_while_memory_is_used_again(open_dataset):
    dataset, kept = open_dataset(static(2000, (500, 1)), 2, 64), {}
    for epoch in (1, 2, 3):
        for seq in dataset.epoch(epoch):
            assert np.all(seq["data"] == seq.seq_idx)
            if seq.seq_idx % 97 == 0:
                kept[epoch, seq.seq_idx] = seq["data"]
            else:
                seq["data"][...] = -1
    assert len(kept) == 3 * 21
    assert all(np.all(array == seq_idx) for (_, seq_idx), array in kept.items())


@pytest.mark.parametrize("method", METHODS)
def test_a_limit_on_memory_does_not_change_the_stream(open_dataset, method):
    data = [{"data": np.full((i * 37 % 101, 10), i, np.float32)} for i in range(500)]
    config = {"class": "StaticDataset", "data": data, "seq_ordering": "laplace:.50"}
    dataset = open_dataset(config, 1, 1000, sharding_method=method, max_bytes_per_worker=200_000)
    assert stream(dataset, 1) == stream(init_dataset(config), 1)


@pytest.mark.long  # a worker waits some seconds before it gives up
def test_a_reader_that_keeps_more_than_the_limit_is_told(open_dataset):
    dataset = open_dataset(static(500, (100, 10)), 1, 16, max_bytes=100_000)
    with pytest.raises(CacheError, match="max_bytes"):
        _ = [seq["data"] for seq in dataset.epoch(1)]


def test_a_sequence_larger_than_the_limit_is_refused_with_what_to_do(open_dataset):
    data = [{"data": np.zeros((n, 100), np.float32)} for n in (1, 1000)]
    dataset = open_dataset({"class": "StaticDataset", "data": data}, 1, 16, max_bytes=100_000)
    with pytest.raises(CacheError, match=r"400\d\d\d bytes.*\n.*raise max_bytes"):
        list(dataset.epoch(1))


class DyingSource(MemorySource):
    """Ends its process where it reads several sequences together."""

    def read_rows(self, corpus_indices, data_key, out):
        if len(corpus_indices) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super().read_rows(corpus_indices, data_key, out)


class DyingDataset(StaticDataset):
    def __init__(self, **options):
        super().__init__(data=[{"data": np.zeros((2, 1))}], **options)
        self._set_source(DyingSource([{"data": np.zeros((2, 1))}] * 9, tags=list("abcdefghi")))


def test_the_death_of_a_worker_names_the_sequences_that_it_read_together(open_dataset):
    dataset = open_dataset({"class": DyingDataset}, 1, 16, engine_options=EngineOptions(on_death=Raising()))
    dataset.init_seq_order(epoch=3)
    dataset.load_seqs(1, 2)
    with pytest.raises(WorkerDiedError, match=r"tag 'c .. d', epoch 3"):
        dataset.load_seqs(2, 9)


def into_one_array(shape):
    array = np.zeros(shape, np.float32)

    def transform(features):
        array[:] = features["data"]
        return {"data": array}

    return transform


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("num_frames", [3, 30_000])
def test_a_transform_may_return_the_same_array_each_time(open_dataset, executor, num_frames):
    config = static(12, num_frames, transform=into_one_array(num_frames))
    dataset = open_dataset(config, num_workers=1, buffer_size=8, executor=executor)
    assert [seq["data"][-1] for seq in list(dataset.epoch(1))] == list(range(12))


@pytest.mark.parametrize("engine_options", [None, SKIPPING])
def test_what_dedicated_workers_read_before_a_stream_breaks_off_is_delivered(open_dataset, engine_options):
    dataset, tags = open_dataset({**UNKNOWN, "fails_at": 5}, 0, 16, "dedicated", engine_options=engine_options), []
    with contextlib.suppress(ZeroDivisionError):
        tags.extend(seq.tag for seq in dataset.epoch(1))
    assert tags == ["n0", "n1", "n2", "n3", "n4"]


def test_to_load_what_lies_behind_the_end_is_no_error_also_where_workers_tell_the_end(open_dataset):
    dataset = open_dataset({"class": "StaticDataset", "data": [{"data": np.zeros(1)}] * 3}, 0, 16, "dedicated")
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(4, 5)
    assert not dataset.is_less_than_num_seqs(4)


@pytest.mark.parametrize("buffer_size", [2, 4, 8, 16])
def test_dedicated_tells_of_a_failure_that_is_alone_in_the_last_run(open_dataset, buffer_size):
    config = {**UNKNOWN, "size": 5, "told": True, "fails_at": 4}
    with pytest.raises(ZeroDivisionError):
        list(open_dataset(config, 0, buffer_size, "dedicated").epoch(1))
    dataset = open_dataset(config, 0, buffer_size, "dedicated", engine_options=SKIPPING)
    assert [seq.tag for seq in dataset.epoch(1)] == ["n0", "n1", "n2", "n3"]
    assert dataset.engine_report.num_skipped == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", METHODS)
def test_the_inner_dataset_may_be_an_instance_which_is_copied(open_dataset, executor, method):
    config = static(12, seq_ordering="random")
    with MultiProcDataset(config, 2, 4, method, executor=executor) as dataset:
        expected = [seq.tag for seq in dataset.epoch(3)]
    assert len(set(expected)) == 12
    inner = init_dataset(config)
    dataset = open_dataset(inner, 2, 4, method, executor=executor)
    inner_seqs, seqs = inner.epoch(1), dataset.epoch(3)
    found = [(next(seqs).tag, next(inner_seqs).tag)[0] for _ in range(2)]
    assert found + [seq.tag for seq in seqs] == expected
    for make_copy in (copy.copy, copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))):
        with make_copy(dataset) as other:
            assert other.engine_report is None
            assert [seq.tag for seq in other.epoch(3)] == expected


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", METHODS)
def test_an_inner_instance_takes_shards_and_options_that_are_set_later(open_dataset, executor, method):
    inner = init_dataset(static(12))
    outer, tags = open_dataset(inner, 2, 4, method, executor=executor), []
    for dataset in (outer, inner):
        dataset.set_sharding(3, 1)
        dataset.seq_ordering = "reverse"
        tags.append([seq.tag for seq in dataset.epoch(1)])
    if method == "dedicated":  # workers take turns
        tags = list(map(sorted, tags))
    assert tags[0] == tags[1]
