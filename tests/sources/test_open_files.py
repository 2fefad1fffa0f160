"""Files that change after they were indexed: they are compared when they are opened, and cut ones when read."""

import os
import subprocess
import sys

import numpy as np
import pytest

from headrace.errors import SourceError
from headrace.sources import HDFSource, HDFWriter, TarSource, TarWriter
from headrace.sources.shared import plain_files

FORMATS = {"hdf": (HDFSource, HDFWriter), "tar": (TarSource, TarWriter)}
NUM_SEQS = 3  # of each file


@pytest.fixture(params=FORMATS)
def source(request, tmp_path):
    source_class, writer_class = FORMATS[request.param]
    paths = [tmp_path / f"{number}.{request.param}" for number in range(2)]
    for number, path in enumerate(paths):
        with writer_class(path) as writer:
            for i in range(NUM_SEQS):
                writer.append(f"seq-{number}-{i}", {"data": np.full((i + 1, 2), i, np.float32)})
    source = source_class(paths, index=None)
    yield source
    source.close()


def test_a_reader_keeps_an_eighth_of_the_descriptors_open():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024));"
        "from headrace.sources.shared.open_files import MAX_OPEN_FILES; print(MAX_OPEN_FILES)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "128"


def test_a_file_that_changed_is_refused_when_it_is_opened_and_others_are_read(source):
    os.utime(source.files[0], (1, 1))
    for _ in range(2):
        with pytest.raises(SourceError, match=f"changed since it was indexed(.|\n)*{source.files[0]}"):
            source.read(1, "data")
        assert source.read(NUM_SEQS, "data").tolist() == [[0, 0]]


def test_a_file_that_was_closed_for_others_is_compared_again(source, monkeypatch):
    monkeypatch.setattr(plain_files, "MAX_OPEN_FILES", 1)
    source.read(1, "data")
    os.utime(source.files[0], (1, 1))
    source.read(NUM_SEQS, "data")
    with pytest.raises(SourceError, match="changed since it was indexed"):
        source.read(1, "data")


def test_an_open_file_that_was_replaced_goes_on_as_it_was_and_one_that_was_cut_is_an_error(source):
    source.read(0, "data")
    os.rename(source.files[1], source.files[0])
    assert source.read(1, "data").tolist() == [[1, 1]] * 2
    source.close()
    with pytest.raises(SourceError, match="changed since it was indexed"):
        source.read(0, "data")


def test_reading_beyond_the_end_of_a_file_that_was_cut_is_an_error(source):
    source.read(NUM_SEQS, "data")
    os.truncate(source.files[1], 8)
    out = np.empty((2, 2), np.float32)
    for read in (lambda: source.read(NUM_SEQS + 1, "data"), lambda: source.read_rows(np.array([4]), "data", out)):
        with pytest.raises(SourceError, match="ends at byte 8"):
            read()
