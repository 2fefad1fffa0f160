"""`HDFDataset`: files, copies of it, and where they are opened."""

import copy
import os
import pickle

import numpy as np
import pytest

from headrace.datasets import AudioDataset, HDFDataset, init_dataset
from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.sources import HDFWriter


def write(path, first, count=3):
    with HDFWriter(path) as writer:
        for i in range(first, first + count):
            writer.append(f"tag-{i}", {"data": np.full((i + 1, 2), i, np.float32)})
    return str(path)


def tags(dataset):
    return [seq.tag for seq in dataset.epoch(1)]


class Below(HDFDataset):
    """A sub-class with an argument of its own."""

    def __init__(self, root, **kwargs):
        super().__init__(files=[os.path.join(root, "a.hdf")], **kwargs)


def test_files_follow_one_another_and_can_be_added(tmp_path):
    a, b = write(tmp_path / "a.hdf", 0), write(tmp_path / "b.hdf", 3)
    dataset = HDFDataset(a)
    dataset.add_file(b)
    assert tags(dataset) == [f"tag-{i}" for i in range(6)]
    assert dataset.get_num_timesteps() == 21
    assert dataset.len_info() == "HDFDataset, sequences: 6, frames: 21"
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert tags(other) == tags(dataset)
    assert dataset.get_data_by_seq_tag("tag-4", "data").shape == (5, 2)
    with pytest.raises(HeadraceError, match="tag-9"):
        dataset.get_data_by_seq_tag("tag-9", "data")


def test_copies_work_however_the_dataset_was_made(tmp_path):
    a = write(tmp_path / "a.hdf", 0)
    for dataset in (
        HDFDataset([a], False),
        HDFDataset(files=a),
        Below(str(tmp_path)),
        Below(root=str(tmp_path)),
        init_dataset(a),
    ):
        for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
            assert type(other) is type(dataset)
            assert tags(other) == ["tag-0", "tag-1", "tag-2"]


ON_FILE = {"class": "HDFDataset", "files": "a.hdf"}
OVER_FILES = {
    "HDFDataset": {"files": "a.hdf"},
    "CombinedDataset": {
        "datasets": {"x": {"class": "HDFDataset", "files": "a.hdf"}},
        "data_map": [["x", "data", "data"]],
    },
    "MetaDataset": {
        "datasets": {"x": ON_FILE, "y": {"class": "HDFDataset", "files": ("b.hdf",)}},
        "data_map": {"data": ("x", "data"), "other": ("y", "data")},
        "seq_list_file": "tags.txt",
    },
}


@pytest.mark.parametrize("kind", OVER_FILES)
def test_copies_work_from_another_folder_and_closing_leaves_no_file_open(kind, tmp_path, monkeypatch):
    def num_open():
        links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
        return sum(os.readlink(link).startswith(str(tmp_path)) for link in links if os.path.islink(link))

    write(tmp_path / "a.hdf", 0)
    write(tmp_path / "b.hdf", 0)
    (tmp_path / "tags.txt").write_text("tag-2\ntag-0\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    dataset = init_dataset({"class": kind, "seq_ordering": "reverse", **OVER_FILES[kind]})
    expected = ["tag-0", "tag-2"] if kind == "MetaDataset" else ["tag-2", "tag-1", "tag-0"]
    assert tags(dataset) == expected
    assert num_open() > 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset)), dataset):
        assert int(other.epoch) == 1
        assert tags(other) == expected
        other.finish_epoch()
        assert other.num_seqs == len(expected)
        other.close()
        other.close()
    assert num_open() == 0
    assert tags(dataset) == expected  # what was released comes back
    dataset.close()
    assert num_open() == 0


def test_a_copy_of_recordings_may_be_made_in_another_folder(tmp_path, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", np.zeros(100, np.float32), 8000)
    (tmp_path / "m.jsonl").write_text('{"tag": "a", "audio": "a.wav", "num_samples": 100, "sample_rate": 8000}\n')
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(AudioDataset("m.jsonl"))
    monkeypatch.chdir("/")
    assert [len(seq["data"]) for seq in pickle.loads(pickled).epoch(1)] == [100]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        *(({"files": files}, ConfigError, "file is named by") for files in (3, b"a.hdf", [None], [b"a.hdf"])),
        ({"files": ["missing.hdf"]}, SourceError, r"missing\.hdf"),
        ({"files": []}, ConfigError, "empty list"),
        ({"use_cache_manager": True}, ConfigError, "use_cache_manager"),
        ({}, ConfigError, "add_file"),
    ],
    ids=str,
)
def test_what_is_no_file_is_refused(options, error, match):
    with pytest.raises(error, match=match):
        HDFDataset(**options).init_seq_order(epoch=1)


def test_a_file_given_twice_is_there_twice(tmp_path):
    a = write(tmp_path / "a.hdf", 0, count=1)
    assert tags(HDFDataset([a, a])) == ["tag-0", "tag-0"]
