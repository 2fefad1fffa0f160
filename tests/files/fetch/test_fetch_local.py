"""Fetching from local and network disks, and what a part file may meet."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import CacheError, SourceError
from headrace.files.fetch import local as fetch_local
from headrace.files.fetch.fetch import FetchOptions, SourceChangedError, SourceStat, discard_part, fetch_to, stat_source
from headrace.files.fetch.part import PartFile
from servers import nothing_left

BLOCK = 16 * 1024
QUICK = FetchOptions(first_wait_seconds=0.001, max_wait_seconds=0.01, timeout_seconds=120)
DATA = random.Random(1).randbytes(6 * BLOCK + 77)
OTHER = random.Random(2).randbytes(len(DATA))


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_local, "_BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(fetch_local, "_STEP_BYTES", BLOCK // 4)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def part(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder / "part"


def _side(part: Path) -> Path:
    return part.with_name(part.name + ".ranges")


def _stop_after(num_bytes: int) -> Callable[[int], None]:
    seen: list[int] = []

    def on_bytes(more: int) -> None:
        seen.append(more)
        if sum(seen) >= num_bytes:
            raise InterruptedError("enough")

    return on_bytes


def _half(source: Path, part: Path, options: FetchOptions = QUICK) -> None:
    """Leave a part with its first three blocks."""
    with pytest.raises(InterruptedError):
        fetch_to(source, part, stat_source(source), options=options, on_bytes=_stop_after(3 * BLOCK))


def _fetch(source: Path, part: Path, options: FetchOptions = QUICK) -> list[int]:
    counts: list[int] = []
    fetch_to(source, part, stat_source(source), options=options, on_bytes=counts.append)
    return counts


@pytest.mark.parametrize("checksum", [None, "xxh3", "store"])
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, len(DATA)])
def test_the_part_is_the_source(source, part, checksum, size):
    source.write_bytes(DATA[:size])
    counts = _fetch(source, part, FetchOptions(checksum=checksum))
    assert part.read_bytes() == DATA[:size]
    assert os.listdir(part.parent) == ["part"]
    assert sum(counts) == size


@pytest.mark.parametrize("name", ["a b#?%41.hdf", "ä", "x.copy", "x::y", "http:", "-rf"])
def test_names_of_local_files_are_taken_as_they_are(tmp_path, part, name):
    (tmp_path / name).write_bytes(b"content")
    _fetch(tmp_path / name, part)
    assert part.read_bytes() == b"content"


def test_a_file_url_is_a_local_file(source, part):
    assert stat_source(f"file://{source}") == stat_source(source) == stat_source(str(source))
    fetch_to(f"file://{source}", str(part), stat_source(source))
    assert part.read_bytes() == DATA


def test_the_version_of_a_local_file_is_its_modification_time(source):
    os.utime(source, ns=(1, 123456789))
    assert stat_source(source) == SourceStat(len(DATA), "123456789")


def test_a_link_is_followed_at_the_source_and_replaced_at_the_part(source, part, tmp_path):
    (tmp_path / "link").symlink_to(source)
    part.symlink_to(tmp_path / "victim")
    (tmp_path / "victim").write_bytes(b"precious")
    _fetch(tmp_path / "link", part)
    assert not part.is_symlink()
    assert part.read_bytes() == DATA
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_the_part_has_the_permissions_of_a_new_file(source, part):
    old = os.umask(0o027)
    try:
        _fetch(source, part)
    finally:
        os.umask(old)
    assert part.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("way", ["_copy_file_range", "_send_file"])
@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, None])
def test_where_the_kernel_cannot_copy_the_next_way_is_tried(source, part, monkeypatch, way, number):
    def refuse(*_arguments: object) -> int:
        if number is None:
            return 0  # some file systems say so instead
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fetch_local, "_copy_file_range", refuse)
    monkeypatch.setattr(fetch_local, way, refuse)
    _fetch(source, part)
    assert part.read_bytes() == DATA


def test_files_go_from_one_disk_to_another(part):
    with open("/dev/shm/headrace-test-source", "wb") as file:
        file.write(DATA)
    try:
        _fetch(Path(file.name), part)
    finally:
        os.unlink(file.name)
    assert part.read_bytes() == DATA


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_disk_that_fails_for_a_moment_is_asked_again(source, part, monkeypatch, number):
    real, calls = fetch_local._copy_file_range, []

    def sometimes(*arguments: int) -> int:
        calls.append(arguments)
        if len(calls) in (3, 4, 6):
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    monkeypatch.setattr(fetch_local, "_copy_file_range", sometimes)
    _fetch(source, part)
    assert part.read_bytes() == DATA


def test_a_disk_that_keeps_failing_is_named_with_tries_and_cause(source, part, monkeypatch):
    def fail(*_arguments: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fetch_local, "_copy_file_range", fail)
    with pytest.raises(SourceError, match=r"3 tries: OSError: .*Input/output error; 0 of") as caught:
        _fetch(source, part, FetchOptions(num_tries=3, first_wait_seconds=0.001))
    assert caught.value.where == str(source)
    assert os.listdir(part.parent) == []


def test_what_is_no_file_is_refused(tmp_path, part):
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path, "regular"), (tmp_path / "pipe", "regular"), (tmp_path / "no", "not exist")):
        with pytest.raises(SourceError, match=what) as caught:
            stat_source(path)
        assert caught.value.where == str(path)
    with pytest.raises(SourceError, match="not exist"):
        fetch_to(tmp_path / "no", part, SourceStat(3, "1"), options=QUICK)
    with pytest.raises(SourceError, match="regular"):
        fetch_to(tmp_path, part, SourceStat(3, "1"), options=QUICK)
    assert os.listdir(part.parent) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused_at_once(source, part):
    source.chmod(0)
    with pytest.raises(SourceError, match="Permission denied"):
        _fetch(source, part)


@pytest.mark.parametrize("change", ["shorter", "longer", "rewritten", "removed"])
@pytest.mark.parametrize("when", ["before", "in the middle", "at the end"])
def test_a_source_that_changes_is_noticed(source, part, change, when):
    def spoil() -> None:
        if change == "removed":
            source.unlink(missing_ok=True)
        else:
            content = {"shorter": DATA[:-5], "longer": DATA + b"x", "rewritten": OTHER}[change]
            source.write_bytes(content)
            os.utime(source, ns=(5, 5))

    stat, come = stat_source(source), []

    def on_bytes(num_bytes: int) -> None:
        come.append(num_bytes)
        if sum(come) >= {"in the middle": BLOCK, "at the end": len(DATA)}[when]:
            spoil()

    if when == "before":
        spoil()
    with pytest.raises(SourceError, match="not exist" if change == "removed" else "changed") as caught:
        fetch_to(source, part, stat, options=QUICK, on_bytes=None if when == "before" else on_bytes)
    if change != "removed":
        assert isinstance(caught.value, SourceChangedError)
        assert os.listdir(part.parent) == []
        _fetch(source, part)
        assert part.read_bytes() == source.read_bytes()


def test_a_source_that_is_cut_while_a_block_is_copied_is_noticed(source, part, monkeypatch):
    real = fetch_local._copy_file_range

    def copy(*arguments: int) -> int:
        os.truncate(source, BLOCK // 2)
        return real(*arguments)

    stat = stat_source(source)
    monkeypatch.setattr(fetch_local, "_copy_file_range", copy)
    with pytest.raises(SourceChangedError, match="changed"):
        fetch_to(source, part, stat, options=QUICK)
    assert os.listdir(part.parent) == []


def test_a_disk_that_does_not_keep_what_is_written_is_noticed(source, part):
    def on_bytes(num_bytes: int) -> None:
        if num_bytes == len(DATA) % BLOCK:  # the last block has come
            with open(part, "r+b") as file:
                file.seek(BLOCK + 3)
                file.write(b"rotten")

    with pytest.raises(CacheError, match=f"bytes {BLOCK}-{2 * BLOCK - 1} of the part file are not what was written"):
        fetch_to(source, part, stat_source(source), options=FetchOptions(checksum="xxh3"), on_bytes=on_bytes)


def test_a_copy_that_was_stopped_goes_on_where_it_was(source, part):
    _half(source, part)
    assert part.stat().st_size == len(DATA)
    counts = _fetch(source, part)
    assert counts[0] == 3 * BLOCK
    assert sum(counts) == len(DATA)
    assert part.read_bytes() == DATA
    assert os.listdir(part.parent) == ["part"]


@pytest.mark.parametrize("spoiled", ["part gone", "part cut", "part replaced", "side file gone", "source touched"])
def test_a_part_that_does_not_fit_its_side_file_starts_over(source, part, spoiled):
    _half(source, part)
    if spoiled == "part gone":
        part.unlink()
    elif spoiled == "part cut":
        os.truncate(part, BLOCK)
    elif spoiled == "part replaced":
        (part.parent / "new").write_bytes(OTHER)
        os.replace(part.parent / "new", part)
    elif spoiled == "side file gone":
        _side(part).unlink()
    else:
        os.utime(source, ns=(9, 9))
    assert _fetch(source, part)[0] == 0
    assert part.read_bytes() == DATA


def test_a_part_from_before_the_machine_was_booted_starts_over(source, part):
    _half(source, part)
    first, _, rest = _side(part).read_bytes().partition(b"\n")
    header = json.loads(first)
    assert header["boot"]
    _side(part).write_bytes(json.dumps({**header, "boot": "another"}).encode() + b"\n" + rest)
    assert _fetch(source, part)[0] == 0
    assert part.read_bytes() == DATA


@examples(100)
@given(st.data())
def test_a_side_file_that_is_torn_or_odd_never_makes_a_wrong_file(source, part, data):
    options = FetchOptions(checksum="xxh3")
    discard_part(part)
    _half(source, part, options)
    text = _side(part).read_bytes()
    kind = data.draw(st.sampled_from(["truncated", "bytes", "line"]))
    if kind == "truncated":
        text = text[: data.draw(st.integers(0, len(text)))]
    elif kind == "bytes":
        start = data.draw(st.integers(0, len(text) - 1))
        text = text[:start] + data.draw(st.binary(max_size=3)).replace(b"\n", b"") + text[start + 1 :]
    else:
        odd = ["", "[]", "[1]", "null", "[0, -1, null]", '["0", 5, null]', "[0, 1e9, null]", "[0, 99999999, null]"]
        odd += ["[0, 5, 7]", "[0, 5, null, 1]", "[true, 5, null]", "[" * 99_999]
        text += data.draw(st.sampled_from(odd)).encode() + b"\n"
    _side(part).write_bytes(text)
    try:
        _fetch(source, part, options)
    except CacheError:
        assert kind == "bytes"  # a number was changed to another one; the digests tell
    else:
        assert part.read_bytes() == DATA
    discard_part(part)
    assert os.listdir(part.parent) == []


@pytest.mark.parametrize("spoiled", ["folder", "no folder", "file as folder"])
def test_a_part_that_cannot_be_written_is_an_error_of_the_cache(source, part, spoiled):
    if spoiled == "folder":
        part.mkdir()
    elif spoiled == "no folder":
        part = part.parent / "no" / "part"
    else:
        part.write_bytes(b"")
        part = part / "part"
    with pytest.raises(CacheError) as caught:
        _fetch(source, part)
    assert caught.value.where == str(part)
    assert caught.value.fix


def test_a_part_that_is_taken_away_while_it_is_written_is_an_error_of_the_cache(source, part):
    def on_bytes(_num_bytes: int) -> None:
        part.unlink(missing_ok=True)

    with pytest.raises(CacheError):
        fetch_to(source, part, stat_source(source), options=QUICK, on_bytes=on_bytes)


_FULL_DISK = """
import errno, os, subprocess, sys
from headrace.files.fetch.fetch import FetchOptions, fetch_to, stat_source
source, disk = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
part = os.path.join(disk, "part")
came = []
try:
    fetch_to(source, part, stat_source(source), on_bytes=came.append)
except OSError as error:
    assert error.errno == errno.ENOSPC, error
else:
    raise AssertionError("it fits?")
assert sum(came) == 0, "the full disk must be met before anything is fetched"
assert os.listdir(disk) == [], "the space is given back"
os.truncate(source, 1_000_000)
fetch_to(source, part, stat_source(source), options=FetchOptions(checksum="xxh3"))
assert open(part, "rb").read() == open(source, "rb").read()
print("good")
"""


def _own_mounts() -> list[str] | None:
    command = ["unshare", "--map-root-user", "--mount"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return command


@pytest.mark.skipif(_own_mounts() is None, reason="mounts need a user namespace")
def test_a_full_disk_is_met_before_the_first_byte_and_goes_through_unchanged(source, tmp_path):
    (tmp_path / "disk").mkdir()
    os.truncate(source, 2_000_000)
    command = [*_own_mounts(), sys.executable, "-c", _FULL_DISK, str(source), str(tmp_path / "disk")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("good\n", 0), done.stderr


_HOLDS_THE_FILE = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
import signal
signal.signal(signal.SIGIO, signal.SIG_IGN)  # somebody wants it: let them wait
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def hanging_source(source: Path) -> Iterator[Path]:
    """A file that hangs whoever opens it, as a network disk without its server does."""
    command = [sys.executable, "-c", _HOLDS_THE_FILE, str(source)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != b"held\n":
                pytest.skip("no leases on this file system")
            yield source
        finally:
            holder.kill()


def test_a_disk_that_hangs_is_named_after_the_time_limit_and_its_part_is_not_kept(hanging_source, part):
    options = FetchOptions(num_tries=2, timeout_seconds=0.1, first_wait_seconds=0.001)
    with pytest.raises(SourceError, match=r"2 tries: no answer from .*/source within 0\.1 s"):
        fetch_to(hanging_source, part, stat_source(hanging_source), options=options)
    assert os.listdir(part.parent) == []


def test_a_disk_that_hangs_can_be_left_at_once(hanging_source, part):
    def on_bytes(num_bytes: int) -> None:
        calls.append(num_bytes)
        if len(calls) == 3:
            raise KeyboardInterrupt

    calls: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        fetch_to(hanging_source, part, stat_source(hanging_source), options=QUICK, on_bytes=on_bytes)


def test_a_source_that_others_lock_can_be_read(source, part):
    with open(source, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _fetch(source, part)
    assert part.read_bytes() == DATA


def test_nothing_heavy_is_imported_before_a_url_is_used():
    program = (
        "import sys, headrace.files.fetch.fetch; print(sorted({'fsspec', 'aiohttp', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"


def test_threads_that_write_the_same_part_do_not_move_each_other(part):
    opened = PartFile(str(part), SourceStat(100, "1"), with_digests=False)
    try:
        first, second = opened.reopen(), opened.reopen()
        try:
            os.lseek(first, 50, os.SEEK_SET)
            assert os.lseek(second, 0, os.SEEK_CUR) == 0
        finally:
            os.close(first)
            os.close(second)
        part.unlink()
        part.write_bytes(b"another file")
        with pytest.raises(CacheError, match="replaced"):
            opened.reopen()
    finally:
        opened.discard()
    assert part.read_bytes() == b"another file"  # what is not ours is not removed
