"""`MetaDataset`: one order over several datasets of any class, joined by tags."""

import copy
import itertools
import json
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meta_cases import DATA_MAP, Streamed, StreamedAndKnown, in_memory, meta_config, stream, tags_of, words

from examples_of_laws import examples
from headrace.batching import NumbersDict
from headrace.datasets import CachedDataset, HDFDataset, MetaDataset, MultiProcDataset, init_dataset
from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.sources import HDFWriter, MemorySource

pytestmark = pytest.mark.usefixtures("warm_workers", "own_cache")


def write_hdf(path, tags, value=0):
    with HDFWriter(path, labels={"classes": [str(number) for number in range(999)]}) as writer:
        for tag, seq in zip(tags, words(tags, value), strict=True):
            writer.append(tag, seq)
    return str(path)


@pytest.fixture
def hdf_config(tmp_path):
    tags = [f"t{i}" for i in range(23)]
    features = write_hdf(tmp_path / "features.hdf", [*tags[::-1], "more", "yet more"], 100)
    alignments = write_hdf(tmp_path / "alignments.hdf", tags)
    return meta_config(
        {"class": "HDFDataset", "files": (features,)},
        {"class": "HDFDataset", "files": alignments, "seq_ordering": "random", "partition_epoch": 3},
    )


def add_noise(features, rng):
    return {**features, "data": features["data"] + rng.normal(size=features["data"].shape).astype(np.float32)}


# --- the order, and what is joined to it ---

TAGS = st.lists(st.text("abc", max_size=3), unique=True, max_size=12)
ORDERINGS = st.sampled_from(
    ["default", "reverse", "random", "laplace:2", "sorted", "random_sample", "permute", "default_every_n:2"]
)
SHARDS = st.integers(1, 3).flatmap(lambda num: st.tuples(st.just(num), st.integers(0, num - 1)))


@pytest.mark.parametrize("control", ["alignments", "features", None])
@given(
    TAGS,
    TAGS,
    st.randoms(use_true_random=False),
    st.fixed_dictionaries(
        {"seq_ordering": ORDERINGS, "partition_epoch": st.integers(1, 3), "random_seed_offset": st.integers(0, 5)}
    ),
    SHARDS,
    st.integers(1, 7),
)
@examples(40)
def test_the_stream_is_that_of_the_control_dataset_joined_by_tags(control, tags, more, random, options, shards, epoch):
    others = [*tags, *(tag for tag in more if tag not in tags)]
    random.shuffle(others)
    parts = [in_memory(others), in_memory(tags, 100, **options)]
    if control != "alignments":  # "features" is the default dataset: the order is its own, or one over it
        parts = [in_memory(tags, **(options if control else {})), in_memory(others, 100)]
    dataset = init_dataset(meta_config(*parts, control, **({} if control else options)))
    dataset.set_sharding(*shards)
    alone = init_dataset(in_memory(tags, **options))
    alone.set_sharding(*shards)
    rows, expected = stream(dataset, epoch), stream(alone, epoch)
    assert [row[:3] for row in rows] == [row[:3] for row in expected]
    for _, tag, _, features in rows:
        assert features["data"] == words([tag])[0]["data"].tolist()
        assert features["classes"] == words([tag], 100)[0]["classes"].tolist()
    assert (dataset.num_seqs, dataset.partition_epoch) == (len(expected), options["partition_epoch"])
    assert (list(dataset.get_all_tags()), dataset.get_total_num_seqs()) == (tags, len(tags))


@pytest.mark.parametrize(
    "own", [{"unique_seq_tags": True}, {"repeat_epoch": 2}, {"seq_ordering": "random", "fixed_random_seed": 3}]
)
def test_unique_tags_and_repeats_work_as_for_other_datasets(own):
    tags = ["a", "b", "a", "c"]
    expected = tags_of(init_dataset(in_memory(tags, **own)), 2)
    controlled = init_dataset(meta_config(in_memory(["c", "b", "a"]), in_memory(tags, **own)))
    alone = init_dataset({**meta_config(in_memory(tags), in_memory(["c", "b", "a"]), None), **own})
    assert tags_of(controlled, 2) == tags_of(alone, 2) == expected


def test_what_is_asked_for_is_what_comes_and_may_be_read_in_any_order(hdf_config):
    with init_dataset(hdf_config) as dataset:
        assert (dataset.num_seqs, dataset.is_less_than_num_seqs(0)) == (0, False)
        with pytest.raises(IndexError, match="has init_seq_order"):
            dataset.get_seq(0)
        tags = ["t5", "t3", "t5"]
        rows = stream(dataset, 1, seq_list=tags)
        assert [row[1] for row in rows] == tags
        assert rows[0][3] == rows[2][3]
        assert rows == stream(dataset, 1, seq_order=[5, 3, 5]) == stream(dataset, None, seq_list=tags)
        assert list(dataset.get_current_seq_order()) == [dataset.get_corpus_seq_idx(i) for i in range(3)] == [5, 3, 5]
        expected = stream(dataset, 2)
        dataset.init_seq_order(2)
        for place in (6, 0, 3, 3):
            assert dataset.get_seq(place).tag == expected[place][1]
            assert dataset.get_data(place, "classes").tolist() == expected[place][3]["classes"]
        seq = dataset.get_corpus_seq(4)
        assert (seq.seq_tag, seq.corpus_idx) == ("t4", 4)
        assert seq["data"].tolist() == words(["t4"], 100)[0]["data"].tolist()
        with pytest.raises(IndexError, match="outside an epoch of 8"):
            dataset.get_data(8, "data")
        with pytest.raises(ConfigError, match="no data key 'dat'"):
            dataset.get_data(0, "dat")
        dataset.init_seq_order()
        assert list(dataset.get_current_seq_order()) == []


def test_the_documented_way_of_reading_gives_the_same(hdf_config):
    with init_dataset(hdf_config) as dataset, init_dataset(hdf_config["datasets"]["alignments"]) as control:
        for epoch in (1, 2, 3, 1):
            expected = stream(dataset, epoch)
            dataset.init_seq_order(epoch=epoch)
            seq_idx = 0
            while dataset.is_less_than_num_seqs(seq_idx):
                dataset.load_seqs(seq_idx, seq_idx + 3)
                _, tag, frac, features = expected[seq_idx]
                assert (dataset.get_tag(seq_idx), dataset.get_complete_frac(seq_idx)) == (tag, frac)
                lengths = {key: len(value) for key, value in features.items()}
                assert dataset.get_seq_length(seq_idx) == NumbersDict(lengths)
                for key in dataset.get_data_keys():
                    assert dataset.get_data_slice(seq_idx, key, 0, 1).tolist() == features[key][:1]
                    assert dataset.get_data(seq_idx, key).tolist() == features[key]
                seq_idx += 1
            assert seq_idx == len(expected) == dataset.num_seqs
        tags_of(control)
        assert dataset.get_num_timesteps() == control.get_num_timesteps()


def test_the_layout_is_that_of_the_sub_datasets_and_each_data_key_gets_its_own_array(hdf_config):
    hdf_config["data_map"] = {**DATA_MAP, "copy": ("features", "data")}
    with init_dataset(hdf_config) as dataset, init_dataset(hdf_config["datasets"]["features"]) as alone:
        assert dataset.get_data_keys() == ["data", "classes", "copy"]
        assert dataset.get_target_list() == ["classes", "copy"]
        assert dataset.num_inputs == 2
        assert dataset.num_outputs == {**alone.num_outputs, "copy": (2, 2)}
        for key in ("data", "classes"):
            for name in ("get_data_dtype", "get_data_shape", "is_data_sparse"):
                assert getattr(dataset, name)(key) == getattr(alone, name)(key)
        assert dataset.supports_sharding()
        assert dataset.supports_seq_order_sorting()
        assert dataset.have_seqs()
        for seq in dataset.epoch(1):
            copied = seq["copy"].copy()
            seq["data"][:] = -1
            assert np.array_equal(seq["copy"], copied)


def test_control_need_not_be_in_the_data_map_and_what_is_not_needed_is_not_opened():
    config = meta_config(in_memory(["a", "b", "c"]), in_memory(["c", "b", "a"], seq_ordering="reverse"))
    config["data_map"] = {"x": ("features", "data")}
    config["datasets"]["never"] = {"class": "HDFDataset", "files": "no such file"}
    dataset = init_dataset(config)
    assert tags_of(dataset) == ["a", "b", "c"]
    assert dataset.get_data_keys() == ["x"]


def test_empty_corpora_and_sub_epochs_are_legal():
    assert tags_of(init_dataset(meta_config(in_memory(["a", "b"]), in_memory([])))) == []
    dataset = init_dataset(meta_config(in_memory(["b", "a"]), in_memory(["a", "b"], partition_epoch=3)))
    assert [tags_of(dataset, epoch) for epoch in (1, 2, 3)] == [["a"], ["b"], []]
    assert dataset.get_num_timesteps() == NumbersDict(0)


class Counting(MemorySource):
    def __init__(self, tags):
        super().__init__(words(tags), tags=tags)
        self.reads = []

    def read(self, corpus_idx, data_key):
        self.reads.append((corpus_idx, data_key))
        return super().read(corpus_idx, data_key)


def test_only_the_data_keys_that_are_wanted_are_read_and_nothing_for_the_order():
    sources = Counting(["a", "b"]), Counting(["b", "a"])
    features, alignments = (CachedDataset(source=source) for source in sources)
    dataset = MetaDataset({"features": features, "alignments": alignments}, DATA_MAP, None, "alignments")
    dataset.initialize()
    dataset.init_seq_order(1)
    list(dataset.get_current_seq_order())
    dataset.get_seq_length(0)
    dataset.get_num_timesteps()
    dataset.get_all_tags()
    assert [source.reads for source in sources] == [[], []]
    assert tags_of(dataset) == ["b", "a"]
    assert sources[0].reads == [(1, "data"), (0, "data")]
    assert sources[1].reads == [(0, "classes"), (1, "classes")]
    dataset.init_seq_order(1)
    dataset.get_data(0, "data")
    assert [source.reads[2:] for source in sources] == [[(1, "data")], []]
    dataset.load_seqs(0, 2)
    assert sources[0].reads[3:] == [(1, "data"), (0, "data")]


# --- options ---


def test_options_of_the_order_belong_to_the_control_dataset(caplog):
    features, alignments = in_memory(list("abcd")), in_memory(list("dcba"), seq_ordering="reverse", partition_epoch=2)
    dataset = init_dataset(meta_config(features, alignments, seq_ordering="sorted", partition_epoch=5))
    assert dataset.seq_ordering == "reverse"
    assert tags_of(dataset) == ["a", "b"]
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["seq_ordering='sorted'" in text for text in texts] == [True, False]
    assert ["partition_epoch=5" in text for text in texts] == [False, True]
    tags_of(dataset, 2)
    assert len(caplog.records) == len(texts)  # once
    dataset.seq_ordering = "default"
    dataset.partition_epoch = 1
    assert tags_of(dataset) == list("dcba")
    dataset = init_dataset(meta_config(in_memory(list("ab"), seq_ordering="reverse"), in_memory(list("ba")), None))
    assert tags_of(dataset) == ["a", "b"]
    assert "did you mean seq_order_control_dataset='features'?" in caplog.text


@pytest.mark.parametrize("control", ["alignments", None])
def test_a_filter_keeps_sub_epochs_even_and_only_what_it_keeps_must_be_in_all_sub_datasets(control, tmp_path):
    path, tags = tmp_path / "wanted.txt", [f"t{i}" for i in range(10)]
    path.write_text("t9\nt1\nt5\nt3\n")
    extra = {"partition_epoch": 2, "seq_ordering": "reverse"}
    few, many = in_memory(["t3", "t1", "t5", "t9"]), in_memory(tags, **(extra if control else {}))
    own = {} if control else extra
    parts = (few, many) if control else (many, few)
    dataset = init_dataset(meta_config(*parts, control, seq_list_filter_file=str(path), **own))
    assert [tags_of(dataset, epoch) for epoch in (1, 2)] == [["t9", "t5"], ["t3", "t1"]]
    assert sorted(dataset.get_all_tags()) == ["t1", "t3", "t5", "t9"]
    assert dataset.get_total_num_seqs() == 4
    assert stream(copy.deepcopy(dataset), 2) == stream(dataset, 2)


def test_lengths_come_from_a_file_if_there_is_one(tmp_path):
    tags = list("abcd")
    key_lengths, lengths = tmp_path / "lens.json", tmp_path / "lens.txt"
    key_lengths.write_text(json.dumps({tag: {"data": 9 - i, "classes": 1} for i, tag in enumerate(tags)}))
    lengths.write_text(repr(dict(zip(tags, (3, 1, 4, 2), strict=True))))
    config = meta_config(in_memory(tags), in_memory(tags), None, seq_ordering="sorted", seq_lens_file=key_lengths)
    dataset = init_dataset(config)
    assert (tags_of(dataset), dataset.get_estimated_seq_length(0)) == (list("dcba"), 6)
    dataset = init_dataset({**config, "seq_order_seq_lens_file": lengths})
    assert (tags_of(dataset), dataset.get_estimated_seq_length(0)) == (list("bdac"), 1)
    assert dataset.get_seq_length(0) == init_dataset(in_memory(["b"])).get_corpus_seq(0).num_frames
    controlled = in_memory(tags, seq_ordering="sorted", seq_order_seq_lens_file=str(lengths))
    dataset = init_dataset(meta_config(in_memory(tags), controlled))
    assert tags_of(dataset) == list("bdac")
    assert [dataset.get_estimated_seq_length(place) for place in range(4)] == [1, 2, 3, 4]


# --- sub-datasets of every class ---


class Deaf(Streamed):
    """A stream that delivers what it likes."""

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        return super().init_seq_order(epoch)


SEQS = [f"seq-{i}" for i in range(7)]
SUB_DATASETS = {
    "hdf": lambda folder: {"class": "HDFDataset", "files": write_hdf(folder / "any.hdf", SEQS)},
    "static": lambda _: {"class": "StaticDataset", "data": words(SEQS)},
    "map": lambda _: in_memory(SEQS),
    "workers": lambda _: {"class": "MultiProcDataset", "dataset": in_memory(SEQS), "num_workers": 1, "buffer_size": 8},
    "nested": lambda _: meta_config(in_memory(SEQS, 3), in_memory(SEQS[::-1])),
    "combined": lambda _: {
        "class": "CombinedDataset",
        "datasets": {"x": in_memory(SEQS[:3]), "y": in_memory(SEQS[3:])},
        "data_map": {(name, key): key for name in "xy" for key in ("data", "classes")},
        "seq_ordering": "interleave",
    },
    "streamed": lambda _: {"class": StreamedAndKnown, "tags": SEQS},
    "unknown": lambda _: {"class": Streamed, "tags": []},
}


@pytest.mark.parametrize("kind", SUB_DATASETS)
@pytest.mark.parametrize("role", ["control", "other"])
def test_a_sub_dataset_may_be_of_any_class(tmp_path, kind, role):
    config = SUB_DATASETS[kind](tmp_path)
    control = config if role == "control" else in_memory(SEQS, seq_ordering="random")
    other = in_memory([*SEQS, "seq-7", "seq-8"][::-1], 9) if role == "control" else config
    dataset = init_dataset(meta_config(other, control))
    if role == "control" and kind == "unknown":
        with pytest.raises(ConfigError, match=r"(?s)does not tell its tags.*seq_order_control_dataset"):
            dataset.init_seq_order(1)
        return
    rows = stream(dataset, 2)
    assert sorted(row[1] for row in rows) == sorted(dataset.get_all_tags())
    alone = init_dataset(config)
    alone.init_seq_order(2, seq_list=[row[1] for row in rows])
    key = "classes" if role == "control" else "data"
    assert [row[3][key] for row in rows] == [seq[key].tolist() for seq in alone.iterate_epoch()]
    if role == "control":
        assert [row[3]["data"] for row in rows] == [words([row[1]], 9)[0]["data"].tolist() for row in rows]
    alone.close()
    dataset.close()
    assert stream(dataset, 2) == rows  # what was released comes back
    dataset.close()


@pytest.mark.parametrize(
    ("tags", "what"),
    [
        (SEQS[::-1], r"(?s)asked for the tag 'seq-0', and delivers 'seq-6'.*seq_list"),
        (SEQS[:3], "ends after 3 of 7 sequences"),
    ],
)
def test_a_sub_dataset_that_delivers_something_else_is_found_out(tags, what):
    dataset = init_dataset(meta_config({"class": Deaf, "tags": tags}, in_memory(SEQS)))
    with pytest.raises(SourceError, match=what):
        tags_of(dataset)


def test_a_data_set_object_that_has_grown_may_be_given_and_what_it_becomes_later_does_not_matter(tmp_path):
    control = HDFDataset(write_hdf(tmp_path / "a.hdf", ["a"]))
    control.add_file(write_hdf(tmp_path / "more.hdf", ["b"]))
    with MetaDataset({"x": control, "y": in_memory(["c", "b", "a"])}, {"data": ("y", "data")}, None, "x") as dataset:
        dataset.initialize()
        assert tags_of(dataset) == ["a", "b"]
        control.add_file(write_hdf(tmp_path / "b.hdf", ["c"]))
        assert tags_of(dataset) == ["a", "b"]


# --- in workers ---


@pytest.mark.sample(5)
@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
@pytest.mark.parametrize(
    ("control", "own", "other"),
    [
        ("alignments", {"seq_ordering": "laplace:2", "partition_epoch": 2}, {}),
        ("alignments", {"seq_ordering": "random_sample"}, {"transform": add_noise}),
        (None, {"seq_ordering": "random_sample"}, {"transform": add_noise}),
        ("alignments", {"repeat_epoch": 2, "transform": add_noise}, {}),
        (None, {"repeat_epoch": 3}, {"transform": add_noise, "window": 3}),
    ],
)
def test_workers_do_not_change_the_stream(executor, control, own, other):
    tags = [f"t{i}" for i in range(17)]
    alignments, options = (in_memory(tags, **own), {}) if control else (in_memory(tags), own)
    config = meta_config(in_memory(tags[::-1], 5, **other), alignments, control, **options)
    inner = init_dataset(config)
    with MultiProcDataset(config, num_workers=2, buffer_size=9, executor=executor) as outer:
        outer.initialize()
        for epoch in (1, 2, 1):
            assert stream(outer, epoch) == stream(inner, epoch)
            assert list(outer.get_current_seq_order()) == list(inner.get_current_seq_order())


def test_frames_are_shuffled_in_groups_of_the_order():
    seqs = [{"data": np.arange(10 * i, 10 * i + i % 3 * 2 + 2, dtype=np.float32)} for i in range(11)]
    shuffled = {"class": "StaticDataset", "data": seqs, "shuffle_frames_of_nseqs": 3}
    config = meta_config(shuffled, in_memory([f"seq-{i}" for i in range(11)][::-1]))
    dataset = init_dataset({**config, "data_map": {"data": ("features", "data")}})
    assert dataset.shuffle_frames_of_nseqs == 3
    rows = [row[3]["data"] for row in stream(dataset, 1)]
    plain = [seq["data"].tolist() for seq in seqs[::-1]]
    assert rows != plain
    for first in range(0, len(rows), 3):
        groups = (each[first : first + 3] for each in (rows, plain))
        assert len({str(sorted(itertools.chain(*group))) for group in groups}) == 1
    with MultiProcDataset(dataset, num_workers=2, buffer_size=8, executor="thread") as outer:
        outer.initialize()
        assert [row[3]["data"] for row in stream(outer, 1)] == rows


@pytest.mark.parametrize("control", [None, "alignments"])
def test_repeated_sequences_draw_anew_and_the_same_each_time(control):
    tags, repeat = ["a", "b", "c"], {"repeat_epoch": 3}
    alignments, own = (in_memory(tags, **repeat), {}) if control else (in_memory(tags), repeat)
    dataset = init_dataset(meta_config(in_memory(tags, transform=add_noise), alignments, control, **own))
    rows = stream(dataset, 1)
    assert len({str(row[3]["data"]) for row in rows}) == 9
    assert stream(dataset, 1) == rows != stream(dataset, 2)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_dedicated_workers_deliver_each_sequence_once(executor):
    tags = [f"t{i}" for i in range(11)]
    config = meta_config(in_memory(tags), in_memory(tags[::-1], seq_ordering="random"))
    options = {"num_workers": 3, "buffer_size": 4, "sharding_method": "dedicated", "executor": executor}
    with MultiProcDataset(config, **options) as outer:
        outer.initialize()
        rows = stream(outer, 1)
        assert sorted(row[1] for row in rows) == sorted(tags)
        assert all(row[3]["data"] == words([row[1]])[0]["data"].tolist() for row in rows)


def test_errors_of_the_tags_reach_the_trainer_before_a_worker_starts():
    with MultiProcDataset(meta_config(in_memory(["a"]), in_memory(["a", "b"])), num_workers=2, buffer_size=4) as outer:
        outer.initialize()
        with pytest.raises(HeadraceError, match="no tag 'b'"):
            outer.init_seq_order(1)
        assert outer.engine_report is None
