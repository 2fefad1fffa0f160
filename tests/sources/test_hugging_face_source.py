"""Datasets of Hugging Face's library: rows, selections, features."""

import io

import numpy as np
import pytest

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec
from headrace.testing import check_source

pytest.importorskip("datasets.arrow_dataset")  # a folder of these tests has the name of the package
datasets = pytest.importorskip("datasets")

from headrace.sources import ArrowSource, HuggingFaceSource, ParquetSource  # noqa: E402 - after the check

pytestmark = pytest.mark.extra

NUM = 20


def _dataset(num=NUM):
    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "x": datasets.Array2D((None, 2), "float32"),
            "square": datasets.Array2D((2, 3), "int8"),
            "y": datasets.ClassLabel(names=["no", "yes"]),
            "tags": datasets.List(datasets.ClassLabel(names=["a", "b", "c"])),
            "text": datasets.Value("string"),
            "vector": datasets.List(datasets.Value("float64"), length=3),
            "words": datasets.List(datasets.Value("string")),
        }
    )
    columns = {
        "id": [f"id{i}" for i in range(num)],
        "x": [[[float(i), 0.5]] * (i % 4) for i in range(num)],
        "square": [[[i, 1, 2], [3, 4, 5]] for i in range(num)],
        "y": [i % 2 for i in range(num)],
        "tags": [[0, 1, 2][: i % 4] for i in range(num)],
        "text": ["ü" * (i % 3) for i in range(num)],
        "vector": [[i, 2, 3] for i in range(num)],
        "words": [["a", "b"]] * num,
    }
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    datasets.disable_progress_bars()
    path = tmp_path_factory.mktemp("hf") / "saved"
    _dataset().save_to_disk(path, num_shards=3)
    return path


def _same(source, dataset):
    """Compare all rows with what the library itself gives."""
    assert len(source) == len(dataset)
    for i, row in enumerate(dataset):
        assert source.tag(i) == row["id"]
        for key in source.specs:
            array = source.read(i, key)
            assert (array.tobytes().decode() if key == "text" else array.tolist()) == row[key]
    check_source(source)
    source.close()


def test_features_say_what_columns_become(folder):
    source = HuggingFaceSource(folder, tag_field="id")
    assert source.specs == {
        "x": DataSpec("float32", (2,), dim=2),
        "square": DataSpec("int8", (2, 3), dim=3, has_time=False),
        "y": DataSpec("int64", sparse=True, dim=2, has_time=False),
        "tags": DataSpec("int64", sparse=True, dim=3),
        "text": DataSpec("uint8", sparse=True, dim=256),
        "vector": DataSpec("float64", (3,), dim=3, has_time=False),
    }
    assert source.labels == {"y": ["no", "yes"], "tags": ["a", "b", "c"]}
    _same(source, datasets.load_from_disk(folder))


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.shuffle(seed=3),
        lambda ds: ds.select([5, 3, 3, 9, 0]),
        lambda ds: ds.select(range(4, 11)),
        lambda ds: ds.shuffle(seed=1).filter(lambda row: row["y"] == 1).select([4, 2, 0]),
        lambda ds: datasets.concatenate_datasets([ds.select([7, 2]), ds, ds.select(range(3))]),
        lambda ds: ds.remove_columns(["x", "y"]),
        lambda ds: ds.map(lambda row: {"y": 1 - row["y"]}),
        lambda ds: ds.select([]),
    ],
)
@pytest.mark.parametrize("where", ["disk", "memory"])
def test_whatever_is_done_to_a_dataset_its_rows_are_those_of_the_library(folder, change, where):
    dataset = change(datasets.load_from_disk(folder, keep_in_memory=where == "memory"))
    _same(HuggingFaceSource(dataset, tag_field="id"), dataset)


def test_a_row_that_was_filtered_out_may_be_wrong():
    dataset = datasets.Dataset.from_dict({"x": [[1.0], None, [2.0]], "y": [[[1], [2, 3]], [[1]], [[2]]]})
    with pytest.raises(SourceError, match=r"'x' is null"):
        HuggingFaceSource(dataset, fields={"x": "x"})
    source = HuggingFaceSource(dataset.select([2, 0, 2]), fields={"x": "x"})
    assert [source.read(i, "x").tolist() for i in range(3)] == [[2.0], [1.0], [2.0]]
    with pytest.raises(SourceError, match="lists of different lengths"):
        HuggingFaceSource(dataset, fields={"y": "y"})
    assert HuggingFaceSource(dataset.select([2, 1]), fields={"y": "y"}).read(0, "y").tolist() == [[2]]


def test_files_of_the_library_are_read_by_all_three_sources_alike(folder, tmp_path):
    files = sorted(folder.glob("data-*.arrow"))
    assert len(files) == 3
    _dataset().to_parquet(tmp_path / "t.parquet")
    sources = [
        HuggingFaceSource([str(file) for file in files], tag_field="id"),
        ArrowSource(files, tag_field="id"),
        ParquetSource(tmp_path / "t.parquet", tag_field="id"),
        HuggingFaceSource(
            lambda: {"path": "parquet", "data_files": str(tmp_path / "t.parquet"), "split": "train"}, tag_field="id"
        ),
    ]
    assert all(source.specs == sources[0].specs and source.labels == sources[0].labels for source in sources)
    for i in range(NUM):
        for key in sources[0].specs:
            assert len({source.read(i, key).tobytes() for source in sources}) == 1
    for source in sources:
        source.close()


def test_texts_are_encoded_and_the_index_of_files_is_kept(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    fields = {"chars": {"field": "text", "vocab": "chars"}}
    source = HuggingFaceSource(folder, fields=fields)
    check_source(source)
    assert source.specs["chars"] == DataSpec("int32", sparse=True, dim=1)
    source.index.save(tmp_path / "i")
    assert HuggingFaceSource(folder, fields=fields, index=tmp_path / "i").read(2, "chars").tolist() == [0, 0]
    with pytest.raises(SourceError, match="the index was made for"):
        HuggingFaceSource(source.dataset.select(range(5)), fields=fields, index=tmp_path / "i")


def _wav(num_samples, rate):
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, np.linspace(-0.5, 0.5, num_samples), rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


def test_audio_is_decoded_at_the_rate_of_its_feature_and_pictures_have_bytes():
    pytest.importorskip("soxr")
    stored = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    dataset = datasets.Dataset.from_dict(
        {
            "audio": [{"bytes": _wav(n, 16000), "path": None} for n in (20, 0, 80)],
            "picture": [{"bytes": b"png" * n, "path": None} for n in range(3)],
        },
        features=datasets.Features({"audio": stored, "picture": stored}),
    )
    dataset = dataset.cast_column("audio", datasets.Audio(sampling_rate=8000))
    dataset = dataset.cast_column("picture", datasets.Image())
    source = HuggingFaceSource(dataset, fields={"audio": "audio"})
    assert source.specs == {"audio": DataSpec("float32", (1,), dim=1)}
    assert source.index.lengths("audio").tolist() == [10, 0, 40]
    check_source(source)
    pictures = HuggingFaceSource(dataset, fields={"data": "picture.bytes"})
    assert pictures.read(2, "data").tobytes() == b"pngpng"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda folder: "/no/such/folder", SourceError, "cannot be loaded"),
        (lambda folder: [], ConfigError, "list of Arrow files is empty"),
        (lambda folder: 3, ConfigError, "random access"),
        (
            lambda folder: datasets.DatasetDict({"train": _dataset(1), "test": _dataset(1)}),
            ConfigError,
            "one split",
        ),
        (lambda folder: _dataset(2).to_iterable_dataset(), ConfigError, "given to headrace.DataLoader"),
        (lambda folder: _dataset(1).with_transform(lambda rows: rows), ConfigError, "without a transform"),
    ],
)
def test_what_is_no_dataset_of_rows_is_refused(folder, make, error, text):
    with pytest.raises(error, match=text) as caught:
        HuggingFaceSource(make(folder))
    assert "fix:" in str(caught.value)


def test_a_torn_file_is_refused(folder, tmp_path):
    (tmp_path / "t.arrow").write_bytes(next(folder.glob("data-*.arrow")).read_bytes()[:700])
    with pytest.raises(SourceError, match="cannot be loaded"):
        HuggingFaceSource([tmp_path / "t.arrow"])


@pytest.mark.parametrize("content", ["{}", "[]", '{"_data_files": 3}', "no JSON"])
def test_a_damaged_folder_is_refused(tmp_path, content):
    _dataset(2).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text(content)
    with pytest.raises(SourceError, match="cannot be loaded"):
        HuggingFaceSource(tmp_path / "saved")


@pytest.mark.parametrize("options", [{"path": "pandas"}, {"path": "some/script", "trust_remote_code": True}])
def test_a_dataset_is_not_loaded_by_running_what_a_file_has(tmp_path, options):
    with pytest.raises(ConfigError, match="by programs"):
        HuggingFaceSource({**options, "data_files": str(tmp_path / "x.pkl"), "split": "train"})
