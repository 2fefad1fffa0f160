"""`MetaDataset`: one order over several datasets, joined by tags."""

import copy
import json
import logging
import os
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meta_cases import DATA_MAP, Counting, in_memory, joined, meta_config, stream, words, write_hdf

from examples_of_laws import examples
from headrace.batching import NumbersDict
from headrace.datasets import CachedDataset, MetaDataset, checks, init_dataset
from headrace.errors import ConfigError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checks, "_remarked", set())


@pytest.fixture
def hdf_files(tmp_path):
    tags = [f"t{i}" for i in range(23)]
    return {
        "features": write_hdf(tmp_path / "features.hdf", [*tags[::-1], "more", "yet more"], 100),
        "alignments": write_hdf(tmp_path / "alignments.hdf", tags),
    }


@pytest.fixture
def hdf_config(hdf_files):
    return meta_config(
        {"class": "HDFDataset", "files": hdf_files["features"]},
        {"class": "HDFDataset", "files": [hdf_files["alignments"]], "seq_ordering": "random", "partition_epoch": 3},
    )


# --- the order, and what is joined to it ---

TAGS = st.lists(st.text("abc", max_size=3), unique=True, max_size=12)
ORDERINGS = st.sampled_from(
    ["default", "reverse", "random", "laplace:2", "sorted", "random_sample", "permute", "default_every_n:2"]
)
SHARDS = st.integers(1, 3).flatmap(lambda num: st.tuples(st.just(num), st.integers(0, num - 1)))


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
@examples(60)
def test_the_stream_is_that_of_the_control_dataset_joined_by_tags(tags, more, random, options, shards, epoch):
    others = [*tags, *(tag for tag in more if tag not in tags)]
    random.shuffle(others)
    control = in_memory(tags, **options)
    config = meta_config(in_memory(others, 100), control, _num_shards=shards[0], _shard_index=shards[1])
    expected = joined(
        {**control, "_num_shards": shards[0], "_shard_index": shards[1]},
        {"features": in_memory(others, 100)},
        {"data": ("features", "data"), "classes": ("control", "classes")},
        epoch,
    )
    dataset = init_dataset(config)
    assert stream(dataset, epoch) == expected
    assert dataset.num_seqs == len(expected)
    assert dataset.partition_epoch == options["partition_epoch"]
    assert list(dataset.get_all_tags()) == tags
    assert dataset.get_total_num_seqs() == len(tags)


@given(TAGS, st.randoms(use_true_random=False), ORDERINGS, st.integers(1, 3), st.integers(1, 3))
@examples(30)
def test_all_sub_epochs_and_shards_together_are_everything_once(tags, random, ordering, num_parts, num_shards):
    if ordering in ("random_sample", "default_every_n:2"):
        return
    others = list(tags)
    random.shuffle(others)
    seen = []
    for shard in range(num_shards):
        own = {"seq_ordering": ordering, "partition_epoch": num_parts}
        dataset = init_dataset(
            meta_config(in_memory(others), in_memory(tags), None, _num_shards=num_shards, _shard_index=shard, **own)
        )
        for epoch in range(num_parts + 1, 2 * num_parts + 1):
            seen += [row[1] for row in stream(dataset, epoch)]
    assert sorted(seen) == sorted(tags)


@given(TAGS, st.randoms(use_true_random=False), ORDERINGS, SHARDS, st.integers(1, 4))
@examples(30)
def test_without_control_the_order_is_its_own_over_the_default_dataset(tags, random, ordering, shards, epoch):
    others = list(tags)
    random.shuffle(others)
    own = {
        "seq_ordering": ordering,
        "partition_epoch": 2,
        "_num_shards": shards[0],
        "_shard_index": shards[1],
        "random_seed_offset": 3,
    }
    expected = [(row[0], row[1]) for row in stream(init_dataset(in_memory(tags, **own)), epoch)]
    dataset = init_dataset(meta_config(in_memory(tags), in_memory(others, 100), None, **own))
    rows = stream(dataset, epoch)
    assert [(row[0], row[1]) for row in rows] == expected
    for row in rows:
        assert row[3] == {
            "data": words([row[1]])[0]["data"].tolist(),
            "classes": words([row[1]], 100)[0]["classes"].tolist(),
        }


def test_what_is_asked_for_is_what_comes(hdf_config):
    dataset = init_dataset(hdf_config)
    tags = ["t5", "t3", "t5"]
    rows = stream(dataset, 1, seq_list=tags)
    assert [row[1] for row in rows] == tags
    assert rows[0][3] == rows[2][3]
    assert rows == stream(dataset, 1, seq_order=[5, 3, 5])
    assert list(dataset.get_current_seq_order()) == [5, 3, 5]
    assert [dataset.get_corpus_seq_idx(place) for place in range(3)] == [5, 3, 5]
    dataset.close()


def test_sequences_can_be_read_in_any_order_where_all_sub_datasets_can(hdf_config):
    dataset = init_dataset(hdf_config)
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
    dataset.close()


def test_the_documented_way_of_reading_gives_the_same(hdf_config):
    dataset = init_dataset(hdf_config)
    for epoch in (1, 2, 3, 1):
        expected = stream(dataset, epoch)
        dataset.init_seq_order(epoch=epoch)
        seq_idx = 0
        while dataset.is_less_than_num_seqs(seq_idx):
            dataset.load_seqs(seq_idx, seq_idx + 3)
            _, tag, frac, features = expected[seq_idx]
            assert dataset.get_tag(seq_idx) == tag
            assert dataset.get_complete_frac(seq_idx) == frac
            lengths = {key: len(value) for key, value in features.items()}
            assert dataset.get_seq_length(seq_idx) == NumbersDict(lengths)
            for key in dataset.get_data_keys():
                assert dataset.get_data_slice(seq_idx, key, 0, 1).tolist() == features[key][:1]
                assert dataset.get_data(seq_idx, key).tolist() == features[key]
            seq_idx += 1
        assert seq_idx == len(expected) == dataset.num_seqs
    with init_dataset(hdf_config["datasets"]["alignments"]) as control:
        assert dataset.get_num_timesteps() == control.get_num_timesteps()
    dataset.close()


def test_the_layout_is_that_of_the_sub_datasets(hdf_config):
    dataset = init_dataset(hdf_config)
    alone = init_dataset(hdf_config["datasets"]["features"])
    assert dataset.get_data_keys() == ["data", "classes"]
    assert dataset.get_target_list() == ["classes"]
    assert dataset.num_inputs == 2
    assert dataset.num_outputs == alone.num_outputs | {"classes": dataset.num_outputs["classes"]}
    for key in ("data", "classes"):
        assert dataset.get_data_dtype(key) == alone.get_data_dtype(key)
        assert dataset.get_data_shape(key) == alone.get_data_shape(key)
        assert dataset.is_data_sparse(key) == alone.is_data_sparse(key) == (key == "classes")
    assert dataset.supports_sharding()
    assert dataset.supports_seq_order_sorting()
    assert dataset.have_seqs()
    dataset.close()
    alone.close()


def test_one_data_key_may_serve_two_names_and_each_gets_its_own_array(hdf_config):
    hdf_config["data_map"] = {"data": ("features", "data"), "copy": ("features", "data")}
    dataset = init_dataset(hdf_config)
    for seq in dataset.epoch(1):
        copied = seq["copy"].copy()
        seq["data"][:] = -1
        assert np.array_equal(seq["copy"], copied)
    dataset.close()


def test_batches_are_made_of_it_as_of_any_dataset(hdf_config):
    dataset = init_dataset({**hdf_config, "chunking": "3:2"})
    dataset.init_seq_order(1)
    batches = dataset.generate_batches(batch_size=20, max_seqs=4, recurrent_net=True, used_data_keys=["data"])
    places = []
    while batches.has_more():
        (batch,) = batches.peek_next_n(1)
        batches.advance(1)
        places += [part.seq_idx for part in batch.seqs]
    assert sorted(set(places)) == list(range(dataset.num_seqs))
    dataset.close()


def test_control_need_not_be_in_the_data_map_and_what_is_not_needed_is_not_opened():
    config = meta_config(in_memory(["a", "b", "c"]), in_memory(["c", "b", "a"], seq_ordering="reverse"))
    config["data_map"] = {"x": ("features", "data")}
    config["datasets"]["never"] = {"class": "HDFDataset", "files": "no such file"}
    dataset = init_dataset(config)
    assert [row[1] for row in stream(dataset, 1)] == ["a", "b", "c"]
    assert dataset.get_data_keys() == ["x"]


def test_empty_corpora_and_sub_epochs_are_legal():
    dataset = init_dataset(meta_config(in_memory(["a", "b"]), in_memory([])))
    assert stream(dataset, 1) == []
    dataset = init_dataset(meta_config(in_memory(["b", "a"]), in_memory(["a", "b"], partition_epoch=3)))
    assert [[row[1] for row in stream(dataset, epoch)] for epoch in (1, 2, 3)] == [["a"], ["b"], []]
    assert dataset.get_num_timesteps() == NumbersDict(0)


# --- options ---


def test_options_of_the_order_belong_to_the_control_dataset(caplog):
    features, alignments = in_memory(list("abcd")), in_memory(list("dcba"), seq_ordering="reverse", partition_epoch=2)
    dataset = init_dataset(meta_config(features, alignments, seq_ordering="sorted", partition_epoch=5))
    assert dataset.seq_ordering == "reverse"
    assert [row[1] for row in stream(dataset, 1)] == ["a", "b"]
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["seq_ordering='sorted'" in text for text in texts] == [True, False]
    assert ["partition_epoch=5" in text for text in texts] == [False, True]
    stream(dataset, 2)
    assert len(caplog.records) == len(texts)  # once
    dataset.seq_ordering = "default"
    dataset.partition_epoch = 1
    assert [row[1] for row in stream(dataset, 1)] == list("dcba")


def test_an_ordering_of_the_default_dataset_that_has_no_effect_is_said(caplog):
    dataset = init_dataset(meta_config(in_memory(list("ab"), seq_ordering="reverse"), in_memory(list("ba")), None))
    assert [row[1] for row in stream(dataset, 1)] == ["a", "b"]
    assert "did you mean seq_order_control_dataset='features'?" in caplog.text


def test_a_filter_keeps_sub_epochs_even_with_and_without_control(tmp_path):
    tags = [f"t{i}" for i in range(10)]
    path = tmp_path / "wanted.txt"
    path.write_text("t9\nt1\nt5\nt3\n")
    for control in ("alignments", None):
        extra = {"partition_epoch": 2, "seq_ordering": "reverse"}
        own, alignments = (extra, {}) if control is None else ({}, extra)
        config = meta_config(
            in_memory(tags), in_memory(tags, **alignments), control, seq_list_filter_file=str(path), **own
        )
        dataset = init_dataset(config)
        assert [[row[1] for row in stream(dataset, epoch)] for epoch in (1, 2)] == [["t9", "t5"], ["t3", "t1"]]
        assert sorted(dataset.get_all_tags()) == ["t1", "t3", "t5", "t9"]
        assert dataset.get_total_num_seqs() == 4
        assert stream(copy.deepcopy(dataset), 2) == stream(dataset, 2)


def test_only_what_the_filter_keeps_must_be_in_all_sub_datasets(tmp_path):
    path = tmp_path / "wanted.txt"
    path.write_text("a\nc\n")
    config = meta_config(in_memory(["c", "a"]), in_memory(["a", "b", "c"]), seq_list_filter_file=path)
    assert [row[1] for row in stream(init_dataset(config), 1)] == ["a", "c"]


def test_unique_tags_and_repeats_work_as_for_other_datasets():
    tags = ["a", "b", "a", "c"]
    for own in ({"unique_seq_tags": True}, {"repeat_epoch": 2}, {"seq_ordering": "random", "fixed_random_seed": 3}):
        expected = [row[1] for row in stream(init_dataset(in_memory(tags, **own)), 2)]
        controlled = init_dataset(meta_config(in_memory(["c", "b", "a"]), in_memory(tags, **own)))
        alone = init_dataset({**meta_config(in_memory(tags), in_memory(["c", "b", "a"]), None), **own})
        assert [row[1] for row in stream(controlled, 2)] == [row[1] for row in stream(alone, 2)] == expected


def test_sharding_can_be_set_later(hdf_config):
    alone = {**hdf_config, "seq_order_control_dataset": None, "data_map": {"data": ("alignments", "data")}}
    for config in (hdf_config, alone):
        dataset = init_dataset(config)
        whole = [row[1] for row in stream(dataset, 1)]
        parts = []
        for shard in range(2):
            dataset.set_sharding(2, shard)
            assert (dataset.num_shards, dataset.shard_index) == (2, shard)
            parts += [row[1] for row in stream(dataset, 1)]
            assert stream(pickle.loads(pickle.dumps(dataset)), 1) == stream(dataset, 1)
        assert parts == whole
        dataset.close()


def test_lengths_come_from_a_file_if_there_is_one(tmp_path):
    tags = list("abcd")
    key_lengths, lengths = tmp_path / "lens.json", tmp_path / "lens.txt"
    key_lengths.write_text(json.dumps({tag: {"data": 9 - i, "classes": 1} for i, tag in enumerate(tags)}))
    lengths.write_text(repr(dict(zip(tags, (3, 1, 4, 2), strict=True))))
    config = meta_config(in_memory(tags), in_memory(tags), None, seq_ordering="sorted", seq_lens_file=key_lengths)
    dataset = init_dataset(config)
    assert [row[1] for row in stream(dataset, 1)] == list("dcba")
    assert dataset.get_estimated_seq_length(0) == 6
    dataset = init_dataset({**config, "seq_order_seq_lens_file": lengths})
    assert [row[1] for row in stream(dataset, 1)] == list("bdac")
    assert dataset.get_estimated_seq_length(0) == 1
    assert dataset.get_seq_length(0) == init_dataset(in_memory(["b"])).get_corpus_seq(0).num_frames
    controlled = in_memory(tags, seq_ordering="sorted", seq_order_seq_lens_file=str(lengths))
    dataset = init_dataset(meta_config(in_memory(tags), controlled))
    assert [row[1] for row in stream(dataset, 1)] == list("bdac")
    assert [dataset.get_estimated_seq_length(place) for place in range(4)] == [1, 2, 3, 4]


def test_an_order_may_be_given_without_an_epoch():
    dataset = init_dataset(meta_config(in_memory(["a", "b"]), in_memory(["b", "a"])))
    dataset.init_seq_order(seq_list=["a"])
    assert [seq.tag for seq in dataset.iterate_epoch()] == ["a"]
    assert dataset.get_data(0, "classes").tolist() == words(["a"])[0]["classes"].tolist()


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
    rows = stream(dataset, 1)
    assert [row[1] for row in rows] == ["b", "a"]
    assert sources[0].reads == [(1, "data"), (0, "data")]
    assert sources[1].reads == [(0, "classes"), (1, "classes")]
    dataset.init_seq_order(1)
    dataset.get_data(0, "data")
    assert [source.reads[2:] for source in sources] == [[(1, "data")], []]
    dataset.load_seqs(0, 2)
    assert sources[0].reads[3:] == [(1, "data"), (0, "data")]


# --- copies, ends ---


def test_copies_work_from_another_folder(hdf_files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tags.txt").write_text("t3\nt1\n")
    config = meta_config(
        {"class": "HDFDataset", "files": "features.hdf"},
        {"class": "HDFDataset", "files": ("alignments.hdf",)},
        None,
        seq_list_file="tags.txt",
        seq_ordering="reverse",
    )
    dataset = init_dataset(config)
    rows = stream(dataset, 1)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert int(other.epoch) == 1
        assert stream(other, 1) == rows
        other.close()
    dataset.close()


def test_closing_leaves_no_file_open_and_all_comes_back(hdf_config, tmp_path):
    def descriptors():
        links = []
        for entry in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{entry}"))
            except FileNotFoundError:
                continue
        return [link for link in links if link.startswith(str(tmp_path)) and link.endswith(".hdf")]

    before = set(threading.enumerate())
    dataset = init_dataset(hdf_config)
    rows = stream(dataset, 1)
    assert len(descriptors()) >= 2
    dataset.finish_epoch()
    assert dataset.num_seqs == len(rows)
    dataset.close()
    dataset.close()
    assert descriptors() == []
    assert stream(dataset, 1) == rows
    with dataset:
        pass
    assert descriptors() == []
    assert set(threading.enumerate()) <= before


def test_without_an_epoch_it_holds_no_sequences(hdf_config):
    dataset = init_dataset(hdf_config)
    assert dataset.num_seqs == 0
    assert not dataset.is_less_than_num_seqs(0)
    with pytest.raises(IndexError, match="has init_seq_order"):
        dataset.get_seq(0)
    stream(dataset, 1)
    dataset.init_seq_order()
    assert list(dataset.get_current_seq_order()) == []
    dataset.close()


def test_the_documented_multimodal_example_works(hdf_files):
    def get_sub_epoch_dataset(files_subepoch):
        alignments, features = tuple(zip(*files_subepoch, strict=True))
        return {
            "class": "MetaDataset",
            "data_map": {"classes": ("alignments", "classes"), "data": ("features", "data")},
            "datasets": {
                "alignments": {"class": "HDFDataset", "files": alignments, "seq_ordering": "random"},
                "features": {"class": "HDFDataset", "files": features},
            },
            "seq_order_control_dataset": "alignments",
        }

    dataset = init_dataset(get_sub_epoch_dataset([(hdf_files["alignments"], hdf_files["features"])]))
    alone = init_dataset({"class": "HDFDataset", "files": (hdf_files["alignments"],), "seq_ordering": "random"})
    assert [row[1] for row in stream(dataset, 1)] == [row[1] for row in stream(alone, 1)]
    dataset.close()
    alone.close()
