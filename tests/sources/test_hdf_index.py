"""`HDFSource` and its index: gathered from the files, found in the cache folder, or named by the user."""

import numpy as np
import pytest

from headrace.errors import SourceError
from headrace.sources import HDFSource, HDFWriter
from headrace.sources.hdf import layout as layout_module


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_corpus(path, num_seqs=3, value=1, **options):
    with HDFWriter(path, overwrite=True, labels={"classes": ["x", "y"]}, **options) as writer:
        for idx in range(num_seqs):
            data = np.full((idx % 5, 2), value + idx, np.float32)
            writer.append(f"tag{idx}", {"data": data, "classes": np.ones(2, np.int32)})
    return path


@pytest.fixture
def no_hdf5(monkeypatch):
    """From here on, nothing may open an HDF5 file."""

    def refuse():
        def fail(*args, **kwargs):
            raise AssertionError("an HDF5 file was opened")

        monkeypatch.setattr(layout_module.h5py, "File", fail)

    return refuse


def assert_same_source(found, wanted):
    assert found.specs == wanted.specs
    assert found.labels == wanted.labels
    assert found.files == wanted.files
    assert found.index.tags[:] == wanted.index.tags[:]
    assert found.index.digest == wanted.index.digest
    for idx in range(len(wanted)):
        for key in wanted.specs:
            assert found.read(idx, key).tolist() == wanted.read(idx, key).tolist()


def test_with_a_saved_index_a_corpus_is_opened_and_read_without_hdf5(tmp_path, no_hdf5):
    paths = [write_corpus(tmp_path / "1.hdf"), write_corpus(tmp_path / "2.hdf", value=50)]
    gathered = HDFSource(paths, index=None)
    gathered.index.save(tmp_path / "corpus.hrindex")
    no_hdf5()
    assert_same_source(HDFSource(paths, index=tmp_path / "corpus.hrindex"), gathered)


def test_a_large_corpus_is_found_in_the_cache_folder_the_second_time(tmp_path, cache, no_hdf5):
    path = write_corpus(tmp_path / "corpus.hdf", num_seqs=4000)
    first = HDFSource(path)
    assert len(list(cache.rglob("*.hrindex"))) == 1
    no_hdf5()
    assert_same_source(HDFSource(path), first)


def test_a_changed_file_is_gathered_again_and_a_named_index_of_it_is_refused(tmp_path):
    path = write_corpus(tmp_path / "corpus.hdf", num_seqs=4000)
    HDFSource(path).index.save(tmp_path / "corpus.hrindex")
    write_corpus(path, num_seqs=4001)
    assert len(HDFSource(path)) == 4001
    with pytest.raises(SourceError, match="changed since it was indexed"):
        HDFSource(path, index=tmp_path / "corpus.hrindex")


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("locators/file", 2, "file 2 of 2"),
        ("locators/file", -1, "file -1 of 2"),
        ("locators/frame:data", -1, r"frames -1\.\.\d of the 300 in .*1\.hdf"),
        ("locators/frame:data", 299, r"frames 299\.\.301 of the 300"),
        ("locators/frame:data", 2**62, "of the 300"),
        ("lengths/data", -1, r"frames 3\.\.2 of the 300"),
        ("lengths/data", 301, r"frames 3\.\.304 of the 300"),
        ("lengths/data", 2**31 - 1, "of the 300"),
    ],
)
def test_a_damaged_index_gives_an_error_and_no_other_frames(tmp_path, column, value, text, compression, damage_index):
    paths = [write_corpus(tmp_path / f"{name}.hdf", 150, compression=compression) for name in "12"]
    path = tmp_path / "corpus.hrindex"
    HDFSource(paths, index=None).index.save(path)
    damage_index(path, column, value)
    source = HDFSource(paths, index=path)
    for read in (
        lambda: source.read(3 if "lengths" in column else 2, "data"),
        lambda: source.read_seq(3 if "lengths" in column else 2),
    ):
        with pytest.raises(SourceError, match=text) as caught:
            read()
        assert caught.value.where == str(path)
        assert "headrace index --refresh" in caught.value.fix
    if "locators" in column or value < 0:  # else the slice is where it should be
        with pytest.raises(SourceError, match="the index is damaged"):
            source.read_slice(2, "data", 0, 2)
