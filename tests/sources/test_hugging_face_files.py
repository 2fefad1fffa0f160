"""Datasets of Hugging Face's library with recordings, images and texts, by paths and by bytes, through the loader."""

import io
import logging
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec
from headrace.testing import check_source

pytest.importorskip("datasets.arrow_dataset")  # a folder of these tests has the name of the package
datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
Image = pytest.importorskip("PIL.Image")
soundfile = pytest.importorskip("soundfile")

from headrace.sources import HuggingFaceSource, ParquetSource  # noqa: E402 - after the check

pytestmark = pytest.mark.extra

NUM = 6
LABELS = ["cat", "dog"]


def _pixels(i):
    return np.random.default_rng(i).integers(0, 256, (5, 7, 3), np.uint8)


def _samples(i):
    return np.random.default_rng(i).integers(-9000, 9000, 100 + 7 * i).astype(np.int16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    datasets.disable_progress_bars()
    path = tmp_path_factory.mktemp("files")
    for i in range(NUM):
        image = path / "images" / LABELS[i % 2] / f"{i}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(_pixels(i)).save(image)
        sound = path / "sounds" / f"{i}.wav"
        sound.parent.mkdir(exist_ok=True)
        soundfile.write(sound, _samples(i), 16000)
    return path


def _by_path(folder):
    rows = {
        "image": [str(folder / "images" / LABELS[i % 2] / f"{i}.png") for i in range(NUM)],
        "audio": [str(folder / "sounds" / f"{i}.wav") for i in range(NUM)],
        "label": [i % 2 for i in range(NUM)],
        "tags": [[0, 1, 1][: i % 4] for i in range(NUM)],
        "text": ["low wide " * (i % 3) + "the" for i in range(NUM)],
    }
    dataset = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    dataset = dataset.cast_column("label", datasets.ClassLabel(names=LABELS))
    dataset = dataset.cast_column("tags", datasets.List(datasets.ClassLabel(names=["a", "b"])))
    return dataset.cast_column("audio", datasets.Audio())


def _by_bytes(folder):
    dataset = _by_path(folder)

    def with_bytes(row):
        return {key: {"bytes": Path(row[key]["path"]).read_bytes(), "path": None} for key in ("image", "audio")}

    plain = dataset.cast_column("image", datasets.Image(decode=False)).cast_column(
        "audio", datasets.Audio(decode=False)
    )
    return plain.map(with_bytes, features=dataset.features)


def _batches(subject, num_workers, **options):
    with hr.DataLoader(subject, num_workers=num_workers, **options) as loader:
        return [{key: (batch[key].dtype.name, batch[key].tolist()) for key in batch} for batch in loader]


def _check_files(batches, *, texts=True):
    keys = ["image", "audio", "label", "tags", *(["text"] if texts else [])]
    assert [list(batch) for batch in batches] == [keys] * NUM
    for i, batch in enumerate(batches):
        np.testing.assert_array_equal(batch["image"][1][0], _pixels(i))
        np.testing.assert_array_equal(np.array(batch["audio"][1][0]).ravel(), _samples(i) / 2**15)
        assert batch["label"][1] == [i % 2]
        assert batch["tags"][1] == [[0, 1, 1][: i % 4]]


@pytest.mark.parametrize("make", [_by_path, _by_bytes])
def test_a_loader_reads_recordings_images_and_labels_by_their_features(folder, make, caplog):
    dataset = make(folder)
    assert (dataset.data.table.column("image")[0].as_py()["bytes"] is None) == (make is _by_path)
    with caplog.at_level(logging.WARNING, "headrace"):
        batches = _batches(dataset, 0, batch_size=1)
    _check_files(batches)
    assert bytes(batches[1]["text"][1][0]) == b"low wide the"
    assert "'text' are read as UTF-8 bytes" in caplog.text
    shuffled = dataset.shuffle(seed=1).select([4, 0, 2, 2])
    whole = _batches(shuffled, 0, batching=hr.FrameBudget(400, data_key="audio"))
    if make is _by_path:
        assert _batches(shuffled, 2, batching=hr.FrameBudget(400, data_key="audio")) == whole
    check_source(HuggingFaceSource(dataset))


def test_rows_of_an_image_folder_are_read(folder, tmp_path):
    dataset = datasets.load_dataset(
        "imagefolder", data_dir=str(folder / "images"), split="train", cache_dir=str(tmp_path)
    )
    batches = _batches(dataset, 0, batch_size=2, shuffle=True)
    assert [len(batch["label"][1]) for batch in batches] == [2, 2, 2]
    found = {(tuple(np.ravel(pixels)), label) for batch in batches for pixels, label in _pairs(batch)}
    assert found == {(tuple(np.ravel(_pixels(i))), i % 2) for i in range(NUM)}


def _pairs(batch):
    return zip(batch["image"][1], batch["label"][1], strict=True)


def test_paths_of_a_dataset_that_is_only_named_stay_inside_its_root(folder, tmp_path):
    dataset = _by_path(folder)
    saved, fields = [str(tmp_path / "a.arrow")], {"image": "image"}
    table = dataset.data.table.replace_schema_metadata(dataset.features.arrow_schema.metadata)
    with pa.ipc.new_stream(saved[0], table.schema) as writer:  # `save_to_disk` would store the bytes
        writer.write_table(table)
    data_format = {"audio": {"dtype": "float32", "shape": (None, 1)}}
    for open_named in (
        lambda: HuggingFaceSource(saved, fields=fields),
        lambda: HuggingFaceSource(saved, fields={"audio": "audio"}),
        lambda: HuggingFaceSource(lambda: dataset, fields=fields),
        lambda: hr.HuggingFaceDataset(saved, data_format=data_format, seq_tag_column=None),
    ):
        with pytest.raises(SourceError, match=r"(?s)no bytes, only the path '/.*give the source root="):
            open_named()
    for root in (folder, "/"):
        source = HuggingFaceSource(saved, fields=fields, root=root)
        np.testing.assert_array_equal(source.read(3, "image"), _pixels(3))
        source = HuggingFaceSource(saved, fields=fields, audio_root=root)
        np.testing.assert_array_equal(source.read(3, "image"), _pixels(3))
    for given in (saved, dataset):
        with pytest.raises(SourceError, match="outside its root"):
            HuggingFaceSource(given, fields=fields, root=folder / "sounds")
    with pytest.raises(ConfigError, match="root and audio_root"):
        HuggingFaceSource(saved, fields=fields, root=folder, audio_root=folder)
    relative = datasets.Dataset.from_dict({"image": ["images/cat/0.png"]}).cast_column("image", datasets.Image())
    with pytest.raises(SourceError, match=r"only the path 'images/cat/0\.png'"):
        HuggingFaceSource(relative)
    np.testing.assert_array_equal(HuggingFaceSource(relative, root=folder).read(0, "image"), _pixels(0))
    elsewhere = datasets.Dataset.from_dict({"image": ["/etc/passwd"]}).cast_column("image", datasets.Image())
    with pytest.raises(SourceError, match="cannot be read"):
        HuggingFaceSource(elsewhere)


def test_images_in_parquet_are_read_and_converted(folder, tmp_path):
    file = tmp_path / "t.parquet"
    _by_bytes(folder).to_parquet(file)
    source = ParquetSource(file)
    assert source.specs["image"] == DataSpec("uint8", (5, 7, 3), dim=3, has_time=False)
    assert source.labels["label"] == LABELS
    batches = _batches(source, 0, batch_size=1)
    _check_files(batches)
    for name in ("t.hdf", "t.arrow"):
        command = [sys.executable, "-m", "headrace", "convert", str(file), str(tmp_path / name)]
        subprocess.run(command, check=True, capture_output=True)
    for name in ("t.hdf", "t.arrow"):
        converted = hr.open_source(tmp_path / name)
        np.testing.assert_array_equal(converted.read(4, "image").reshape(5, 7, 3), _pixels(4))  # HDF5 has time
        np.testing.assert_array_equal(converted.read(4, "audio").ravel(), (_samples(4) / 2**15).astype(np.float32))
    _by_path(folder).to_parquet(tmp_path / "paths.parquet")
    with pytest.raises(SourceError, match="give the source root="):
        ParquetSource(tmp_path / "paths.parquet")
    np.testing.assert_array_equal(ParquetSource(tmp_path / "paths.parquet", root=folder).read(2, "image"), _pixels(2))


def test_the_mode_of_an_image_is_that_of_its_feature(tmp_path):
    data = io.BytesIO()
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).save(data, "png")
    rows = datasets.Dataset.from_dict({"image": [{"bytes": data.getvalue(), "path": None}]})
    gray = rows.cast_column("image", datasets.Image(mode="L"))
    ((dtype, pixels),) = (batch["image"] for batch in _batches(gray, 0, batch_size=1))
    assert (dtype, pixels) == ("uint8", [np.arange(12).reshape(3, 4, 1).tolist()])
    color = HuggingFaceSource(gray, fields={"image": {"field": "image", "mode": "RGB"}})
    assert color.specs["image"].shape == (3, 4, 3)


def _tokenizer(folder):
    tokenizers = pytest.importorskip("tokenizers")
    vocab = {"low": 0, "wide": 1, "the": 2, "<unk>": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def test_texts_of_a_dataset_are_encoded_by_a_tokenizer(folder, tmp_path):
    tokenizer = _tokenizer(tmp_path)
    dataset = _by_path(folder)
    wanted = [tokenizer.encode(text).ids for text in dataset["text"]]
    for vocab in (tokenizer, str(tmp_path / "tokenizer.json")):
        fields = {"audio": "audio", "text": {"field": "text", "vocab": vocab}, "label": "label"}
        for num_workers in (0, 2) if vocab is tokenizer else (0,):
            batches = _batches(HuggingFaceSource(dataset, fields=fields), num_workers, batch_size=1)
            assert [batch["text"][1][0] for batch in batches] == wanted
            formats = {"text": {"dtype": "int32", "vocab": vocab, "sparse_dim": 4}}
            named = hr.HuggingFaceDataset(dataset, data_format=formats, seq_tag_column=None)
            assert [batch["text"][1][0] for batch in _batches(named, num_workers, batch_size=1)] == wanted
    source = HuggingFaceSource(dataset, fields=hr.next_token_fields("text", tokenizer, eos="</s>"))
    assert source.read(1, "targets").tolist() == [*wanted[1], 4]
    states = []
    for labels in (["low", "wide", "the"], ["wide", "low", "the"]):
        fields = {"text": {"field": "text", "vocab": {"class": "Vocabulary", "labels": labels, "unknown_label": None}}}
        with hr.DataLoader(HuggingFaceSource(dataset, fields=fields), batch_size=1, num_workers=0) as loader:
            next(iter(loader))
            states.append(loader.state_dict()["digests"]["data"])
    assert states[0] != states[1]


def test_texts_and_sequences_of_labels_without_files_are_the_same_for_any_number_of_workers(folder):
    dataset = _by_path(folder).remove_columns(["image", "audio"])
    for options in ({"batch_size": 2}, {"batching": hr.FrameBudget(60, data_key="text")}):
        with (
            hr.DataLoader(dataset, num_workers=0, **options) as alone,
            hr.DataLoader(dataset, num_workers=2, **options) as shared,
        ):
            for batch, other in zip(alone, shared, strict=True):
                assert list(batch) == list(other) == ["label", "tags", "text"]
                assert all(np.array_equal(batch[key], other[key]) for key in batch)
                if "batch_size" in options:
                    assert isinstance(batch["text"][0], str)  # no lengths are needed: rows are as they are
    tags = _batches(dataset.select_columns(["label", "tags"]), 2, batch_size=1)
    assert [batch["tags"][1][0] for batch in tags] == dataset["tags"][:]


def test_what_a_loader_cannot_make_of_rows_is_said(folder, caplog, monkeypatch):
    dataset = _by_path(folder).select_columns(["audio", "label"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    for make in (
        lambda: hr.DataLoader(dataset, batch_size=2, collate=list, num_workers=0),
        lambda: hr.DataLoader(dataset.with_format("numpy"), batch_size=2, num_workers=0),
    ):
        with pytest.raises(ConfigError, match=r"(?s)'audio'.*package torchcodec.*by soundfile"):
            make()
    monkeypatch.undo()
    raw = dataset.cast_column("audio", datasets.Audio(decode=False))
    with hr.DataLoader(raw, batch_size=2, collate=list, num_workers=0) as loader:
        assert [row["label"] for row in next(iter(loader))] == [0, 1]
    boxes = dataset.add_column("boxes", [[{"x": 1}]] * NUM)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert list(_batches(boxes, 0, batch_size=1)[0]) == ["audio", "label"]
    assert "'boxes' of the dataset become no arrays" in caplog.text


def _streams(folder):
    """Return streaming datasets whose rows have recordings in each of the ways that there are."""
    features = datasets.Features({"audio": datasets.Audio(), "label": datasets.Value("int64")})

    def rows(value_of):
        return [{"audio": value_of(folder / "sounds" / f"{i}.wav", i), "label": i} for i in range(NUM)]

    def by_path():
        yield from rows(lambda path, i: str(path))

    def by_url():
        yield from rows(lambda path, i: {"bytes": None, "path": f"zip://{path.name}::{folder / 'sounds.zip'}"})

    def by_bytes():
        yield from rows(lambda path, i: {"bytes": path.read_bytes(), "path": "a.wav"})

    def by_samples():
        yield from rows(lambda path, i: {"array": _samples(i) / 32768, "sampling_rate": 16000})

    for generator in (by_path, by_url, by_bytes, by_samples):
        yield datasets.IterableDataset.from_generator(generator, features=features)
    yield _by_path(folder).select_columns(["audio", "label"]).to_iterable_dataset(num_shards=2)


def test_recordings_of_a_streaming_dataset_are_decoded_as_those_of_any_other(folder):
    with zipfile.ZipFile(folder / "sounds.zip", "w") as archive:
        for path in (folder / "sounds").iterdir():
            archive.write(path, path.name)
    for number, stream in enumerate(_streams(folder)):
        for num_workers in (0, 1) if number == 0 else (0,):
            batches = _batches(stream, num_workers, batch_size=1)
            assert len(batches) == NUM
            for i, batch in enumerate(batches):
                assert batch["audio"][0] == "float32"
                assert np.array_equal(np.ravel(batch["audio"][1][0]), (_samples(i) / 32768).astype(np.float32))
    slower = stream.cast_column("audio", datasets.Audio(sampling_rate=8000))
    with hr.DataLoader(slower, batching=hr.FrameBudget(400, data_key="audio"), num_workers=0) as loader:
        assert sum(len(batch["label"]) for batch in loader) == NUM
        assert next(iter(loader))["audio"].shape[1:] == (64, 1)


def test_what_cannot_be_decoded_of_a_streaming_dataset_is_said(folder, tmp_path, monkeypatch):
    soundfile.write(tmp_path / "other.wav", _samples(0), 8000)
    soundfile.write(tmp_path / "stereo.wav", np.stack([_samples(0)] * 2, 1), 16000)
    features = datasets.Features({"audio": datasets.Audio()})
    first = str(folder / "sounds" / "0.wav")
    for second, what in (
        (str(tmp_path / "other.wav"), "different sample rates: 16000 and 8000 Hz"),
        (str(tmp_path / "stereo.wav"), "has 2 channels"),
        (str(tmp_path / "none.wav"), r"none\.wav"),
        ({"bytes": None, "path": None}, "neither bytes nor a path"),
    ):
        stream = datasets.IterableDataset.from_generator(
            lambda second=second: iter([{"audio": first}, {"audio": second}]), features=features
        )
        with hr.DataLoader(stream, batch_size=1, num_workers=0) as loader, pytest.raises(SourceError, match=what):
            list(loader)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(ConfigError, match=r"(?s)'audio'.*package torchcodec.*by soundfile"):
        hr.DataLoader(stream, batch_size=2, collate=list, num_workers=0)
