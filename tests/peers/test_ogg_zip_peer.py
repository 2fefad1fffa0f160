"""Our `OggZipDataset` against RETURNN's, where it is installed: the same archives and options, the same answers."""

import gzip
import warnings
import zipfile

import numpy as np
import pytest

from headrace.datasets import init_dataset
from headrace.sources.ogg_zip.samples import OggZipSamples
from ogg_zips import write_ogg_zip

soundfile = pytest.importorskip("soundfile")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer_init_dataset = pytest.importorskip("returnn.datasets.basic").init_dataset
    PeerFeatures = pytest.importorskip("returnn.datasets.util.feature_extraction").ExtractAudioFeatures

pytestmark = pytest.mark.filterwarnings("ignore")

TEXTS = ["eins zwei", "drei", "", "größe", "it's 'quoted' \"twice\"", "a b\tc"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two archives, of 11 and 7 sequences; their texts; a vocabulary."""
    root = tmp_path_factory.mktemp("ogg_zip")
    rng = np.random.default_rng(5)
    for name, num_seqs, audio_format in (("one", 11, "wav"), ("two", 7, "ogg")):
        seqs = []
        for number in range(num_seqs):
            samples = (rng.normal(size=int(rng.integers(1, 3000))) * 0.1).astype(np.float32)
            seqs.append((f"{name}/{number}", samples, TEXTS[int(rng.integers(len(TEXTS)))]))
        write_ogg_zip(root / f"{name}.zip", seqs, audio_format)
    labels = sorted(set("".join(TEXTS)))
    (root / "chars").write_text(repr({label: number for number, label in enumerate(labels)}), encoding="utf-8")
    (root / "tags").write_text("".join(f"one/{i}\n" for i in range(0, 11, 2)) + "two/3\n")
    with zipfile.ZipFile(root / "one.zip") as archive:
        archive.extractall(root / "out")
        (root / "one.txt.gz").write_bytes(gzip.compress(b"[" + archive.read("one.txt").strip()[1:-1] + b"]"))
    return root


OPTIONS = [
    {},
    {"seq_ordering": "random", "partition_epoch": 3},
    {"seq_ordering": "laplace:.4", "random_seed_offset": 3},
    {"seq_ordering": "sorted", "audio": None},
    {"seq_ordering": "sorted_reverse", "targets": None},
    {"seq_ordering": "sort_bin_shuffle:3", "audio": {"features": "raw", "peak_normalization": False}},
    {"audio": {"features": "raw", "preemphasis": 0.97, "join_frames": 4}},
    {"audio": {"features": "raw", "norm_mean": "per_seq", "norm_std_dev": 0.3}},
    {"fixed_random_subset": 5, "seq_ordering": "random"},
    {"fixed_random_subset": 0.4, "fixed_random_subset_seed": 7},
    {"segment_file": "tags"},
    {"segment_file": "tags", "fixed_random_subset": 3},
    {"path": ["one.zip", "one.txt.gz"]},
    {"path": "out/one"},
    {"path": "two.zip", "content_name": "two", "_num_shards": 3, "_shard_index": 1, "seq_ordering": "random"},
    {"seq_ordering": "random", "partition_epoch": 2},
    {"seq_list_filter_file": "tags"},
]


def make(folder, options, init):
    config = {"class": "OggZipDataset", "path": ["one.zip", "two.zip"], "audio": {"features": "raw"}, **options}
    config.setdefault("targets", {"class": "CharacterTargets", "vocab_file": "chars", "unknown_label": None})
    for name in ("path", "segment_file", "seq_list_filter_file"):
        value = config.get(name)
        if value is not None:
            config[name] = [str(folder / one) for one in value] if isinstance(value, list) else str(folder / value)
    if config["targets"]:
        config["targets"] = {**config["targets"], "vocab_file": str(folder / "chars")}
    return init(config)


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_orders_tags_and_arrays_are_those_of_returnn(folder, options):
    ours, theirs = make(folder, options, init_dataset), make(folder, options, peer_init_dataset)
    for epoch in (1, 2, 5):
        ours.init_seq_order(epoch)
        theirs.init_seq_order(epoch)
        assert list(ours.get_current_seq_order()) == list(theirs.get_current_seq_order())
        assert ours.num_seqs == theirs.num_seqs
        for seq_idx in range(theirs.num_seqs):
            ours.load_seqs(seq_idx, seq_idx + 1)
            theirs.load_seqs(seq_idx, seq_idx + 1)
            assert ours.get_tag(seq_idx) == theirs.get_tag(seq_idx)
            for key in theirs.get_data_keys():
                mine, other = ours.get_data(seq_idx, key), theirs.get_data(seq_idx, key)
                np.testing.assert_array_equal(mine, other, strict=True)
    assert list(ours.get_all_tags()) == list(theirs.get_all_tags()) or "seq_list_filter_file" in options
    for key in ours.get_data_keys():
        for method in ("get_data_dim", "get_data_dtype", "is_data_sparse", "get_data_shape"):
            assert getattr(ours, method)(key) == getattr(theirs, method)(key), (method, key)
        assert key == "data" or list(ours.labels[key]) == list(theirs.labels[key])


def test_seq_lists_are_those_of_returnn(folder):
    ours, theirs = make(folder, {}, init_dataset), make(folder, {}, peer_init_dataset)
    for arguments in ({"seq_list": ["two/1", "one/9", "two/0"]}, {"seq_order": [3, 17, 0]}):
        ours.init_seq_order(1, **arguments)
        theirs.init_seq_order(1, **arguments)
        assert list(ours.get_current_seq_order()) == list(theirs.get_current_seq_order())


FEATURES = [
    {"features": "raw", "preemphasis": 0.97},
    {"features": "raw", "norm_mean": "per_seq", "norm_std_dev": 2.0, "join_frames": 4},
    {"features": "raw", "peak_normalization": False},
]


@pytest.mark.parametrize("options", FEATURES, ids=repr)
@pytest.mark.parametrize("rate", [8000, 16000])
def test_samples_are_those_of_returnn(options, rate):
    samples = (np.random.default_rng(1).normal(size=12345).cumsum() * 0.001).astype(np.float32)
    for num_samples in (12345, 600):
        theirs = PeerFeatures(**options).get_audio_features(samples[:num_samples].astype(np.float64), rate)
        features = OggZipSamples.parse(options)
        ours = features(samples[:num_samples], rate, "a recording")
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert features.num_frames(num_samples) == len(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
