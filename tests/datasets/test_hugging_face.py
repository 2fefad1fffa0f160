"""HuggingFaceDataset: its documented options, its place among other datasets, and the library's streams in a loader."""

import json
import pickle

import numpy as np
import pytest

from headrace import DataLoader, MultiProcDataset
from headrace.batching import Buckets, FixedCount, FrameBudget
from headrace.datasets import HuggingFaceDataset, init_dataset
from headrace.errors import ConfigError, ResumeError, SourceError

pytest.importorskip("datasets.arrow_dataset")  # a folder of these tests has the name of the package
datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.extra

NUM = 30
FORMAT = {
    "x": {"dtype": "float32", "shape": (None, 2)},
    "y": {"dtype": "int64", "shape": (), "dim": 2},
    "text": {"dtype": "uint8", "vocab": "bytes"},
}


def _rows(num=NUM):
    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "x": datasets.Array2D((None, 2), "float32"),
            "y": datasets.ClassLabel(names=["no", "yes"]),
            "n": datasets.List(datasets.Value("int64")),
            "text": datasets.Value("string"),
            "seconds": datasets.Value("float32"),
        }
    )
    lengths = [i * 7 % 11 + 1 for i in range(num)]
    columns = {
        "id": [f"id{i}" for i in range(num)],
        "x": [[[float(i), j] for j in range(n)] for i, n in enumerate(lengths)],
        "y": [i % 2 for i in range(num)],
        "n": [[i] * n for i, n in enumerate(lengths)],
        "text": ["ü" * (n % 3) + "a" for n in lengths],
        "seconds": [n / 2 for n in lengths],
    }
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    datasets.disable_progress_bars()
    path = tmp_path_factory.mktemp("hf") / "saved"
    _rows().save_to_disk(path, num_shards=2)
    return str(path)


def _tags(dataset, epoch=1):
    return [seq.seq_tag for seq in dataset.epoch(epoch)]


def test_it_is_made_from_a_dict(folder):
    config = {"class": "HuggingFaceDataset", "dataset_opts": folder, "data_format": FORMAT, "seq_ordering": "reverse"}
    dataset = init_dataset(config)
    assert _tags(dataset) == [f"id{i}" for i in reversed(range(NUM))]
    assert dataset.num_outputs == {"x": (2, 2), "y": (2, 0), "text": (256, 1)}
    assert dataset.labels == {"y": ["no", "yes"]}
    seq = next(iter(dataset.epoch(1)))
    assert seq.features["x"].tolist() == [[29.0, j] for j in range(29 * 7 % 11 + 1)]
    with pytest.raises(ConfigError, match="did you mean 'seq_tag_column'"):
        init_dataset({**config, "seq_tag_colum": "id"})


@pytest.mark.parametrize(
    "options",
    [
        {"sorting_seq_len_column": "seconds"},
        {"sorting_seq_len_column_data": "n"},
        {"sorting_seq_len_column_data": "x"},
        {},  # the first data key
        {"data_format": {"n": {}}, "sorting_seq_len_column_data": "text"},  # its characters
    ],
    ids=str,
)
def test_it_is_sorted_by_what_was_said(folder, options):
    dataset = HuggingFaceDataset(**{"dataset_opts": folder, "data_format": FORMAT, **options}, seq_ordering="sorted")
    texts = _rows()["text"]
    lengths = [len(texts[i]) if "text" in options.values() else i * 7 % 11 + 1 for i in range(NUM)]
    expected = [f"id{i}" for i in sorted(range(NUM), key=lambda i: lengths[i])]
    assert _tags(dataset) == _tags(pickle.loads(pickle.dumps(dataset))) == expected


def test_columns_are_mapped_renamed_and_cast_and_copies_have_the_result(folder):
    calls = []

    def keep_some(dataset):
        calls.append(len(dataset))
        return dataset.filter(lambda row: row["y"] == 1)

    dataset = HuggingFaceDataset(
        folder,
        map_func=keep_some,
        rename_columns={"x": "data"},
        cast_columns={"n": {"_type": "List", "feature": {"_type": "Value", "dtype": "int16"}}},
        data_format={"data": {"dtype": "float32", "ndim": 2, "dim": 2}, "n": {"dtype": "int16", "sparse_dim": NUM}},
    )
    assert _tags(dataset) == [f"id{i}" for i in range(1, NUM, 2)]
    assert dataset.get_data_dtype("n") == "int16"
    assert dataset.num_outputs["n"] == (NUM, 1)
    assert _tags(pickle.loads(pickle.dumps(dataset))) == _tags(dataset)
    assert calls == [NUM]


def test_a_format_decides_what_data_leave_open(folder):
    options = {"x": {"shape": (None, None)}, "n": {"sparse": False}}
    dataset = HuggingFaceDataset(folder, data_format=options, seq_tag_column=None)
    for made in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert (made.get_data_shape("x"), made.is_data_sparse("n")) == ([None], False)
    assert _tags(dataset)[3] == "seq-3"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"data_format": {"x": {"dtype": "float64"}}}, "dtype is 'float64', but that of the column is 'float32'"),
        ({"data_format": {"x": {"shape": (None, 3)}}}, r"shape is \(None, 3\), .* is \(None, 2\)"),
        ({"data_format": {"x": {"shape": (None,)}}}, "shape is"),
        ({"data_format": {"x": {"ndim": 3}}}, "ndim is 3, but that of the column is 2"),
        ({"data_format": {"x": {"dim": 3}}}, "dim is 3, but that of the column is 2"),
        ({"data_format": {"y": {"sparse_dim": 5}}}, "sparse_dim is 5, but that of the column is 2"),
        ({"data_format": {"x": {"sparse": True}}}, "sparse is True"),
        ({"data_format": {"x": {"dtype": "string"}}}, "holds no texts"),
        ({"data_format": {"x": {"dtpye": "float32"}}}, "did you mean 'dtype'"),
        ({"data_format": {"z": {}}}, "no column 'z'"),
        ({"data_format": {}}, "data_format is a dict"),
        ({"seq_tag_column": "ids"}, "did you mean 'id'"),
        ({"sorting_seq_len_column": "second"}, "did you mean 'seconds'"),
        ({"sorting_seq_len_column": "seconds", "sorting_seq_len_column_data": "x"}, "both say what to sort by"),
        ({"rename_columns": {"a": "b"}}, "no column 'a'"),
        ({"use_file_cache": True, "dataset_opts": {"path": "parquet"}}, "names none: a dict"),
        ({"source_options": {"null": "zero"}}, "source_options has 'null', which HuggingFaceSource does not take"),
        ({"sorting_seq_len_column": "id"}, "sorted by numbers"),
        ({"sorting_seq_len_column_data": "y"}, "have no length"),
    ],
)
def test_wrong_options_are_refused(folder, options, text):
    options = {"dataset_opts": folder, "data_format": FORMAT, "seq_ordering": "sorted", **options}
    with pytest.raises(ConfigError, match=text):
        HuggingFaceDataset(**options).init_seq_order(epoch=1)


def test_class_indices_over_the_given_dim_are_refused(folder):
    dataset = HuggingFaceDataset(folder, data_format={"n": {"sparse_dim": 20}})
    dataset.init_seq_order(epoch=1)
    with pytest.raises(SourceError, match=r"class indices are in 25\.\.25, and there are 20 classes"):
        dataset.get_data(25, "n")


def test_files_come_from_the_cache_of_this_machine(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    from headrace.datasets.files import hugging_face
    from headrace.files import FileCache

    with FileCache(cache_directory=tmp_path / "cache") as cache:
        monkeypatch.setattr(hugging_face.FileCache, "get_instance", lambda: cache)
        dataset = HuggingFaceDataset(folder, use_file_cache=True, data_format=FORMAT)
        assert cache.counters.num_copies == 2
        names = [entry["filename"] for entry in dataset.source.dataset.cache_files]
        assert all(name.startswith(str(tmp_path / "cache")) for name in names)
        assert _tags(dataset) == [f"id{i}" for i in range(NUM)]
        with pytest.raises(SourceError, match="not a folder that save_to_disk made"):
            HuggingFaceDataset(str(tmp_path), use_file_cache=True, data_format=FORMAT)
        dataset.close()


def test_it_is_loaded_by_workers_and_in_processes_of_its_own(folder):
    config = {"class": "HuggingFaceDataset", "dataset_opts": folder, "data_format": FORMAT, "seq_ordering": "random"}
    printed = []
    for num_workers in (0, 2):
        batching = Buckets(FrameBudget(40), num_buckets=3)
        with DataLoader(config, batching=batching, num_workers=num_workers) as loader:
            printed.append([(batch.tags, batch["x"].tobytes(), batch["y"].tobytes()) for batch in loader])
    assert printed[0] == printed[1]
    with init_dataset(config) as alone, MultiProcDataset(config, num_workers=1, buffer_size=10) as dataset:
        assert _tags(dataset) == _tags(alone)
        assert sorted(tag for tags, *_ in printed[0] for tag in tags) == sorted(_tags(alone))


# --- streams of the library, given to a loader as they are ---


@pytest.fixture
def stream(tmp_path):
    datasets.disable_progress_bars()
    ids = list(range(60))
    rows = datasets.Dataset.from_dict({"id": ids, "x": [[float(i)] * (i % 5 + 1) for i in ids]})
    rows.save_to_disk(tmp_path / "saved", num_shards=3)
    rows.to_parquet(tmp_path / "t.parquet")

    def make(**shuffle):
        if shuffle:
            return datasets.load_from_disk(tmp_path / "saved").to_iterable_dataset(num_shards=3).shuffle(**shuffle)
        files, cache = str(tmp_path / "t.parquet"), str(tmp_path / "cache")
        return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, cache_dir=cache)

    return make


def _ids(batch):
    return np.asarray(batch["id"]).tolist()


@pytest.mark.parametrize("shuffle", [{}, {"seed": 5, "buffer_size": 8}])
def test_a_stream_is_the_same_for_any_number_of_workers_and_no_row_is_lost(stream, shuffle):
    epochs = []
    for num_workers in (0, 2):
        with DataLoader(stream(**shuffle), batching=FixedCount(7), num_workers=num_workers, window_seqs=16) as loader:
            epochs.append([[_ids(batch) for batch in epoch] for epoch in loader.epochs(1, 2)])
    assert epochs[0] == epochs[1]
    for epoch in epochs[0]:
        assert sorted(i for batch in epoch for i in batch) == list(range(60))
    assert (epochs[0][0] == epochs[0][1]) == (not shuffle)  # each epoch is another shuffle


def test_a_shuffled_stream_goes_on_where_it_was_with_other_workers(stream):
    options = {"batching": FixedCount(7), "window_seqs": 16}
    with DataLoader(stream(seed=5, buffer_size=8), **options) as loader:
        batches = [_ids(batch) for batch in loader]
    for num_steps, num_workers in ((0, 0), (3, 0), (4, 2), (9, 0)):
        with DataLoader(stream(seed=5, buffer_size=8), **options) as loader:
            for _ in zip(range(num_steps), loader, strict=False):
                pass
            state = json.loads(json.dumps(loader.state_dict()))
        with DataLoader(stream(seed=5, buffer_size=8), num_workers=num_workers, **options) as loader:
            loader.load_state_dict(state)
            assert [_ids(batch) for batch in loader] == batches[num_steps:]


def test_a_state_is_refused_if_the_column_that_sorts_changed(folder):
    options = {"data_format": FORMAT, "seq_ordering": "sorted"}
    by_seconds = HuggingFaceDataset(folder, sorting_seq_len_column="seconds", **options)
    with DataLoader(by_seconds, batching=FixedCount(4)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    backwards = datasets.load_from_disk(folder).map(lambda row: {"seconds": 100 - row["seconds"]}, keep_in_memory=True)
    other = HuggingFaceDataset(backwards, sorting_seq_len_column="seconds", **options)
    with DataLoader(other, batching=FixedCount(4)) as loader, pytest.raises(ResumeError, match="another order"):
        loader.load_state_dict(state)


def test_a_dataset_without_rows_has_epochs_without_sequences(folder):
    empty = datasets.load_from_disk(folder).select([])
    dataset = HuggingFaceDataset(empty, data_format=FORMAT, seq_ordering="sorted", sorting_seq_len_column="seconds")
    for made in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert _tags(made) == []


def _letters(seq, **_):
    return {"letters": np.array([ord(letter) for letter in str(seq["text"])], np.int32)}


@pytest.mark.parametrize("more", [{}, {"x": FORMAT["x"]}], ids=["alone", "beside arrays"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_texts_are_tokenized_by_a_function(folder, more, num_workers):
    formats = {"text": {"dtype": "string"}, **more}
    inner = {"class": "HuggingFaceDataset", "dataset_opts": folder, "data_format": formats, "seq_ordering": "random"}
    outputs = {"letters": {"dtype": "int32", "shape": (None,), "sparse_dim": 300}}
    config = {"class": "PostprocessingDataset", "dataset": inner, "map_seq": _letters, "map_outputs": outputs}
    expected = {row["id"]: [ord(letter) for letter in row["text"]] for row in _rows()}
    with init_dataset(config) as dataset:
        assert dataset.get_data_keys() == ["letters"]
        assert {seq.tag: seq["letters"].tolist() for seq in dataset.epoch(1)} == expected
        with DataLoader(dataset, batching=FixedCount(4), num_workers=num_workers) as loader:
            found = {
                tag: row[:frames].tolist()
                for batch in loader
                for tag, row, frames in zip(batch.tags, batch["letters"], batch.lengths["letters"], strict=True)
            }
    assert found == expected


def test_a_text_as_such_is_read_by_its_key_and_is_no_part_of_batches(folder):
    with HuggingFaceDataset(folder, data_format={"text": {"dtype": "string"}, "x": FORMAT["x"]}) as dataset:
        dataset.initialize()
        assert (dataset.get_text_keys(), dataset.get_data_keys()) == (["text"], ["x"])
        assert dataset.get_data_dtype("text") == "string"
        for one in (dataset, pickle.loads(pickle.dumps(dataset))):
            one.init_seq_order(epoch=1, seq_list=["id4", "id1"])
            one.load_seqs(0, 2)
            rows = _rows()
            assert [str(one.get_data(i, "text")) for i in (0, 1)] == [rows[4]["text"], rows[1]["text"]]
        with DataLoader(dataset, batching=FixedCount(4)) as loader:
            assert all(list(batch.arrays) == ["x"] for batch in loader)
