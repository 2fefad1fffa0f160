import gzip
import io
import json
import os
import pickle
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.datasets import AudioDataset
from headrace.errors import ConfigError, SourceError
from headrace.sources import AudioFolderSource, AudioSource, LogMel, open_source
from headrace.specs import DataSpec
from headrace.testing import check_source

soundfile = pytest.importorskip("soundfile")


def _tone(num_samples, num_channels=1):
    times = np.arange(num_samples)[:, None] / 8000
    return (0.5 * np.sin(2 * np.pi * 440 * times * (1 + np.arange(num_channels)))).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    """Three recordings, of 100, 0 and 250 samples at 8 kHz."""
    (tmp_path / "wav").mkdir()
    for name, num_samples in (("a", 100), ("b", 0), ("c", 250)):
        soundfile.write(tmp_path / "wav" / f"{name}.wav", _tone(num_samples), 8000, subtype="FLOAT")
    return tmp_path


def _record(name, num_samples, **fields):
    return {"tag": name, "audio": f"wav/{name}.wav", "num_samples": num_samples, "sample_rate": 8000, **fields}


def _write(folder, *records):
    path = folder / "manifest.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def manifest(folder):
    return _write(
        folder,
        _record("a", 100, word="zwei", words="größe"),
        _record("b", 0, word="eins", words=""),
        _record("c", 250, word="zwei", words="ab"),
    )


# --- first mistakes ---


# --- what comes out ---


@pytest.mark.parametrize("features", ["raw", "log_mel"])
def test_it_keeps_the_contract_of_a_source(manifest, features):
    source = AudioSource(manifest, features=features, targets={"classes": "word", "orth": "words"})
    check_source(source)
    source.close()


def test_targets_are_labels_or_bytes_and_audio_is_not_needed_for_them(manifest, folder):
    source = AudioSource(manifest, targets={"classes": "word", "orth": "words"})
    assert source.specs["classes"] == DataSpec("int32", sparse=True, dim=2, has_time=False)
    assert source.specs["orth"] == DataSpec("uint8", sparse=True, dim=256)
    assert source.labels == {"classes": ["eins", "zwei"]}
    (folder / "wav" / "a.wav").unlink()
    assert [source.read(i, "classes").tolist() for i in range(3)] == [1, 0, 1]
    assert source.read(0, "orth").tobytes().decode() == "größe"
    assert source.index.lengths("orth").tolist() == [7, 0, 2]
    source.close()


@pytest.mark.parametrize(
    ("target", "labels", "arrays"),
    [
        ({"field": "word"}, ["eins", "zwei"], [1, 0, 1]),
        ({"field": "word", "vocab": ["zwei", "eins", "drei"]}, ["zwei", "eins", "drei"], [0, 1, 0]),
        ({"field": "word", "vocab": {"zwei": 1, "eins": 0}}, ["eins", "zwei"], [1, 0, 1]),
        ({"field": "word", "vocab": {"zwei": 7, "eins": 7}}, None, [7, 7, 7]),
        ({"field": "words", "vocab": "chars"}, list("abegrßö"), [[3, 4, 6, 5, 2], [], [0, 1]]),
        ({"field": "words", "vocab": "chars", "labels": "zößrgeba"}, list("zößrgeba"), [[4, 3, 1, 2, 5], [], [7, 6]]),
        ({"field": "words", "vocab": "bytes"}, None, [list("größe".encode()), [], [97, 98]]),
        ({"field": "index", "vocab": 5}, None, [[4], [0, 3], []]),
    ],
)
def test_each_form_of_a_target(folder, target, labels, arrays):
    manifest = _write(
        folder,
        _record("a", 100, word="zwei", words="größe", index=[4]),
        _record("b", 0, word="eins", words="", index=[0, 3]),
        _record("c", 250, word="zwei", words="ab", index=[]),
    )
    source = AudioSource(manifest, targets={"x": target})
    assert source.labels.get("x") == labels
    assert [source.read(i, "x").tolist() for i in range(3)] == arrays
    assert source.index.lengths("x").tolist() == [np.size(array) for array in arrays]
    check_source(source)
    source.close()


def test_headers_are_read_where_the_manifest_says_no_length(folder):
    records = [_record("a", 100), _record("b", 0), _record("c", 250)]
    del records[0]["num_samples"]
    del records[1]["sample_rate"]
    records[2]["num_samples"] = None
    source = AudioSource(_write(folder, *records))
    assert source.index.lengths("data").tolist() == [100, 0, 250]
    check_source(source)
    source.close()


def test_where_there_is_no_num_samples_length_counts_samples(folder, monkeypatch):
    records = [_record("a", 100, length=7), _record("b", None, length=0), _record("c", 250)]
    del records[2]["num_samples"]
    records[2]["length"] = 250.0
    manifest = _write(folder, *records)
    monkeypatch.setitem(sys.modules, "soundfile", None)  # no header may be read
    assert AudioSource(manifest).index.lengths("data").tolist() == [100, 0, 250]


def test_a_channel_can_be_chosen(folder):
    soundfile.write(folder / "wav" / "two.wav", _tone(50, 2), 8000, subtype="FLOAT")
    manifest = _write(folder, _record("two", 50))
    source = AudioSource(manifest, channel=1)
    np.testing.assert_array_equal(source.read(0, "data")[:, 0], _tone(50, 2)[:, 1])
    for channel, text in ((None, "2 channels"), (2, "no channel 2")):
        with pytest.raises(SourceError, match=text):
            AudioSource(manifest, channel=channel).read(0, "data")
    source.close()


# --- sample rates ---


@given(
    st.integers(0, 3000),
    st.sampled_from([8000, 11025, 16000, 22050, 44100, 48000]),
    st.sampled_from([8000, 16000, 11025, 7999]),
)
def test_the_length_after_resampling_is_known_before(num_samples, from_rate, to_rate):
    pytest.importorskip("soxr")
    from headrace.sources.audio.codec import resample, resampled_length

    resampled = resample(np.zeros(num_samples, np.float32), from_rate, to_rate)
    assert resampled.dtype == np.float32
    assert len(resampled) == resampled_length(num_samples, from_rate, to_rate)


def test_recordings_are_resampled_to_the_wanted_rate(folder):
    pytest.importorskip("soxr")
    times = np.arange(3200) / 16000
    soundfile.write(folder / "wav" / "hi.wav", 0.5 * np.sin(2 * np.pi * 440 * times), 16000, subtype="FLOAT")
    soundfile.write(folder / "wav" / "lo.wav", _tone(1600), 8000, subtype="FLOAT")
    manifest = _write(folder, {**_record("hi", 3200), "sample_rate": 16000}, _record("lo", 1600))
    with pytest.raises(ConfigError, match="8000, 16000 Hz"):
        AudioSource(manifest)
    source = AudioSource(manifest, sample_rate=8000)
    assert source.index.lengths("data").tolist() == [1600, 1600]
    difference = source.read(0, "data")[100:-100] - source.read(1, "data")[100:-100]
    assert np.abs(difference).max() < 1e-3
    check_source(source)
    features = AudioSource(manifest, features=LogMel(8000))
    assert features.sample_rate == 8000
    check_source(features)
    source.close()
    features.close()


# --- bad input ---


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_samples": -1}, "-1, not a whole number of at least 0"),
        ({"num_samples": 1.5}, "1.5, not a whole"),
        ({"num_samples": "100"}, "'100', not a whole"),
        ({"num_samples": True}, "True, not a whole"),
        ({"num_samples": 10**30}, "not a whole"),
        ({"num_samples": 1e300}, "not a whole"),
        ({"sample_rate": 0}, "0, not a whole number of at least 1"),
        ({"tag": 5}, "'tag' has 5"),
        ({"tag": None}, "'tag' has None"),
        ({"audio": ["wav/a.wav"]}, "'audio' has"),
        ({"word": 5}, "'word' has 5, not a text"),
        ({"word": None}, "not a text"),
    ],
)
def test_a_field_of_another_kind_is_refused_with_its_line(folder, fields, text):
    manifest = _write(folder, _record("b", 0, word="x"), {**_record("a", 100, word="x"), **fields})
    with pytest.raises(SourceError, match=re.escape(text)) as caught:
        AudioSource(manifest, targets={"classes": "word"})
    assert "line 2" in str(caught.value)


@pytest.mark.parametrize("field", ["tag", "audio", "word"])
def test_a_missing_field_is_refused_with_those_that_are_there(folder, field):
    record = _record("c", 250, word="x")
    del record[field]
    with pytest.raises(SourceError, match=rf"(?s)no field '{field}', only.*line 2.*tag_field=None"):
        AudioSource(_write(folder, _record("a", 100, word="x"), record), targets={"classes": "word"})


def test_without_a_field_of_tags_the_path_is_the_tag(folder):
    records = [_record("a", 100), _record("c", 250)]
    for record in records:
        del record["tag"]
    source = AudioSource(_write(folder, *records))
    assert list(source.index.tags) == ["wav/a.wav", "wav/c.wav"]
    assert source.read(1, "data").shape == (250, 1)
    source.close()
    with pytest.raises(SourceError, match="no field 'tag'"):
        AudioSource(_write(folder, *records), tag_field="tag")


def test_texts_of_which_nobody_spoke_are_refused_wherever_they_stand(folder):
    said = r"(?s)have texts, and nothing says how they become numbers.*vocab.*targets=\{\} leaves the texts out"
    manifest = _write(folder, _record("a", 100, text="ab"), _record("c", 250, text="c"))
    table = folder / "m.csv"
    table.write_text("audio,text\nwav/a.wav,ab\nwav/c.wav,c\n")
    (folder / "wav" / "a.txt").write_text("ab")
    rows = [(str(folder / "wav" / name), text) for name, text in (("a.wav", "ab"), ("c.wav", "c"))]
    recordings = folder / "pair"
    recordings.mkdir()
    for name in ("a.wav", "a.txt"):
        (recordings / name).write_bytes((folder / "wav" / name).read_bytes())
    texts = {"text": {"field": "text", "vocab": "chars"}}
    for listed in (manifest, table, rows, recordings):
        make = open_source if listed is recordings else AudioDataset
        with pytest.raises(ConfigError, match=said):
            make(listed)
        for targets, keys in (({}, ["data"]), (texts, ["data", "text"])):
            made = make(listed, targets=targets)
            assert list(made.specs if listed is recordings else made.get_data_keys()) == keys
            made.close()
    with pytest.raises(ConfigError, match=said):
        open_source(manifest)


def test_the_first_missing_recording_is_named(folder):
    manifest = _write(
        folder, _record("a", 100), *(_record(f"no{i}", 1) for i in range(9)), {**_record("d", 1), "audio": "wav"}
    )
    with pytest.raises(SourceError, match=r"(?s)wav/no0\.wav' is missing.*line 2.*root="):
        AudioSource(manifest)


@pytest.mark.parametrize(
    "path", ["../secret.wav", "/etc/passwd", "wav/../../secret.wav", "wav/link.wav", "out/secret.wav"]
)
def test_a_path_that_leads_outside_of_the_root_is_refused(folder, path):
    root = folder / "root"
    (root / "wav").mkdir(parents=True)
    soundfile.write(folder / "secret.wav", _tone(10), 8000)
    (root / "wav" / "link.wav").symlink_to(folder / "secret.wav")
    (root / "out").symlink_to(folder)
    manifest = _write(root, {**_record("a", 10), "audio": path})
    with pytest.raises(SourceError, match="outside its root") as caught:
        AudioSource(manifest)
    assert "line 1" in str(caught.value)


def test_links_within_the_root_are_followed(folder):
    (folder / "link.wav").symlink_to(folder / "wav" / "a.wav")
    (folder / "folder").symlink_to(folder / "wav")
    records = [{**_record("a", 100), "audio": path} for path in ("link.wav", "folder/a.wav", "./wav/../wav/a.wav")]
    source = AudioSource(_write(folder, *records))
    check_source(source)
    source.close()


@pytest.mark.parametrize("path", ["", ".", "..", "wav/", "a\x00b", "wav/" + "x" * 5000])
def test_a_path_that_names_no_file_is_refused(folder, path):
    with pytest.raises(SourceError):
        AudioSource(_write(folder, {**_record("a", 10), "audio": path}))


def test_a_recording_of_another_length_or_rate_than_claimed_is_refused_when_it_is_read(folder):
    source = AudioSource(
        _write(folder, _record("a", 99), {**_record("c", 250), "sample_rate": 16000}), sample_rate=8000
    )
    with pytest.raises(SourceError, match="length of 'data' was 99 and is 100"):
        source.read(0, "data")
    with pytest.raises(SourceError, match="length of 'data' was 125 and is 250"):
        source.read(1, "data")
    source.close()


def test_a_torn_recording_is_refused(folder):
    flac = folder / "wav" / "d.flac"
    soundfile.write(flac, np.random.default_rng(0).uniform(-1, 1, 20_000), 8000)
    source = AudioSource(_write(folder, {**_record("d", 20_000), "audio": "wav/d.flac"}))
    os.truncate(flac, flac.stat().st_size // 2)
    with pytest.raises(SourceError, match="truncated"):
        source.read(0, "data")
    flac.write_bytes(b"")
    with pytest.raises(SourceError, match="cannot be read"):
        source.read(0, "data")
    flac.unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        source.read(0, "data")
    source.close()


def _unmeasured(folder, name):
    return _write(folder, {"tag": name, "audio": f"wav/{name}"})


@pytest.mark.parametrize("num_bytes", [0x7FFFF000, 0xFFFFFFFF])
def test_a_recording_that_was_written_to_a_pipe_is_read(folder, num_bytes):
    path = folder / "wav" / "d.wav"
    soundfile.write(path, _tone(800), 8000, subtype="PCM_16")
    data = path.read_bytes()
    place = data.index(b"data") + 4
    path.write_bytes(data[:place] + num_bytes.to_bytes(4, "little") + data[place + 4 :])
    source = AudioSource(_unmeasured(folder, "d.wav"))
    assert source.index.lengths("data").tolist() == [800]
    assert len(source.read(0, "data")) == 800
    source.close()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_refused_with_their_place(folder, value):
    samples = _tone(100)
    samples[[7, 9]] = value
    soundfile.write(folder / "wav" / "a.wav", samples, 8000, subtype="FLOAT")
    source = AudioSource(_write(folder, _record("a", 100)))
    with pytest.raises(SourceError, match=r"sample 7 is (nan|inf), and 2"):
        source.read(0, "data")
    source.close()


def test_a_manifest_that_is_no_lines_of_text_says_what_to_give(manifest, tmp_path):
    (tmp_path / "m.parquet").write_bytes(b"PAR1" + bytes(20))
    with pytest.raises(ConfigError, match="read_parquet"):
        AudioDataset(tmp_path / "m.parquet")
    (tmp_path / "m.jsonl.gz").write_bytes(gzip.compress(manifest.read_bytes()))
    with pytest.raises(ConfigError, match=r"(?s)compressed.*decompress it"):
        open_source(tmp_path / "m.jsonl.gz")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"features": "mfcc"}, "features"),
        ({"features": 5}, "features"),
        ({"features": {"num_mel": 5}}, "did you mean 'num_mels'"),
        ({"features": {"num_mels": 1000}}, "num_mels"),
        ({"sample_rate": 0}, "sample_rate"),
        ({"sample_rate": 8000.0}, "sample_rate"),
        ({"channel": -1}, "channel"),
        ({"channel": True}, "channel"),
        ({"targets": {"data": "word"}}, '"data"'),
        ({"targets": {"x": 5}}, "target 'x'"),
        ({"targets": {"x": {"vocab": "bytes"}}}, "field"),
        ({"targets": {"x": {"field": "word", "vocap": "bytes"}}}, "did you mean 'vocab'"),
        ({"targets": {"x": {"field": "word", "vocab": "words"}}}, "vocab"),
        ({"targets": {"x": {"field": "word", "vocab": 0}}}, "vocab"),
        ({"targets": {"x": {"field": "word", "vocab": True}}}, "vocab"),
        ({"targets": {"x": {"field": "word", "vocab": ["a", "a"]}}}, "different strings"),
        ({"targets": {"x": {"field": "word", "vocab": [1, 2]}}}, "different strings"),
        ({"targets": {"x": {"field": "word", "vocab": {"a": "b"}}}}, "str -> int"),
        ({"targets": {"x": {"field": "word", "vocab": {"a": -1}}}}, "str -> int"),
        ({"targets": {"x": {"field": "word", "labels": ["a"]}}}, "labels"),
    ],
)
def test_wrong_options_are_refused(manifest, options, text):
    with pytest.raises(ConfigError, match=text):
        AudioSource(manifest, **options)


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ({"field": "x", "vocab": ["a", "b"]}, "c"),
        ({"field": "x", "vocab": {"a": 0}}, "c"),
        ({"field": "x", "vocab": "chars", "labels": ["a"]}, "ac"),
        ({"field": "x", "vocab": 3}, 3),
        ({"field": "x", "vocab": 3}, [0, -1]),
        ({"field": "x", "vocab": 3}, [True]),
        ({"field": "x", "vocab": 3}, "1"),
        ({"field": "x", "vocab": "bytes"}, 1),
    ],
)
def test_a_value_that_a_target_does_not_know_is_refused_when_the_source_is_built(folder, target, value):
    with pytest.raises(SourceError, match="'x'"):
        AudioSource(_write(folder, _record("a", 100, x=value)), targets={"x": target})


def test_without_soundfile_what_needs_no_audio_works_and_the_rest_names_the_extra(manifest, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    source = AudioSource(manifest, targets={"classes": "word"})
    assert source.read(0, "classes").tolist() == 1
    with pytest.raises(ConfigError, match=r"headrace\[audio\]"):
        source.read(0, "data")
    source.close()


# --- what a dataset of them takes ---


def test_a_dataset_of_recordings_takes_a_folder(folder):
    with AudioDataset(folder / "wav", targets={"words": "tag"}, source_options={"suffixes": [".wav"]}) as dataset:
        expected = AudioFolderSource(folder / "wav", targets={"words": "tag"})
        assert {seq.tag for seq in dataset.epoch(1)} == set(expected.index.tags)
        copy = pickle.loads(pickle.dumps(dataset))
        assert [seq.tag for seq in copy.epoch(1)] == [seq.tag for seq in dataset.epoch(1)]
    with pytest.raises(ConfigError, match=r"root is given, and so is a folder(.|\n)*leave root out"):
        AudioDataset(folder / "wav", root=folder)


@pytest.mark.parametrize("claimed", [0, 5_000_000_000, 2**36 - 1])
def test_a_flac_that_was_written_to_a_pipe_or_claims_too_much_is_read_by_decoding(folder, claimed):
    file = io.BytesIO()
    soundfile.write(file, _tone(70_001), 8000, format="FLAC", subtype="PCM_16")
    recording = bytearray(file.getvalue())
    recording[21] = recording[21] & 0xF0 | claimed >> 32  # of the 36 bits that count the samples; 0: not known
    recording[22:26] = (claimed & 0xFFFFFFFF).to_bytes(4, "big")
    (folder / "wav" / "d.flac").write_bytes(recording)
    source = AudioSource(_unmeasured(folder, "d.flac"))
    assert source.index.lengths("data").tolist() == [70_001]
    np.testing.assert_allclose(source.read(0, "data"), _tone(70_001), atol=1e-4)
    np.testing.assert_array_equal(source.read_slice(0, "data", 69_000, 70_000), source.read(0, "data")[69_000:70_000])
    source.close()


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_an_ogg_file_with_a_flipped_bit_is_not_read_as_no_samples(folder, subtype):
    path = folder / "wav" / "d.ogg"
    soundfile.write(path, _tone(8000), 8000, format="OGG", subtype=subtype)
    source = AudioSource(_unmeasured(folder, "d.ogg"))
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(data)
    for read in (lambda: source.read(0, "data"), lambda: AudioSource(_unmeasured(folder, "d.ogg"))):
        with pytest.raises(SourceError, match=r"d\.ogg"):
            read()
