"""on_disk_cache ... end_caching: each file is made once, whole, by whoever comes first."""

import io
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.errors import CacheError, ConfigError
from headrace.files.locks import lock_exclusive_nowait
from headrace.pipes.iter import IterableWrapper


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


class Maker:
    """Makes data, and counts how often."""

    def __init__(self):
        self.made = []

    def __call__(self, name):
        self.made.append(name)
        return name, f"data of {name}".encode()


def section(names, folder, make, **options):
    pipe = IterableWrapper(names).on_disk_cache(filepath_fn=lambda name: str(folder / name), **options)
    return pipe.map(make).end_caching(mode="wb", same_filepath_fn=True)


def test_files_are_made_once_and_come_in_order(folder):
    make = Maker()
    names = [f"n{number}" for number in range(5)]
    paths = [str(folder / name) for name in names]
    assert list(section(names[1:3], folder, make)) == paths[1:3]
    for _ in range(2):
        assert list(section(names, folder, make)) == paths
    assert make.made == ["n1", "n2", "n0", "n3", "n4"]
    assert sorted(os.listdir(folder)) == names
    assert (folder / "n3").read_bytes() == b"data of n3"


def test_more_than_a_thousand_items_pass(folder):
    names = [str(number) for number in range(1500)]
    pipe = section(names, folder, Maker())
    assert len(list(pipe)) == 1500
    assert len(list(pipe)) == 1500


def test_it_may_stand_under_a_cycle(folder):
    pipe = section(["a", "b"], folder, Maker()).cycle(3)
    assert list(pipe) == [str(folder / "a"), str(folder / "b")] * 3


def test_a_file_that_has_another_hash_or_fails_a_check_is_made_again(folder):
    make = Maker()
    list(section(["a"], folder, make))
    list(section(["a"], folder, make, hash_dict={str(folder / "a"): "00"}))
    list(section(["a"], folder, make, extra_check_fn=lambda path: False))
    assert make.made == ["a", "a", "a"]


def test_an_item_may_stand_for_several_files(folder):
    paths = [str(folder / "one"), str(folder / "two")]

    def pipe():
        begun = IterableWrapper(["archive"]).on_disk_cache(filepath_fn=lambda _: paths)
        return begun.flatmap(lambda _: [(path, b"x") for path in paths]).end_caching(mode="wb")

    assert list(pipe()) == paths
    os.unlink(paths[1])
    assert list(pipe()) == paths


def test_data_may_be_a_stream_text_or_pieces(folder):
    kinds = {"stream": io.BytesIO(b"s"), "text": "t", "pieces": [b"p", b"q"]}
    pipe = IterableWrapper(list(kinds)).on_disk_cache(filepath_fn=lambda name: str(folder / name))
    pipe = pipe.map(lambda name: (name, kinds[name])).end_caching(filepath_fn=lambda name: str(folder / name))
    assert [Path(path).read_text() for path in pipe] == ["s", "t", "pq"]


def test_sections_may_lie_within_each_other(folder):
    inner = section(["a", "b"], folder, Maker())
    outer = inner.on_disk_cache(filepath_fn=lambda path: path + ".up")
    pipe = outer.map(lambda path: (path + ".up", Path(path).read_text().upper())).end_caching(mode="w")
    for _ in range(2):
        assert [Path(path).read_text() for path in pipe] == ["DATA OF A", "DATA OF B"]


def test_a_section_may_drop_items_and_read_ahead(folder):
    names = [str(number) for number in range(400)]
    begun = IterableWrapper(names).on_disk_cache(filepath_fn=lambda name: str(folder / name))
    kept = begun.prefetch(3).filter(lambda name: int(name) % 100 == 0)
    pipe = kept.map(lambda name: (name, name)).end_caching(mode="w", same_filepath_fn=True)
    for _ in range(2):
        assert [os.path.basename(path) for path in pipe] == ["0", "100", "200", "300"]
    assert len(os.listdir(folder)) == 4


def test_an_item_may_come_twice_in_a_row(folder):
    assert list(section(["a", "a", "b", "a"], folder, Maker())) == [str(folder / name) for name in ("a", "a", "b", "a")]


def test_an_error_in_the_section_leaves_no_lock_and_no_part(folder):
    def fail(name):
        raise KeyError(name)

    for _ in range(2):
        with pytest.raises(KeyError):
            list(section(["a"], folder, fail))
    assert os.listdir(folder) == []


def test_an_error_in_a_check_of_a_locked_file_leaves_no_lock(folder):
    checked = []

    def check(path):
        checked.append(path)
        if len(checked) == 3:  # once more after the file was locked
            raise OSError("cannot be checked")
        return False

    folder.mkdir()
    (folder / "a").write_bytes(b"x")
    with pytest.raises(OSError, match="cannot be checked"):
        list(section(["a"], folder, Maker(), extra_check_fn=check))
    assert os.listdir(folder) == ["a"]


def test_a_path_that_is_given_twice_for_an_item_is_locked_once(folder):
    path = str(folder / "a")
    pipe = IterableWrapper(["a"]).on_disk_cache(filepath_fn=lambda name: [path, path])
    pipe = pipe.map(Maker()).end_caching(filepath_fn=lambda name: path, timeout=0.2)
    assert list(pipe) == [path]
    assert os.listdir(folder) == ["a"]


def test_leaving_early_gives_the_locks_back(folder):
    iterator = iter(section(["a", "b", "c"], folder, Maker()))
    next(iterator)
    del iterator
    assert os.listdir(folder) == ["a"]


def test_a_section_needs_a_beginning_and_an_end(folder):
    with pytest.raises(RuntimeError, match="Expected `OnDiskCacheHolder`"):
        IterableWrapper(["a"]).end_caching()
    with pytest.raises(RuntimeError, match=r"Please call `end_caching\(\)`"):
        list(IterableWrapper(["a"]).on_disk_cache(filepath_fn=str))
    begun = IterableWrapper(["a"]).on_disk_cache(filepath_fn=str)
    with pytest.raises(ConfigError, match="mutually exclusive"):
        begun.end_caching(filepath_fn=str, same_filepath_fn=True)


def test_who_waits_too_long_is_told_for_whom(folder):
    folder.mkdir()
    lock = lock_exclusive_nowait(str(folder / ".a.headrace-lock"))
    try:
        pipe = section(["a"], folder, Maker()).set_timeout(0.2)
        with pytest.raises(CacheError, match=r"waited 0.2 s for a file that this process"):
            list(pipe)
    finally:
        lock.close()
    assert list(pipe) == [str(folder / "a")]


PROGRAM = textwrap.dedent(
    """
    import os, sys, time
    from headrace.pipes.iter import IterableWrapper
    folder, mark = sys.argv[1:]
    def make(name):
        print("made", name, flush=True)
        if mark == "stay":
            sys.stdin.readline()
        return name, b"data of " + name.encode()
    names = [str(n) for n in range(30)]
    pipe = IterableWrapper(names).on_disk_cache(filepath_fn=lambda name: os.path.join(folder, name))
    print(len(list(pipe.map(make).end_caching(same_filepath_fn=True))), flush=True)
    """
)


def start(folder, mark):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_share_the_work_and_make_each_file_once(folder):
    processes = [start(folder, "go") for _ in range(3)]
    outputs = [process.communicate(timeout=240)[0].split("\n") for process in processes]
    made = [line for output in outputs for line in output if line.startswith("made")]
    assert sorted(made) == sorted(f"made {number}" for number in range(30))
    assert all("30" in output for output in outputs)
    assert len(os.listdir(folder)) == 30


def test_a_killed_process_holds_up_nobody(folder):
    with start(folder, "stay") as stuck:
        assert stuck.stdout.readline() == "made 0\n"
        with start(folder, "go") as other:
            stuck.send_signal(signal.SIGKILL)
            output, _ = other.communicate(timeout=240)
    assert "30" in output.split("\n")
    assert len([name for name in os.listdir(folder) if not name.startswith(".")]) == 30
