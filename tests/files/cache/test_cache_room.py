"""Room: the quota, the disk, what goes and what stays."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import CacheError
from headrace.files.cache import cache as caching
from headrace.files.cache.cache import FileCache
from headrace.files.cache.entry import EntryKey
from headrace.files.cache.folder import CacheFolder
from headrace.files.fetch import SourceStat, fetch_to
from headrace.files.locks import lock_exclusive_nowait

Make = Callable[..., FileCache]
_DAY = 24 * 3600.0


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


def _leave(folder: CacheFolder, source: str) -> EntryKey:
    """Leave what a process leaves that is killed while it makes a copy."""
    key = EntryKey.of(source, SourceStat(100, "old"))
    lock_exclusive_nowait(folder.entry_path(key)).close()
    os.mkdir(f"{folder.data}/{key.text}")
    Path(f"{folder.data_path(key, source)}.part").write_bytes(bytes(50))
    return key


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


def test_what_any_cache_has_planned_goes_last_and_what_is_needed_soonest_last_of_all(make_cache, sources, tmp_path):
    cache, other = make_cache(max_bytes=400), make_cache(max_bytes=400)
    for name in "abcd":
        _use(cache, sources[name])
    other.set_plan([sources["e"], sources["c"], sources["d"], sources["a"]])
    for name, left in (("e", "acde"), ("f", "cdef"), ("g", "cefg")):
        _use(cache, sources[name])
        assert _names(tmp_path) == left


def test_a_file_larger_than_the_quota_is_an_error_with_the_numbers_and_removes_nothing(make_cache, sources, tmp_path):
    cache = make_cache(max_bytes=250)
    for name in "ab":
        _use(cache, sources[name])
    (tmp_path / "large").write_bytes(bytes(251))
    with pytest.raises(CacheError, match=r"251 B needed(.|\n)*quota of 250 B(.|\n)*raise max_bytes to at least"):
        cache.get_file(tmp_path / "large")
    assert _names(tmp_path) == "ab"
    assert len(os.listdir(tmp_path / "cache" / "entries")) == 2


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

    def disk_space(folder: CacheFolder) -> tuple[int, int]:
        return total - others - sum(path.stat().st_size for path in Path(folder.data).glob("*/*")), total

    monkeypatch.setattr(CacheFolder, "disk_space", disk_space)


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


def test_copies_in_the_making_take_their_room_and_are_waited_for_as_long_as_their_process_lives(
    make_cache, sources, tmp_path
):
    cache = make_cache(max_bytes=150, wait_seconds=0.05)
    folder = CacheFolder(cache.options)
    key = _leave(folder, sources["a"])
    maker = lock_exclusive_nowait(folder.entry_path(key))
    with pytest.raises(CacheError, match=r"100 B in 1 files are in use by this process"):
        cache.get_file(sources["b"])
    maker.close()
    cache.get_file(sources["b"])
    assert _names(tmp_path) == "b"


def test_by_age_go_what_is_very_old_and_what_is_old_while_the_disk_has_too_little_free(
    make_cache, sources, tmp_path, monkeypatch
):
    ages = dict(zip("abcde", (40, 5, 2, 1.5, 0.5), strict=True))
    cache = make_cache()
    for name, days in ages.items():
        _use(cache, sources[name])
        _age(tmp_path, name, days)
    _disk(monkeypatch, total=1000)
    cache.cleanup()
    assert (_names(tmp_path), cache.counters.removed_bytes) == ("bcde", 100)
    _disk(monkeypatch, total=1000, others=550)  # 50 free of 200 that are wanted
    cache.cleanup()
    assert _names(tmp_path) == "de"
    _disk(monkeypatch, total=1000, others=790)  # 10 free
    cache.cleanup()
    assert _names(tmp_path) == "e", "it is too young for what is merely wanted"
    cache.cleanup(need_at_least_free_space_size=150)
    assert _names(tmp_path) == ""
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
    make_cache().cleanup()
    assert _names(tmp_path) == "a"


@pytest.mark.parametrize("how", ["cleanup", "room", "the same file"])
def test_what_a_killed_process_left_goes_when_somebody_looks(make_cache, sources, tmp_path, how):
    cache = make_cache(max_bytes=100)
    folder = CacheFolder(cache.options)
    key = _leave(folder, sources["a"])
    lost = _leave(folder, sources["b"])
    os.unlink(folder.entry_path(lost))
    if how == "cleanup":
        cache.cleanup()
        assert os.listdir(folder.data) == os.listdir(folder.entries) == []
        return
    if how == "the same file":
        os.utime(sources["a"], ns=(5, 5))
        os.rename(f"{folder.data}/{key.text}", f"{folder.data}/{EntryKey.of(sources['a'], SourceStat(100, '5')).text}")
    _use(cache, sources["a" if how == "the same file" else "c"])
    assert _names(tmp_path) == ("a" if how == "the same file" else "c")


class _FullDisk:
    """Fetches as the real thing does, but the first times the disk is full."""

    def __init__(self, num_failures: int, code: int = errno.ENOSPC) -> None:
        self.num_failures = num_failures
        self.code = code

    def __call__(self, source, target, stat, **options) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise OSError(self.code, os.strerror(self.code))
        fetch_to(source, target, stat, **options)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_in_the_middle_of_a_copy_is_freed_and_the_copy_tried_again(
    make_cache, sources, tmp_path, monkeypatch, code
):
    cache = make_cache()
    for days, name in enumerate("abc"):
        _use(cache, sources[name])
        _age(tmp_path, name, 0.9 - days / 10)
    monkeypatch.setattr(caching, "fetch_to", _FullDisk(2, code))
    path = cache.get_file(sources["d"])
    assert Path(path).read_bytes() == b"d" * 100
    assert _names(tmp_path) == "cd", "each refusal cost a copy, the oldest first"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_stays_full_or_fails_is_an_error_and_leaves_nothing(
    make_cache, sources, tmp_path, monkeypatch, code
):
    cache = make_cache(num_tries=2)
    monkeypatch.setattr(caching, "fetch_to", _FullDisk(2, code))
    with pytest.raises(CacheError, match=rf"cannot be written: {os.strerror(code)}(.|\n)*where: .*/a to "):
        cache.get_file(sources["a"])
    assert [os.listdir(tmp_path / "cache" / name) for name in ("data", "entries")] == [[], []]


def test_whoever_holds_the_room_for_long_is_named(make_cache, sources, tmp_path):
    cache = make_cache(wait_seconds=0.05)
    lock = lock_exclusive_nowait(str(tmp_path / "cache" / "room.lock"))
    with pytest.raises(CacheError, match=rf"waited for this process \({os.getpid()}\) to make room(.|\n)*room\.lock"):
        cache.get_file(sources["a"])
    lock.close()
    cache.get_file(sources["a"])


def test_whoever_makes_a_copy_for_long_is_named(make_cache, sources, tmp_path):
    cache = make_cache(wait_seconds=0.05)
    _use(cache, sources["a"])
    (entry,) = (tmp_path / "cache" / "entries").iterdir()
    lock = lock_exclusive_nowait(str(entry))
    with pytest.raises(CacheError, match=rf"waited for this process \({os.getpid()}\) to make the copy(.|\n)*/a"):
        cache.get_file(sources["a"])
    lock.close()
    cache.get_file(sources["a"])
