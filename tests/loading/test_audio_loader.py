"""Recordings through the loader: real speech, and files written here."""

import json
from pathlib import Path

import numpy as np
import pytest

from headrace import AudioDataset, ConfigError, ResumeError
from headrace.batching import Buckets, Chunks, FixedCount, FrameBudget
from headrace.loading import DataLoader

soundfile = pytest.importorskip("soundfile")

CORPUS = Path(__file__).parents[2] / "data" / "spoken_numbers"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def print_of(batch):
    arrays = [(key, value.dtype.str, value.shape, value.tobytes()) for key, value in batch.items()]
    return batch.position, batch.tags, arrays, [array.tolist() for array in batch.lengths.values()]


def open_speech(**options):
    features = {"num_mels": 20}
    targets = {"classes": "word"}
    return AudioDataset(CORPUS / "manifest.jsonl", features=features, targets=targets, **options)


def test_real_speech_comes_in_padded_batches_from_workers_as_inline():
    options = {"batching": Buckets(FrameBudget(2000), num_buckets=4), "seed": 3}
    with open_speech(seq_ordering="random") as dataset:
        with DataLoader(dataset, **options) as loader:
            expected = [print_of(batch) for batch in loader]
            counts = loader.count(1)
        with DataLoader(dataset, num_workers=2, **options) as loader:
            for batch, print_expected in zip(loader, expected, strict=True):
                assert print_of(batch) == print_expected
                assert batch["data"].shape[0] * batch["data"].shape[1] <= 2000
                assert batch["data"].dtype == np.float32
                assert batch.lengths["data"].max() == batch["data"].shape[1]
                assert np.isfinite(batch["data"]).all()
    assert counts.seqs == counts.pieces == 265
    assert counts.padding_share < 0.15
    assert len({tag for _, tags, *_ in expected for tag in tags}) == 265


def test_speech_is_resumed_on_other_ranks():
    options = {"batching": FrameBudget(3000), "num_workers": 1}
    with open_speech(seq_ordering="laplace:.20") as dataset, DataLoader(dataset, **options) as loader:
        expected = [print_of(batch) for batch in loader]
    with open_speech(seq_ordering="laplace:.20") as dataset, DataLoader(dataset, **options) as loader:
        for _ in zip(range(4), loader, strict=False):
            pass
        state = json.loads(json.dumps(loader.state_dict()))
    found = []
    for rank in (0, 1):
        ranks = {"rank": rank, "world_size": 2, "remainder": "keep"}
        with open_speech(seq_ordering="laplace:.20") as dataset, DataLoader(dataset, **options, **ranks) as loader:
            loader.load_state_dict(state)
            found += [print_of(batch) for batch in next(loader.epochs())]
    assert sorted(found, key=lambda batch: batch[0]) == expected[4:]


@pytest.fixture
def manifest(tmp_path):
    """Write twelve recordings of 80 to 300 samples."""
    records = []
    for i in range(12):
        samples = np.sin(np.arange(80 + 20 * i) * (0.1 + 0.01 * i)).astype(np.float32)
        soundfile.write(tmp_path / f"{i}.wav", samples, 8000, subtype="PCM_16")
        records.append({"tag": f"r{i}", "audio": f"{i}.wav", "num_samples": len(samples), "sample_rate": 8000})
    path = tmp_path / "manifest.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("workers", [0, 2])
def test_raw_samples_are_those_of_the_files(manifest, workers):
    with AudioDataset(manifest) as dataset, DataLoader(dataset, batching=FixedCount(5), num_workers=workers) as loader:
        for batch in loader:
            for tag, array, length in zip(batch.tags, batch["data"], batch.lengths["data"], strict=True):
                samples, _ = soundfile.read(manifest.parent / f"{tag[1:]}.wav", dtype="float32")
                np.testing.assert_array_equal(array[:length, 0], samples)
                assert not array[length:].any()


def test_chunks_of_recordings_cover_them(manifest):
    with AudioDataset(manifest) as dataset, DataLoader(dataset, batching=Chunks(FixedCount(4), 64)) as loader:
        frames = sum(batch.num_frames for batch in loader)
    assert frames == sum(80 + 20 * i for i in range(12))


def test_a_state_of_other_recordings_is_refused(manifest):
    with AudioDataset(manifest) as dataset, DataLoader(dataset, batching=FixedCount(5)) as loader:
        state = loader.state_dict()
    records = manifest.read_text().splitlines()
    manifest.write_text("\n".join(records[:-1]) + "\n")
    with (
        AudioDataset(manifest) as dataset,
        DataLoader(dataset, batching=FixedCount(5)) as loader,
        pytest.raises(ResumeError, match="another data"),
    ):
        loader.load_state_dict(state)


def test_a_budget_that_was_meant_in_samples_is_found(manifest):
    with (
        AudioDataset(manifest) as dataset,
        DataLoader(dataset, batching=FrameBudget(50)) as loader,
        pytest.raises(ConfigError, match="the shortest has 80 frames"),
    ):
        next(iter(loader))
