"""`CutSource`: manifests of cuts, Shar folders and cut sets in memory, read through lhotse at any place."""

import copy
import gzip
import io
import json
import os
import pickle
import shutil
import tarfile
import warnings

import h5py
import numpy as np
import pytest

pytest.importorskip("soundfile")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lhotse = pytest.importorskip("lhotse")
    from lhotse import CutSet, Features, MonoCut, NumpyFilesWriter, Recording, SupervisionSegment
    from lhotse.shar import SharWriter

import soundfile

from headrace import DataLoader
from headrace.batching import FixedCount
from headrace.datasets.files.source import SourceDataset
from headrace.datasets.workers import gathering, map_in_workers
from headrace.engine import EngineOptions, Skipping
from headrace.errors import ConfigError, SourceError
from headrace.sources.cuts import files as cuts_lines
from headrace.sources.cuts.source import CutSource
from headrace.sources.cuts.table import LINE_BYTES, LINE_START, SHARD, FieldColumns
from headrace.sources.shared import parts
from headrace.testing import check_source

pytestmark = pytest.mark.filterwarnings("ignore")  # lhotse's and torch's own
RATE = 8000
NUM = 7


@pytest.fixture(scope="module")
def cuts(tmp_path_factory):
    """Cuts with audio, features, two custom arrays, a custom recording, texts and speakers."""
    folder = tmp_path_factory.mktemp("cuts")
    rng = np.random.default_rng(0)
    found = []
    with NumpyFilesWriter(folder / "arrays") as store:
        for number in range(NUM):
            num_samples = 800 + 80 * number
            for name in ("own", "other"):
                samples = rng.integers(-3000, 3000, num_samples).astype(np.int16)
                soundfile.write(folder / f"{name}-{number}.{'wav' if number % 2 else 'flac'}", samples, RATE)
            path = folder / f"own-{number}.{'wav' if number % 2 else 'flac'}"
            recording = Recording.from_file(path, recording_id=f"rec-{number}")
            duration = recording.duration
            cut = MonoCut(f"cut/{number}.x", 0.0, duration, 0, recording=recording)
            num_frames = num_samples // 80
            features = rng.random((num_frames, 5), np.float32)
            key = store.write(f"feats-{number}", features)
            cut.features = Features(
                type="fbank", num_frames=num_frames, num_features=5, frame_shift=0.01, sampling_rate=RATE, start=0.0,
                duration=duration, storage_type=store.name, storage_path=str(store.storage_path), storage_key=key,
                recording_id=recording.id, channels=0,
            )  # fmt: skip
            cut.embedding = store.store_array(f"emb-{number}", rng.random(3))
            cut.alignment = store.store_array(
                f"ali-{number}", rng.integers(0, 9, num_frames), frame_shift=0.01, temporal_dim=0, start=0.0
            )
            other = folder / f"other-{number}.{'wav' if number % 2 else 'flac'}"
            cut.target = Recording.from_file(other, recording_id=f"target-{number}")
            cut.style = ["calm", "loud"][number % 2]
            cut.supervisions = [
                SupervisionSegment(
                    f"sup-{number}-{part}", recording.id, start, duration / 2, text=text, speaker=f"sp{number % 3}"
                )
                for part, (start, text) in enumerate([(duration / 2, f"zwei{number}"), (0.0, "ein\u00e4")])
            ]
            found.append(cut)
    return CutSet.from_cuts(found)


@pytest.fixture(autouse=True)
def in_the_folder_of_all_files(tmp_path_factory, monkeypatch):
    """Manifests may name files below the current folder."""
    monkeypatch.chdir(tmp_path_factory.getbasetemp())


FIELDS = {
    "data": "audio",
    "features": "features",
    "embedding": "embedding",
    "alignment": "alignment",
    "target": "target",
    "text": "text",
    "chars": {"field": "text", "vocab": "chars"},
    "speaker": "speaker",
    "style": {"field": "style", "vocab": ["loud", "calm"]},
}
SHAR_FIELDS = {
    "recording": "wav",
    "features": "numpy",
    "embedding": "numpy",
    "alignment": "numpy",
    "target": "flac",
    "style": "jsonl",
}


LOCATORS = [SHARD, LINE_START, LINE_BYTES, *(name for field in SHAR_FIELDS for name in FieldColumns.of(field))]


def write_shar(cuts, folder, fields=SHAR_FIELDS, shard_size=3):
    folder.mkdir()
    with SharWriter(folder, fields=fields, shard_size=shard_size, warn_unused_fields=False) as writer:
        for cut in cuts:
            writer.write(cut)
    return folder


def stored(cuts, form, folder):
    """Write cuts in a form, and return what names them."""
    if form == "memory":
        return cuts
    if form == "shar":
        return write_shar(cuts, folder / "shar")
    path = folder / form
    cuts.to_file(path)
    return path


def assert_as_lhotse_reads_it(source, cuts):
    assert list(source.index.tags) == [cut.id for cut in cuts]
    for number, cut in enumerate(cuts):
        seq = source.read_seq(number)
        assert list(seq) == list(FIELDS)
        np.testing.assert_array_equal(seq["data"], cut.load_audio().T)
        np.testing.assert_array_equal(seq["features"], cut.load_features())
        np.testing.assert_array_equal(seq["embedding"], cut.load_embedding())
        np.testing.assert_array_equal(seq["alignment"], cut.load_alignment())
        np.testing.assert_array_equal(seq["target"], cut.load_target().T)
        text = f"ein\u00e4 zwei{number}"
        assert seq["text"].tobytes().decode() == text
        assert "".join(source.labels["chars"][char] for char in seq["chars"]) == text
        assert source.labels["speaker"][seq["speaker"]] == f"sp{number % 3}"
        assert seq["style"].tolist() == 1 - number % 2


@pytest.mark.parametrize("form", ["cuts.jsonl", "cuts.jsonl.gz", "shar", "memory"])
def test_every_form_gives_what_lhotse_loads_and_keeps_the_contract(cuts, form, tmp_path):
    source = CutSource(stored(cuts, form, tmp_path), fields=FIELDS, index=None)
    assert_as_lhotse_reads_it(source, cuts)
    assert {key: spec.shape for key, spec in source.specs.items() if spec.shape} == {
        "data": (1,),
        "features": (5,),
        "embedding": (3,),
        "target": (1,),
    }
    assert not source.specs["embedding"].has_time
    assert source.sample_rate("data") == RATE
    check_source(source)
    source.close()


@pytest.mark.parametrize("form", ["cuts.jsonl.gz", "shar"])
def test_without_fields_a_source_has_what_the_first_cut_has(cuts, form, tmp_path):
    source = CutSource(stored(cuts, form, tmp_path))
    assert list(source.specs) == ["audio", "features", "embedding", "alignment", "target", "text"]
    np.testing.assert_array_equal(source.read(3, "audio"), list(cuts)[3].load_audio().T)
    check_source(source)
    source.close()


def in_this_process(function, parts, num_workers):
    """Give parts to what other processes would get."""
    assert num_workers > 1
    function, parts = pickle.loads(pickle.dumps((function, list(parts))))
    for part in parts:
        yield pickle.loads(pickle.dumps(function(part)))


def outcome(files, fields):
    """Return what an index says, or what the error says."""
    try:
        source = CutSource(files, fields=fields, index=None)
    except SourceError as error:
        return str(error)
    index = source.index
    columns = {name: index.locator(name).tolist() for name in LOCATORS if index.has_locator(name)}
    return list(index.tags), index.digest, index.meta, columns


@pytest.mark.parametrize("workers", [in_this_process, map_in_workers])
@pytest.mark.parametrize("wrong", [None, "rate", "missing", "field", "repeated"])
def test_shards_are_indexed_alike_by_any_number_of_processes(cuts, workers, wrong, tmp_path, monkeypatch):
    if workers is map_in_workers and wrong not in (None, "rate"):
        pytest.skip("one error is enough for processes, which take seconds to start")
    found = copy.deepcopy(list(cuts))
    if wrong == "rate":
        found[4] = found[4].resample(4000)
    elif wrong == "missing":
        for number in (3, 5):
            found[number].recording.sources[0].source = str(tmp_path / f"none-{number}.wav")
    elif wrong == "field":
        del found[5].custom["style"]
    elif wrong == "repeated":
        found[6] = found[6].with_id(found[0].id)
    paths = []
    for number in range(0, NUM, 2):
        paths.append(tmp_path / f"{number}.jsonl")
        CutSet.from_cuts(found[number : number + 2]).to_file(paths[-1])
    corpora = [(paths, FIELDS)]
    if wrong is None:
        shar = write_shar(cuts, tmp_path / "shar", shard_size=2)
        corpora += [(shar, FIELDS), (shar, None)]
    for files, fields in corpora:
        expected = outcome(files, fields)
        assert isinstance(expected, tuple) == (wrong is None)
        monkeypatch.setattr(parts, "_offered", [workers])
        with gathering(num_workers=2):
            assert outcome(files, fields) == expected


@pytest.mark.parametrize("form", ["cuts.jsonl.gz", "shar"])
def test_a_saved_index_is_opened_without_a_look_at_the_cuts(cuts, form, tmp_path, monkeypatch):
    place = stored(cuts, form, tmp_path)
    source = CutSource(place, fields=FIELDS)
    source.index.save(tmp_path / "cuts.hrindex")
    monkeypatch.setattr("headrace.sources.cuts.source.gather_stored", None)
    source = CutSource(place, fields=FIELDS, index=tmp_path / "cuts.hrindex")
    assert_as_lhotse_reads_it(source, cuts)
    source.close()
    with pytest.raises(SourceError, match="the index was made for"):
        CutSource(place, fields={"data": "audio"}, index=tmp_path / "cuts.hrindex")


def test_large_compressed_manifests_are_unpacked_into_the_cache_folder(cuts, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(cuts_lines, "MEMORY_BYTES", 100)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    cuts.to_file(tmp_path / "plain.jsonl")
    text = (tmp_path / "plain.jsonl").read_bytes().replace(b"\n", b"\n\n")  # blank lines do no harm
    (tmp_path / "cuts.jsonl.gz").write_bytes(gzip.compress(text))
    source = CutSource(tmp_path / "cuts.jsonl.gz", fields=FIELDS)
    assert_as_lhotse_reads_it(source, cuts)
    (kept,) = (tmp_path / "cache" / "manifests").iterdir()
    assert kept.read_bytes() == text
    assert_as_lhotse_reads_it(pickle.loads(pickle.dumps(source)), cuts)
    source.close()
    shutil.rmtree(tmp_path / "cache")
    assert_as_lhotse_reads_it(source, cuts)
    source.close()
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("no folder")
    assert_as_lhotse_reads_it(source, cuts)
    assert "texts cannot be kept" in caplog.text
    source.close()


def test_several_manifests_and_several_folders_are_one_corpus(cuts, tmp_path):
    first, second = cuts.subset(first=3), cuts.subset(last=NUM - 3)
    first.to_file(tmp_path / "a.jsonl")
    second.to_file(tmp_path / "b.jsonl.gz")
    assert_as_lhotse_reads_it(CutSource([tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"], fields=FIELDS), cuts)
    folders = [write_shar(part, tmp_path / name) for name, part in [("one", first), ("two", second)]]
    assert_as_lhotse_reads_it(CutSource(folders, fields=FIELDS), cuts)
    shards = {
        field: sorted(path for folder in folders for path in folder.glob(f"{field}.*"))
        for field in ["cuts", *SHAR_FIELDS]
    }
    assert_as_lhotse_reads_it(CutSource(shards, fields=FIELDS), cuts)


def test_mixed_and_padded_cuts_are_read(cuts, tmp_path):
    head, tail, *_ = cuts
    mixed = CutSet.from_cuts([head.append(tail), tail.pad(duration=0.5)]).map(lambda cut: cut.with_id(f"m-{cut.id}"))
    mixed.to_file(tmp_path / "mixed.jsonl")
    source = CutSource(tmp_path / "mixed.jsonl", fields={"data": "audio"})
    for number, cut in enumerate(mixed):
        np.testing.assert_array_equal(source.read(number, "data"), cut.load_audio().T)
    assert source.index.lengths("data").tolist() == [800 + 880, 4000]
    check_source(source)


def test_parts_of_recordings_are_read_as_such(cuts, tmp_path):
    part = CutSet.from_cuts(cut.truncate(offset=0.02, duration=0.05, preserve_id=True) for cut in cuts)
    for form in ("cuts.jsonl", "shar"):
        (tmp_path / f"for-{form}").mkdir()
        source = CutSource(stored(part, form, tmp_path / f"for-{form}"), fields=FIELDS)
        assert source.index.lengths("data").tolist() == [400] * NUM
        assert source.index.lengths("alignment").tolist() == [5] * NUM
        check_source(source, max_seqs=2)
        for number, cut in enumerate(part):
            np.testing.assert_array_equal(source.read_slice(number, "data", 7, 311), cut.load_audio().T[7:311])


def test_two_channels_are_two_columns(tmp_path):
    samples = np.random.default_rng(1).integers(-9, 9, (400, 2)).astype(np.int16)
    soundfile.write(tmp_path / "two.wav", samples, RATE)
    recording = Recording.from_file(tmp_path / "two.wav")
    CutSet.from_cuts([recording.to_cut()]).to_file(tmp_path / "cuts.jsonl")
    source = CutSource(tmp_path / "cuts.jsonl")
    np.testing.assert_array_equal(source.read(0, "audio") * 32768, samples)
    check_source(source)


def test_an_empty_manifest_is_an_empty_corpus(tmp_path):
    (tmp_path / "cuts.jsonl").write_text("\n")
    source = CutSource(tmp_path / "cuts.jsonl", fields={"data": "audio", "classes": "text"})
    assert len(source) == 0
    check_source(source)


# --- bad input ---


def edited(cuts, path, edit):
    records = [cut.to_dict() for cut in cuts]
    for record in records:
        edit(record)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def test_missing_audio_is_named_when_the_index_is_built(cuts, tmp_path):
    def lose(record):
        if record["id"] in ("cut/2.x", "cut/5.x"):
            record["recording"]["sources"][0]["source"] += ".gone"

    with pytest.raises(SourceError, match=r"2 of 7 audio files are missing: .*own-2.*own-5") as caught:
        CutSource(edited(cuts, tmp_path / "cuts.jsonl", lose), fields={"data": "audio"})
    assert "with_recording_path_prefix" in str(caught.value)


@pytest.mark.parametrize("form", ["cuts.jsonl", "shar"])
def test_audio_that_is_shorter_than_it_says_is_refused_when_it_is_read(cuts, form, tmp_path):
    samples, _ = soundfile.read(list(cuts)[1].recording.sources[0].source, dtype="int16")
    soundfile.write(tmp_path / "short.wav", samples[:-100], RATE)
    if form == "shar":
        place = write_shar(cuts, tmp_path / "shar", {"recording": "wav"}, shard_size=100)
        replace_member(place / "recording.000000.tar", "cut/1.x.wav", (tmp_path / "short.wav").read_bytes())
    else:
        short = str(tmp_path / "short.wav")
        place = edited(
            cuts,
            tmp_path / "cuts.jsonl",
            lambda record: record["id"] == "cut/1.x" and record["recording"]["sources"][0].update(source=short),
        )
    source = CutSource(place, fields={"data": "audio"})
    with pytest.raises(SourceError, match=r"lhotse cannot load 'audio': .*(Requested more audio|diverged)") as caught:
        source.read(1, "data")
    assert "cut 'cut/1.x'" in str(caught.value)
    assert "tolerance=" in str(caught.value)
    with pytest.raises(SourceError, match="lhotse cannot load 'audio'"):
        source.read_slice(1, "data", 700, 850)
    assert source.read_slice(1, "data", 0, 10).shape == (10, 1)
    assert lhotse.audio.get_audio_duration_mismatch_tolerance() == 0.5
    assert source.read(2, "data").shape == (960, 1)
    assert CutSource(place, fields={"data": "audio"}, tolerance=0.05).read(1, "data").shape == (880, 1)


def test_a_loader_leaves_out_what_cannot_be_read_and_says_which(cuts, tmp_path):
    place = write_shar(cuts, tmp_path / "shar", {"recording": "wav"}, shard_size=100)
    replace_member(place / "recording.000000.tar", "cut/1.x.wav", b"no audio at all")
    dataset = SourceDataset(CutSource(place, fields={"data": "audio", "classes": "text"}), seq_ordering="default")
    with DataLoader(dataset, batching=FixedCount(4), num_workers=0) as loader:
        with pytest.raises(SourceError, match="lhotse cannot load 'audio'") as caught:
            list(loader)
        assert "cut 'cut/1.x'" in str(caught.value)
    options = EngineOptions(on_error=Skipping(quarantine=tmp_path / "bad.jsonl"))
    with DataLoader(dataset, batching=FixedCount(4), num_workers=1, engine_options=options) as loader:
        tags = [tag for batch in loader for tag in batch.tags]
    assert sorted(tags) == [f"cut/{number}.x" for number in range(NUM) if number != 1]
    assert "cut/1.x" in (tmp_path / "bad.jsonl").read_text()


def replace_member(path, name, content, new_name=None):
    """Write a tar file again with another content, or another name, of one member."""
    with tarfile.open(path) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar.getmembers()]
    with tarfile.open(path, "w") as tar:
        for found, data in members:
            if found == name:
                found, data = new_name or name, data if content is None else content
            entry = tarfile.TarInfo(found)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def test_ids_that_come_twice_are_refused(cuts, tmp_path):
    same = edited(
        cuts, tmp_path / "cuts.jsonl", lambda record: record["id"] == "cut/4.x" and record.update(id="cut/1.x")
    )
    with pytest.raises(SourceError, match=r"two cuts have the id 'cut/1\.x'") as caught:
        CutSource(same, fields={"data": "audio"})
    assert "cuts 1 and 4 of the corpus" in str(caught.value)


def test_shards_that_do_not_fit_are_refused(cuts, tmp_path):
    place = write_shar(cuts, tmp_path / "shar", {"recording": "wav", "style": "jsonl"})
    last = place / "recording.000002.tar"
    replace_member(place / "recording.000001.tar", "cut/4.x.wav", None, "cut/9.x.wav")
    with pytest.raises(SourceError, match=r"not a shard of lhotse's Shar: the member after 'cut/9\.x\.wav'"):
        CutSource(place)
    replace_member(place / "recording.000001.tar", "cut/4.x.json", None, "cut/9.x.json")
    with pytest.raises(SourceError, match=r"'recording' does not fit the cuts: it has the data of 'cut/9\.x'"):
        CutSource(place)
    shutil.copy(place / "recording.000000.tar", place / "recording.000001.tar")
    with pytest.raises(SourceError, match=r"it has the data of 'cut/0\.x' where the cut is 'cut/3\.x'"):
        CutSource(place)
    lines = gzip.decompress((place / "style.000000.jsonl.gz").read_bytes()).splitlines(keepends=True)
    with gzip.open(place / "style.000000.jsonl.gz", "wb") as file:
        file.write(b"".join(lines[:-1]))
    with pytest.raises(SourceError, match=r"'style' does not fit the cuts: it ends before the cut 'cut/2\.x'"):
        CutSource(place)
    with gzip.open(place / "style.000000.jsonl.gz", "wb") as file:
        file.write(b"".join([*lines, b'{"cut_id": "more"}\n']))
    with pytest.raises(SourceError, match="it has more entries than there are cuts"):
        CutSource({"cuts": [place / "cuts.000000.jsonl.gz"], "style": [place / "style.000000.jsonl.gz"]})
    last.unlink()
    with pytest.raises(SourceError, match="'recording' has 2 shards, and there are 3 of cuts"):
        CutSource(place)


def test_torn_shards_are_refused(cuts, tmp_path):
    place = write_shar(cuts, tmp_path / "shar", {"recording": "wav"}, shard_size=100)
    tar, manifest = place / "recording.000000.tar", place / "cuts.000000.jsonl.gz"
    whole = tar.read_bytes()
    tar.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"the archive is (torn|truncated)|ends before the cut|has no manifest"):
        CutSource(place)
    tar.write_bytes(whole)
    source = CutSource(place)
    source.read(0, "audio")
    source.close()
    tar.write_bytes(whole + b"\0" * 512)
    with pytest.raises(SourceError, match="the file was changed since it was indexed"):
        source.read(0, "audio")
    manifest.write_bytes(manifest.read_bytes()[:-20])
    with pytest.raises(SourceError, match="the manifest cannot be unpacked"):
        CutSource(place)


@pytest.mark.parametrize(
    "change",
    [
        {"type": "command", "source": "touch executed"},
        {"type": "url", "source": "pipe:touch executed"},
        {"type": "file", "source": "pipe:touch executed"},
    ],
)
def test_manifests_that_run_programs_are_refused(cuts, tmp_path, change, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = edited(cuts, tmp_path / "cuts.jsonl", lambda record: record["recording"]["sources"][0].update(change))
    with pytest.raises(SourceError, match=r"only data are read|audio files are missing"):
        CutSource(path, fields={"data": "audio"}, root="/")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("kind", ["memory_raw", "kaldiio"])
def test_arrays_that_may_execute_something_are_refused(cuts, kind, tmp_path):
    path = edited(cuts, tmp_path / "cuts.jsonl", lambda record: record["features"].update(storage_type=kind))
    with pytest.raises(SourceError, match=r"an array is stored as .*only data are read"):
        CutSource(path, fields={"features": "features"})


def test_files_outside_of_the_roots_are_refused_and_root_names_more(cuts, tmp_path, monkeypatch):
    path = tmp_path / "cuts.jsonl"
    cuts.to_file(path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=r"only files below .* are read") as caught:
        CutSource(path)
    assert "root=" in str(caught.value)
    folder = str(next(iter(cuts)).features.storage_path)
    others = [str(next(iter(cuts)).recording.sources[0].source).rpartition("/")[0], tmp_path]
    for root in ("/", folder.rpartition("/")[0], [folder, *others]):
        np.testing.assert_array_equal(CutSource(path, root=root).read(0, "audio"), next(iter(cuts)).load_audio().T)
    (tmp_path / "link").symlink_to(others[0])
    moved = tmp_path / "moved"
    moved.mkdir()

    def through_link(record):
        for name in ("features", "custom"):
            record.pop(name)
        source = record["recording"]["sources"][0]
        source["source"] = source["source"].replace(others[0], str(tmp_path / "link"))

    with pytest.raises(SourceError, match=r"which is .*, and only files below"):
        CutSource(edited(cuts, moved / "cuts.jsonl", through_link))
    with pytest.raises(ConfigError, match="root is the folder"):
        CutSource(path, root=tmp_path / "nowhere")


def test_a_source_that_is_a_pipe_is_refused_and_does_not_hang(cuts, tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")

    def use_pipe(record):
        record["recording"]["sources"][0]["source"] = str(tmp_path / "pipe.wav")

    with pytest.raises(SourceError, match="audio files are missing"):
        CutSource(edited(cuts, tmp_path / "cuts.jsonl", use_pipe), fields={"data": "audio"})

    def store_in_pipe(record):
        record["features"].update(storage_path=str(tmp_path), storage_key="pipe.wav")

    source = CutSource(edited(cuts, tmp_path / "cuts.jsonl", store_in_pipe), fields={"data": "features"})
    with pytest.raises(SourceError, match="not a regular file"):
        source.read(0, "data")


def test_a_field_of_shar_cannot_take_the_name_of_something_that_cuts_have(cuts, tmp_path):
    place = write_shar(cuts, tmp_path / "shar", {"recording": "wav", "style": "jsonl"}, shard_size=100)
    for name in ("__class__", "supervisions", "load_audio"):
        for path in place.glob("style.*"):
            lines = gzip.decompress(path.read_bytes()).replace(b'"style"', f'"{name}"'.encode())
            (place / f"{name}.000000.jsonl.gz").write_bytes(gzip.compress(lines))
        with pytest.raises(SourceError, match="which cuts have already"):
            CutSource(place, fields={"data": "audio"}, index=None)
        (place / f"{name}.000000.jsonl.gz").unlink()


def test_hdf5_features_in_other_files_are_refused(cuts, tmp_path):
    outside = tmp_path / "outside.h5"
    with h5py.File(outside, "w") as file:
        file["feats"] = np.zeros((10, 5), np.float32)
    with h5py.File(tmp_path / "inside.h5", "w") as file:
        file["feats"] = np.ones((10, 5), np.float32)
        file["other"] = h5py.ExternalLink(str(outside), "feats")
        file.create_dataset("huge", (2**40, 5), np.float32, chunks=(1024, 5))

    def use(key):
        def edit(record):
            record["features"].update(
                storage_type="numpy_hdf5", storage_path=str(tmp_path / "inside.h5"), storage_key=key
            )

        return CutSource(edited(cuts, tmp_path / f"{key}.jsonl", edit), fields={"data": "features"})

    np.testing.assert_array_equal(use("feats").read(0, "data"), np.ones((10, 5)))
    with pytest.raises(SourceError, match="is a link to the other file"):
        use("other").read(0, "data")
    with pytest.raises(SourceError, match=r"claims .* bytes, and 0 are stored"):
        use("huge").read(0, "data")


def test_a_cut_without_a_field_is_named(cuts, tmp_path):
    path = edited(cuts, tmp_path / "cuts.jsonl", lambda record: record["id"] == "cut/3.x" and record.pop("features"))
    with pytest.raises(SourceError, match="the cut has no 'features'") as caught:
        CutSource(path)
    assert "line 4" in str(caught.value)
    assert len(CutSource(path, fields={"data": "audio"})) == NUM


def test_other_layouts_than_before_are_refused(cuts, tmp_path):
    path = edited(
        cuts,
        tmp_path / "a.jsonl",
        lambda record: record["id"] == "cut/3.x" and record["features"].update(num_features=6),
    )
    with pytest.raises(SourceError, match=r"'features': this is float32\[\d+, 6\], and float32\[T, 5\] is wanted"):
        CutSource(path, fields={"features": "features"})
    other = CutSet.from_cuts([*cuts.subset(first=2), list(cuts)[2].drop_features().resample(4000)])
    other.to_file(tmp_path / "b.jsonl")
    with pytest.raises(SourceError, match=r"is 4000 Hz, and that of the cuts before 8000 Hz.*") as caught:
        CutSource(tmp_path / "b.jsonl", fields={"data": "audio"})
    assert "cuts.resample(8000)" in str(caught.value)


def test_speakers_that_differ_within_a_cut_are_refused(cuts, tmp_path):
    path = edited(
        cuts,
        tmp_path / "cuts.jsonl",
        lambda record: record["id"] == "cut/3.x" and record["supervisions"][1].update(speaker="x"),
    )
    with pytest.raises(SourceError, match="different values of 'speaker'"):
        CutSource(path, fields={"classes": "speaker"})


def test_bad_lines_are_named(cuts, tmp_path):
    path = tmp_path / "cuts.jsonl"
    for line, message in [
        ("{", "the line is not JSON"),
        ("[]", "the line is a list"),
        ('{"id": "r", "sources": [], "sampling_rate": 8000}', "a line is not a cut"),
        ('{"id": "s", "recording_id": "r", "start": 0, "duration": 1}', "a line is not a cut"),
        ('{"type": "OddCut", "id": "r", "start": 0}', "a cut of the type 'OddCut' is not known"),
    ]:
        path.write_text(f"{json.dumps(next(iter(cuts)).to_dict())}\n{line}\n")
        with pytest.raises(SourceError, match=message) as caught:
            CutSource(path, fields={"data": "audio"})
        assert "line 2" in str(caught.value)


def test_wrong_options_are_refused_with_the_way_out(cuts, tmp_path):
    cuts.to_file(tmp_path / "cuts.jsonl")
    place = tmp_path / "cuts.jsonl"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"to_eager\(\)"):
        CutSource(CutSet.from_jsonl_lazy(place))
    with pytest.raises(ConfigError, match="this is not a manifest of cuts"):
        CutSource(tmp_path / "cuts.yaml")
    with pytest.raises(ConfigError, match="cuts are in files"):
        CutSource(7)
    with pytest.raises(SourceError, match="not a Shar folder"):
        CutSource(place.parent / "empty")
    with pytest.raises(ConfigError, match="has no 'cuts'"):
        CutSource({"recording": []})
    with pytest.raises(ConfigError, match="tolerance"):
        CutSource(place, tolerance=-1)
    with pytest.raises(ConfigError, match="a field of cuts cannot be read"):
        CutSource(place, fields={"data": 7})
    with pytest.raises(ConfigError, match="takes no option"):
        CutSource(place, fields={"data": {"field": "audio", "vocab": "bytes"}})


def test_a_cut_that_was_replaced_is_noticed(cuts, tmp_path):
    place = tmp_path / "cuts.jsonl"
    cuts.to_file(place)
    source = CutSource(place, fields={"data": "audio"})
    source.read(1, "data")
    source.close()
    place.write_text(place.read_text() + "\n")
    with pytest.raises(SourceError, match="the file was changed since it was indexed"):
        source.read(1, "data")
