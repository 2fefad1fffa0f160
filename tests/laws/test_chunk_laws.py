"""Chunks are the same bit for bit whether whole sequences are read or only their own frames, and these cost no more."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from format_cases import FormatCase
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from examples_of_laws import examples
from headrace.batching import BatchOrder, Buckets, Chunks, FixedCount, FrameBudget, Pack
from headrace.datasets.reading.loaded import LastArrays
from headrace.datasets.reading.reader import Reader, ReadRequest
from headrace.datasets.reading.source import SourceReader
from headrace.errors import SourceError
from headrace.sources import HDFWriter, JsonlSource, MemorySource, TarWriter
from headrace.vocabularies.labels import CharacterTargets

pytestmark = pytest.mark.usefixtures("warm_workers")

FEW = examples(8)


@contextmanager
def reading_whole_sequences() -> Iterator[None]:
    """Let no source be asked for slices, as before there were any."""
    with mock.patch.object(SourceReader, "sliced_frames", Reader.sliced_frames):
        yield


def print_of(batch: Any) -> Any:
    arrays = [(key, str(value.dtype), value.shape, value.tobytes()) for key, value in batch.items()]
    lengths = [(key, value.tolist()) for key, value in batch.lengths.items()]
    places = batch.seq_idx.tolist(), batch.corpus_idx.tolist(), batch.tags, batch.chunk_starts.tolist()
    return batch.epoch, batch.position, arrays, lengths, places


def add_noise(seq: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**seq, "data": seq["data"] + rng.random(seq["data"].shape, dtype=np.float32)}


def scribble(seq: dict[str, Any]) -> dict[str, Any]:
    for value in seq.values():
        value *= 2
    return seq


CHUNKINGS = st.builds(
    lambda inner, frames, step, context, min_frames: Chunks(
        inner, frames, min(step, frames), min_frames=min_frames, context=context, whole_keys=("names",)
    ),
    st.sampled_from(
        [
            FixedCount(1),
            FixedCount(5),
            FrameBudget(60),
            Buckets(FixedCount(3), num_buckets=2),
            Pack(99, 2, packed_keys=("data",)),
        ]
    ),
    st.integers(1, 12),
    st.integers(1, 12),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.integers(0, 3),
)
RECIPES = st.fixed_dictionaries(
    {
        "batching": CHUNKINGS,
        "batch_order": st.sampled_from([None, BatchOrder("keep"), BatchOrder("shuffle", 2)]),
        "window_seqs": st.integers(1, 30),
        "seed": st.integers(0, 3),
        "transform": st.sampled_from([None, add_noise]),
    }
)


def batches(dataset: Any, recipe: dict[str, Any], epoch: int = 1, **options: Any) -> list[Any]:
    with hr.DataLoader(dataset, **recipe, **options) as loader:
        loader.set_epoch(epoch)
        return [print_of(batch) for batch in loader]


@pytest.mark.sample(9)
def test_of_every_format_chunks_are_what_is_cut_out_of_whole_sequences(tmp_path: Path, case: FormatCase) -> None:
    case.write(tmp_path)
    source = case.open(tmp_path)
    if not all(map(source.index.has_lengths, source.specs)):
        pytest.skip("its lengths are not known before it is read, so nothing can be planned")
    if any(None in spec.shape for spec in source.specs.values() if not spec.has_time):
        pytest.skip("what has no time and no one shape makes no batch")
    key = next(key for key, spec in source.specs.items() if spec.has_time)
    others = tuple(other for other in source.specs if other != key)
    unit = max(int(source.index.lengths(key).max()) // 9, 1)
    dataset = hr.SourceDataset(source)
    for transform in (None, scribble):
        for frames, step, context in ((1, 1, (0, 0)), (4, 2, (1, 2)), (3, 3, (0, 0)), (2, 1, (3, 0)), (100, 7, (0, 0))):
            size, stride = frames * unit, step * unit
            batching = Chunks(FixedCount(3, data_key=key), size, stride, context=context, whole_keys=others)
            recipe = {"batching": batching, "transform": transform}
            found = batches(dataset, recipe)
            with reading_whole_sequences():
                assert batches(dataset, recipe) == found
    dataset.close()


def corpus(lengths: list[int]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    return [
        {
            "data": rng.random((n, 2), dtype=np.float32),
            "classes": rng.integers(0, 9, n).astype(np.int32),
            "names": rng.integers(0, 9, 7).astype(np.int32),
            "speaker": np.array(i, np.int64),
        }
        for i, n in enumerate(lengths)
    ]


LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=12)


def written(folder: str, lengths: list[int]) -> str:
    seqs = corpus(lengths)
    with HDFWriter(Path(folder) / "x.hdf") as writer:
        for i, seq in enumerate(seqs):
            writer.append(f"seq-{i}", {key: value for key, value in seq.items() if key != "speaker"})
    return str(Path(folder) / "x.hdf")


COMPOSED: dict[str, Callable[[str, list[dict[str, Any]]], Any]] = {
    "hdf": lambda file, seqs: hr.HDFDataset(file, seq_ordering="random"),
    "memory": lambda file, seqs: hr.SourceDataset(MemorySource(seqs), seq_ordering="random"),
    "with a transform": lambda file, seqs: hr.HDFDataset(file, transform=negate),
    "cached": lambda file, seqs: hr.HDFDataset(file, cache_byte_size=-1),
    "window": lambda file, seqs: hr.HDFDataset(file, window=3),
    "concat": lambda file, seqs: hr.ConcatDataset([hr.HDFDataset(file), hr.HDFDataset(file)]),
    "several epochs": lambda file, seqs: hr.MultiEpochDataset(multi_epoch=2, dataset=hr.HDFDataset(file)),
    "meta": lambda file, seqs: hr.MetaDataset(
        {"a": hr.HDFDataset(file), "b": hr.HDFDataset(file, transform=negate)},
        data_map={"data": ("a", "data"), "names": ("a", "names"), "classes": ("b", "classes")},
    ),
    "part with fewer keys": lambda file, seqs: hr.CombinedDataset(
        {"a": hr.HDFDataset(file), "b": hr.SourceDataset(MemorySource([{"data": seq["data"]} for seq in seqs]))},
        data_map={("a", "data"): "data", ("b", "data"): "data", ("a", "names"): "names"},
        seq_ordering="interleave",
    ),
    "postprocessing": lambda file, seqs: hr.PostprocessingDataset(
        dataset=hr.HDFDataset(file), map_seq=map_seq, map_seq_preserves_lengths=True
    ),
}


def negate(features: dict[str, Any]) -> dict[str, Any]:
    return {**features, "data": -features["data"]}


def map_seq(seq: Any, **_: Any) -> Any:
    return seq


@pytest.mark.parametrize("name", sorted(COMPOSED))
@FEW
@given(LENGTHS, RECIPES, st.integers(1, 2))
def test_whatever_a_dataset_is_made_of_chunks_are_the_same(
    name: str, lengths: list[int], recipe: dict[str, Any], epoch: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        seqs = corpus(lengths)
        with COMPOSED[name](written(folder, lengths), seqs) as dataset:
            found = batches(dataset, recipe, epoch)
            with reading_whole_sequences():
                assert batches(dataset, recipe, epoch) == found


@given(LENGTHS, RECIPES, st.integers(0, 2), st.integers(1, 3), st.integers(0, 9))
@examples(25)
def test_neither_workers_nor_ranks_nor_a_restart_change_a_chunk(
    lengths: list[int], recipe: dict[str, Any], workers: int, ranks: int, done: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, hr.HDFDataset(written(folder, lengths)) as dataset:
        with reading_whole_sequences():
            expected = batches(dataset, recipe)
        with hr.DataLoader(dataset, **recipe) as loader:
            for _ in zip(range(done), loader, strict=False):
                pass
            state = loader.state_dict()
        start = state["position"] if state["epoch"] == 1 else len(expected)
        found = []
        for rank in range(ranks):
            options = {"rank": rank, "world_size": ranks, "remainder": "keep"}
            with hr.DataLoader(dataset, **recipe, **options, num_workers=workers, executor="thread") as loader:
                loader.load_state_dict(state)
                found += [print_of(batch) for batch in next(loader.epochs()) if batch.epoch == 1]
        assert sorted(found, key=lambda batch: batch[1]) == expected[start:]


def bytes_read() -> int:
    """Return how many bytes this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what a process reads")
@pytest.mark.parametrize("form", ["hdf", "tar", "tokens"])
def test_each_byte_of_a_long_sequence_is_read_about_once(tmp_path: Path, form: str) -> None:
    num_frames = 2_000_000
    data = np.arange(num_frames, dtype=np.int32)
    if form == "tokens":
        data.tofile(tmp_path / "x.bin")
        source: Any = hr.TokenSource(tmp_path / "x.bin", dtype="int32", block_length=num_frames)
    else:
        with HDFWriter(tmp_path / "x.hdf") if form == "hdf" else TarWriter(tmp_path / "x.tar") as writer:
            writer.append("a", {"data": data, "classes": data[::-1].copy()})
        source = hr.HDFSource(tmp_path / "x.hdf") if form == "hdf" else hr.TarSource(tmp_path / "x.tar")
    with (
        hr.SourceDataset(source) as dataset,
        hr.DataLoader(dataset, batching=Chunks(FixedCount(1), num_frames // 100)) as loader,
    ):
        batches = iter(loader)
        next(batches)
        before = bytes_read()
        assert sum(1 for _ in batches) == 99
        total = data.nbytes * len(source.specs)
        assert 0.98 * total < bytes_read() - before < 1.02 * total + 100_000


class CountingSource(MemorySource):
    """Counts the frames that are read of it, by data key."""

    def __init__(self, seqs: Any) -> None:
        super().__init__(seqs)
        self.frames = dict.fromkeys(self.specs, 0)
        self.reads = 0

    def read(self, corpus_idx: int, data_key: str) -> Any:
        array = super().read(corpus_idx, data_key)
        self.frames[data_key] += len(array) if array.ndim else 1
        return array

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> Any:
        self.reads += 1
        self.frames[data_key] += end - start
        return super().read_slice(corpus_idx, data_key, start, end)


def test_overlapping_chunks_and_neighbours_in_one_batch_are_one_read() -> None:
    source = CountingSource(corpus([400]))
    batching = Chunks(FixedCount(8), 10, 5, whole_keys=("names",), context=(2, 2))
    with hr.SourceDataset(source) as dataset, hr.DataLoader(dataset, batching=batching) as loader:
        count = sum(1 for _ in loader)
    assert count == 10
    overlap = 5 + 2 + 2
    assert 400 <= source.frames["data"] == source.frames["classes"] <= 400 + count * overlap
    assert source.reads == 2 * count
    assert (source.frames["names"], source.frames["speaker"]) == (7 * count, count)


class CountingTargets(CharacterTargets):
    """Counts the texts that are encoded."""

    num_encoded = 0

    def encode(self, text: str) -> Any:
        type(self).num_encoded += 1
        return super().encode(text)


@pytest.mark.parametrize("order", ["default", "random"])
def test_texts_are_encoded_once_however_many_batches_have_chunks_of_them(tmp_path: Path, order: str) -> None:
    lines = [{"id": str(number), "text": "abcd" * (250 + number), "speaker": number} for number in range(4)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    vocab = CountingTargets(labels=list("abcd"), unknown_label=None)
    fields = {"data": {"field": "text", "vocab": vocab}, "speaker": "speaker"}
    source = JsonlSource(tmp_path / "x.jsonl", fields=fields)
    recipe = {"batching": Chunks(FixedCount(2), 10), "seed": 1}
    with hr.SourceDataset(source, seq_ordering=order) as dataset:
        with reading_whole_sequences(), hr.DataLoader(dataset, **recipe) as loader:
            expected = [print_of(batch) for batch in loader]
        CountingTargets.num_encoded = 0
        with hr.DataLoader(dataset, **recipe) as loader:
            assert [print_of(batch) for batch in loader] == expected
    assert len(expected) > 200
    assert CountingTargets.num_encoded == 4


@pytest.mark.parametrize("name", ["concat", "meta", "part with fewer keys", "several epochs"])
def test_a_dataset_made_of_others_passes_slices_on(tmp_path: Path, name: str) -> None:
    with COMPOSED[name](written(str(tmp_path), [30, 20]), corpus([30, 20])) as dataset:
        reader = dataset.get_corpus().reader()
        reader.start(ReadRequest.of(1, np.arange(2)))
        found = reader.sliced_frames(1)
        assert found is not None
        assert found["data"] == 20
        assert found.get("classes") is None or name not in (
            "meta",
            "part with fewer keys",
        )  # what a transform may change is read whole
        assert reader.frames(1, "data", 3, 5).shape == (2, 2)


def test_a_key_of_another_frame_rate_is_refused_as_if_it_were_read_whole() -> None:
    for names in ((), ("speaker",)):
        batching = Chunks(FixedCount(1), 10, whole_keys=names)
        with (
            hr.SourceDataset(MemorySource(corpus([30]))) as dataset,
            hr.DataLoader(dataset, batching=batching) as loader,
            pytest.raises(hr.ConfigError, match="'names' has 7 frames and 'data' has 30"),
        ):
            next(iter(loader))


RATE = 8000
CODINGS = [
    ("wav", "PCM_16"),
    ("wav", "FLOAT"),
    ("wav", "IMA_ADPCM"),
    ("flac", "PCM_16"),
    ("ogg", "VORBIS"),
    ("ogg", "OPUS"),
    ("mp3", "MPEG_LAYER_III"),
    ("wav", "GSM610"),
]


def recordings(folder: Path, ending: str, subtype: str, num: int = 3) -> Path:
    soundfile = pytest.importorskip("soundfile")
    rng = np.random.default_rng(2)
    lines = []
    for i in range(num):
        samples = np.sin(np.arange(RATE * (2 + i)) * 0.1) * 0.4 + rng.normal(size=RATE * (2 + i)) * 0.1
        name = f"{i}.{ending}"
        try:
            soundfile.write(folder / name, samples.astype(np.float32), RATE, subtype=subtype)
        except (RuntimeError, ValueError) as error:
            pytest.skip(f"libsndfile cannot write it: {error}")
        found, _ = soundfile.read(folder / name)
        lines.append(json.dumps({"tag": f"r{i}", "audio": name, "num_samples": len(found), "sample_rate": RATE}))
    (folder / "m.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "m.jsonl"


@pytest.mark.sample(4)
@pytest.mark.parametrize("features", ["raw", {"num_mels": 10}])
@pytest.mark.parametrize(("ending", "subtype"), CODINGS)
def test_samples_that_are_sought_are_those_of_the_whole_recording(
    tmp_path: Path, ending: str, subtype: str, features: Any
) -> None:
    manifest = recordings(tmp_path, ending, subtype)
    frames, step = (1111, 700) if features == "raw" else (13, 9)
    for order in (None, BatchOrder("shuffle")):
        recipe = {"batching": Chunks(FixedCount(2), frames, step), "batch_order": order, "seed": 1}
        with hr.AudioDataset(manifest, features=features) as dataset:
            found = batches(dataset, recipe)
            with reading_whole_sequences():
                assert batches(dataset, recipe) == found


@pytest.mark.parametrize(("ending", "subtype"), [("wav", "PCM_16"), ("flac", "PCM_16")])
def test_of_a_recording_that_can_be_sought_the_rest_is_not_decoded(
    tmp_path: Path, ending: str, subtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile = pytest.importorskip("soundfile")
    manifest = recordings(tmp_path, ending, subtype)
    decoded = []
    read = soundfile.SoundFile.read

    def counting(self: Any, frames: int = -1, *args: Any, **kwargs: Any) -> Any:
        samples = read(self, frames, *args, **kwargs)
        decoded.append(len(samples))
        return samples

    monkeypatch.setattr(soundfile.SoundFile, "read", counting)
    with hr.AudioDataset(manifest) as dataset:
        batches(dataset, {"batching": Chunks(FixedCount(1), 1000)})
    assert sum(decoded) == RATE * (2 + 3 + 4)


@pytest.mark.parametrize("subtype", ["OPUS", "VORBIS"])
def test_a_recording_that_cannot_be_sought_is_decoded_once_for_all_of_its_chunks(
    tmp_path: Path, subtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile = pytest.importorskip("soundfile")
    manifest = recordings(tmp_path, "ogg", subtype)
    with hr.AudioDataset(manifest) as dataset:
        num_samples = sum(dataset.source.index.lengths("data").tolist())
        decoded = []
        read = soundfile.SoundFile.read

        def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
            samples = read(self, *args, **kwargs)
            decoded.append(len(samples))
            return samples

        monkeypatch.setattr(soundfile.SoundFile, "read", counting)
        batches(dataset, {"batching": Chunks(FixedCount(1), 1000)})
    assert sum(decoded) == num_samples


def test_a_recording_that_was_cut_off_since_is_refused_at_its_first_chunk(tmp_path: Path) -> None:
    manifest = recordings(tmp_path, "wav", "PCM_16")
    with (
        hr.AudioDataset(manifest) as dataset,
        hr.DataLoader(dataset, batching=Chunks(FixedCount(1), 1000)) as loader,
    ):
        loader.count(1)
        file = tmp_path / "0.wav"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(SourceError, match="was 16000 and is 15950") as info:
            next(iter(loader))
    assert any("r0" in note for note in info.value.__notes__)


class Draws:
    """A user's object that draws from NumPy's generator each time."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"data": np.random.random(40)}

    def get_seq_len(self, number: int) -> dict[str, int]:
        return {"data": 40}


def test_of_an_object_that_draws_no_chunk_depends_on_the_batches_before() -> None:
    recipe = {"batching": Chunks(FixedCount(2), 10), "seed": 1}
    with hr.SourceDataset(hr.MapSource(Draws())) as dataset:
        expected = batches(dataset, recipe)
        for done in (1, 3, 5):
            with hr.DataLoader(dataset, **recipe) as before, hr.DataLoader(dataset, **recipe) as after:
                for _ in zip(range(done), before, strict=False):
                    pass
                after.load_state_dict(before.state_dict())
                assert [print_of(batch) for batch in after] == expected[done:]


@pytest.mark.parametrize("num_frames", [0, 1])
def test_what_is_kept_of_short_arrays_is_bounded_too(num_frames: int) -> None:
    source = MemorySource([{"data": np.zeros(num_frames, np.float32)}] * 1000)
    tracemalloc.start()
    try:
        kept = LastArrays(source, 20_000)
        for corpus_idx in range(1000):
            kept.read(corpus_idx, "data")
        assert tracemalloc.get_traced_memory()[0] < 60_000
    finally:
        tracemalloc.stop()
