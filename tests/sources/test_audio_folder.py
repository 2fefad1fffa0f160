"""`AudioFolderSource`: recordings below a folder, with labels and texts from what lies there."""

import pickle

import numpy as np
import pytest

from headrace.errors import ConfigError, SourceError
from headrace.sources import AudioFolderSource, LogMel
from headrace.specs import DataSpec
from headrace.testing import check_source

soundfile = pytest.importorskip("soundfile")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def tone(num_samples):
    return (0.5 * np.sin(np.arange(num_samples) / 7)).astype(np.float32)


def record(path, num_samples=100, rate=8000, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, tone(num_samples), rate, **({"subtype": "FLOAT"} if path.suffix == ".wav" else {}), **options)
    return path


@pytest.fixture
def folder(tmp_path):
    """Recordings of two speakers, as LibriSpeech has them."""
    root = tmp_path / "corpus"
    for name, num_samples in (("spk2/1/2-1-0000", 300), ("spk2/1/2-1-0001", 120), ("spk1/9/a", 0), ("spk1/b", 250)):
        record(root / f"{name}.wav", num_samples)
    (root / "spk2" / "1" / "2-1.trans.txt").write_text("2-1-0001 ZWEI  ÄPFEL \n\n2-1-0000 \tEINS\n", encoding="utf-8")
    (root / "spk1" / "9" / "a.txt").write_text("drei\n")
    (root / "spk1" / "b.lab").write_text("")
    (root / "spk1" / "README.md").write_text("not a recording")
    return root


def texts_of(source):
    return {source.tag(i): source.read(i, "orth").tobytes().decode() for i in range(len(source))}


def test_tags_are_paths_and_lengths_come_from_headers(folder):
    source = AudioFolderSource(folder, targets={})
    assert list(source.index.tags) == ["spk1/9/a", "spk1/b", "spk2/1/2-1-0000", "spk2/1/2-1-0001"]
    assert source.index.lengths("data").tolist() == [0, 250, 300, 120]
    assert source.specs == {"data": DataSpec("float32", (1,), dim=1)}
    np.testing.assert_array_equal(source.read(2, "data")[:, 0], tone(300))
    assert source.sample_rate == 8000
    source.close()


@pytest.mark.parametrize("features", ["raw", "log_mel"])
def test_labels_come_from_folders_and_texts_from_files_beside_the_recordings(folder, features):
    targets = {"classes": "folder", "orth": "text", "chars": {"field": "text", "vocab": "chars"}}
    source = AudioFolderSource(folder, features=features, targets=targets)
    assert texts_of(source) == {
        "spk1/9/a": "drei",
        "spk1/b": "",
        "spk2/1/2-1-0000": "EINS",
        "spk2/1/2-1-0001": "ZWEI  ÄPFEL",
    }
    assert source.labels["classes"] == ["1", "9", "spk1"]
    assert [source.labels["classes"][source.read(i, "classes")] for i in range(4)] == ["9", "spk1", "1", "1"]
    check_source(source)
    copy = pickle.loads(pickle.dumps(source))
    assert texts_of(copy) == texts_of(source)
    source.close()
    copy.close()


def test_other_formats_and_capital_suffixes_count(tmp_path):
    for name in ("a.flac", "b.WAV", "c.ogg"):
        record(tmp_path / name, 2000, format="WAV" if name == "b.WAV" else None)
    source = AudioFolderSource(tmp_path, features={"num_mels": 10})
    assert list(source.index.tags) == ["a", "b", "c"]
    frames = LogMel(8000, num_mels=10).num_frames(2000)
    assert source.index.lengths("data").tolist() == [frames] * 3
    check_source(source)
    source.close()
    only = AudioFolderSource(tmp_path, suffixes=[".wav"])
    assert list(only.index.tags) == ["b"]


def test_a_list_of_recordings_keeps_its_order(folder):
    files = [folder / "spk2/1/2-1-0001.wav", folder / "spk2/1/2-1-0000.wav"]
    source = AudioFolderSource(files, targets={"orth": "text"})
    assert texts_of(source) == {"2-1-0001": "ZWEI  ÄPFEL", "2-1-0000": "EINS"}
    source.close()


def test_a_large_folder_is_indexed_once_until_a_recording_or_a_text_changes(tmp_path):
    root = tmp_path / "corpus"
    content = record(tmp_path / "one.wav", 10).read_bytes()
    for number in range(2000):
        path = root / str(number % 5) / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for number in range(5):
        lines = "".join(f"{i} text {i}\n" for i in range(number, 2000, 5))
        (root / str(number) / "x.trans.txt").write_text(lines)
    options = {"targets": {"orth": "text", "classes": "folder"}}
    first = AudioFolderSource(root, **options)
    second = AudioFolderSource(root, **options)
    assert first.index.path == second.index.path is not None
    assert texts_of(second) == {f"{i % 5}/{i}": f"text {i}" for i in range(2000)}
    lists = root / "3" / "x.trans.txt"
    lists.write_text(lists.read_text().replace("text 3\n", "other\n"))
    third = AudioFolderSource(root, **options)
    assert texts_of(third)["3/3"] == "other"
    for source in (first, second, third):
        source.close()


# --- what is refused ---


def test_recordings_without_a_text_are_counted_and_named(folder):
    (folder / "spk1" / "b.lab").unlink()
    with pytest.raises(SourceError, match="1 of 4 recordings have no text: spk1/b"):
        AudioFolderSource(folder, targets={"orth": "text"})


def test_texts_that_cannot_be_read_are_refused(folder):
    (folder / "spk1" / "b.lab").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match=r"not UTF-8.*\n.*b\.lab"):
        AudioFolderSource(folder, targets={"orth": "text"})
    (folder / "spk1" / "b.lab").write_text("")
    lists = folder / "spk2" / "1" / "2-1.trans.txt"
    lists.write_text("2-1-0001 A\n2-1-0000 B\n2-1-0001 C\n")
    with pytest.raises(SourceError, match=r"twice\n.*2-1\.trans\.txt, line 3"):
        AudioFolderSource(folder, targets={"orth": "text"})


def test_two_recordings_of_one_name_are_refused_unless_a_suffix_is_chosen(folder):
    record(folder / "spk1" / "b.flac")
    with pytest.raises(SourceError, match="two files have the tag 'spk1/b'"):
        AudioFolderSource(folder, targets={})
    assert len(AudioFolderSource(folder, targets={}, suffixes=(".flac",))) == 1


def test_a_link_out_of_the_folder_is_refused(folder, tmp_path):
    outside = record(tmp_path / "outside.wav")
    (folder / "link.wav").symlink_to(outside)
    with pytest.raises(SourceError, match="outside its root"):
        AudioFolderSource(folder, targets={})


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"targets": {"classes": "word"}}, "no field 'word'"),
        ({"targets": {"data": "text"}}, "cannot be named"),
        ({"suffixes": "wav"}, "suffixes='wav'"),
        ({"suffixes": ["wav"]}, "suffixes="),
        ({"features": "mel"}, "features cannot be read"),
    ],
)
def test_wrong_options_are_refused(folder, options, what):
    with pytest.raises(ConfigError, match=what):
        AudioFolderSource(folder, **options)


def test_a_label_needs_a_folder(tmp_path):
    record(tmp_path / "a.wav")
    with pytest.raises(SourceError, match=r"no sub-folder.*\n.*a\.wav"):
        AudioFolderSource(tmp_path, targets={"classes": "folder"})
