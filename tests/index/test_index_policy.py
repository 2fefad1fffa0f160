from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import SourceError
from headrace.index import CorpusIndex, GeneratedTags, open_or_build


class Corpus:
    """A source whose index is as many sequences as its file has bytes; counts how often it is built."""

    def __init__(self, folder: Path, num_seqs: int = 5_000) -> None:
        self.file = folder / "corpus.data"
        self.file.write_bytes(bytes(num_seqs))
        self.num_builds = 0

    def build(self) -> CorpusIndex:
        self.num_builds += 1
        size = self.file.stat().st_size
        return CorpusIndex.from_columns(tags=GeneratedTags(size), lengths={"data": [1] * size})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "index"


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path)


def test_without_a_place_the_index_stays_in_memory(cache: Path, corpus: Corpus) -> None:
    index = open_or_build([corpus.file], corpus.build, index=None, kind="test")
    assert (index.path, index.kind, [stamp.path for stamp in index.files]) == (None, "test", [str(corpus.file)])
    assert not cache.exists()


def test_the_second_opening_takes_the_index_from_the_cache(cache: Path, corpus: Corpus) -> None:
    first = open_or_build([corpus.file], corpus.build, index="auto", kind="test")
    second = open_or_build([corpus.file], corpus.build, index="auto", kind="test")
    assert corpus.num_builds == 1
    assert first.path == second.path == str(next(cache.iterdir()))
    assert second.num_seqs == 5_000
    assert second.digest == corpus.build().digest


def test_another_kind_and_another_order_of_files_have_their_own_index(
    cache: Path, corpus: Corpus, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Corpus(tmp_path / "other")
    files = [corpus.file, other.file]
    open_or_build(files, corpus.build, index="auto", kind="test")
    open_or_build(files, corpus.build, index="auto", kind="test:2")
    open_or_build(files[::-1], corpus.build, index="auto", kind="test")
    assert corpus.num_builds == 3
    assert len(list(cache.iterdir())) == 3


def test_a_changed_file_is_indexed_again(cache: Path, corpus: Corpus) -> None:
    open_or_build([corpus.file], corpus.build, index="auto", kind="test")
    corpus.file.write_bytes(bytes(6_000))
    assert open_or_build([corpus.file], corpus.build, index="auto", kind="test").num_seqs == 6_000
    assert open_or_build([corpus.file], corpus.build, index="auto", kind="test").num_seqs == 6_000
    assert corpus.num_builds == 2


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:20] + b"x" + data[21:]]
)
def test_a_damaged_cache_is_built_again(cache: Path, corpus: Corpus, damage: Callable[[bytes], bytes]) -> None:
    open_or_build([corpus.file], corpus.build, index="auto", kind="test")
    path = next(cache.iterdir())
    path.write_bytes(damage(path.read_bytes()))
    index = open_or_build([corpus.file], corpus.build, index="auto", kind="test")
    index.verify()
    assert corpus.num_builds == 2
    CorpusIndex.open(path).verify()


def test_a_small_corpus_is_not_cached(cache: Path, tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, 100)
    assert open_or_build([corpus.file], corpus.build, index="auto", kind="test").path is None
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_said_once_and_no_error(
    cache: Path, corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, logger="headrace.index"):
        for _ in range(3):
            assert open_or_build([corpus.file], corpus.build, index="auto", kind="test").num_seqs == 5_000
    assert len(caplog.records) == 1
    assert "stays in memory" in caplog.text


_ON_A_FULL_DISK = """
import logging, resource, signal, sys
from headrace.index import CorpusIndex, GeneratedTags, open_or_build
logging.basicConfig()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
build = lambda: CorpusIndex.from_columns(tags=GeneratedTags(5_000), lengths={"data": range(5_000)})
index = open_or_build([sys.argv[1]], build, index="auto", kind="test")
assert (index.path, index.num_seqs) == (None, 5_000)
"""


def test_a_full_disk_leaves_the_index_in_memory_and_nothing_on_the_disk(cache: Path, corpus: Corpus) -> None:
    command = [sys.executable, "-c", _ON_A_FULL_DISK, str(corpus.file)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "File too large" in result.stderr
    assert list(cache.iterdir()) == []


def test_a_file_that_changes_while_it_is_indexed_is_refused(cache: Path, corpus: Corpus) -> None:
    def build() -> CorpusIndex:
        index = corpus.build()
        corpus.file.write_bytes(bytes(10))
        return index

    with pytest.raises(SourceError, match="changed while it was indexed: its size was 5000 bytes and is 10"):
        open_or_build([corpus.file], build, index="auto", kind="test")
    assert not cache.exists()


def test_a_named_index_is_opened_if_it_is_of_these_files(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "a.hrindex"
    open_or_build([corpus.file], corpus.build, index=None, kind="test").save(path)
    assert open_or_build([corpus.file], corpus.build, index=path, kind="test").path == str(path)
    assert corpus.num_builds == 1
    (tmp_path / "link").symlink_to(corpus.file)
    assert open_or_build([tmp_path / "link"], corpus.build, index=path, kind="test").num_seqs == 5_000


def test_a_named_index_of_something_else_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "a.hrindex"
    with pytest.raises(SourceError, match="does not exist"):
        open_or_build([corpus.file], corpus.build, index=path, kind="test")
    open_or_build([corpus.file], corpus.build, index=None, kind="test").save(path)
    with pytest.raises(SourceError, match="made for 'test', not for 'other'"):
        open_or_build([corpus.file], corpus.build, index=path, kind="other")
    with pytest.raises(SourceError, match=r"other files.*corpus.data where .*/b was expected"):
        open_or_build([tmp_path / "b"], corpus.build, index=path, kind="test")
    with pytest.raises(SourceError, match="1, not 2"):
        open_or_build([corpus.file, corpus.file], corpus.build, index=path, kind="test")
    corpus.file.write_bytes(b"")
    with pytest.raises(SourceError, match="changed since"):
        open_or_build([corpus.file], corpus.build, index=path, kind="test")
    assert corpus.num_builds == 1


def test_a_missing_file_is_refused_before_anything_is_built(cache: Path, corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="the file does not exist"):
        open_or_build([tmp_path / "no"], corpus.build, index="auto", kind="test")
    assert corpus.num_builds == 0


_ONE_OF_SEVERAL = """
import sys
from headrace.index import CorpusIndex, open_or_build

def build():
    print("building", flush=True)
    sys.stdin.readline()  # so that all have found no index when the first one saves its own
    tags = [f"é{idx}" for idx in range(20_000)]
    return CorpusIndex.from_columns(tags=tags, lengths={"data": range(20_000)})

index = open_or_build([sys.argv[1]], build, index="auto", kind="test")
index.verify()
print(index.path, index.digest)
"""


def test_three_processes_build_at_once_and_all_get_the_same(cache: Path, corpus: Corpus) -> None:
    command = [sys.executable, "-c", _ONE_OF_SEVERAL, str(corpus.file)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "building\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        results = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0, 0], results
    assert len({output for output, _ in results}) == 1
    assert os.listdir(cache) == [os.path.basename(results[0][0].split()[0])]


def test_the_cached_index_can_be_read_by_those_whom_the_umask_allows(cache: Path, corpus: Corpus) -> None:
    old = os.umask(0o022)
    try:
        index = open_or_build([corpus.file], corpus.build, index="auto", kind="test")
    finally:
        os.umask(old)
    assert index.path is not None
    assert stat.S_IMODE(os.stat(index.path).st_mode) == 0o644
