"""A cache on a full disk: 50 MB of memory, where the system lets us mount that, and limits that it always sets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

_MB = 1_000_000


def _in_small_disk(folder: Path, *command: str, num_mb: int = 50) -> list[str]:
    """Return a command that mounts a disk of memory at `folder`, seen by nobody else, and runs `command` there."""
    mount = f'mount -t tmpfs -o size={num_mb}000000 tmpfs "$0" && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder), *command]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    tried = subprocess.run(_in_small_disk(folder, "true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this system does not let us mount a disk: {tried.stderr.strip()}")
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Twelve files of 10 MB, whose bytes are their number."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for number in range(12):
        (folder / str(number)).write_bytes(bytes([number]) * 10 * _MB)
    return folder


def _run(disk: Path, program: str, *arguments: object) -> str:
    command = [sys.executable, "-X", "faulthandler", "-c", program, str(disk), *map(str, arguments)]
    done = subprocess.run(_in_small_disk(disk, *command), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


_START = """
import errno, os, sys, threading, warnings
from headrace.errors import CacheError
from headrace.files.cache.cache import FileCache
from headrace.files.cache.folder import CacheFolder
disk, sources = sys.argv[1:3]
def check(path, number):
    with open(path, "rb") as file:
        data = file.read()
    assert data == bytes([number]) * 10_000_000, (number, len(data), set(data))
"""

_ONE_AFTER_THE_OTHER = (
    _START
    + """
with FileCache(cache_directory=disk + "/cache") as cache:
    for number in range(12):
        cache.prefetch([f"{sources}/{other}" for other in range(number + 1, 12)])
        path = cache.get_file(f"{sources}/{number}")
        check(path, number)
        cache.release_files(path)
    folder = CacheFolder(cache.options)
    assert folder.used_bytes() <= 50_000_000
print(cache.counters.num_removed >= 8)
"""
)


def test_a_small_disk_serves_more_files_than_it_holds(disk, sources):
    assert _run(disk, _ONE_AFTER_THE_OTHER, sources) == "True\n"


_NO_ROOM = (
    _START
    + """
with open(disk + "/of others", "wb") as file:
    file.write(bytes(15_000_000))
with FileCache(cache_directory=disk + "/cache") as cache:
    held = [cache.get_file(f"{sources}/{number}") for number in range(3)]
    try:
        cache.get_file(f"{sources}/3")
    except CacheError as error:
        print(error)
    os.unlink(disk + "/of others")
    check(cache.get_file(f"{sources}/3"), 3)
    cache.release_files(held[0])
    with open(disk + "/of others", "wb") as file:
        file.write(bytes(5_000_000))
    check(cache.get_file(f"{sources}/4"), 4)
    assert not os.path.exists(held[0]) and os.path.exists(held[1])
    for number, path in enumerate(held[1:], 1):
        check(path, number)
"""
)


def test_when_the_disk_is_full_of_what_is_in_use_the_numbers_are_told_and_room_that_comes_free_is_used(disk, sources):
    told = _run(disk, _NO_ROOM, sources)
    assert "10.0 MB needed" in told
    assert "no quota; the disk has" in told
    assert "free of 50.0 MB" in told
    assert "30.0 MB in 3 files are in use by this process" in told


_FILLED_MEANWHILE = (
    _START
    + """
from headrace.files.cache import cache as caching
real = caching.fetch_to
def fetch(source, part, *args, **kwargs):
    # Somebody else takes the room between our counting and our writing.
    caching.fetch_to = real
    with open(disk + "/of others", "wb") as file:
        try:
            for _ in range(60):
                file.write(bytes(1_000_000))
                file.flush()
        except OSError as error:
            assert error.errno == errno.ENOSPC
    real(source, part, *args, **kwargs)
with FileCache(cache_directory=disk + "/cache") as cache:
    for number in range(3):
        cache.release_files(cache.get_file(f"{sources}/{number}"))
    caching.fetch_to = fetch
    check(cache.get_file(f"{sources}/5"), 5)
    print(cache.counters.num_removed)
"""
)


def test_a_disk_that_others_fill_in_the_middle_of_a_copy_is_freed_and_the_copy_goes_on(disk, sources):
    assert _run(disk, _FILLED_MEANWHILE, sources) in ("1\n", "2\n")


_SEVERAL = (
    _START
    + """
import random
rng = random.Random(int(sys.argv[3]))
with FileCache(cache_directory=disk + "/cache", wait_seconds=120) as cache:
    for _ in range(15):
        number = rng.randrange(12)
        path = cache.get_file(f"{sources}/{number}")
        check(path, number)
        cache.release_files(path)
"""
)
_PARENT = """
import subprocess, sys
command = [sys.executable, "-c", sys.argv[3], *sys.argv[1:3]]
children = [subprocess.Popen([*command, str(seed)]) for seed in range(3)]
print([child.wait() for child in children])
"""


def test_three_processes_share_a_disk_that_holds_four_files(disk, sources):
    assert _run(disk, _PARENT, sources, _SEVERAL) == "[0, 0, 0]\n"


_TOO_LARGE = (
    _START
    + """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with FileCache(cache_directory=disk + "/cache") as cache:
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, resource.RLIM_INFINITY))
    try:
        cache.get_file(f"{sources}/0")
    except CacheError as error:
        print(error)
    print([os.listdir(f"{disk}/cache/{name}") for name in ("data", "entries")])
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    check(cache.get_file(f"{sources}/0"), 0)
"""
)


def test_a_copy_that_the_system_refuses_leaves_nothing(tmp_path, sources):
    command = [sys.executable, "-c", _TOO_LARGE, str(tmp_path), str(sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert "[[], []]" in done.stdout


_NO_INODES = (
    _START
    + """
with FileCache(cache_directory=disk + "/cache") as cache:
    for number in range(4):
        (lambda path: cache.release_files(path))(cache.get_file(f"{sources}/small{number}"))
    for number in range(10_000):
        try:
            open(f"{disk}/inode{number}", "x").close()
        except OSError as error:
            assert error.errno == errno.ENOSPC
            break
    path = cache.get_file(f"{sources}/0")
    check(path, 0)
    print(cache.counters.num_removed)
"""
)


def test_a_disk_without_inodes_is_freed_too(disk, sources):
    for number in range(4):
        (sources / f"small{number}").write_bytes(b"x")
    command = [sys.executable, "-c", _NO_INODES, str(disk), str(sources)]
    wrapped = _in_small_disk(disk, *command)
    wrapped = [part.replace("size=50000000", "size=50000000,nr_inodes=100") for part in wrapped]
    done = subprocess.run(wrapped, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1
    assert os.listdir(disk) == [], "the disk went with its processes"
