"""Our `MetaDataset` against RETURNN's, where it is installed: same options, same answers, over random corpora."""

import json
import warnings

import numpy as np
import pytest

from headrace.datasets import init_dataset
from headrace.sources import HDFWriter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer_init_dataset = pytest.importorskip("returnn.datasets.basic").init_dataset

pytestmark = pytest.mark.filterwarnings("ignore")

DATA_MAP = {"data": ("a", "data"), "classes": ("b", "classes"), "other": ("b", "data"), "again": ("a", "data")}
ORDERS = [
    {},
    {"seq_ordering": "reverse"},
    {"seq_ordering": "random", "partition_epoch": 3},
    {"seq_ordering": "random:2", "random_seed_offset": 7},
    {"seq_ordering": "random", "fixed_random_seed": 4},
    {"seq_ordering": "laplace:3", "partition_epoch": 2},
    {"seq_ordering": "laplace:.4"},
    {"seq_ordering": "sorted", "repeat_epoch": 2},
    {"seq_ordering": "sorted_reverse"},
    {"seq_ordering": "sort_bin_shuffle:3"},
    {"seq_ordering": "sort_bin_shuffle_x2:3", "partition_epoch": 4},
    {"seq_ordering": "random_sample"},
    {"seq_ordering": "default_every_n:3"},
]
SHARDS = [{}, {"_num_shards": 3, "_shard_index": 2}]


def write_corpus(path, tags, rng):
    with HDFWriter(path, labels={"classes": [str(number) for number in range(9)]}) as writer:
        for tag in tags:
            frames = int(rng.integers(1, 12))
            data = rng.normal(size=(frames, 3)).astype("float32")
            writer.append(tag, {"data": data, "classes": rng.integers(0, 9, int(rng.integers(1, 5))).astype("int32")})
    return {"class": "HDFDataset", "files": [str(path)], "cache_byte_size": 0}


@pytest.fixture(params=[1, 3])
def corpora(request, tmp_path, monkeypatch):
    """Make two corpora in different orders, the second with more sequences; and lists of a third, tagged otherwise."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(request.param)
    tags = [f"rec/{number}" for number in rng.permutation(int(rng.integers(4, 40)))]
    others = [*rng.permutation([*tags, "more", "yet more"][: len(tags) + request.param % 3])]
    lines = [f"line-{number}" for number in range(len(tags))]
    (tmp_path / "a.txt").write_text("\n".join(tags))
    (tmp_path / "b.txt").write_text("\n".join(lines))
    (tmp_path / "lens.json").write_text(json.dumps({tag: {"data": int(rng.integers(0, 9))} for tag in tags}))
    return {
        "a": write_corpus(tmp_path / "a.hdf", tags, rng),
        "b": write_corpus(tmp_path / "b.hdf", [str(tag) for tag in others], rng),
        "lines": write_corpus(tmp_path / "lines.hdf", [str(tag) for tag in rng.permutation(lines)], rng),
        "lists": {"a": str(tmp_path / "a.txt"), "b": str(tmp_path / "b.txt")},
        "lens": str(tmp_path / "lens.json"),
        "tags": tags,
    }


def read_all(dataset, epoch, fracs, **order):
    dataset.init_seq_order(epoch=epoch, **order)
    seqs, i = [], 0
    while dataset.is_less_than_num_seqs(i):
        dataset.load_seqs(i, i + 1)
        lengths = dataset.get_seq_length(i)
        seqs.append(
            (
                dataset.get_tag(i),
                dataset.get_complete_frac(i) if fracs else None,
                {key: int(lengths[key]) for key in DATA_MAP},
                {key: np.array(dataset.get_data(i, key)) for key in DATA_MAP},
            )
        )
        i += 1
    assert dataset.num_seqs == i
    return seqs, [int(corpus_idx) for corpus_idx in dataset.get_current_seq_order()]


def same(config, epochs=(1, 2, 5), fracs=True, **order):
    ours, theirs = init_dataset(config), peer_init_dataset(config)
    assert set(ours.get_data_keys()) == set(theirs.get_data_keys())
    assert set(ours.get_target_list()) == set(theirs.get_target_list())
    for key in DATA_MAP:
        assert ours.get_data_dtype(key) == theirs.get_data_dtype(key)
        assert ours.get_data_dim(key) == theirs.get_data_dim(key)
        assert ours.is_data_sparse(key) == theirs.is_data_sparse(key)
        assert list(ours.get_data_shape(key)) == list(theirs.get_data_shape(key))
        assert tuple(ours.num_outputs[key]) == tuple(theirs.num_outputs[key])
    assert list(ours.get_all_tags()) == list(theirs.get_all_tags())
    assert ours.get_total_num_seqs() == theirs.get_total_num_seqs()
    for epoch in epochs:
        (seqs, indices), (peers, peer_indices) = (
            read_all(dataset, epoch, fracs, **order) for dataset in (ours, theirs)
        )
        assert indices == peer_indices
        assert [seq[:3] for seq in seqs] == [seq[:3] for seq in peers]
        for seq, peer in zip(seqs, peers, strict=True):
            for key in DATA_MAP:
                assert seq[3][key].dtype == peer[3][key].dtype
                np.testing.assert_array_equal(seq[3][key], peer[3][key])
    ours.close()


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("options", ORDERS, ids=str)
def test_the_order_of_a_control_dataset_is_the_same(corpora, options, shards):
    datasets = {"a": {**corpora["a"], **options}, "b": corpora["b"]}
    config = {"class": "MetaDataset", "datasets": datasets, "data_map": DATA_MAP}
    same({**config, "seq_order_control_dataset": "a", **shards})


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("options", ORDERS, ids=str)
def test_its_own_order_is_the_same(corpora, options, shards):
    datasets = {"a": corpora["a"], "b": corpora["b"]}
    same({"class": "MetaDataset", "datasets": datasets, "data_map": DATA_MAP, **options, **shards})


@pytest.mark.parametrize("options", ORDERS[:6], ids=str)
def test_lists_of_tags_are_read_the_same(corpora, options):
    datasets = {"a": corpora["a"], "b": corpora["lines"]}
    config = {"class": "MetaDataset", "datasets": datasets, "data_map": DATA_MAP, "seq_list_file": corpora["lists"]}
    same({**config, **options})
    datasets["a"] = {**corpora["a"], **options}
    same({**config, "seq_order_control_dataset": "a"})
    same({**config, "datasets": {**datasets, "b": corpora["b"]}, "seq_list_file": corpora["lists"]["a"]})


@pytest.mark.parametrize("control", ["a", None])
def test_orders_that_are_given_are_the_same(corpora, control):
    datasets = {"a": {**corpora["a"], "seq_ordering": "random"}, "b": corpora["b"]}
    config = {"class": "MetaDataset", "datasets": datasets, "data_map": DATA_MAP, "seq_order_control_dataset": control}
    tags = corpora["tags"]
    same(config, seq_list=[tags[3], tags[0], tags[2]])
    same(config, seq_order=[1, 3, 0])


def test_lengths_of_a_file_sort_the_same(corpora):
    datasets = {"a": corpora["a"], "b": corpora["b"]}
    config = {"class": "MetaDataset", "datasets": datasets, "data_map": DATA_MAP, "seq_ordering": "laplace:2"}
    config["seq_lens_file"] = corpora["lens"]
    ours, theirs = init_dataset(config), peer_init_dataset(config)
    for epoch in (1, 2):
        ours.init_seq_order(epoch)
        theirs.init_seq_order(epoch)
        assert list(ours.get_current_seq_order()) == list(theirs.get_current_seq_order())
    ours.close()


@pytest.mark.parametrize("options", [{}, {"seq_ordering": "random"}, {"seq_ordering": "laplace:2"}], ids=str)
def test_datasets_in_memory_are_joined_the_same(options):
    rng = np.random.default_rng(3)

    def static(**more):
        seqs = [
            {"data": rng.normal(size=(n, 2)).astype("float32"), "classes": rng.integers(0, 5, n).astype("int32")}
            for n in rng.integers(1, 9, 12).tolist()
        ]
        return {"class": "StaticDataset", "data": seqs, "output_dim": {"data": (2, 2), "classes": (5, 1)}, **more}

    for own, control in (({}, options), (options, {})):
        config = {
            "class": "MetaDataset",
            "datasets": {"a": static(**control), "b": static()},
            "data_map": DATA_MAP,
            "seq_order_control_dataset": "a" if control else None,
            **own,
        }
        same(config)
