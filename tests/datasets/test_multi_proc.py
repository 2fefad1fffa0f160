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
from headrace.datasets.reading.reader import ReadRequest
from headrace.engine import EngineOptions, Raising, Skipping
from headrace.errors import CacheError, ConfigError, HeadraceError, SourceError, WorkerDiedError
from headrace.order import RangeOrder
from headrace.sources import MemorySource

pytestmark = pytest.mark.usefixtures("warm_workers")

EXECUTORS = ["inline", "thread", "process"]


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
    """A stream that knows neither its order nor its number of sequences; shards are every n-th number below 13."""

    def __init__(self, **options):
        super().__init__(**options)
        self.num_outputs = {"data": (1, 2)}

    def supports_sharding(self):
        return True

    def _collect_single_seq(self, seq_idx):
        number = seq_idx * self.num_shards + self.shard_index
        return DatasetSeq(seq_idx, np.full((2, 1), number, np.float32), seq_tag=f"n{number}") if number < 13 else None


WORDS = {"class": "MapDataset", "map_dataset": Words}
UNKNOWN = {"class": Unknown}


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

    def open_(config, num_workers=2, buffer_size=8, **options):
        dataset = MultiProcDataset(config, num_workers, buffer_size, **options)
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
        {**WORDS, "seq_ordering": "sorted", "partition_epoch": 3},
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


@pytest.mark.parametrize("executor", EXECUTORS)
def test_dedicated_knows_the_number_of_sequences_if_its_workers_do(open_dataset, executor):
    dataset = open_dataset({**WORDS, "seq_ordering": "random"}, 3, 4, sharding_method="dedicated", executor=executor)
    dataset.init_seq_order(epoch=1)
    assert dataset.num_seqs == 23
    assert sorted(seq.corpus_idx for seq in dataset.epoch(1)) == list(range(23))


@pytest.mark.sample(3)
@pytest.mark.parametrize("buffer_size", [1, 4, 100])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_dedicated_workers_take_turns_after_each_sequence(open_dataset, executor, buffer_size):
    dataset = open_dataset(WORDS, 3, buffer_size, sharding_method="dedicated", executor=executor)
    expected = [0, 8, 16, 1, 9, 17, 2, 10, 18, 3, 11, 19, 4, 12, 20, 5, 13, 21, 6, 14, 22, 7, 15]
    assert [(seq.tag, int(seq["data"][0, 0])) for seq in dataset.epoch(1)] == [(f"seq-{i}", i) for i in expected]


@pytest.mark.parametrize("buffer_size", [1, 4, 100])
def test_dedicated_workers_that_skip_a_sequence_keep_the_order_of_the_others(open_dataset, buffer_size):
    config = {**WORDS, "transform": fail_at_7}
    options = {"sharding_method": "dedicated", "executor": "thread"}
    skipping = EngineOptions(on_error=Skipping())
    dataset = open_dataset(config, 2, buffer_size, engine_options=skipping, **options)
    tags = [seq.tag for seq in open_dataset(WORDS, 2, buffer_size, **options).epoch(1)]
    assert [seq.tag for seq in dataset.epoch(1)] == [tag for tag in tags if tag != "seq-7"]

    dataset, found = open_dataset(config, 2, buffer_size, **options), []
    with pytest.raises(ZeroDivisionError):
        found.extend(seq.tag for seq in dataset.epoch(1))
    assert found == tags[: tags.index("seq-7")]


def test_dedicated_refuses_a_given_order(open_dataset):
    dataset = open_dataset(WORDS, sharding_method="dedicated", executor="inline")
    for given in ({"seq_order": [1]}, {"seq_list": ["seq-1"]}):
        with pytest.raises(ConfigError, match="dedicated"):
            dataset.init_seq_order(epoch=1, **given)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_given_order_is_taken_as_it_is(open_dataset, executor):
    dataset = open_dataset(WORDS, executor=executor)
    dataset.init_seq_order(epoch=1, seq_order=[5, 3, 5])
    assert [dataset.get_tag(i) for i in range(dataset.num_seqs)] == ["seq-5", "seq-3", "seq-5"]
    dataset.init_seq_order(epoch=1, seq_list=["seq-7", "seq-0"])
    assert [float(dataset.get_data(i, "data")[0, 0]) for i in range(2)] == [7, 0]


@pytest.mark.parametrize("method", ["seq_order", "dedicated"])
def test_an_option_of_the_order_that_is_set_later_counts(open_dataset, method):
    dataset = open_dataset(WORDS, 1, executor="inline", sharding_method=method)
    before = [seq.tag for seq in dataset.epoch(1)]
    dataset.seq_ordering = "reverse"
    assert [seq.tag for seq in dataset.epoch(1)] == before[::-1]


def test_a_dataset_without_an_order_is_told_to_use_dedicated(open_dataset):
    dataset = open_dataset(UNKNOWN, executor="inline")
    with pytest.raises(ConfigError, match='fix: use sharding_method="dedicated"'):
        dataset.init_seq_order(epoch=1)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_jumping_ahead_gives_the_right_sequence(open_dataset, executor):
    config = {**WORDS, "seq_ordering": "random"}
    inner, outer = init_dataset(config), open_dataset(config, 2, 2, executor=executor)
    inner.init_seq_order(epoch=1)
    outer.init_seq_order(epoch=1)
    for seq_idx in (0, 1, 9, 21, 22):
        outer.load_seqs(seq_idx, seq_idx + 1)
        np.testing.assert_array_equal(outer.get_data(seq_idx, "data"), inner.get_data(seq_idx, "data"))
    assert not outer.is_less_than_num_seqs(23)


def test_what_is_jumped_over_is_not_loaded(open_dataset):
    loaded = []

    def note(features):
        loaded.append(int(features["data"][0, 0]))
        return features

    dataset = open_dataset({**WORDS, "transform": note}, 0, 1)
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(20, 21)
    assert loaded == [20]


@pytest.mark.sample(4)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", ["seq_order", "dedicated"])
@pytest.mark.parametrize("skips", [False, True])
def test_workers_that_are_closed_in_mid_epoch_come_back_where_it_was(open_dataset, executor, method, skips):
    config = {**WORDS, "transform": fail_at_7} if skips else {**WORDS, "seq_ordering": "random"}
    options = EngineOptions(on_error=Skipping()) if skips else None
    outer = open_dataset(config, 2, 4, executor=executor, sharding_method=method, engine_options=options)
    whole = stream(outer, 2)
    read = []
    for seq in outer.epoch(2):
        read.append(seq)
        if len(read) in (3, 4, 12):
            outer.close_workers()
    assert [(seq.seq_idx, seq.tag) for seq in read] == [seq[:2] for seq in whole]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_resources_that_were_freed_in_mid_epoch_come_back_with_the_next_one(open_dataset, executor):
    config = {**WORDS, "seq_ordering": "random"}
    inner, outer = init_dataset(config), open_dataset(config, 2, 4, executor=executor)
    assert next(outer.epoch(5)).tag
    outer.finish_epoch(free_resources=True)
    assert stream(outer, 6) == stream(inner, 6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_layout_and_the_corpus_are_those_of_the_inner_dataset(open_dataset, executor):
    inner, outer = init_dataset(WORDS), open_dataset(WORDS, executor=executor)
    assert outer.get_data_keys() == inner.get_data_keys()
    for key in inner.get_data_keys():
        for ask in ("get_data_dim", "get_data_dtype", "is_data_sparse", "get_data_shape"):
            assert getattr(outer, ask)(key) == getattr(inner, ask)(key)
    assert list(outer.get_all_tags()) == list(inner.get_all_tags())
    assert outer.get_total_num_seqs() == outer.get_total_num_seqs(fast=True) == 23
    assert outer.num_outputs == inner.num_outputs
    assert outer.supports_seq_order_sorting()


@pytest.mark.sample(3)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", ["seq_order", "dedicated"])
def test_shards_of_the_outer_dataset_divide_the_corpus(open_dataset, executor, method):
    parts = []
    for shard in range(3):
        dataset = open_dataset(
            WORDS, 2, 4, sharding_method=method, _num_shards=3, _shard_index=shard, executor=executor
        )
        parts += [seq.corpus_idx for seq in dataset.epoch(1)]
    assert sorted(parts) == list(range(23))
    dataset = open_dataset(WORDS, 2, 4, sharding_method=method, executor=executor)
    dataset.set_sharding(3, 2)
    assert len(list(dataset.epoch(1))) == 7


def test_outer_options_are_defaults_for_the_inner_dataset(open_dataset):
    dataset = open_dataset(
        {**WORDS, "partition_epoch": 3}, executor="inline", seq_ordering="reverse", partition_epoch=7
    )
    assert (dataset.partition_epoch, dataset.seq_ordering) == (3, "reverse")


def test_copies_start_no_worker(open_dataset):
    dataset = open_dataset({**WORDS, "seq_ordering": "random"}, executor="thread")
    expected = stream(dataset, 2)
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert other._engine is None
        assert stream(other, 2) == expected
        other.close()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_error_in_a_worker_keeps_its_type_and_names_the_sequence(open_dataset, executor):
    dataset = open_dataset(
        {**WORDS, "transform": fail_at_7}, executor=executor, engine_options=EngineOptions(on_error=Raising())
    )
    seqs = dataset.epoch(1)
    with pytest.raises(ZeroDivisionError, match="seven") as caught:
        list(seqs)
    assert "seq-7" in "".join(caught.value.__notes__)


@pytest.mark.sample(3)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_sequence_that_fails_is_skipped_and_written_down(open_dataset, executor, num_workers, tmp_path):
    quarantine = tmp_path / "bad.jsonl"
    dataset = open_dataset(
        {**WORDS, "transform": fail_at_7},
        num_workers,
        executor=executor,
        engine_options=EngineOptions(on_error=Skipping(budget=5, quarantine=quarantine)),
    )
    assert [seq.corpus_idx for seq in dataset.epoch(1)] == [i for i in range(23) if i != 7]
    (line,) = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert "seven" in json.dumps(line)
    assert line["tag"] == "seq-7"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_workers": -1}, "num_workers"),
        ({"buffer_size": 0}, "buffer_size"),
        ({"sharding_method": "other"}, "seq_order"),
        ({"dataset": []}, "a dataset, or described by a dict, got list"),
        ({"dataset": StaticDataset([]), "partition_epoch": 2}, "which is made already"),
    ],
)
def test_wrong_options_are_refused(arguments, text):
    with pytest.raises(ConfigError, match=text):
        MultiProcDataset(**{"dataset": WORDS, "num_workers": 2, "buffer_size": 2, **arguments})


def test_a_wrong_inner_config_is_refused_without_a_worker():
    with pytest.raises(HeadraceError, match="seq_orderng"):
        init_dataset(
            {"class": "MultiProcDataset", "dataset": {**WORDS, "seq_orderng": 1}, "num_workers": 2, "buffer_size": 2}
        )


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_hook_runs_in_each_worker_before_its_dataset_is_built(open_dataset, executor, tmp_path):
    def note(info):
        (tmp_path / f"{info.worker_idx}-of-{info.num_workers}").touch()

    dataset = open_dataset(WORDS, 2, 4, executor=executor, worker_init=note)
    assert len(list(dataset.epoch(1))) == 23
    assert {path.name for path in tmp_path.iterdir()} == {"0-of-2", "1-of-2"}


def test_asking_for_the_number_of_sequences_loads_nothing_twice(open_dataset):
    loaded = []

    def note(features):
        loaded.append(1)
        return features

    dataset = open_dataset({**WORDS, "transform": note}, 0, 4, sharding_method="dedicated")
    dataset.init_seq_order(epoch=1)
    assert dataset.num_seqs == 23
    assert len(list(dataset.iterate_epoch())) == 23
    assert len(loaded) == 23


def test_the_buffer_bounds_how_far_workers_are_ahead_whatever_the_engine_options(open_dataset):
    loaded = []

    def note(features):
        loaded.append(1)
        return features

    options = EngineOptions(on_error=Skipping())
    dataset = open_dataset({**WORDS, "transform": note}, 1, 4, executor="thread", engine_options=options)
    assert next(dataset.epoch(1)).seq_idx == 0
    assert len(loaded) <= 2 * 4


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

    def _collect_single_seq(self, seq_idx):
        number = self.order[seq_idx]
        if number == 5:
            raise ZeroDivisionError("five")
        return DatasetSeq(seq_idx, np.full((2, 1), number, np.float32), seq_tag=f"n{number}")


@pytest.mark.sample(3)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("num_workers", "buffer_size"), [(0, 3), (1, 1), (3, 8)])
def test_an_order_told_as_a_list_will_do_and_a_failure_is_named_alike(
    open_dataset, executor, num_workers, buffer_size, tmp_path
):
    quarantine = tmp_path / "bad.jsonl"
    options = EngineOptions(on_error=Skipping(quarantine=quarantine))
    dataset = open_dataset({"class": Listed}, num_workers, buffer_size, executor=executor, engine_options=options)
    assert [seq.tag for seq in dataset.epoch(1)] == [f"n{i}" for i in range(12, -1, -1) if i != 5]
    assert json.loads(quarantine.read_text())["tag"] == "(sequence 7, corpus index 5)"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_whoever_reads_by_index_while_iterating_gets_the_right_sequence_or_an_error(open_dataset, executor):
    dataset = open_dataset({**WORDS, "seq_ordering": "random"}, 2, 4, executor=executor)
    inner = init_dataset({**WORDS, "seq_ordering": "random"})
    tags = [seq.tag for seq in inner.epoch(1)]
    for seq in dataset.epoch(1):
        assert dataset.get_tag(seq.seq_idx) == seq.tag == tags[seq.seq_idx]
        ahead = min(seq.seq_idx + 2, 22)
        assert dataset.get_tag(ahead) == tags[ahead]
        if seq.seq_idx > 5:
            with pytest.raises(ConfigError, match="gone"):
                dataset.get_data(0, "data")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", ["seq_order", "dedicated"])
def test_after_an_error_reading_can_go_on_behind_it(open_dataset, executor, method):
    dataset = open_dataset({**WORDS, "transform": fail_at_7}, 1, 1, sharding_method=method, executor=executor)
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, 7)
    with pytest.raises(ZeroDivisionError, match="seven"):
        dataset.load_seqs(6, 8)
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
    options = EngineOptions(on_error=Skipping())
    dataset = open_dataset({**WORDS, "transform": fail_at_7}, num_workers, 4, engine_options=options)
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
    part = {
        "class": "MultiProcDataset",
        "num_workers": num_workers,
        "buffer_size": 6,
        "dataset": {**WORDS, "transform": fail_at_7},
        "engine_options": EngineOptions(on_error=Skipping()),
    }
    with init_dataset(compose(part)) as dataset:
        seqs = dataset.epoch(1)
        assert [(seq.tag, int(seq["data"][0, 0])) for _, seq in zip(range(7), seqs, strict=False)] == [
            (f"seq-{number}", number) for number in range(7)
        ]
        with pytest.raises(SourceError, match=r"workers have left out .* 'seq-7'"):
            next(seqs)
        dataset.init_seq_order(epoch=1)
        dataset.load_seqs(8, 9)
        assert (dataset.get_tag(8), dataset.get_data(8, "data")[0, 0]) == ("seq-8", 8)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_reader_knows_which_sequences_are_left_out_though_others_are_asked_for_twice(open_dataset, num_workers):
    options = EngineOptions(on_error=Skipping())
    dataset = open_dataset({**WORDS, "transform": fail_at_7}, num_workers, 100, engine_options=options)
    reader = dataset.make_reader()
    wanted = [3, 3, 7, 8, 7, 3, 7, 8]
    reader.start(ReadRequest.of(1, np.array(wanted), np.array([0, 1, 0, 0, 1, 2, 2, 1])))
    for number, corpus_idx in enumerate(wanted):
        if corpus_idx == 7:
            with pytest.raises(SourceError, match="left out"):
                reader.read(number)
        else:
            assert reader.read(number).seq_tag == f"seq-{corpus_idx}"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_reader_reads_any_sequences_in_any_order_while_an_epoch_is_read(open_dataset, num_workers):
    dataset = open_dataset({**WORDS, "seq_ordering": "random", "transform": add_noise}, num_workers, 5)
    plain = init_dataset({**WORDS, "seq_ordering": "random", "transform": add_noise})
    of_epoch = {epoch: {seq.tag: seq["data"].tobytes() for seq in plain.epoch(epoch)} for epoch in (1, 2)}
    readers = dataset.make_reader(), dataset.make_reader()
    wanted = [ReadRequest.of(2, np.array([5, 22, 0, 5, 7, 8, 9, 10])), ReadRequest(2, RangeOrder(range(20)))]
    tags = [f"seq-{i}" for i in (3, 1)]
    for reader, request in zip(readers, wanted, strict=True):
        reader.start(request)
    for seq, number in zip(dataset.epoch(1), (7, 0, 3, 3, 1, 2, 6), strict=False):
        assert seq["data"].tobytes() == of_epoch[1][seq.tag]
        for reader in readers:
            read = reader.read(number)
            assert read.seq_tag == reader.tags()[number]
            assert read.features["data"].tobytes() == of_epoch[2][read.seq_tag]
    for reader in readers:
        reader.start(wanted[1])
    for number in range(20):  # each takes the workers from the other
        for reader in readers:
            read = reader.read(number)
            assert (read.seq_tag, read.features["data"].tobytes()) == (f"seq-{number}", of_epoch[2][f"seq-{number}"])
    readers[0].start(ReadRequest(1, RangeOrder(range(2)), tags=tags))
    assert [readers[0].array(number, "data").tobytes() for number in range(2)] == [of_epoch[1][tag] for tag in tags]


class NotCopied(StaticDataset):
    """It can be made of a config as often as one likes, but not copied."""

    def __copy__(self):
        raise OSError("there are no copies")


def test_threads_of_a_loader_make_their_datasets_of_the_config():
    config = {"class": NotCopied, "data": [{"data": np.full((2, 1), i, np.float32)} for i in range(9)]}
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
@pytest.mark.parametrize("method", ["seq_order", "dedicated"])
def test_a_sub_class_that_changes_how_sequences_are_read_is_obeyed(open_dataset, executor, method):
    config = {"class": Renamed, "data": [{"data": np.full((2, 1), i, np.float32)} for i in range(9)]}
    dataset = open_dataset(config, 1, 4, sharding_method=method, executor=executor)
    assert [float(seq["data"][0, 0]) for seq in dataset.epoch(1)] == list(range(1, 10))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", ["seq_order", "dedicated"])
def test_sequences_that_are_read_together_are_those_of_the_inner_dataset(open_dataset, executor, method):
    data = [
        {"data": np.full((i % 4, 3), i, np.float32), "classes": np.arange(i % 4, dtype=np.int32), "who": np.array(i)}
        for i in range(30)
    ]
    config = {"class": "StaticDataset", "data": data, "seq_ordering": "random_sample"}
    dataset = open_dataset(config, 1, 8, sharding_method=method, executor=executor)
    assert stream(dataset, 1) == stream(init_dataset(config), 1)


def test_an_array_belongs_to_the_reader_and_nobody_sees_what_is_written_to_it(open_dataset):
    data = [{"data": np.full((3, 1), i, np.float32)} for i in range(20)]
    dataset = open_dataset({"class": "StaticDataset", "data": data}, 2, 8)
    for _ in range(2):
        for seq in dataset.epoch(1):
            assert np.all(seq["data"] == seq.seq_idx)
            seq["data"][...] = -1


def test_sequences_can_be_kept_while_their_memory_would_be_used_again(open_dataset):
    data = [{"data": np.full((500, 1), i, np.float32)} for i in range(2000)]
    dataset = open_dataset({"class": "StaticDataset", "data": data}, 2, 64)
    kept = {}
    for epoch in (1, 2, 3):
        kept.update({(epoch, seq.seq_idx): seq["data"] for seq in dataset.epoch(epoch) if seq.seq_idx % 97 == 0})
    assert len(kept) == 3 * 21
    assert all(np.all(array == seq_idx) for (_, seq_idx), array in kept.items())


@pytest.mark.parametrize("method", ["seq_order", "dedicated"])
def test_a_limit_on_memory_changes_nothing_but_the_size_of_blocks(open_dataset, method):
    data = [{"data": np.full((i * 37 % 101, 10), i, np.float32)} for i in range(500)]
    config = {"class": "StaticDataset", "data": data, "seq_ordering": "laplace:.50"}
    expected = stream(init_dataset(config), 1)
    dataset = open_dataset(config, 1, 1000, sharding_method=method, max_bytes_per_worker=200_000)
    found = []
    for seq in dataset.epoch(1):
        assert sum(array.nbytes for array in dataset._current[-1].arrays["data"]) <= 200_000 / 8
        found.append((seq.seq_idx, seq.tag, seq.corpus_idx, seq.complete_frac))
    assert found == [row[:4] for row in expected]


@pytest.mark.long  # a worker waits some seconds before it gives up
def test_a_reader_that_keeps_more_than_the_limit_is_told(open_dataset):
    data = [{"data": np.full((100, 10), i, np.float32)} for i in range(500)]
    dataset = open_dataset({"class": "StaticDataset", "data": data}, 1, 16, max_bytes=100_000)
    with pytest.raises(CacheError, match="max_bytes"):
        _ = [seq["data"] for seq in dataset.epoch(1)]


def test_a_sequence_larger_than_the_limit_is_refused_with_what_to_do(open_dataset):
    data = [{"data": np.zeros((n, 100), np.float32)} for n in (1, 1000)]
    dataset = open_dataset({"class": "StaticDataset", "data": data}, 1, 16, max_bytes=100_000)
    with pytest.raises(CacheError, match=r"400\d\d\d bytes.*\n.*raise max_bytes"):
        list(dataset.epoch(1))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_bytes_per_worker": 0}, "max_bytes_per_worker must be at least 1"),
        ({"max_bytes_per_worker": 9, "max_bytes": 9}, "two names of one option"),
        ({"max_bytes": 0}, "max_bytes must be at least 1"),
        ({"max_bytes": "1G"}, "max_bytes must be an integer"),
        ({"max_bytes": 1 << 30, "executor": "thread"}, "executor='thread' has none"),
    ],
)
def test_a_wrong_limit_on_memory_is_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        MultiProcDataset(WORDS, 2, 2, **options)
    MultiProcDataset(WORDS, 0, 2, max_bytes=1 << 30).close()


def die_at_7(features):
    if features["data"][0, 0] == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return features


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


@pytest.mark.parametrize(
    ("config", "tag"), [({**WORDS, "transform": die_at_7}, "'seq-7'"), ({"class": DyingDataset}, "'c .. d'")]
)
def test_the_death_of_a_worker_names_the_sequence_that_it_read(open_dataset, config, tag):
    options = EngineOptions(on_death=Raising())
    dataset = open_dataset(config, 1, 16, engine_options=options)
    dataset.init_seq_order(epoch=3)
    dataset.load_seqs(1, 2)
    with pytest.raises(WorkerDiedError, match=f"tag {tag}, epoch 3"):
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
    data = [{"data": np.full(num_frames, i, np.float32)} for i in range(12)]
    config = {"class": "StaticDataset", "data": data, "transform": into_one_array(num_frames)}
    dataset = open_dataset(config, num_workers=1, buffer_size=8, executor=executor)
    assert [seq["data"][-1] for seq in list(dataset.epoch(1))] == list(range(12))


class FailsAtItsEnd(CachedDataset2):
    """Knows how many sequences there are; the last one cannot be read."""

    def supports_sharding(self):
        return True

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        self._num_seqs = 5
        return True

    def _collect_single_seq(self, seq_idx):
        if seq_idx == 4:
            raise ZeroDivisionError("the last")
        return DatasetSeq(seq_idx, {"data": np.zeros(2, np.float32)}, seq_tag=f"s{seq_idx}")


class BreaksOff(Unknown):
    """A stream that does not know its number of sequences, and fails at the sixth."""

    def _collect_single_seq(self, seq_idx):
        if seq_idx == 5:
            raise ZeroDivisionError("broken off")
        return super()._collect_single_seq(seq_idx)


@pytest.mark.parametrize("engine_options", [None, EngineOptions(on_error=Skipping())])
def test_what_dedicated_workers_read_before_a_stream_breaks_off_is_delivered(open_dataset, engine_options):
    options = {"num_workers": 0, "buffer_size": 16, "sharding_method": "dedicated", "engine_options": engine_options}
    seqs, tags = open_dataset({"class": BreaksOff}, **options).epoch(1), []
    with contextlib.suppress(ZeroDivisionError):
        tags.extend(seq.tag for seq in seqs)
    assert tags == ["n0", "n1", "n2", "n3", "n4"]


@pytest.mark.parametrize("buffer_size", [2, 4, 8, 16])
def test_dedicated_tells_of_a_failure_that_is_alone_in_the_last_run(open_dataset, buffer_size):
    options = {"num_workers": 0, "buffer_size": buffer_size, "sharding_method": "dedicated"}
    with pytest.raises(ZeroDivisionError):
        list(open_dataset({"class": FailsAtItsEnd}, **options).epoch(1))
    dataset = open_dataset({"class": FailsAtItsEnd}, **options, engine_options=EngineOptions(on_error=Skipping()))
    assert [seq.tag for seq in dataset.epoch(1)] == ["s0", "s1", "s2", "s3"]
    assert dataset.engine_report.num_skipped == 1


def tags_of_epoch(dataset):
    found = []
    while dataset.is_less_than_num_seqs(len(found)):
        dataset.load_seqs(len(found), len(found) + 1)
        found.append(dataset.get_tag(len(found)))
    dataset.finish_epoch(free_resources=True)
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", ["seq_order", "dedicated"])
def test_the_inner_dataset_may_be_an_instance_which_is_copied(executor, method):
    seqs = [{"data": np.full((3, 1), i, np.float32)} for i in range(12)]
    inner = StaticDataset(seqs, seq_ordering="random")
    config = {"class": StaticDataset, "data": seqs, "seq_ordering": "random"}
    expected = MultiProcDataset(config, 2, 4, method, executor=executor)
    dataset = MultiProcDataset(inner, 2, 4, method, executor=executor)
    made = [expected, dataset, copy.copy(dataset), pickle.loads(pickle.dumps(dataset))]
    for one in made:
        one.initialize()
        one.init_seq_order(epoch=3)
    inner.initialize()
    inner.init_seq_order(epoch=1)
    first, *others = map(tags_of_epoch, made)
    assert len(first) == 12
    assert others == [first] * 3


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", ["seq_order", "dedicated"])
def test_an_inner_instance_takes_shards_and_options_that_are_set_later(executor, method):
    inner = StaticDataset([{"data": np.full((3, 1), i, np.float32)} for i in range(12)])
    dataset = MultiProcDataset(inner, 2, 4, method, executor=executor)
    dataset.initialize()
    dataset.set_sharding(3, 1)
    dataset.seq_ordering = "reverse"
    dataset.init_seq_order(epoch=1)
    found = tags_of_epoch(dataset)
    inner.initialize()
    inner.set_sharding(3, 1)
    inner.seq_ordering = "reverse"
    inner.init_seq_order(epoch=1)
    expected = tags_of_epoch(inner)
    assert (found if method == "seq_order" else sorted(found)) == (
        expected if method == "seq_order" else sorted(expected)
    )


def test_how_far_a_worker_may_be_ahead_has_a_default():
    with MultiProcDataset(WORDS, num_workers=1) as dataset:
        assert dataset.buffer_size == 100
        assert len(list(dataset.epoch(1))) == 23
