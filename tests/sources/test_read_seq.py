"""Reading all keys of a sequence at once, and sources that share what is known of one index."""

import os

import numpy as np
import pytest

from headrace.errors import SourceError
from headrace.sources import HDFSource, HDFWriter, NumpyFolderSource, NumpyFolderWriter
from headrace.sources.shared import plain_files

SEQS = [
    (f"seq-{i}", {"data": np.full((i + 1, 2), i, np.float32), "classes": np.arange(i, dtype=np.int32)})
    for i in range(4)
]


def written(writer):
    with writer:
        for tag, arrays in SEQS:
            writer.append(tag, arrays)
    return writer.path


def test_all_keys_of_a_sequence_cost_one_look_at_their_file(tmp_path, monkeypatch):
    source = HDFSource(written(HDFWriter(tmp_path / "a.hdf")), index=None)
    source.read_seq(0)
    looks = []
    look = os.fstat
    monkeypatch.setattr(plain_files.os, "fstat", lambda descriptor: (looks.append(descriptor), look(descriptor))[1])
    found = source.read_seq(2)
    assert len(looks) == 1
    assert {key: array.tolist() for key, array in found.items()} == {
        key: array.tolist() for key, array in SEQS[2][1].items()
    }
    source.close()


def test_a_file_is_confirmed_before_the_next_one_is_opened(tmp_path, monkeypatch):
    path = written(NumpyFolderWriter(tmp_path / "a.npys", layout="suffix"))
    monkeypatch.setattr(plain_files, "MAX_OPEN_FILES", 1)
    source = NumpyFolderSource(path, index=None)
    assert source.read_seq(3)["classes"].tolist() == [0, 1, 2]
    read, changed = os.preadv, []

    def changing(descriptor, buffers, position):
        done = read(descriptor, buffers, position)
        if not changed:  # the file of the first key, right after it was read
            changed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            os.utime(changed[0], (1, 1))
        return done

    monkeypatch.setattr(plain_files.os, "preadv", changing)
    with pytest.raises(SourceError, match="was changed"):
        source.read_seq(3)
    assert changed
    source.close()


def test_another_reader_shares_what_was_worked_out_and_has_files_of_its_own(tmp_path, monkeypatch):
    source = HDFSource(written(HDFWriter(tmp_path / "a.hdf")), index=None)
    source.read_seq(1)
    monkeypatch.setattr(HDFSource, "_prepare", None)  # nothing is worked out again
    other = source.for_another_reader()
    assert other.index is source.index
    assert other.specs == source.specs
    other.specs["more"] = source.specs["data"]
    assert "more" not in source.specs
    other.specs.pop("more")
    source.close()
    assert other.read(3, "data").tolist() == SEQS[3][1]["data"].tolist()
    other.close()
    assert source.read_slice(3, "data", 1, 3).tolist() == [[3, 3], [3, 3]]
    source.close()
