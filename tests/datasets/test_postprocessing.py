"""`PostprocessingDataset`: sequences changed by a function, one by one or as a stream, whoever calls it."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from examples_of_laws import examples
from headrace.datasets import (
    CachedDataset2,
    DatasetSeq,
    LaplaceOrdering,
    MetaDataset,
    MultiProcDataset,
    PostprocessingDataset,
    Sequential,
    init_dataset,
)
from headrace.engine import EngineOptions, Skipping
from headrace.errors import ConfigError, HeadraceError, OptionalNotImplementedError, SourceError, TransformError

pytestmark = pytest.mark.usefixtures("warm_workers")

LENGTHS = [5, 3, 8, 2, 9, 1, 4, 7, 6, 10, 3]
DATA = [
    {"data": np.full((n, 2), i, np.float32), "classes": np.arange(n, dtype=np.int32)} for i, n in enumerate(LENGTHS)
]
BY_LENGTH = sorted(range(11), key=lambda i: LENGTHS[i])
STATIC = {"class": "StaticDataset", "data": DATA, "output_dim": {"data": (2, 2), "classes": (10, 1)}}
RANDOM = {**STATIC, "seq_ordering": "random"}


class Stream(CachedDataset2):
    """A stream that tells no order, and only if `counted` its number of sequences."""

    num_inputs = 2

    def __init__(self, size=9, counted=False, **options):
        super().__init__(**options)
        self.size, self.counted = size, counted
        self.num_outputs = {"data": (2, 2)}

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        if self.counted and epoch is not None:
            self._num_seqs = self.size
        return True

    def _collect_single_seq(self, seq_idx):
        if seq_idx == self.size:
            return None
        return DatasetSeq(seq_idx, np.full((seq_idx % 4 + 1, 2), seq_idx, np.float32), seq_tag=f"t{seq_idx}")


STREAM, COUNTED = {"class": Stream}, {"class": Stream, "counted": True}
SKIPPING = EngineOptions(on_error=Skipping())


def add_noise(data, rng):
    return {**data, "data": data["data"] + rng.randint(100, size=data["data"].shape).astype(np.float32)}


def told(data, *, epoch, seq_idx, **kwargs):
    """Write down what it is told, and change the arrays in place."""
    assert sorted(kwargs) == ["rng"]
    data["data"][:] = 10_000 * epoch + 100 * seq_idx + data["data"]
    data["classes"][:1] = round(100 * data["complete_frac"])
    return {"data": data["data"], "classes": data["classes"]}


def fails_at_2(data):
    if data["data"][0, 0] == 2:
        raise ZeroDivisionError("two")
    return data


def noisy_stream(iterator, rng):
    for data in iterator:
        yield {**data, "data": data["data"] + np.float32(rng.randint(1000))}


def every_other(iterator):
    return itertools.islice(iterator, 1, None, 2)


def twice(iterator):
    for data in iterator:
        yield data
        yield {**data, "seq_tag": f"{data['seq_tag']} again"}


def without_last(iterator):
    return list(iterator)[:-1]


def rows(seqs):
    return [
        (seq.seq_idx, seq.tag, seq.corpus_idx, seq.complete_frac, {k: v.tolist() for k, v in seq.features.items()})
        for seq in seqs
    ]


def data_of(seqs):
    return {seq.tag: seq["data"].tolist() for seq in seqs}


def tags_of(seqs):
    return [seq.tag for seq in seqs]


@pytest.fixture
def opened():
    datasets = []

    def open_(config=STATIC, **options):
        dataset = PostprocessingDataset(dataset=config, **options)
        datasets.append(dataset)
        dataset.initialize()
        return dataset

    yield open_
    for dataset in datasets:
        dataset.close()


# --- a function of one sequence ---


def test_map_seq_changes_sequences_and_leaves_order_tags_and_numbers(opened):
    inner, outer = init_dataset(RANDOM), opened(RANDOM, map_seq=lambda data: {**data, "data": data["data"] + 1})
    for epoch in (1, 2):
        expected = rows(inner.epoch(epoch))
        for *_, features in expected:
            features["data"] = (np.array(features["data"]) + 1).tolist()
        assert rows(outer.epoch(epoch)) == expected
        assert list(outer.get_current_seq_order()) == list(inner.get_current_seq_order())
    assert outer.num_seqs == outer.get_total_num_seqs() == len(LENGTHS)
    assert list(outer.get_all_tags()) == list(inner.get_all_tags())
    assert outer.get_data_keys() == ["data", "classes"]
    assert outer.num_outputs == inner.num_outputs
    assert outer.seq_ordering == "random"


@pytest.mark.parametrize("function", [add_noise, told])
def test_map_seq_makes_the_same_whoever_calls_it(opened, function):
    config, workers = {**RANDOM, "partition_epoch": 2}, {"num_workers": 1, "buffer_size": 4}
    alone = opened(config, map_seq=function)
    pooled = opened(config, map_seq=function, num_workers=2, buf_size=4)
    inside = opened({"class": "MultiProcDataset", "dataset": config, **workers}, map_seq=function)
    post = {"class": "PostprocessingDataset", "dataset": config, "map_seq": function}
    with MultiProcDataset(post, **workers) as around:
        for epoch in (1, 2, 1, 3):
            expected = rows(alone.epoch(epoch))
            for other in (pooled, around, inside):
                assert rows(other.epoch(epoch)) == expected
    assert expected[2][4]["data"] != rows(alone.epoch(1))[2][4]["data"]


class Listed(Stream):
    """It tells its order as a list, and counts places from 0 in each part of an epoch."""

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch)
        whole = [] if epoch is None else list(range(self.size - 1, -1, -1))
        self.order = whole if seq_order is None else list(seq_order)
        self._num_seqs = len(self.order)
        return True

    def get_current_seq_order(self):
        return self.order

    def _collect_single_seq(self, seq_idx):
        return super()._collect_single_seq(self.order[seq_idx])


@pytest.mark.parametrize("config", [{"class": Listed}, {**STATIC, "seq_ordering": "reverse"}], ids=["listed", "static"])
def test_places_are_those_of_the_epoch_whoever_reads_a_part_of_it(opened, config):
    def tell_place(data, *, seq_idx):
        return {**data, "data": data["data"] * 0 + 100 * seq_idx + round(data["complete_frac"], 3)}

    expected = rows(opened(config, map_seq=tell_place).epoch(1))
    assert [int(row[4]["data"][0][0]) // 100 for row in expected] == list(range(len(expected)))
    assert rows(opened(config, map_seq=tell_place, num_workers=1, buf_size=4).epoch(1)) == expected


def test_the_draws_of_a_sequence_depend_on_seed_and_epoch_and_not_on_its_place(opened):
    first = opened(STATIC, map_seq=add_noise)
    by_tag = data_of(first.epoch(1))
    assert data_of(opened(RANDOM, map_seq=add_noise).epoch(1)) == by_tag
    assert data_of(first.epoch(2)) != by_tag
    assert data_of(opened(STATIC, map_seq=add_noise, random_seed_offset=1).epoch(1)) != by_tag
    fixed = opened(STATIC, map_seq=add_noise, fixed_random_seed=3)
    assert rows(fixed.epoch(1)) == rows(fixed.epoch(2))


def test_a_sequence_that_comes_twice_in_an_epoch_draws_anew(opened):
    config = {**STATIC, "repeat_epoch": 2}
    outer = opened(config, map_seq=add_noise)
    seqs = rows(outer.epoch(1))
    assert seqs[0][1] == seqs[11][1]
    assert seqs[0][4]["data"] != seqs[11][4]["data"]
    assert rows(opened(config, map_seq=add_noise, num_workers=2, buf_size=4).epoch(1)) == seqs


def test_a_user_class_that_is_given_a_part_of_an_epoch_finds_its_corpus_indices():
    class Own(PostprocessingDataset):
        def get_seq(self, seq_idx):
            seq = super().get_seq(seq_idx)
            assert self.get_corpus_seq_idx(seq_idx) == seq["data"][0, 0]
            return seq

    with MultiProcDataset(Own(dataset=RANDOM, map_seq=lambda seq: seq), num_workers=1, buffer_size=4) as pooled:
        assert len(list(pooled.epoch(1))) == len(LENGTHS)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_given_order_is_taken(opened, num_workers):
    outer = opened(STATIC, map_seq=add_noise, num_workers=num_workers)
    by_tag = data_of(outer.epoch(1))
    for order, tags in (({"seq_order": [3, 1]}, ["seq-3", "seq-1"]), ({"seq_list": ["seq-7"]}, ["seq-7"])):
        outer.init_seq_order(epoch=1, **order)
        found = [(outer.get_tag(i), outer.get_data(i, "data").tolist()) for i in range(outer.num_seqs)]
        assert found == [(tag, by_tag[tag]) for tag in tags]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_reading_can_begin_anywhere_and_go_on_behind_an_error(opened, num_workers):
    outer = opened(STATIC, map_seq=fails_at_2, num_workers=num_workers)
    outer.init_seq_order(epoch=1)
    with pytest.raises(ZeroDivisionError, match="two") as caught:
        outer.load_seqs(2, 3)
    assert "seq-2" in "".join(caught.value.__notes__)
    outer.load_seqs(5, 6)
    assert outer.get_tag(5) == "seq-5"


def test_lengths_are_known_without_reading_where_it_is_said_that_they_stay(opened):
    outer = opened(STATIC, map_seq=fails_at_2, map_seq_preserves_lengths=True)
    outer.init_seq_order(epoch=1)
    assert [outer.get_seq_length(i)["data"] for i in range(outer.num_seqs)] == LENGTHS
    liar = opened(STATIC, map_seq=lambda d: {**d, "data": d["data"][:1]}, map_seq_preserves_lengths=True)
    with pytest.raises(TransformError, match="'data' had 5 frames and has 1"):
        list(liar.epoch(1))
    with pytest.raises(ConfigError, match="map_seq_preserves_lengths"):
        hr.DataLoader(opened(map_seq=add_noise), batching=hr.FrameBudget(12))


def test_functions_get_the_arguments_that_they_take(opened):
    def named(data, *, seq_idx):
        return {**data, "data": data["data"] * 0 + seq_idx}

    assert [seq["data"][0, 0] for seq in opened(map_seq=named).epoch(1)] == list(range(11))
    both = Sequential(named, lambda data, epoch: {**data, "data": data["data"] + 100 * epoch})
    assert [seq["data"][0, 0] for seq in opened(map_seq=both).epoch(2)] == list(range(200, 211))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_can_be_changed_one_by_one(opened, num_workers):
    seqs = rows(opened(STREAM, map_seq=add_noise, num_workers=num_workers, buf_size=3).epoch(1))
    assert [(seq_idx, tag) for seq_idx, tag, *_ in seqs] == [(i, f"t{i}") for i in range(9)]
    assert seqs == rows(opened(STREAM, map_seq=add_noise).epoch(1))
    outer = opened(COUNTED, map_seq=add_noise)
    outer.init_seq_order(epoch=1)
    assert outer.num_seqs == 9
    with pytest.raises(OptionalNotImplementedError):
        outer.get_current_seq_order()


# --- a function over a stream ---


@examples(30)
@given(st.lists(st.integers(0, 9), max_size=25), st.integers(1, 7))
def test_laplace_ordering_sorts_bins_in_turns_and_keeps_the_progress_in_place(lengths, seqs_per_bin):
    seqs = [
        {"data": np.zeros(n), "seq_tag": str(i), "complete_frac": (i + 1) / len(lengths)} for i, n in enumerate(lengths)
    ]
    found = list(LaplaceOrdering(seqs_per_bin)(iter(seqs), epoch=1))
    assert [seq["complete_frac"] for seq in found] == [seq["complete_frac"] for seq in seqs]
    for number, start in enumerate(range(0, len(seqs), seqs_per_bin)):
        part = seqs[start : start + seqs_per_bin]
        expected = sorted(part, key=lambda seq: len(seq["data"]), reverse=number % 2 == 1)
        assert [seq["seq_tag"] for seq in found[start : start + seqs_per_bin]] == [seq["seq_tag"] for seq in expected]


def test_laplace_ordering_holds_two_bins_at_most():
    read = []
    ordered = LaplaceOrdering(3)({"data": np.zeros(1), "seq_tag": read.append(i)} for i in range(100))
    for _ in range(10):
        next(ordered)
    assert len(read) <= 10 + 2 * 3


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_function_makes_another_stream(opened, num_workers):
    again = [f"seq-{i} again" for i in range(11)]
    for function, tags in [
        (every_other, [f"seq-{2 * i + 1}" for i in range(5)]),
        (twice, [tag for i in range(11) for tag in (f"seq-{i}", again[i])]),
        ([twice, every_other], again),
        (LaplaceOrdering(4), [f"seq-{i}" for i in (3, 1, 0, 2, 4, 7, 6, 5, 10, 8, 9)]),
        (["itertools:chain", {"class": "LaplaceOrdering", "num_seqs_per_bin": 20}], [f"seq-{i}" for i in BY_LENGTH]),
    ]:
        outer = opened(map_seq_stream=function, num_workers=num_workers, buf_size=3)
        for _ in range(2):
            assert [(seq.seq_idx, seq.tag) for seq in outer.epoch(1)] == list(enumerate(tags))
        assert outer.num_seqs == len(tags)
        outer.init_seq_order(epoch=1)
        fracs = [outer.get_complete_frac(i) for i in range(len(tags)) if outer.is_less_than_num_seqs(i)]
        assert fracs == sorted(fracs)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("config", "num_workers", "buf_size"), [(STATIC, 2, 40), (STATIC, 3, 1), (STREAM, 2, 12)])
def test_with_several_workers_each_has_every_nth_sequence_and_they_take_turns(opened, config, num_workers, buf_size):
    expected = [(seq.tag, seq["data"].tolist()) for seq in init_dataset(config).epoch(1)]
    shares = [expected[worker::num_workers] for worker in range(num_workers)]
    doubled = [[row for tag, data in share for row in ((tag, data), (f"{tag} again", data))] for share in shares]
    merged = [share[i] for i in range(max(map(len, doubled))) for share in doubled if i < len(share)]
    outer = opened(config, map_seq_stream=twice, num_workers=num_workers, buf_size=buf_size)
    assert [(seq.tag, seq["data"].tolist()) for seq in outer.epoch(1)] == merged


def test_the_stream_of_one_number_of_workers_is_the_same_each_time_whatever_the_buffer(opened):
    outer = opened(RANDOM, map_seq_stream=noisy_stream, num_workers=2)
    expected = rows(outer.epoch(1))
    next(outer.epoch(2))
    assert rows(outer.epoch(1)) == expected
    assert rows(opened(RANDOM, map_seq_stream=noisy_stream, num_workers=2, buf_size=20).epoch(1)) == expected
    with hr.DataLoader(outer, batching=hr.FixedCount(3)) as loader:
        state = loader.state_dict()
    other = opened(RANDOM, map_seq_stream=noisy_stream, num_workers=1)
    with hr.DataLoader(other, batching=hr.FixedCount(3)) as loader, pytest.raises(HeadraceError, match="order"):
        loader.load_state_dict(state)


@pytest.mark.sample(3)
@pytest.mark.parametrize("config", [STATIC, STREAM, COUNTED])
@pytest.mark.parametrize("function", [every_other, twice, without_last])
def test_who_says_that_the_number_is_kept_and_does_not_keep_it_is_told(opened, config, function):
    options = {"map_seq_stream": function, "map_seq_stream_preserves_num_seqs": True}
    for num_workers in (0, 1) if config is STATIC else (0,):
        outer = opened(config, **options, num_workers=num_workers, buf_size=9)
        outer.init_seq_order(epoch=1)
        for _ in range(2):
            with pytest.raises(TransformError, match="came out of"):
                outer.load_seqs(0, 100)


def test_a_stream_of_nothing_that_is_said_to_stay_so_is_looked_at(opened):
    def from_nothing(iterator):
        yield from iterator
        yield {"data": np.zeros((1, 2), np.float32)}

    outer = opened({**COUNTED, "size": 0}, map_seq_stream=from_nothing, map_seq_stream_preserves_num_seqs=True)
    with pytest.raises(TransformError, match="more than 0 came out of 0"):
        list(outer.epoch(1))
    for num_workers in (0, 1):
        outer = opened({**STREAM, "size": 0}, map_seq_stream=LaplaceOrdering(3), num_workers=num_workers)
        assert list(outer.epoch(1)) == []


def test_a_stream_function_is_ended_with_its_epoch(opened):
    ended = []

    def noted(iterator):
        try:
            yield from iterator
        finally:
            ended.append(1)

    outer = opened(map_seq_stream=noted)
    next(outer.epoch(1))
    outer.init_seq_order(epoch=2)
    assert ended == [1]
    outer.load_seqs(0, 1)
    outer.finish_epoch()
    assert ended == [1, 1]


def test_a_stream_takes_no_order(opened):
    outer = opened(map_seq_stream=twice)
    for given_order in ({"seq_order": [1]}, {"seq_list": ["seq-1"]}):
        with pytest.raises(ConfigError, match="map_seq_stream"):
            outer.init_seq_order(epoch=1, **given_order)
    for ask in (outer.get_all_tags, outer.get_total_num_seqs, outer.get_current_seq_order):
        with pytest.raises(OptionalNotImplementedError):
            ask()


# --- what a function returns ---


def test_map_outputs_say_what_comes_out(opened):
    def lone(data):
        return {"sums": data["data"].sum(axis=1).astype(np.float64)}

    for outputs in ({"sums": {"shape": (None,), "dtype": "float64"}}, {"sums": {"dims": [None], "dtype": "float64"}}):
        outer = opened(map_seq=lone, map_outputs=outputs)
        assert outer.get_data_keys() == ["sums"]
        assert (outer.get_data_dtype("sums"), outer.get_data_shape("sums")) == ("float64", [])
        assert [len(seq["sums"]) for seq in outer.epoch(1)] == LENGTHS
    outer = opened(map_seq=lambda data: data, map_outputs={"classes": {"dim": 10, "sparse": True}})
    assert [list(seq.features) for seq in outer.epoch(1)] == [["classes"]] * 11
    dim = SimpleNamespace(dimension=3)
    outer = opened(map_seq=lone, map_outputs={"sums": {"dims": [SimpleNamespace(dimension=None), dim]}})
    assert outer.get_data_dim("sums") == 3


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda data: None, "NoneType"),
        (lambda data: {"data": data["data"]}, r"data keys \['data'\]"),
        (lambda data: {**data, "more": np.zeros(1)}, "'more'"),
        (lambda data: {**data, "data": data["data"].astype(np.float64)}, "dtype is float64, not float32"),
        (lambda data: {**data, "data": data["data"][:, 0]}, "1 axes"),
        (lambda data: {**data, "data": data["data"][:, :1]}, r"shape \(1,\), not \(2,\)"),
        (lambda data: {**data, "data": data["data"].tolist()}, "list"),
        (lambda data: {**data, "seq_tag": "other"}, "changed the tag 'seq-0' to 'other'"),
        (lambda data: {**data, "complete_frac": 1.5}, "complete_frac is 1.5"),
    ],
)
def test_what_a_function_returns_is_looked_at(opened, function, text):
    outer = opened(map_seq=function)
    with pytest.raises(TransformError, match=text) as caught:
        list(outer.epoch(1))
    assert "seq-0" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    if "tag" not in text:
        stream = opened(map_seq_stream=lambda iterator: map(function, iterator))
        with pytest.raises(TransformError, match=text):
            list(stream.epoch(1))


def stops(data):
    return next(iter([]))


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"map_seq_stream": lambda iterator: reversed(list(iterator))}, TransformError, "complete_frac falls from"),
        ({"map_seq": stops}, TransformError, "StopIteration"),
        ({"map_seq_stream": stops}, RuntimeError, "StopIteration"),
        *(
            ({"map_seq_stream": lambda iterator, result=result: result}, TransformError, "iterator of sequences")
            for result in (None, 3, "text", {"data": 1})
        ),
    ],
)
def test_the_whole_of_what_functions_return_is_looked_at(opened, options, kind, text):
    with pytest.raises(kind, match=text):
        list(opened(**options).epoch(1))


def test_functions_may_return_what_functions_for_returnn_return(opened):
    def as_tensors(data):
        tensors = {key: SimpleNamespace(raw_tensor=np.asarray(value)) for key, value in data.items()}
        return SimpleNamespace(data=tensors)

    expected = rows(init_dataset(STATIC).epoch(1))
    assert rows(opened(map_seq=as_tensors).epoch(1)) == expected
    stream = opened(map_seq_stream=Sequential(lambda iterator: map(as_tensors, iterator), LaplaceOrdering(1)))
    assert [row[4] for row in rows(stream.epoch(1))] == [row[4] for row in expected]


# --- options ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one of map_seq and map_seq_stream"),
        ({"map_seq": told, "map_seq_stream": twice}, "both are"),
        ({"map_seq": told, "seq_ordering": "random"}, "inner dataset"),
        ({"map_seq": told, "partition_epoch": 2}, "inner dataset"),
        ({"map_seq": told, "window": 3}, "window"),
        ({"map_seq": told, "buf_size": 0}, "buf_size"),
        ({"map_seq": told, "num_workers": -1}, "num_workers"),
        ({"map_seq": 3}, "must be a function"),
        ({"map_seq": "no.such:function"}, "cannot import"),
        ({"map_seq": {"class": "Laplace"}}, "LaplaceOrdering"),
        ({"map_seq": told, "map_outputs": {}}, "map_outputs"),
        ({"map_seq": told, "map_outputs": {"seq_tag": {"dim": 1}}}, "seq_tag"),
        ({"map_seq": told, "map_seq_stream_preserves_num_seqs": True}, "map_seq_stream"),
        ({"map_seq_stream": twice, "map_seq_preserves_lengths": True}, "map_seq_preserves_lengths"),
        ({"map_seq_stream": twice, "engine_options": SKIPPING}, "cannot go on"),
        ({"map_seq": told, "nmu_workers": 1}, "nmu_workers"),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(HeadraceError, match=text):
        init_dataset({"class": "PostprocessingDataset", "dataset": STATIC, **options})


def test_data_keys_that_mean_something_else_are_refused(opened):
    with pytest.raises(SourceError, match="seq_tag"):
        opened({**STATIC, "data": [{"data": np.zeros(1), "seq_tag": np.zeros(1)}], "output_dim": None}, map_seq=told)


@pytest.mark.parametrize("config", [STATIC, COUNTED], ids=["static", "counted"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_sequences_that_fail_can_be_left_out(opened, config, num_workers):
    tags = tags_of(init_dataset(config).epoch(1))
    outer = opened(config, map_seq=fails_at_2, num_workers=num_workers, engine_options=SKIPPING)
    assert tags_of(outer.epoch(1)) == tags[:2] + tags[3:]


@pytest.mark.parametrize("on_error", [None, Skipping(budget=0), Skipping(budget=1)])
def test_all_before_a_sequence_that_fails_in_a_worker_are_delivered(opened, on_error):
    calls = []

    def fails_twice(data):
        calls.append(data)
        if len(calls) in (4, 6):
            raise ZeroDivisionError("three or five")
        return data

    options = {} if on_error is None else {"engine_options": EngineOptions(on_error=on_error)}
    seqs = opened(COUNTED, num_workers=1, buf_size=100, map_seq=fails_twice, **options).epoch(1)
    expected = ["t0", "t1", "t2"] + ["t4"] * (on_error == Skipping(budget=1))
    assert [next(seqs).tag for _ in expected] == expected
    with pytest.raises(ZeroDivisionError):
        next(seqs)


# --- inside others, and in the loader ---


@pytest.mark.parametrize("control", ["a", "b"])
def test_sub_datasets_of_a_meta_dataset_may_be_changed(control):
    changed = {"class": "PostprocessingDataset", "dataset": STATIC, "map_seq": add_noise}
    meta = MetaDataset(
        datasets={"a": changed, "b": {**RANDOM, "partition_epoch": 2}},
        data_map={"data": ("a", "data"), "classes": ("b", "classes")},
        seq_order_control_dataset=control,
    )
    by_tag = data_of(init_dataset(changed).epoch(1))
    with meta:
        found = data_of(meta.epoch(1))
    assert len(found) == (11 if control == "a" else 6)
    assert found == {tag: by_tag[tag] for tag in found}


def test_sub_epochs_may_be_changed(tmp_path):
    for name in "abcd":
        (tmp_path / name).write_text("x")

    def sub_dataset(files):
        data = [{"data": np.full((2, 1), ord(file[-1]) + i, np.float32)} for file in files for i in range(3)]
        inner = {"class": "StaticDataset", "data": data}
        return {"class": "PostprocessingDataset", "dataset": inner, "map_seq": lambda data: {"data": -data["data"]}}

    config = {"files": [str(tmp_path / name) for name in "abcd"], "partition_epoch": 2, "executor": "inline"}
    with hr.DistributeFilesDataset(**config, get_sub_epoch_dataset=sub_dataset) as dataset:
        values = [float(seq["data"][0, 0]) for epoch in (1, 2) for seq in dataset.epoch(epoch)]
    assert sorted(values) == sorted(-(ord(name) + i) for name in "abcd" for i in range(3))


@pytest.mark.parametrize(
    "options",
    [
        {"map_seq": add_noise, "map_seq_preserves_lengths": True, "num_workers": 1},
        {"map_seq_stream": noisy_stream, "num_workers": 2},
    ],
)
def test_a_loader_delivers_the_same_with_workers_and_goes_on_where_it_was(opened, options):
    def load(num_workers):
        dataset = opened(RANDOM, **options)
        return hr.DataLoader(dataset, batching=hr.FrameBudget(12), num_workers=num_workers, executor="thread")

    def batches(steps):
        return [(batch.tags, batch["data"].tolist(), batch["classes"].tolist()) for batch in steps]

    with load(0) as loader:
        expected, steps = batches(loader), iter(loader)
        for _ in range(3):
            next(steps)
        state, rest = loader.state_dict(), batches(steps)
    assert sorted(tag for tags, *_ in expected for tag in tags) == sorted(f"seq-{i}" for i in range(11))
    with load(2) as loader:
        assert batches(loader) == expected
    with load(2) as loader:
        loader.load_state_dict(state)
        assert batches(loader) == rest


def test_a_loader_may_shuffle_a_changed_dataset(opened):
    with hr.DataLoader(opened(map_seq=add_noise, num_workers=1), batching=hr.FixedCount(4), shuffle=True) as loader:
        tags = [tag for batch in loader for tag in batch.tags]
    assert sorted(tags) == sorted(f"seq-{i}" for i in range(11))
    assert tags != [f"seq-{i}" for i in range(11)]


def test_what_is_set_after_an_epoch_counts_from_the_next_one_on(opened):
    outer = opened(map_seq=add_noise, num_workers=1)
    before = rows(outer.epoch(1))
    seqs = outer.epoch(1)
    next(seqs)
    outer.seq_ordering = "reverse"
    outer.random_seed_offset = 3
    assert [seq.tag for seq in seqs] == [row[1] for row in before[1:]]
    assert rows(outer.epoch(1)) == rows(
        opened({**STATIC, "seq_ordering": "reverse"}, map_seq=add_noise, random_seed_offset=3).epoch(1)
    )
    parts = [opened(init_dataset(STATIC), map_seq=add_noise, _num_shards=2, _shard_index=shard) for shard in range(2)]
    assert sorted(seq.tag for part in parts for seq in part.epoch(1)) == sorted(row[1] for row in before)
    outer.set_sharding(2, 1)
    assert (outer.num_shards, len(list(outer.epoch(1)))) == (2, 5)


SAMPLED = {**STATIC, "seq_ordering": "random_sample"}
SAMPLED_PARTS = {
    "class": "CombinedDataset",
    "datasets": {"a": SAMPLED, "b": {**SAMPLED, "repeat_epoch": 3}},
    "data_map": {(name, "data"): "data" for name in "ab"},
}


@pytest.mark.parametrize(
    "inner",
    [
        SAMPLED,
        {**SAMPLED, "partition_epoch": 2},
        {**SAMPLED, "repeat_epoch": 2},
        {"class": "MultiEpochDataset", "dataset": SAMPLED, "multi_epoch": 2},
        {"class": "MultiProcDataset", "dataset": SAMPLED, "num_workers": 0, "buffer_size": 3},
        *(
            {**SAMPLED_PARTS, "seq_ordering": ordering, **divided}
            for ordering in ("default", "interleave", "random_sample")
            for divided in ({"partition_epoch": 2}, {"repeat_epoch": 2})
        ),
        {"class": "MultiEpochDataset", "dataset": {**SAMPLED_PARTS, "partition_epoch": 2}, "multi_epoch": 3},
    ],
    ids=lambda inner: "-".join(
        str(inner[key]) for key in inner if key not in ("data", "output_dim", "dataset", "datasets", "data_map")
    ),
)
@pytest.mark.parametrize("epoch", [1, 3, 4])
def test_all_shards_together_draw_what_a_dataset_without_shards_draws(opened, inner, epoch):
    drawn = {}

    def draw(data, rng):
        drawn.setdefault(data["data"].tobytes(), []).append(rng.randint(10**9))
        return data

    def draws(**options):
        drawn.clear()
        tags = [seq.tag for seq in opened(inner, map_seq=draw, **options).epoch(epoch)]
        return tags, {key: list(values) for key, values in drawn.items()}

    tags, whole = draws()
    assert len(set(tags)) < len(tags) or epoch == 4  # there, a second sub-epoch of few sequences may have no repeats
    shards = [draws(_num_shards=2, _shard_index=shard) for shard in range(2)]
    assert sorted(shards[0][0] + shards[1][0]) == sorted(tags)
    both = {key: sorted(shards[0][1].get(key, []) + shards[1][1].get(key, [])) for key in whole}
    assert both == {key: sorted(values) for key, values in whole.items()}
    assert len({value for values in both.values() for value in values}) == len(tags)


def test_the_functions_of_a_loader_get_corpus_indices():
    def index(data, seq_idx):
        assert "complete_frac" not in data
        return {**data, "data": data["data"] * 0 + seq_idx}

    changed = {"class": "PostprocessingDataset", "dataset": RANDOM, "map_seq": index}
    meta = {"class": "MetaDataset", "datasets": {"a": changed}, "data_map": {"data": ("a", "data")}}
    for config in (changed, {**meta, "seq_ordering": "random"}):
        with hr.DataLoader(config, batching=hr.FixedCount(3)) as loader:
            for batch in loader:
                assert [f"seq-{data[0, 0]:.0f}" for data in batch["data"]] == list(batch.tags)
