"""HuggingFaceDataset against RETURNN's, on the same saved dataset: orders, tags, arrays, and what is said of them."""

import numpy as np
import pytest

from headrace.datasets import HuggingFaceDataset

pytest.importorskip("datasets.arrow_dataset")  # a folder of these tests has the name of the package
datasets = pytest.importorskip("datasets")
pytest.importorskip("soundfile")
returnn = pytest.importorskip("returnn.datasets.huggingface")

pytestmark = pytest.mark.extra

NUM = 23
DATA_FORMAT = {
    "features": {"dtype": "float32", "shape": (None, 2)},
    "classes": {"dtype": "int32", "shape": (None,)},
    "vector": {"dtype": "float32", "shape": (3,)},
    "score": {"dtype": "float32", "shape": ()},
    "text": {"dtype": "int32", "shape": (None,), "vocab": {"class": "Utf8ByteTargets"}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(1)
    lengths = rng.permutation(NUM) + 1
    columns = {
        "id": [f"seq/{i}" for i in range(NUM)],
        "features": [rng.random((n, 2)).astype(np.float32).tolist() for n in lengths],
        "classes": [rng.integers(0, 9, n // 2 + 1).tolist() for n in lengths],
        "vector": [rng.random(3).tolist() for _ in lengths],
        "score": rng.random(NUM).tolist(),
        "duration": [float(n) / 4 for n in reversed(lengths)],
        "text": ["ä" * int(n % 5) + "b" for n in lengths],
    }
    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "features": datasets.Array2D((None, 2), "float32"),
            "classes": datasets.List(datasets.Value("int32")),
            "vector": datasets.List(datasets.Value("float32"), length=3),
            "score": datasets.Value("float32"),
            "duration": datasets.Value("float32"),
            "text": datasets.Value("string"),
        }
    )
    path = tmp_path_factory.mktemp("hf") / "corpus"
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(path, num_shards=3)
    return str(path)


def _both(folder, **options):
    ours = HuggingFaceDataset(folder, data_format=DATA_FORMAT, **options)
    theirs = returnn.HuggingFaceDataset(folder, data_format=DATA_FORMAT, **options)
    theirs.initialize()
    return ours, theirs


def _tags_of(dataset, epoch):
    dataset.init_seq_order(epoch=epoch)
    tags, seq_idx = [], 0
    while dataset.is_less_than_num_seqs(seq_idx):
        dataset.load_seqs(seq_idx, seq_idx + 1)
        tags.append(dataset.get_tag(seq_idx))
        seq_idx += 1
    return tags


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seq_ordering": "random"},
        {"seq_ordering": "random", "partition_epoch": 3},
        {"seq_ordering": "sorted", "sorting_seq_len_column_data": "features"},
        {"seq_ordering": "sorted_reverse", "sorting_seq_len_column": "duration"},
        {"seq_ordering": "laplace:.5", "sorting_seq_len_column_data": "text"},
        {"seq_ordering": "reverse", "seq_tag_column": None},
        {"_num_shards": 2, "_shard_index": 1},
    ],
)
def test_orders_are_the_same(folder, options):
    ours, theirs = _both(folder, **options)
    for epoch in (1, 2, 4):
        assert _tags_of(ours, epoch) == _tags_of(theirs, epoch)


def test_arrays_are_the_same(folder):
    ours, theirs = _both(folder, seq_ordering="random")
    assert sorted(ours.get_data_keys()) == sorted(theirs.get_data_keys())
    for dataset in (ours, theirs):
        dataset.init_seq_order(epoch=1)
        dataset.load_seqs(0, NUM)
    for seq_idx in range(NUM):
        for key in DATA_FORMAT:
            expected = theirs.get_data(seq_idx, key)
            np.testing.assert_array_equal(ours.get_data(seq_idx, key), expected)
    for key in DATA_FORMAT:
        assert ours.get_data_dtype(key) == theirs.get_data_dtype(key) == ours.get_data(0, key).dtype


def test_columns_are_mapped_renamed_and_cast_alike(folder):
    options = {
        "map_func": _keep_even,
        "rename_columns": {"classes": "targets"},
        "cast_columns": {"score": {"_type": "Value", "dtype": "float64"}},
        "data_format": {"targets": {"dtype": "int32", "shape": (None,)}, "score": {"dtype": "float64", "shape": ()}},
    }
    ours = HuggingFaceDataset(folder, **options)
    theirs = returnn.HuggingFaceDataset(folder, **options)
    theirs.initialize()
    assert _tags_of(ours, 1) == _tags_of(theirs, 1) == [f"seq/{i}" for i in range(0, NUM, 2)]
    for dataset in (ours, theirs):
        dataset.init_seq_order(epoch=1)
        dataset.load_seqs(0, 5)
    for key in ("targets", "score"):
        np.testing.assert_array_equal(ours.get_data(4, key), theirs.get_data(4, key))


def _keep_even(dataset):
    return dataset.select(range(0, len(dataset), 2))


def test_seqs_are_found_by_tag_alike(folder):
    ours, theirs = _both(folder)
    wanted = ["seq/7", "seq/0", "seq/22"]
    for dataset in (ours, theirs):
        dataset.init_seq_order(epoch=1, seq_list=wanted)
        dataset.load_seqs(0, 3)
    assert [ours.get_tag(i) for i in range(3)] == [theirs.get_tag(i) for i in range(3)] == wanted
    np.testing.assert_array_equal(ours.get_data(1, "features"), theirs.get_data(1, "features"))
