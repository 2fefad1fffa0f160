"""What is copied ahead, and how it ends."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.files.cache import cache as caching
from headrace.files.cache.cache import FileCache
from headrace.files.cache.entry import EntryKey
from headrace.files.cache.folder import CacheFolder
from headrace.files.fetch import fetch_to, stat_source
from headrace.files.locks import lock_exclusive_nowait

_DEADLINE_SECONDS = 120.0


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Ten files of 100 bytes, named 0 to 9."""
    for number in range(10):
        (tmp_path / str(number)).write_bytes(b"%d" % number * 100)
    return [str(tmp_path / str(number)) for number in range(10)]


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were fetched, in order, by one thread; others wait a second only to look again."""
    names: list[str] = []

    def fetch(source, *args, **kwargs) -> None:
        names.append(os.path.basename(source))
        fetch_to(source, *args, **kwargs)

    monkeypatch.setattr(caching, "fetch_to", fetch)
    monkeypatch.setattr(caching, "_NUM_THREADS", 1)
    monkeypatch.setattr(caching, "_LOOK_SECONDS", 0.01)
    return names


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, what
        pause.wait(0.002)


def _copied(cache: FileCache) -> str:
    """Return the names of the files that have whole copies."""
    folder = CacheFolder(cache.options)
    records = [folder.read_record(state.key) for state in folder.survey()]
    return "".join(sorted(os.path.basename(record.source) for record in records if record is not None))


def test_files_are_copied_in_the_order_in_which_they_are_needed(make_cache, sources, order):
    cache = make_cache()
    cache.prefetch(sources[3:7] + sources[:2] + sources[3:4])
    assert cache.wait_prefetched(_DEADLINE_SECONDS)
    assert "".join(order) == "345601"
    assert cache.counters.num_prefetched == 6
    for source in sources[3:7]:
        assert Path(cache.get_file(source)).read_bytes() == Path(source).read_bytes()
    assert (cache.counters.num_hits, cache.counters.num_copies) == (4, 0)


def test_several_are_copied_at_a_time(make_cache, sources, monkeypatch):
    met = threading.Barrier(caching._NUM_THREADS, timeout=_DEADLINE_SECONDS)

    def fetch(source, *args, **kwargs) -> None:
        met.wait()
        fetch_to(source, *args, **kwargs)

    monkeypatch.setattr(caching, "fetch_to", fetch)
    cache = make_cache()
    cache.prefetch(sources[: 2 * caching._NUM_THREADS])
    assert cache.wait_prefetched(_DEADLINE_SECONDS)
    assert _copied(cache) == "01234567"


def test_nothing_that_is_needed_sooner_is_removed_and_room_that_is_released_is_used(make_cache, sources, order):
    cache = make_cache(max_bytes=300)
    cache.prefetch(sources)
    for number, source in enumerate(sources):
        ahead = set("0123456789"[number : number + 3])
        _wait_until(lambda ahead=ahead: set(_copied(cache)) >= ahead, "it does not go on")
        cache.release_files(cache.get_file(source))
    assert "".join(order) == "0123456789", "each was copied once, in order"
    assert cache.counters.num_copies == 0


def test_what_the_plan_of_the_cache_names_stays(make_cache, sources, order):
    cache = make_cache(max_bytes=300)
    for source in sources[:3]:
        cache.release_files(cache.get_file(source))
    cache.set_plan(sources[:2])
    cache.prefetch(sources[5:7])
    _wait_until(lambda: _copied(cache) == "015", "there is room for one more")
    assert not cache.wait_prefetched(0.05)
    cache.set_plan([])
    assert cache.wait_prefetched(_DEADLINE_SECONDS)
    assert set("56") <= set(_copied(cache))


def test_what_is_needed_now_takes_the_room_of_what_was_not_used_for_longest(make_cache, sources, order):
    cache = make_cache(max_bytes=300)
    cache.prefetch(sources[1:4])
    assert cache.wait_prefetched(_DEADLINE_SECONDS)
    cache.set_plan(sources[1:4])
    cache.get_file(sources[0])
    assert _copied(cache) == "012", "3 is needed last"


def test_a_source_that_cannot_be_read_is_passed_over_and_its_error_is_for_who_needs_it(make_cache, sources, order):
    cache = make_cache()
    cache.prefetch(["/no/such/file", sources[1]])
    assert cache.wait_prefetched(_DEADLINE_SECONDS)
    assert order == ["1"]
    (failure,) = cache.prefetch_failures.items()
    assert failure[0] == "/no/such/file"
    assert "does not exist" in failure[1]
    with pytest.raises(Exception, match="does not exist"):
        cache.get_file("/no/such/file")


def test_what_somebody_else_is_making_is_passed_over(make_cache, sources, order):
    cache = make_cache()
    folder = CacheFolder(cache.options)
    lock = lock_exclusive_nowait(folder.entry_path(EntryKey.of(sources[0], stat_source(sources[0]))))
    with contextlib.closing(lock):
        cache.prefetch(sources[:2])
        assert cache.wait_prefetched(_DEADLINE_SECONDS)
    assert order == ["1"]


def test_closing_ends_it_and_leaves_nothing_half(make_cache, sources, monkeypatch, tmp_path):
    begun, released = threading.Event(), threading.Event()

    def fetch(*args, stop, **kwargs) -> None:
        begun.set()
        stop.wait()
        released.set()
        fetch_to(*args, stop=stop, **kwargs)

    monkeypatch.setattr(caching, "fetch_to", fetch)
    cache = make_cache()
    cache.prefetch(sources)
    assert begun.wait(_DEADLINE_SECONDS)
    cache.close()
    assert released.is_set()
    folders = [tmp_path / "cache" / name for name in ("data", "entries")]
    _wait_until(lambda: not any(map(os.listdir, folders)), "something is left")
