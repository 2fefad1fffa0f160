"""What is copied ahead, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.files.cache import copy as cache_copy
from headrace.files.cache import prefetch as cache_prefetch
from headrace.files.cache.cache import FileCache
from headrace.files.cache.entry import EntryKey
from headrace.files.cache.folder import CacheFolder, record_of, survey
from headrace.files.fetch.fetch import fetch_to, stat_source
from headrace.files.locks import lock_exclusive_nowait

Make = Callable[..., FileCache]
_DEADLINE_SECONDS = 120.0


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Ten files of 100 bytes, named 0 to 9."""
    for number in range(10):
        (tmp_path / str(number)).write_bytes(b"%d" % number * 100)
    return [str(tmp_path / str(number)) for number in range(10)]


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were fetched, in order."""
    names: list[str] = []

    def fetch(source, *args, **kwargs) -> None:
        names.append(os.path.basename(source))
        fetch_to(source, *args, **kwargs)

    monkeypatch.setattr(cache_copy, "fetch_to", fetch)
    return names


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, what
        pause.wait(0.002)


def _names(tmp_path: Path) -> str:
    names: list[str] = []
    for folder in (tmp_path / "cache" / "data").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
            names += os.listdir(folder)
    return "".join(sorted(names))


def _copied(tmp_path: Path) -> set[str]:
    """Return the names of the files whose copies have their records: the file has its name before."""
    folder = CacheFolder(str(tmp_path / "cache"))
    records = [record_of(folder, state) for state in survey(folder)]
    return {os.path.basename(record.source) for record in records if record is not None}


def test_files_are_copied_in_the_order_in_which_they_are_needed(make_cache, sources, order, tmp_path):
    cache = make_cache()
    cache.prefetch(sources[3:7] + sources[:2] + sources[3:4])
    assert cache.wait_prefetched(_DEADLINE_SECONDS)
    assert "".join(order) == "345601"
    assert cache.prefetch_status.num_fetched == cache.counters.num_prefetched == 6
    for source in sources[3:7]:
        assert Path(cache.get_file(source)).read_bytes() == Path(source).read_bytes()
    assert (cache.counters.num_hits, cache.counters.num_copies) == (4, 0)


def test_a_new_call_replaces_what_is_left(make_cache, sources, order):
    cache = make_cache(max_bytes=100)
    cache.get_file(sources[0])
    cache.prefetch(sources[1:5])
    _wait_until(lambda: cache.prefetch_status.is_waiting_for_room, "it does not wait")
    cache.prefetch(sources[7:8])
    cache.close()
    assert order == ["0"]


def test_nothing_that_is_needed_sooner_is_removed_and_room_that_is_released_is_used(
    make_cache, sources, order, tmp_path
):
    cache = make_cache(max_bytes=300)
    cache.prefetch(sources)
    for number, source in enumerate(sources):
        ahead = set("0123456789"[number : number + 3])
        _wait_until(lambda ahead=ahead: _copied(tmp_path) >= ahead, "it does not go on")
        cache.release_files(cache.get_file(source))
    assert "".join(order) == "0123456789", "each was copied once, in order"
    assert cache.counters.num_copies == 0


def test_what_another_cache_needs_sooner_stays_too(make_cache, sources, order, tmp_path):
    near, far = make_cache(max_bytes=300), make_cache(max_bytes=300)
    near.prefetch(sources[:2])
    assert near.wait_prefetched(_DEADLINE_SECONDS)
    far.prefetch(sources[5:9])
    _wait_until(lambda: far.prefetch_status.is_waiting_for_room, "it does not wait")
    assert _names(tmp_path) == "015"
    assert not far.wait_prefetched(0.01)
    near.set_plan([])
    _wait_until(lambda: _names(tmp_path) == "567", "the room is not used")


def test_what_is_needed_now_takes_the_room_of_what_was_copied_ahead_the_farthest_first(
    make_cache, sources, order, tmp_path
):
    cache = make_cache(max_bytes=300)
    cache.prefetch(sources[1:4])
    assert cache.wait_prefetched(_DEADLINE_SECONDS)
    cache.get_file(sources[0])
    assert _names(tmp_path) == "012"


def test_a_plan_goes_before_what_is_only_copied_ahead(make_cache, sources, order, tmp_path):
    cache = make_cache(max_bytes=200)
    cache.set_plan(sources[:3])
    cache.prefetch([sources[5], sources[1], sources[0]])
    _wait_until(lambda: _names(tmp_path) == "01", "0 and 1 are needed before 5")
    cache.set_plan(sources[6:])
    assert cache.wait_prefetched(_DEADLINE_SECONDS), "what the plan does not name is not copied ahead"


def test_a_source_that_cannot_be_read_is_passed_over_and_its_error_is_for_who_needs_it(make_cache, sources, order):
    cache = make_cache()
    cache.prefetch(["/no/such/file", sources[1]])
    assert cache.wait_prefetched(_DEADLINE_SECONDS)
    assert order == ["1"]
    (failure,) = cache.prefetch_status.failures.items()
    assert failure[0] == "/no/such/file"
    assert "does not exist" in failure[1]
    with pytest.raises(Exception, match="does not exist"):
        cache.get_file("/no/such/file")


def test_what_somebody_else_is_making_is_passed_over_and_looked_at_again(make_cache, sources, order):
    cache = make_cache()
    folder = CacheFolder(cache.cache_directory)
    locks = [lock_exclusive_nowait(folder.entry_path(EntryKey.of(name, stat_source(name)))) for name in sources[:2]]
    cache.prefetch(sources[:4])
    _wait_until(lambda: cache.prefetch_status.num_left == 2, "the others are not copied")
    assert order == ["2", "3"]
    assert not cache.wait_prefetched(0.01)
    assert not cache.prefetch_status.is_waiting_for_room
    for lock in locks:
        lock.close()
    assert cache.wait_prefetched(_DEADLINE_SECONDS)
    assert sorted(order) == ["0", "1", "2", "3"]


def test_even_an_error_that_nobody_thought_of_does_not_end_the_prefetch(make_cache, sources, monkeypatch):
    def fetch(source, *args, **kwargs) -> None:
        if source == sources[0]:
            raise ZeroDivisionError("from a library")
        fetch_to(source, *args, **kwargs)

    monkeypatch.setattr(cache_copy, "fetch_to", fetch)
    cache = make_cache()
    cache.prefetch(sources[:2])
    assert cache.wait_prefetched(_DEADLINE_SECONDS)
    assert cache.prefetch_status.failures == {sources[0]: "ZeroDivisionError: from a library"}
    with pytest.raises(ZeroDivisionError):
        cache.get_file(sources[0])
    assert cache.get_file(sources[1])


def test_a_file_larger_than_the_quota_is_passed_over(make_cache, sources, tmp_path):
    (tmp_path / "large").write_bytes(bytes(101))
    cache = make_cache(max_bytes=100)
    cache.prefetch([tmp_path / "large", sources[0]])
    assert cache.wait_prefetched(_DEADLINE_SECONDS)
    assert "raise max_bytes to at least 101" in cache.prefetch_status.failures[str(tmp_path / "large")]
    assert _names(tmp_path) == "0"


def _refuse(descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _is_on_disk(folder: CacheFolder) -> list[int]:
    records = [record_of(folder, state) for state in survey(folder)]
    return [record.is_on_disk for record in records if record is not None]


def test_a_copy_survives_a_failure_of_the_machine_only_if_the_disk_has_it(make_cache, sources, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_prefetch, "_SETTLE_SECONDS", 0.0)
    cache = make_cache()
    folder = CacheFolder(cache.cache_directory)
    cache.prefetch(sources[1:2])
    cache.release_files(cache.get_file(sources[0]))
    _wait_until(lambda: _is_on_disk(folder) == [1, 1], "the copies are not brought to the disk")
    cache.close()
    with monkeypatch.context() as patched:  # what one process could not bring to the disk, the next one does
        patched.setattr(os, "fsync", _refuse)
        with make_cache() as hindered:
            hindered.get_file(sources[3])
    assert sorted(_is_on_disk(folder)) == [0, 1, 1]
    make_cache().get_file(sources[3])
    _wait_until(lambda: _is_on_disk(folder) == [1, 1, 1], "a copy that was there is not brought to the disk")
    monkeypatch.setattr("headrace.files.cache.folder.boot_digest", lambda: "1" * 16)
    monkeypatch.setattr(os, "fsync", _refuse)
    second = make_cache()
    for source in sources[:3]:
        second.get_file(source)
    assert (second.counters.num_hits, second.counters.num_copies) == (2, 1)
    second.close()
    monkeypatch.setattr("headrace.files.cache.folder.boot_digest", lambda: "2" * 16)
    third = make_cache()
    assert len(survey(CacheFolder(cache.cache_directory))) == 4
    for source in sources[:3]:
        third.get_file(source)
    assert (third.counters.num_hits, third.counters.num_copies) == (2, 1), "nobody knows what is in the third"
