"""Files that change while they are read: reads share a look at their file, and nothing wrong outlives a batch."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import headrace as hr
from headrace.errors import SourceError
from headrace.sources import ArrowSource, ArrowWriter, HDFSource, HDFWriter, TarSource, TarWriter, confirm_reads
from headrace.sources.shared import open_files, plain_files

FORMATS = {"hdf": (HDFSource, HDFWriter), "tar": (TarSource, TarWriter), "arrow": (ArrowSource, ArrowWriter)}
NUM_SEQS = 3  # of each file


@pytest.fixture(params=["hdf", "tar", pytest.param("arrow", marks=pytest.mark.extra)])
def source(request, tmp_path, monkeypatch):
    """Two files, each of which was looked at once; from now on single reads look no more."""
    if request.param == "arrow":
        pytest.importorskip("pyarrow")
    source_class, writer_class = FORMATS[request.param]
    paths = [tmp_path / f"{number}.{request.param}" for number in range(2)]
    for number, path in enumerate(paths):
        with writer_class(path) as writer:
            for i in range(NUM_SEQS):
                arrays = {"data": np.full((i + 1, 2), i, np.float32), "classes": np.arange(i, dtype=np.int32)}
                writer.append(f"seq-{number}-{i}", arrays)
    source = source_class(paths, index=None)
    monkeypatch.setattr(open_files, "LOOK_SECONDS", 1e9)
    source.read_seq(0)
    source.read_seq(NUM_SEQS)
    confirm_reads()
    yield source
    source.close()


def change(source, number=0):
    """Give a file another time, as it has after a change in place."""
    os.utime(source.files[number], (1, 1))


def count_looks(monkeypatch):
    looks, look = [], os.fstat
    monkeypatch.setattr(open_files.os, "fstat", lambda descriptor: (looks.append(descriptor), look(descriptor))[1])
    return looks


def test_a_reader_keeps_an_eighth_of_the_descriptors_open():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024));"
        "from headrace.sources.shared.open_files import MAX_OPEN_FILES; print(MAX_OPEN_FILES)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "128"


def test_single_reads_share_a_look_at_their_file(source, monkeypatch):
    looks = count_looks(monkeypatch)
    for i in range(NUM_SEQS):
        source.read_seq(i)
        source.read(i, "data")
        source.read_slice(i, "data", 0, 1)
    assert looks == []
    confirm_reads()
    confirm_reads()
    assert len(looks) == 1  # of the file that was read


def test_each_read_looks_where_reads_are_far_apart(source, monkeypatch):
    monkeypatch.setattr(open_files, "LOOK_SECONDS", 0)
    source.close()
    looks = count_looks(monkeypatch)
    for i in range(NUM_SEQS):
        source.read(i, "data")
    assert len(looks) >= NUM_SEQS
    change(source)
    with pytest.raises(SourceError, match="changed since it was indexed"):
        source.read(1, "data")


def test_a_file_that_changed_is_told_by_confirm_reads_and_only_of_what_was_read(source):
    change(source)
    confirm_reads()
    source.read(NUM_SEQS, "data")
    confirm_reads()
    source.read(1, "data")
    with pytest.raises(SourceError, match="changed since it was indexed"):
        confirm_reads()
    confirm_reads()
    with pytest.raises(SourceError, match="changed since it was indexed"):
        source.read(1, "data")
    confirm_reads()


def test_what_was_read_before_the_refused_read_is_refused_by_confirm_reads_too(source, monkeypatch):
    source.read(1, "data")
    change(source)
    source._files.close() if not isinstance(source, ArrowSource) else source._tables.close()
    with pytest.raises(SourceError, match="changed since it was indexed"):
        source.read(2, "data")
    with pytest.raises(SourceError, match="changed since it was indexed"):
        confirm_reads()
    source.read(NUM_SEQS, "data")
    confirm_reads()


def test_a_file_that_is_closed_for_others_is_looked_at_before(source, monkeypatch):
    if isinstance(source, ArrowSource):
        pytest.skip("of Arrow, what is kept of a file outlives it, and is compared by its name")
    monkeypatch.setattr(plain_files, "MAX_OPEN_FILES", 1)
    source.close()
    source.read(1, "data")
    change(source)
    source.read(1, "classes")
    with pytest.raises(SourceError, match=f"changed since it was indexed.*|{source.files[0]}"):
        source.read(NUM_SEQS, "data")
    with pytest.raises(SourceError, match="changed since it was indexed"):
        confirm_reads()
    assert source.read(NUM_SEQS, "data").tolist() == [[0, 0]]
    confirm_reads()


def test_many_reads_in_one_call_end_with_a_look(source):
    change(source)
    out = np.empty((3, 2), np.float32)
    with pytest.raises(SourceError, match="changed since it was indexed"):
        source.read_rows(np.array([0, 1]), "data", out)


def test_a_thread_confirms_what_it_has_read_itself(source):
    change(source)
    source.read(1, "data")
    other = threading.Thread(target=confirm_reads)
    other.start()
    other.join()
    with pytest.raises(SourceError, match="changed since it was indexed"):
        confirm_reads()


class _ChangesItsFile:
    """A transform that changes a file: what it gets was read before, the next sequence is not."""

    def __init__(self, path):
        self.path = path

    def __call__(self, seq):
        os.utime(self.path, (1, 1))
        return seq


@pytest.mark.parametrize("keyed", [True, False])
def test_no_batch_of_a_file_that_changed_while_it_was_read_is_delivered(source, keyed):
    transform = _ChangesItsFile(source.files[0])
    dataset = hr.SourceDataset(source, transform=transform if keyed else None)
    loader = hr.DataLoader(dataset, batch_size=2, transform=None if keyed else transform)
    with loader, pytest.raises(SourceError, match="changed since it was indexed"):
        next(iter(loader))


def test_no_loaded_sequence_is_of_a_file_that_changed_while_it_was_read(source):
    dataset = hr.SourceDataset(source, transform=_ChangesItsFile(source.files[0]))
    dataset.init_seq_order(epoch=1)
    with pytest.raises(SourceError, match="changed since it was indexed"):
        dataset.load_seqs(0, 2)
    dataset.close()
