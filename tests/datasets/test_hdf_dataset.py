"""`HDFDataset`: files, copies of it, and where they are opened."""

import copy
import os
import pickle

import numpy as np
import pytest

from headrace.datasets import AudioDataset, HDFDataset, init_dataset
from headrace.errors import ConfigError, HeadraceError
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


def test_a_copy_may_be_made_in_another_folder(tmp_path, monkeypatch):
    write(tmp_path / "a.hdf", 0)
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(HDFDataset("a.hdf", seq_ordering="reverse"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert tags(pickle.loads(pickled)) == ["tag-2", "tag-1", "tag-0"]


def test_a_copy_of_recordings_may_be_made_in_another_folder(tmp_path, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", np.zeros(100, np.float32), 8000)
    (tmp_path / "m.jsonl").write_text('{"tag": "a", "audio": "a.wav", "num_samples": 100, "sample_rate": 8000}\n')
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(AudioDataset("m.jsonl"))
    monkeypatch.chdir("/")
    assert [len(seq["data"]) for seq in pickle.loads(pickled).epoch(1)] == [100]


@pytest.mark.parametrize("files", [3, b"a.hdf", [None], [b"a.hdf"]])
def test_what_is_no_file_name_is_refused(files):
    with pytest.raises(ConfigError, match="file is named by"):
        HDFDataset(files)


def test_a_file_given_twice_is_there_twice(tmp_path):
    a = write(tmp_path / "a.hdf", 0, count=1)
    assert tags(HDFDataset([a, a])) == ["tag-0", "tag-0"]
