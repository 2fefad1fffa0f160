"""Our `CombinedDataset` and its kin against RETURNN's, where it is installed: same options, same answers."""

import warnings

import numpy as np
import pytest

from headrace.datasets import init_dataset
from headrace.errors import ConfigError
from headrace.sources import HDFWriter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer_init_dataset = pytest.importorskip("returnn.datasets.basic").init_dataset
    peer_meta = pytest.importorskip("returnn.datasets.meta")

pytestmark = pytest.mark.filterwarnings("ignore")

DATA_MAP = {
    ("a", "data"): "data",
    ("b", "data"): "data",
    ("b", "classes"): "classes",
    ("c", "data"): "other",
    ("c", "classes"): "classes",
}
KEYS = ("data", "classes", "other")
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
    {"seq_ordering": "random_dataset"},
    {"seq_ordering": "random_dataset", "partition_epoch": 3},
    {"seq_ordering": "random_dataset", "repeat_epoch": 2, "fixed_random_seed": 9},
    {"seq_ordering": "interleave"},
    {"seq_ordering": "interleave", "interleave_gumbel_scale": 1.0},
    {"seq_ordering": "interleave", "interleave_gumbel_scale": 0.2, "random_seed_offset": 3},
    {"seq_ordering": "interleave", "interleave_gumbel_scale": "remaining"},
]
PARTS = [
    {},
    {"a": {"repeat_epoch": 2}, "b": {"seq_ordering": "reverse"}},
    {"b": {"seq_ordering": "random", "partition_epoch": 2}, "c": {"seq_ordering": "laplace:2"}},
]


def write_corpus(path, name, num_seqs, rng):
    with HDFWriter(path, labels={"classes": [str(number) for number in range(9)]}) as writer:
        for number in range(num_seqs):
            frames = int(rng.integers(1, 12))
            data = rng.normal(size=(frames, 3)).astype("float32")
            classes = rng.integers(0, 9, int(rng.integers(1, 5))).astype("int32")
            writer.append(f"{name}-{number}", {"data": data, "classes": classes})
    return {"class": "HDFDataset", "files": [str(path)], "cache_byte_size": 0}


@pytest.fixture(params=[2])
def corpora(request, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(request.param)
    return {name: write_corpus(tmp_path / f"{name}.hdf", name, int(rng.integers(3, 25)), rng) for name in "abc"}


def read_all(dataset, epoch, keys, fracs, **order):
    dataset.init_seq_order(epoch=epoch, **order)
    seqs, i = [], 0
    while dataset.is_less_than_num_seqs(i):
        dataset.load_seqs(i, i + 1)
        frac = dataset.get_complete_frac(i) if fracs else None
        seqs.append((dataset.get_tag(i), frac, {key: np.array(dataset.get_data(i, key)) for key in keys}))
        i += 1
    return seqs


def same(config, keys, epochs=(1, 5), fracs=True):
    ours, theirs = init_dataset(config), peer_init_dataset(config)
    same_layout(ours, theirs, keys)
    same_seqs(ours, theirs, keys, epochs, fracs)
    ours.close()
    return ours, theirs


def same_layout(ours, theirs, keys):
    assert set(ours.get_data_keys()) == set(theirs.get_data_keys()) == set(keys)
    assert set(ours.get_target_list()) == set(theirs.get_target_list())
    for key in keys:
        assert ours.get_data_dtype(key) == theirs.get_data_dtype(key)
        assert ours.get_data_dim(key) == theirs.get_data_dim(key)
        assert ours.is_data_sparse(key) == theirs.is_data_sparse(key)
        assert list(ours.get_data_shape(key)) == list(theirs.get_data_shape(key))
        assert tuple(ours.num_outputs[key]) == tuple(theirs.num_outputs[key])


def same_seqs(ours, theirs, keys, epochs, fracs):
    for epoch in epochs:
        seqs, expected = (read_all(dataset, epoch, keys, fracs) for dataset in (ours, theirs))
        assert [seq[:2] for seq in seqs] == [seq[:2] for seq in expected]
        for seq, peer in zip(seqs, expected, strict=True):
            for key in keys:
                assert (seq[2][key].dtype, seq[2][key].shape) == (peer[2][key].dtype, peer[2][key].shape)
                np.testing.assert_array_equal(seq[2][key], peer[2][key])


def peer_of(config):
    """Return RETURNN's dataset without what `init_dataset` does: to start no epoch, which some classes cannot."""
    return getattr(peer_meta, config["class"])(**{name: value for name, value in config.items() if name != "class"})


def combined(corpora, options, parts=None):
    datasets = {name: {**config, **(parts or {}).get(name, {})} for name, config in corpora.items()}
    return {"class": "CombinedDataset", "datasets": datasets, "data_map": DATA_MAP, **options}


@pytest.mark.parametrize("options", ORDERS, ids=str)
@pytest.mark.parametrize("parts", PARTS, ids=["plain", "repeated", "sub-epochs"])
def test_combined_sequences_are_the_same(corpora, options, parts):
    if options.get("partition_epoch", 1) > 1 and parts is PARTS[2]:
        pytest.skip("RETURNN gives each sub-epoch another order of the parts, of which it takes a slice")
    fracs = options.get("seq_ordering") != "interleave"  # there, RETURNN says how far the one sub-dataset is
    ours, theirs = same(combined(corpora, options, parts), KEYS, fracs=fracs)
    assert ours.get_total_num_seqs() == theirs.get_total_num_seqs()


def test_sub_epochs_of_shuffled_parts_lose_nothing_here_and_something_there(corpora):
    config = combined(corpora, {"partition_epoch": 2}, {name: {"seq_ordering": "random"} for name in "abc"})
    ours, theirs = init_dataset(config), peer_init_dataset(config)
    everything = sorted(ours.get_all_tags())
    read = [
        sorted(seq[0] for epoch in (1, 2) for seq in read_all(dataset, epoch, KEYS, fracs=False))
        for dataset in (ours, theirs)
    ]
    assert read[0] == everything
    assert read[1] != everything
    ours.close()


@pytest.mark.parametrize("options", [{}, {"seq_ordering": "random"}, {"seq_ordering": "laplace:2"}], ids=str)
@pytest.mark.parametrize("sizes", [3, {"a": 1, "b": 7, "c": 40}, {"a": 5, "b": 0, "c": 2}], ids=str)
@pytest.mark.parametrize("order", ["default", "random", "laplace:2"])
def test_samples_of_fixed_sizes_are_the_same(corpora, options, sizes, order):
    config = combined(corpora, {"sampling_sizes": sizes, **options}, {name: {"seq_ordering": order} for name in "abc"})
    ours, theirs = init_dataset(config), peer_of(config)
    same_seqs(ours, theirs, KEYS, (1, 2, 3, 9), fracs=True)
    ours.close()


def test_samples_fail_there_when_they_are_built_and_work_here(corpora):
    config = combined(corpora, {"sampling_sizes": 2})
    static = {
        "class": "StaticDataset",
        "data": [{"data": np.zeros((2, 3), "float32"), "classes": np.zeros(1, "int32")}],
    }
    for refused in (config, {**config, "datasets": dict.fromkeys("abc", static)}):
        with pytest.raises((ZeroDivisionError, AssertionError)):
            peer_init_dataset(refused)
    ours = init_dataset(config)
    assert [seq.tag for seq in ours.epoch(1)] == ["a-0", "a-1", "b-0", "b-1", "c-0", "c-1"]
    ours.close()


def test_reversed_fails_there_and_works_here(corpora):
    config = combined(corpora, {"seq_ordering": "reversed"})
    with pytest.raises(ValueError, match="reversed"):
        peer_init_dataset(config).init_seq_order(1)
    ours = init_dataset(config)
    found = [seq.tag[0] for seq in ours.epoch(1)]
    assert found == sorted(found, reverse=True)
    ours.close()


@pytest.mark.parametrize("options", [{}, {"seq_ordering": "random", "partition_epoch": 2}], ids=str)
def test_datasets_one_after_the_other_are_the_same(corpora, options):
    datasets = [{**corpora[name], **options} for name in "bca"]
    config = {"class": "ConcatDataset", "datasets": datasets}
    ours, theirs = init_dataset(config), peer_of(config)
    same_seqs(ours, theirs, ("data", "classes"), (1, 2, 5), fracs=True)
    same_layout(ours, theirs, ("data", "classes"))
    ours.close()


@pytest.mark.parametrize("options", [{"seq_ordering": "random"}, {"seq_ordering": "laplace:2", "partition_epoch": 3}])
@pytest.mark.parametrize("num_epochs", [1, 3])
def test_several_epochs_in_a_row_are_the_same(corpora, options, num_epochs):
    config = {"class": "MultiEpochDataset", "dataset": {**corpora["a"], **options}, "multi_epoch": num_epochs}
    same(config, ("data", "classes"), fracs=False)


def test_what_is_refused_there_by_an_assertion_is_refused_here_by_a_config_error(corpora):
    config = combined(corpora, {"seq_ordering": "interleave", "interleave_gumbel_scale": "remainin"})
    with pytest.raises(AssertionError):
        peer_init_dataset(config)
    with pytest.raises(ConfigError, match='"remaining" or None'):
        init_dataset(config)
