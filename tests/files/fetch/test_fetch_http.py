"""Fetching from a web server, also one that misbehaves."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import SourceError
from headrace.files.fetch.fetch import FetchOptions, SourceChangedError, SourceStat, fetch_to, open_url, stat_source
from servers import FileServer, nothing_left

pytest.importorskip("aiohttp")

pytestmark = pytest.mark.extra

KIB = 1024
RANGE = 8 * KIB
QUICK = FetchOptions(first_wait_seconds=0.001, max_wait_seconds=0.01, timeout_seconds=120, range_bytes=RANGE)
DATA = random.Random(1).randbytes(10 * RANGE + 123)
OTHER = random.Random(2).randbytes(len(DATA))


@pytest.fixture
def server() -> Iterator[FileServer]:
    with nothing_left(), FileServer({"a": DATA}) as server:
        yield server


@pytest.fixture
def part(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "part"
    assert {entry.name for entry in tmp_path.iterdir()} <= {"part", "part.ranges"}, "something else was left"


def _options(**changes: object) -> FetchOptions:
    values = {name: getattr(QUICK, name) for name in QUICK.__dataclass_fields__}
    return FetchOptions(**{**values, **changes})


def _fetch(server: FileServer, part: Path, options: FetchOptions = QUICK, **more: object) -> None:
    url = server.url("a")
    fetch_to(url, part, stat_source(url, options=options), options=options, **more)


def _stop_after(num_bytes: int):
    """Make an `on_bytes` that stops the fetch, and tell what came."""
    seen: list[int] = []

    def on_bytes(more: int) -> None:
        seen.append(more)
        if sum(seen) >= num_bytes:
            raise InterruptedError("enough")

    return on_bytes, seen


@pytest.mark.parametrize("checksum", [None, "xxh3"])
@pytest.mark.parametrize("size", [0, 1, RANGE - 1, RANGE, RANGE + 1, len(DATA)])
def test_what_comes_is_what_the_server_has(server, part, size, checksum):
    server.files["a"] = DATA[:size]
    counts: list[int] = []
    _fetch(server, part, _options(checksum=checksum), on_bytes=counts.append)
    assert part.read_bytes() == DATA[:size]
    assert os.listdir(part.parent) == ["part"]
    assert sum(counts) == size
    assert server.num_requests() == (-(-size // RANGE) or 2)  # that a file is empty is looked at twice


@pytest.mark.parametrize("version", ["etag", "date", None])
def test_the_version_is_what_the_server_says(server, version):
    server.version = version
    before = stat_source(server.url("a"))
    assert before.size == len(DATA)
    assert bool(before.version) == (version is not None)
    assert stat_source(server.url("a")) == before
    server.files["a"] = OTHER
    assert (stat_source(server.url("a")) != before) == (version is not None)


@pytest.mark.parametrize("kind", ["cut", "truncate", "wrong_range", "no_range_header", "shorter_range", "slow"])
@pytest.mark.parametrize("after_bytes", [0, 1, RANGE - 1])
def test_an_answer_that_is_cut_or_wrong_is_asked_for_again(server, part, kind, after_bytes):
    server.faults.add(kind, times=3, skip=2, after_bytes=after_bytes)
    _fetch(server, part, _options(checksum="xxh3"))
    assert part.read_bytes() == DATA


@pytest.mark.parametrize("status", [500, 502, 503, 429])
@pytest.mark.parametrize("retry_after", [None, "0", "1000", "nonsense"])
def test_a_server_that_is_busy_is_asked_again(server, part, status, retry_after):
    server.faults.add("status", status=status, retry_after=retry_after, times=4)
    server.faults.add("status", method="HEAD", status=status, retry_after=retry_after, times=2)
    _fetch(server, part)
    assert part.read_bytes() == DATA


@examples(25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["cut", "truncate", "wrong_range", "no_range_header", "shorter_range", "status", "slow"]),
            st.integers(0, 3),
            st.integers(0, 12),
            st.integers(0, RANGE),
        ),
        max_size=5,
    ),
    st.integers(1, 5),
    st.booleans(),
)
def test_any_faults_that_pass_change_nothing_in_the_result(tmp_path, faults, num_streams, ranges):
    with FileServer({"a": DATA}, ranges=ranges) as server:
        for kind, times, skip, after_bytes in faults:
            server.faults.add(kind, times=times, skip=skip, after_bytes=after_bytes)
        _fetch(server, tmp_path / "part", _options(num_tries=20, num_streams=num_streams, checksum="xxh3"))
        assert (tmp_path / "part").read_bytes() == DATA
        (tmp_path / "part").unlink()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_refusal_is_final(server, part, status):
    stat = stat_source(server.url("a"))
    server.faults.add("status", status=status, times=-1)
    with pytest.raises(SourceError, match=f"HTTP {status}") as caught:
        fetch_to(server.url("a"), part, stat, options=_options(num_streams=1))
    assert server.num_requests() == 1
    assert caught.value.where == server.url("a")
    assert caught.value.fix
    assert not part.exists()


def test_a_missing_file_is_said_to_be_missing(server):
    with pytest.raises(SourceError, match="does not exist"):
        stat_source(server.url("b"))


def test_the_last_error_names_the_source_the_tries_the_cause_and_what_came(server, part):
    stat = stat_source(server.url("a"))
    server.faults.add("status", status=503, times=-1, skip=4)
    with pytest.raises(SourceError) as caught:
        fetch_to(server.url("a"), part, stat, options=_options(num_streams=1, num_tries=3))
    text = str(caught.value)
    assert server.num_requests() == 4 + 3
    assert server.url("a") in text
    assert "3 tries: HTTP 503 Service Unavailable" in text
    assert f"{4 * RANGE} of {len(DATA)} bytes had come" in text
    assert f"bytes {4 * RANGE}-{5 * RANGE - 1}" in text
    assert part.exists()  # for the next call


def test_a_silent_server_is_named_after_the_time_limit(server, part):
    stat = stat_source(server.url("a"))
    server.faults.add("stall", times=-1, after_bytes=10)
    with pytest.raises(SourceError, match=r"no answer from .*/a within 0\.05 s"):
        fetch_to(server.url("a"), part, stat, options=_options(timeout_seconds=0.05, num_tries=2))


def test_a_server_that_is_silent_once_is_asked_again(server, part):
    server.faults.add("stall", times=2, skip=3, after_bytes=RANGE // 2)
    server.faults.add("stall", times=1, method="HEAD")
    _fetch(server, part, _options(timeout_seconds=0.3, num_tries=100))
    assert part.read_bytes() == DATA


def test_looking_at_a_silent_server_has_a_limit(server):
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # it takes connections and never answers
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/a"
        with pytest.raises(SourceError, match=r"look at it, 2 tries: .*within 0\.05 s"):
            stat_source(url, options=_options(timeout_seconds=0.05, num_tries=2))


def test_a_server_that_is_gone_is_named():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}/a"
    with pytest.raises(SourceError, match="2 tries") as caught:
        stat_source(url, options=_options(num_tries=2))
    assert caught.value.where == url


@pytest.mark.parametrize("size", [0, 1, RANGE, len(DATA)])
def test_a_server_without_ranges_is_read_as_one_stream(server, part, size):
    server.files["a"] = DATA[:size]
    server.ranges = False
    counts: list[int] = []
    _fetch(server, part, _options(checksum="xxh3"), on_bytes=counts.append)
    assert part.read_bytes() == DATA[:size]
    assert sum(counts) == size


@pytest.mark.parametrize("kind", ["cut", "truncate"])
def test_a_stream_that_breaks_starts_over(server, part, kind):
    server.ranges = False
    for _ in range(3):
        server.faults.add(kind, skip=8, after_bytes=3 * RANGE + 5)
    counts: list[int] = []
    _fetch(server, part, on_bytes=counts.append)
    assert part.read_bytes() == DATA
    assert sum(counts) == len(DATA)


def test_a_stream_without_a_length_that_ends_early_or_late_is_noticed(server, part):
    server.ranges = False
    stat = stat_source(server.url("a"))
    server.lengths = False
    server.faults.add("longer_body", skip=8, times=1)
    server.faults.add("truncate", after_bytes=100, skip=1, times=1)
    fetch_to(server.url("a"), part, stat, options=QUICK)
    assert part.read_bytes() == DATA
    server.faults.add("longer_body", times=-1)
    with pytest.raises(SourceError, match=f"more than {len(DATA)} bytes came"):
        fetch_to(server.url("a"), part, stat, options=QUICK)


def test_a_server_that_forgets_ranges_in_the_middle_is_read_from_the_start(server, part):
    server.faults.add("ignore_range", skip=5, times=-1)
    _fetch(server, part)
    assert part.read_bytes() == DATA


@pytest.mark.parametrize("version", ["etag", "date"])
@pytest.mark.parametrize("new", [OTHER, DATA + b"x", DATA[:-1], b""])
def test_a_file_that_changes_in_the_middle_is_refused_and_its_part_removed(server, part, version, new):
    server.version = version
    server.faults.add("call", skip=3, call=lambda: server.files.update(a=new))
    with pytest.raises(SourceChangedError, match="has changed"):
        _fetch(server, part)
    assert not part.exists()
    _fetch(server, part)
    assert part.read_bytes() == new


@pytest.mark.parametrize("version", ["etag", None])
def test_a_file_that_changes_at_the_very_end_is_noticed(server, part, version):
    server.version = version
    stat = stat_source(server.url("a"))

    def on_bytes(_num_bytes: int) -> None:
        if server.num_requests() == 11:
            server.files["a"] = DATA + b"x"

    with pytest.raises(SourceChangedError):
        fetch_to(server.url("a"), part, stat, options=QUICK, on_bytes=on_bytes)
    assert not part.exists()


def test_a_file_that_is_the_old_one_again_is_fetched_from_the_start(server, part):
    counts: list[int] = []

    def on_bytes(num_bytes: int) -> None:
        counts.append(num_bytes)
        if num_bytes < 0:  # it starts over
            server.files["a"] = DATA

    server.faults.add("call", skip=3, call=lambda: server.files.update(a=OTHER))
    _fetch(server, part, on_bytes=on_bytes)
    assert part.read_bytes() == DATA
    assert sum(counts) == len(DATA)
    assert min(counts) < 0


def test_a_stat_of_another_version_is_refused(server, part):
    stat = stat_source(server.url("a"))
    server.files["a"] = OTHER
    with pytest.raises(SourceChangedError):
        fetch_to(server.url("a"), part, stat, options=QUICK)
    with pytest.raises(SourceChangedError, match=r"12 bytes were expected"):
        fetch_to(server.url("a"), part, SourceStat(12, ""), options=QUICK)
    assert not part.exists()


def test_a_server_that_refuses_head_is_asked_by_get(server, part):
    server.head = False
    _fetch(server, part)
    assert part.read_bytes() == DATA
    server.files["a"] = b""
    assert stat_source(server.url("a")).size == 0
    server.ranges = False
    assert stat_source(server.url("a")).size == 0
    server.files["a"] = DATA
    assert stat_source(server.url("a")).size == len(DATA)


def test_a_server_that_answers_head_with_no_length_or_zero_is_asked_by_get(server, part):
    server.head_body = False
    assert stat_source(server.url("a")).size == len(DATA)


def test_a_server_that_does_not_say_the_size_is_refused(server):
    server.head = server.ranges = server.lengths = False
    with pytest.raises(SourceError, match="how large"):
        stat_source(server.url("a"), options=QUICK)


def test_a_server_that_packs_what_it_sends_is_refused(server, part):
    server.faults.add("packed", times=-1)
    with pytest.raises(SourceError, match="packed"):
        _fetch(server, part)
    assert server.requests[-1].headers["Accept-Encoding"] == "identity"


def test_a_fetch_that_is_stopped_goes_on_where_it_was(server, part):
    on_bytes, seen = _stop_after(4 * RANGE)
    with pytest.raises(InterruptedError, match="enough"):
        _fetch(server, part, on_bytes=on_bytes)
    assert part.stat().st_size == len(DATA)
    came = sum(seen)
    server.requests.clear()
    counts: list[int] = []
    _fetch(server, part, on_bytes=counts.append)
    assert part.read_bytes() == DATA
    assert counts[0] == came
    assert sum(counts) == len(DATA)
    asked = {request.range for request in server.requests if request.method == "GET"}
    assert len(asked) == -(-(len(DATA) - came) // RANGE)


@pytest.mark.parametrize("change", ["content", "checksum", "size"])
def test_a_part_of_another_version_is_not_gone_on_with(server, part, change):
    on_bytes, _ = _stop_after(4 * RANGE)
    with pytest.raises(InterruptedError):
        _fetch(server, part, on_bytes=on_bytes)
    options = QUICK
    if change == "checksum":
        options = _options(checksum="xxh3")  # the first part kept no digests
    else:
        server.files["a"] = OTHER if change == "content" else DATA[:-1]
    counts: list[int] = []
    _fetch(server, part, options, on_bytes=counts.append)
    assert counts[0] == 0
    assert part.read_bytes() == server.files["a"]


def test_without_a_version_nothing_is_gone_on_with(server, part):
    server.version = None
    on_bytes, _ = _stop_after(4 * RANGE)
    with pytest.raises(InterruptedError):
        _fetch(server, part, on_bytes=on_bytes)
    server.files["a"] = OTHER
    _fetch(server, part)
    assert part.read_bytes() == OTHER


def test_a_fetch_that_waits_can_be_stopped(server, part):
    stat = stat_source(server.url("a"))
    fault = server.faults.add("stall", times=-1, after_bytes=10)

    def on_bytes(num_bytes: int) -> None:
        if fault.started.is_set() and num_bytes == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_to(server.url("a"), part, stat, options=_options(timeout_seconds=3600), on_bytes=on_bytes)
    assert not part.exists()


def test_a_wait_between_tries_can_be_stopped(server, part):
    stat = stat_source(server.url("a"))
    fault = server.faults.add("status", times=-1)
    options = _options(first_wait_seconds=3600, max_wait_seconds=3600, num_streams=1)

    def on_bytes(num_bytes: int) -> None:
        if fault.started.is_set() and num_bytes == 0:
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fetch_to(server.url("a"), part, stat, options=options, on_bytes=on_bytes)


def test_what_stops_a_fetch_comes_out_as_it_was(server, part):
    reason = OSError(5, "the caller's own, which looks as if it could pass")
    reason.__cause__ = KeyError("why")

    def on_bytes(num_bytes: int) -> None:
        raise reason

    with pytest.raises(OSError, match="caller") as caught:
        _fetch(server, part, on_bytes=on_bytes)
    assert caught.value is reason
    assert isinstance(caught.value.__cause__, KeyError)


def test_secrets_in_an_address_are_not_shown(server):
    host = server.address.removeprefix("http://")
    with pytest.raises(SourceError) as caught:
        stat_source(f"zip://x::http://user:secret@{host}/b?signature=hidden")
    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)
    with pytest.raises(SourceError) as caught:
        stat_source(f"http://user:secret@{host}/b?signature=hidden")
    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)
    assert caught.value.where == f"http://{host}/b?..."


def test_a_checksum_that_the_server_does_not_give_is_refused_before_anything_comes(server, part):
    with pytest.raises(SourceError, match="gives no checksum"):
        _fetch(server, part, _options(checksum="store"))
    assert server.num_requests() == 0


def test_several_threads_fetch_at_once(server, tmp_path):
    errors: list[BaseException] = []

    def fetch(number: int) -> None:
        try:
            _fetch(server, tmp_path / str(number))
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)

    server.faults.add("cut", times=5, skip=10, after_bytes=100)
    threads = [threading.Thread(target=fetch, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert all((tmp_path / str(number)).read_bytes() == DATA for number in range(6))


def test_a_small_file_can_be_opened(server):
    with open_url(server.url("a"), options=QUICK) as file:
        assert file.read(5) == DATA[:5]
        file.seek(-3, os.SEEK_END)
        assert file.read() == DATA[-3:]
    with pytest.raises(SourceError, match="does not exist"):
        open_url(server.url("b"))
