"""The file cache: what a copy is, when it is valid, who holds it."""

from __future__ import annotations

import copy
import errno
import fcntl
import json
import os
import pickle
import stat
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import CacheError, ConfigError, SourceError
from headrace.files.cache import cache as caching
from headrace.files.cache.cache import FileCache
from headrace.files.cache.entry import CachedFile, EntryRecord
from headrace.files.cache.folder import CacheFolder

Make = Callable[..., FileCache]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.hdf"
    path.write_bytes(b"version one")
    return path


def _replace(path: Path, content: bytes) -> None:
    """Write a file anew, so that its time differs for sure."""
    before = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(before + 1, before + 1))


def _records(cache: FileCache) -> list[EntryRecord]:
    folder = CacheFolder(cache.options)
    found = [folder.read_record(state.key) for state in folder.survey()]
    assert None not in found
    return found


def test_a_copy_has_the_bytes_the_name_and_the_time_of_its_source(make_cache, source, tmp_path):
    cache = make_cache()
    path = cache.get_file(str(source))
    assert Path(path).read_bytes() == b"version one"
    assert Path(path).name == "a.hdf"
    assert Path(path).is_relative_to(tmp_path / "cache")
    assert os.stat(path).st_mtime_ns == source.stat().st_mtime_ns
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o400
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert cache.get_file(source) == path
    assert make_cache().get_file(f"file://{source}") == path
    assert (cache.counters.num_hits, cache.counters.num_copies, cache.counters.copied_bytes) == (1, 1, 11)


def test_a_source_that_changed_gets_a_new_copy_and_who_has_the_old_one_keeps_it(make_cache, source, tmp_path):
    first, second = make_cache(), make_cache()
    old = first.get_file(source)
    _replace(source, b"version two")  # same size
    new = second.get_file(source)
    assert Path(old).read_bytes() == b"version one"
    assert Path(new).read_bytes() == b"version two"
    assert first.get_file(source) == new
    os.utime(source, ns=(5, 5))  # an older one, as from a backup
    assert first.get_file(source) not in (old, new)


def _damage(path: Path, damage: str) -> None:
    if damage == "shorter":
        os.chmod(path, 0o600)
        os.truncate(path, 3)
    elif damage == "changed":
        os.chmod(path, 0o600)
        path.write_bytes(b"VERSION ONE")
    else:
        path.unlink()
        if damage == "link":
            path.symlink_to("/etc/hostname")
        elif damage == "folder":
            path.mkdir()


@pytest.mark.parametrize("damage", ["shorter", "changed", "removed", "link", "folder"])
def test_a_damaged_copy_is_made_anew_when_nobody_holds_it(make_cache, source, damage):
    cache = make_cache()
    path = cache.get_file(source)
    cache.release_files(path)
    _damage(Path(path), damage)
    assert cache.get_file(source) == path
    assert Path(path).read_bytes() == b"version one"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"made_by": "process 1"}', "\0" * 300, "another format"])
def test_a_record_that_is_torn_means_that_there_is_no_copy(make_cache, source, tmp_path, text):
    cache = make_cache()
    cache.release_files(cache.get_file(source))
    (entry,) = (tmp_path / "cache" / "entries").iterdir()
    entry.write_text(entry.read_text().replace('"format": ', '"format": 9') if text == "another format" else text)
    assert Path(cache.get_file(source)).read_bytes() == b"version one"
    assert cache.counters.num_copies == 2
    assert json.loads(entry.read_text())["source"] == str(source)


def test_files_of_all_names_have_copies_of_their_own(make_cache, tmp_path):
    names = ["x", "x.copy", "x.json", "part", "n" * 250, "a b\nc", "ä", os.fsdecode(b"\xff\xfe"), "-rf", "%2e", "$HOME"]
    cache = make_cache()
    folder = tmp_path / "sources"
    folder.mkdir()
    for number, name in enumerate(names):
        (folder / name).write_text(str(number))
    paths = [cache.get_file(folder / name) for name in names]
    assert [Path(path).read_text() for path in paths] == [str(number) for number in range(len(names))]
    assert [os.path.basename(path) for path in paths] == names
    os.unlink(folder / "x")
    (folder / "x").mkdir()
    (folder / "x" / "y").write_text("inside")
    assert Path(cache.get_file(folder / "x" / "y")).read_text() == "inside"
    records = _records(cache)
    assert {os.path.basename(record.source) for record in records} == {*names, "y"}


def test_a_path_in_the_cache_is_no_source(make_cache, source):
    cache = make_cache()
    with pytest.raises(ConfigError, match="a path in the cache itself"):
        cache.get_file(cache.get_file(source))


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_source_that_is_no_file_is_an_error_and_leaves_nothing(make_cache, tmp_path, kind):
    if kind == "folder":
        (tmp_path / "a").mkdir()
    with pytest.raises(SourceError, match=str(tmp_path / "a")):
        make_cache().get_file(tmp_path / "a")
    assert [os.listdir(tmp_path / "cache" / name) for name in ("data", "entries")] == [[], []]


def test_a_source_that_cannot_be_asked_is_served_from_the_newest_copy_with_a_warning(make_cache, source, monkeypatch):
    cache = make_cache()
    cache.get_file(source)
    _replace(source, b"version two")
    path = cache.get_file(source)

    def cannot_ask(name, *, options):
        raise SourceError("it does not answer", where=name) from TimeoutError("the network is away")

    monkeypatch.setattr(caching, "stat_source", cannot_ask)
    with pytest.warns(RuntimeWarning, match=r"a\.hdf.*does not answer") as caught:
        assert cache.get_file(source) == path
    assert caught[0].filename == __file__
    assert Path(path).read_bytes() == b"version two"
    with pytest.raises(SourceError, match="it does not answer"):
        cache.get_file(source.parent / "never seen")


def test_a_file_is_held_until_it_was_released_as_often_as_it_was_got(make_cache, source, tmp_path):
    cache = make_cache(max_bytes=11)
    path = cache.get_file(source)
    cache.get_file(source)
    (tmp_path / "b").write_bytes(b"another one")
    for _ in range(2):
        with pytest.raises(CacheError, match="in use by this process"):
            cache.get_file(tmp_path / "b")
        cache.release_files(Path(path))
    cache.release_files([path, "/never/got"])  # once too often, and an unknown one: harmless
    other = cache.get_file(tmp_path / "b")
    assert not os.path.exists(path)
    assert Path(other).read_bytes() == b"another one"


def test_closing_releases_everything_and_ends_the_use(make_cache, source, tmp_path):
    with make_cache(max_bytes=11) as cache:
        path = cache.get_file(source)
    cache.close()
    assert cache.counters.num_copies == 1
    for use in (lambda: cache.get_file(source), lambda: cache.release_files(path), cache.cleanup):
        with pytest.raises(CacheError, match="closed"):
            use()
    (tmp_path / "b").write_bytes(b"another one")
    make_cache(max_bytes=11).get_file(tmp_path / "b")
    assert not os.path.exists(path)


def test_a_pickled_cache_has_the_options_and_holds_nothing(make_cache, source, tmp_path):
    cache = make_cache(max_bytes="11 B", wait_seconds=3, fetch={"num_tries": 7})
    path = cache.get_file(source)
    for other in (pickle.loads(pickle.dumps(cache)), copy.copy(cache)):
        assert other.options == cache.options
        other.release_files(path)
        other.close()
    (tmp_path / "b").write_bytes(b"another one")
    with pytest.raises(CacheError, match="in use"):
        cache.get_file(tmp_path / "b")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_cache_of_its_own_and_leaves_that_of_its_parent(make_cache, source, tmp_path):
    cache = make_cache(max_bytes=11)
    path = cache.get_file(source)
    cache.set_plan([source])
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            cache.release_files(path)
            assert cache.counters.num_hits == 0
            assert cache.get_file(source) == path
            cache.close()
            status = 7
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    (tmp_path / "b").write_bytes(b"another one")
    with pytest.raises(CacheError, match="in use"):
        cache.get_file(tmp_path / "b")


def test_threads_that_ask_for_the_same_files_get_one_copy_of_each(make_cache, tmp_path):
    for number in range(5):
        (tmp_path / f"{number}").write_bytes(bytes([number]) * 100_000)
    cache = make_cache()
    paths: list[list[str]] = []

    def work(first: int) -> None:
        paths.append(sorted(cache.get_file(tmp_path / f"{(first + number) % 5}") for number in range(5)))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert all(one == paths[0] for one in paths)
    assert cache.counters.copied_bytes == 500_000
    cache.release_files(path for one in paths for path in one)
    assert all(len(set(Path(path).read_bytes())) == 1 for path in paths[0])


Pair = namedtuple("Pair", "left right")


def test_marks_are_replaced_anywhere_in_a_nested_config(make_cache, source, tmp_path):
    (tmp_path / "b.hdf").write_text("b")
    first, second = CachedFile(str(source)), CachedFile(tmp_path / "b.hdf")
    untouched = {"files": ["plain"], "numbers": (1, 2)}
    config = {
        "class": "HDFDataset",
        "files": [first, "plain", (second, [first])],
        "named": Pair(1, first),
        "ordered": OrderedDict(x=second),
        "data": untouched,
    }
    before = copy.deepcopy(config)
    cache = make_cache()
    replaced, paths = cache.handle_cached_files_in_config(config)
    a, b = (cache.get_file(path) for path in (source, tmp_path / "b.hdf"))
    assert replaced["files"] == [a, "plain", (b, [a])]
    assert replaced["named"] == Pair(1, a)
    assert isinstance(replaced["named"], Pair)
    assert replaced["ordered"] == OrderedDict(x=b)
    assert isinstance(replaced["ordered"], OrderedDict)
    assert replaced["data"] is untouched
    assert paths == [a, b, a, a, b]
    assert config == before
    assert cache.handle_cached_files_in_config(untouched) == (untouched, [])
    assert cache.handle_cached_files_in_config(first) == (a, [a])


def test_if_one_file_of_a_config_cannot_be_got_none_is_held(make_cache, source, tmp_path):
    cache = make_cache(max_bytes=11)
    with pytest.raises(SourceError):
        cache.handle_cached_files_in_config([CachedFile(source), CachedFile(tmp_path / "missing")])
    (tmp_path / "b").write_bytes(b"another one")
    cache.get_file(tmp_path / "b")


def test_the_instance_has_the_options_of_config_and_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_FILE_CACHE_OPTS", json.dumps({"max_bytes": "1 kB"}))
    config = {"file_cache_opts": {"cache_directory": str(tmp_path / "c"), "max_bytes": 5}}
    with FileCache.get_instance(config) as cache:
        assert (cache.cache_directory, cache.options.quota) == (str((tmp_path / "c").resolve()), 1000)
    monkeypatch.delenv("HEADRACE_FILE_CACHE_OPTS")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("USER", "ann")
    with FileCache.get_instance() as cache:
        assert cache.cache_directory == str(tmp_path.resolve() / "ann/headrace/file_cache")
    assert stat.S_IMODE((tmp_path / "ann").stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_one_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        with pytest.raises(CacheError, match=r"cannot be made(.|\n)*cache_directory"):
            FileCache(cache_directory=path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "data").symlink_to(tmp_path)
    with pytest.raises(CacheError, match="a part of the cache is a link"):
        FileCache(cache_directory=tmp_path / "cache")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CacheError, match="belongs to user"):
        FileCache(cache_directory=tmp_path / "other")


def test_a_folder_on_a_disk_without_locks_is_refused_when_the_cache_is_made(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(CacheError, match=r"offers no locks(.|\n)*local disk"):
        FileCache(cache_directory=tmp_path / "cache")


def test_a_cleaner_of_the_system_may_remove_the_whole_folder_at_any_time(make_cache, source, tmp_path):
    cache = make_cache()
    path = cache.get_file(source)
    cache.set_plan([source])
    os.rename(tmp_path / "cache", tmp_path / "gone")
    assert cache.get_file(source) == path
    assert Path(path).read_bytes() == b"version one"
    cache.release_files([path, path])
    cache.prefetch([source])
    assert cache.wait_prefetched(20)
    cache.cleanup()


@examples(30)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["get", "change", "release", "clean"])), max_size=25)
)
def test_whatever_happens_a_path_that_is_held_has_the_content_that_its_source_had(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("law")
    versions = dict.fromkeys("abcd", 0)

    def write(name: str) -> None:
        (folder / name).write_text(f"{name} {versions[name]:06}")
        os.utime(folder / name, ns=(versions[name] + 1,) * 2)

    for name in versions:
        write(name)
    held: list[tuple[str, str]] = []
    with FileCache(cache_directory=folder / "cache", max_bytes=3 * 8) as cache:
        for name, step in steps:
            if step == "change":
                versions[name] += 1
                write(name)
            elif step == "release" and held:
                cache.release_files(held.pop(0)[0])
            elif step == "clean":
                cache.cleanup()
            elif step == "get":
                try:
                    held.append((cache.get_file(folder / name), f"{name} {versions[name]:06}"))
                except CacheError:
                    assert len({path for path, _ in held}) == 3
            assert sum(path.stat().st_size for path in (folder / "cache" / "data").glob("*/*")) <= 3 * 8
            for path, content in held:
                assert Path(path).read_text() == content
