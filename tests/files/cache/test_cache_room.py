"""Room: the quota, the disk, what goes and what stays."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import CacheError
from headrace.files.cache import copy as cache_copy
from headrace.files.cache.cache import FileCache
from headrace.files.cache.entry import EntryKey
from headrace.files.cache.folder import CacheFolder, DiskSpace
from headrace.files.cache.options import FileCacheOptions
from headrace.files.cache.prefetch import Prefetcher
from headrace.files.cache.room import CacheRoom, Need
from headrace.files.fetch.fetch import SourceStat, fetch_to
from headrace.files.locks import lock_exclusive_nowait

Make = Callable[..., FileCache]
_DAY = 24 * 3600.0


@pytest.fixture(autouse=True)
def _nothing_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prefetcher, "settle", lambda *args: None)  # it writes to the files whose times these tests set


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    """Twelve files of 100 bytes, by name."""
    found = {}
    for name in "abcdefghijkl":
        (tmp_path / name).write_bytes(name.encode() * 100)
        found[name] = str(tmp_path / name)
    return found


def _names(tmp_path: Path) -> str:
    """Return the names of all copies."""
    return "".join(sorted(path.name for path in (tmp_path / "cache" / "data").glob("*/*")))


def _age(tmp_path: Path, name: str, days: float) -> None:
    """Let a copy look as if it was used last so long ago."""
    (folder,) = (path.parent for path in (tmp_path / "cache" / "data").glob(f"*/{name}"))
    os.utime(tmp_path / "cache" / "entries" / f"{folder.name}.json", (time.time() - days * _DAY,) * 2)


def _use(cache: FileCache, path: str) -> None:
    cache.release_files(cache.get_file(path))


def test_the_quota_holds_and_what_was_used_longest_ago_goes_first(make_cache, sources, tmp_path):
    cache = make_cache(max_bytes=350)
    for days, name in enumerate("cab"):
        _use(cache, sources[name])
        _age(tmp_path, name, 3 - days)
    _use(cache, sources["d"])
    assert _names(tmp_path) == "abd"
    _use(cache, sources["a"])
    _use(cache, sources["e"])
    assert _names(tmp_path) == "ade"
    assert cache.counters.num_removed == 2
    assert cache.counters.removed_bytes == 200


def test_what_is_planned_goes_last_and_what_is_needed_soonest_last_of_all(make_cache, sources, tmp_path):
    cache, other = make_cache(max_bytes=400), make_cache(max_bytes=400)
    for name in "abcd":
        _use(cache, sources[name])
    cache.set_plan(sources[name] for name in "xxxa" if name in sources)
    other.set_plan([sources["e"], sources["c"], sources["d"], sources["a"]])
    _use(other, sources["e"])
    assert _names(tmp_path) == "acde", "b was not planned"
    _use(other, sources["f"])
    assert _names(tmp_path) == "acdf", "e is done"
    _age(tmp_path, "a", 30)
    _use(other, sources["g"])
    assert _names(tmp_path) == "acdg", "f is not planned"
    other.get_file(sources["g"])
    _use(other, sources["h"])
    assert _names(tmp_path) == "acgh", "of a, c, d, the last is d: the other cache needs a at once"
    cache.close()
    _use(other, sources["i"])
    assert _names(tmp_path) == "acgi"
    _use(other, sources["j"])
    assert _names(tmp_path) == "acgj"


def test_a_file_larger_than_the_quota_is_an_error_with_the_numbers_and_removes_nothing(make_cache, sources, tmp_path):
    cache = make_cache(max_bytes=250)
    for name in "ab":
        _use(cache, sources[name])
    (tmp_path / "large").write_bytes(bytes(251))
    with pytest.raises(CacheError, match=r"251 B needed(.|\n)*quota of 250 B(.|\n)*raise max_bytes to at least"):
        cache.get_file(tmp_path / "large")
    assert _names(tmp_path) == "ab"
    assert os.listdir(tmp_path / "cache" / "parts") == []
    assert len(os.listdir(tmp_path / "cache" / "entries")) == 2


def test_room_that_is_reserved_is_counted_once(tmp_path):
    folder = CacheFolder(str(tmp_path))
    key = EntryKey.of("/a", SourceStat(100, "1"))
    room = CacheRoom(folder, FileCacheOptions(cache_directory=tmp_path, max_bytes=100))
    folder.make()
    lock = lock_exclusive_nowait(folder.entry_path(key))
    assert lock is not None
    with contextlib.closing(lock):
        for _ in range(2):
            assert room.make(Need(key, 100)) is None
        shortage = room.make(Need(EntryKey.of("/b", SourceStat(100, "1")), 100))
    assert shortage is not None
    assert shortage.missing_bytes == 100


def test_when_nothing_can_be_freed_the_error_says_who_has_how_much(make_cache, sources, tmp_path):
    cache, other = make_cache(max_bytes=250), make_cache(max_bytes=250)
    cache.get_file(sources["a"])
    other.get_file(sources["b"])
    with pytest.raises(CacheError) as caught:
        cache.get_file(sources["c"])
    text = str(caught.value)
    for part in (
        "100 B needed, 50 B missing",
        "the copies have 200 B of a quota of 250 B",
        "the disk has ",
        f"200 B in 2 files are in use by this process ({os.getpid()})",
        f"where: {sources['c']}",
        "release_files",
    ):
        assert part in text
    assert _names(tmp_path) == "ab"


def test_nothing_is_removed_in_vain(make_cache, sources, tmp_path):
    cache = make_cache(max_bytes=500)
    for name in "abcd":
        _use(cache, sources[name])
    cache.get_file(sources["a"])
    (tmp_path / "large").write_bytes(bytes(450))
    with pytest.raises(CacheError, match="50 B missing"):
        cache.get_file(tmp_path / "large")
    assert _names(tmp_path) == "abcd"


def _disk(monkeypatch: pytest.MonkeyPatch, total: int, others: int = 0) -> None:
    """Give the cache a disk of `total` bytes, on which others have some and each copy takes its size."""

    def disk_space(folder: CacheFolder) -> DiskSpace:
        own = sum(path.stat().st_size for path in Path(folder.root).glob("*/*/*"))
        return DiskSpace(total - others - own, total)

    monkeypatch.setattr(CacheFolder, "disk_space", disk_space)
    monkeypatch.setattr(CacheFolder, "written_bytes", lambda folder, name: _written(folder, name))


def _written(folder: CacheFolder, name: str) -> tuple[int, float]:
    files = list((Path(folder.parts) / name).glob("part"))
    return sum(path.stat().st_size for path in files), max((path.stat().st_mtime for path in files), default=0.0)


def test_a_disk_that_is_full_is_freed_as_far_as_it_is_needed(make_cache, sources, tmp_path, monkeypatch):
    _disk(monkeypatch, total=1000, others=650)
    cache = make_cache()
    for days, name in enumerate("abc"):
        _use(cache, sources[name])
        _age(tmp_path, name, 0.9 - days / 10)
    _use(cache, sources["d"])
    assert _names(tmp_path) == "bcd"
    for name in "bcd":
        cache.get_file(sources[name])
    with pytest.raises(CacheError, match=r"50 B missing(.|\n)*no quota(.|\n)*50 B free of 1.0 kB"):
        cache.get_file(sources["e"])


def test_what_others_will_still_write_is_not_free(make_cache, sources, tmp_path, monkeypatch):
    _disk(monkeypatch, total=1000, others=750)
    (tmp_path / "made").write_bytes(bytes(200))
    folder = CacheFolder(str(tmp_path / "cache"))
    key = cache_copy.EntryKey.of(str(tmp_path / "made"), cache_copy.SourceStat(200, "1"))
    lock = lock_exclusive_nowait(folder.entry_path(key))
    folder.reserve(key)
    waiting = make_cache(wait_seconds=0.05)
    with pytest.raises(CacheError, match=r"200 B in 1 files are in the making by this process(.|\n)*") as caught:
        waiting.get_file(sources["a"])
    assert "copies in the making will take 200 B" in str(caught.value)
    assert "without a sign of life" in caught.value.__notes__[0]
    lock.close()
    waiting.get_file(sources["a"])  # it was left by somebody who is gone
    assert os.listdir(tmp_path / "cache" / "parts") == []


def test_by_age_go_what_is_very_old_and_what_is_old_while_the_disk_has_too_little_free(
    make_cache, sources, tmp_path, monkeypatch
):
    ages = dict(zip("abcde", (40, 5, 2, 1.5, 0.5), strict=True))
    cache = make_cache()
    for name, days in ages.items():
        _use(cache, sources[name])
        _age(tmp_path, name, days)
    _disk(monkeypatch, total=1000)
    result = cache.cleanup()
    assert (_names(tmp_path), result.freed, result.num_files, result.abort_reason) == ("bcde", 100, 1, None)
    assert cache.cleanup().abort_reason
    _disk(monkeypatch, total=1000, others=550)  # 50 free of 200 that are wanted
    assert cache.cleanup().num_files == 2
    assert _names(tmp_path) == "de"
    _disk(monkeypatch, total=1000, others=790)  # 10 free
    assert cache.cleanup().num_files == 1
    assert _names(tmp_path) == "e", "it is too young for what is merely wanted"
    assert cache.cleanup(need_at_least_free_space_size=150).num_files == 1
    with pytest.raises(CacheError, match="211 B needed"):
        cache.cleanup(need_at_least_free_space_size=211)


def test_the_old_go_by_themselves_when_files_are_copied_but_not_more_than_every_ten_minutes(
    make_cache, sources, tmp_path
):
    cache = make_cache()
    for name in "ab":
        _use(cache, sources[name])
        _age(tmp_path, name, 40)
    _use(cache, sources["c"])
    assert _names(tmp_path) == "abc"
    os.utime(tmp_path / "cache" / "room.lock", (time.time() - 601,) * 2)
    _use(cache, sources["c"])
    assert _names(tmp_path) == "abc", "a hit looks at nothing"
    _use(cache, sources["d"])
    assert _names(tmp_path) == "cd"
    assert (tmp_path / "cache" / "room.lock").stat().st_mtime > time.time() - 60


def test_a_copy_in_use_does_not_go_however_old_it_is(make_cache, sources, tmp_path):
    cache = make_cache()
    cache.get_file(sources["a"])
    _age(tmp_path, "a", 400)
    assert make_cache().cleanup().num_files == 0
    assert _names(tmp_path) == "a"


def test_what_dead_processes_left_goes_after_a_day_and_at_once_if_room_is_needed(make_cache, sources, tmp_path):
    cache = make_cache(max_bytes=300)
    folder = CacheFolder(cache.cache_directory)
    for name in "ab":
        key = cache_copy.EntryKey.of(sources[name], cache_copy.SourceStat(100, "old"))
        lock_exclusive_nowait(folder.entry_path(key)).close()
        folder.reserve(key)
        Path(folder.part_path(key)).write_bytes(bytes(50))
    part = next(path for path in (tmp_path / "cache" / "parts").glob("*/part"))
    os.utime(part, (time.time() - 1.5 * _DAY,) * 2)
    os.utime(tmp_path / "cache" / "entries" / f"{part.parent.name[:-17]}.json", (time.time() - 1.5 * _DAY,) * 2)
    cache.cleanup()
    assert len(os.listdir(folder.parts)) == len(os.listdir(folder.entries)) == 1
    for name in "def":
        _use(cache, sources[name])
    assert _names(tmp_path) == "def"
    assert os.listdir(folder.parts) == []


def test_a_part_of_another_boot_is_not_gone_on_with_and_goes_after_an_hour(make_cache, sources, tmp_path):
    cache = make_cache(max_bytes=250)
    folder = CacheFolder(cache.cache_directory)
    folder.boot = "0" * 16
    key = cache_copy.EntryKey.of(sources["a"], cache_copy.SourceStat(100, "old"))
    lock_exclusive_nowait(folder.entry_path(key)).close()
    folder.reserve(key)
    Path(folder.part_path(key)).write_bytes(bytes(50))
    cache.get_file(sources["a"])
    with pytest.raises(CacheError, match="50 B missing"):
        cache.get_file(sources["c"])
    for path in (folder.part_path(key), folder.entry_path(key)):
        os.utime(path, (time.time() - 3700,) * 2)
    cache.get_file(sources["c"])
    assert os.listdir(folder.parts) == []


def test_a_part_that_becomes_a_copy_while_bytes_are_counted_is_counted_once(make_cache, sources, monkeypatch):
    folder = CacheFolder(make_cache().cache_directory)
    key = cache_copy.EntryKey.of(sources["a"], cache_copy.SourceStat(100, "1"))
    folder.reserve(key)
    Path(folder.part_path(key)).write_bytes(bytes(100))
    real = os.listdir

    def publish_after_the_first(path):
        names = real(path)
        monkeypatch.setattr(os, "listdir", real)
        folder.publish(key, "a", 1)
        return names

    monkeypatch.setattr(os, "listdir", publish_after_the_first)
    assert folder.used_bytes() == 100
    assert folder.used_bytes() == 100


class _FullDisk:
    """Fetches as the real thing does, but the first times the disk is full."""

    def __init__(self, num_failures: int, code: int = errno.ENOSPC) -> None:
        self.num_failures = num_failures
        self.code = code

    def __call__(self, source, part, stat, **options) -> None:
        if self.num_failures:
            self.num_failures -= 1
            Path(part).write_bytes(bytes(10))
            raise OSError(self.code, os.strerror(self.code))
        fetch_to(source, part, stat, **options)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_in_the_middle_of_a_copy_is_freed_and_the_copy_tried_again(
    make_cache, sources, tmp_path, monkeypatch, code
):
    cache = make_cache()
    for days, name in enumerate("abc"):
        _use(cache, sources[name])
        _age(tmp_path, name, 0.9 - days / 10)
    monkeypatch.setattr(cache_copy, "fetch_to", _FullDisk(2, code))
    path = cache.get_file(sources["d"])
    assert Path(path).read_bytes() == b"d" * 100
    assert _names(tmp_path) == "cd", "each refusal cost a copy, the oldest first"


def test_a_disk_that_stays_full_is_an_error_with_the_numbers_and_leaves_nothing(
    make_cache, sources, tmp_path, monkeypatch
):
    cache = make_cache(num_tries=2)
    monkeypatch.setattr(cache_copy, "fetch_to", _FullDisk(2))
    with pytest.raises(CacheError, match=r"No space left(.|\n)*after 2 tries(.|\n)*the disk has(.|\n)*where: .*/a to "):
        cache.get_file(sources["a"])
    assert [os.listdir(tmp_path / "cache" / name) for name in ("data", "entries", "parts")] == [[], [], []]
    assert Path(cache.get_file(sources["a"])).read_bytes() == b"a" * 100


def test_another_error_of_the_disk_is_told_at_once(make_cache, sources, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_copy, "fetch_to", _FullDisk(1, errno.EIO))
    with pytest.raises(CacheError, match=r"cannot be written: Input/output error"):
        make_cache().get_file(sources["a"])
    assert [os.listdir(tmp_path / "cache" / name) for name in ("data", "entries", "parts")] == [[], [], []]


def test_a_copy_that_cannot_be_removed_stays_and_is_told(make_cache, sources, tmp_path, monkeypatch):
    cache = make_cache(max_bytes=150)
    _use(cache, sources["a"])

    def refuse(folder, key, lock):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(CacheFolder, "remove", refuse)
    with pytest.raises(CacheError, match=r"50 B missing(.|\n)*100 B could not be removed"):
        cache.get_file(sources["b"])
    assert _names(tmp_path) == "a"


def test_whoever_holds_the_room_for_long_is_named(make_cache, sources, tmp_path):
    cache = make_cache(wait_seconds=0.05)
    lock = lock_exclusive_nowait(str(tmp_path / "cache" / "room.lock"))
    with pytest.raises(CacheError, match=rf"waited for this process \({os.getpid()}\) to make room(.|\n)*room\.lock"):
        cache.get_file(sources["a"])
    lock.close()
    cache.get_file(sources["a"])


def test_who_only_looks_whether_a_copy_is_in_use_fails_nobody(make_cache, sources, tmp_path, monkeypatch):
    cache = make_cache(wait_seconds=0)
    _use(cache, sources["a"])
    (entry,) = (tmp_path / "cache" / "entries").iterdir()
    glance = lock_exclusive_nowait(str(entry))  # as `headrace cache ls` does, which may be stopped in the middle of it
    num_tries, make_nowait = 0, cache_copy.Copier.make_nowait

    def tried(self, task):
        nonlocal num_tries
        num_tries += 1
        if num_tries == 3:
            glance.close()
        return make_nowait(self, task)

    monkeypatch.setattr(cache_copy.Copier, "make_nowait", tried)
    assert Path(cache.get_file(sources["a"])).read_bytes() == b"a" * 100
    assert num_tries >= 3


def test_whoever_makes_a_copy_for_long_is_named(make_cache, sources, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_copy, "_GLANCE_SECONDS", 0.05)
    cache = make_cache(wait_seconds=0.05)
    _use(cache, sources["a"])
    (entry,) = (tmp_path / "cache" / "entries").iterdir()
    lock = lock_exclusive_nowait(str(entry))
    with pytest.raises(CacheError, match=rf"waited for this process \({os.getpid()}\) to make the copy(.|\n)*/a"):
        cache.get_file(sources["a"])
    lock.close()
    cache.get_file(sources["a"])
