"""Processes over one cache folder that are killed, stopped or quick: no wrong file, and nothing held for ever."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import CacheError, SourceError
from headrace.files.cache.cache import FileCache
from headrace.files.cache.folder import CacheFolder
from headrace.files.locks import lock_exclusive_nowait

pytestmark = pytest.mark.long

_SIZE = 50_000

# Events of the system that a process is killed before, see PEP 578.
_EVENTS = ("open", "os.", "fcntl.flock", "shutil.")


def _content(name: str) -> bytes:
    return (name.encode() * _SIZE)[:_SIZE]


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in "abcd":
        (folder / name).write_bytes(_content(name))
    return {name: str(folder / name) for name in "abcd"}


def _die_at(number: int, work: Callable[[], None]) -> bool:
    """Run `work` in a child that kills itself before its n-th step in the file system; tell whether it did."""
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, -signal.SIGKILL), f"it ended with {status}"
        return status != 0
    try:
        num_steps = 0

        def count(event: str, _args: object) -> None:
            nonlocal num_steps
            if event.startswith(_EVENTS):
                num_steps += 1
                if num_steps == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_killed_before_any_step_leaves_no_wrong_file_and_nothing_for_ever(tmp_path, sources):
    root = tmp_path / "cache"

    def work() -> None:
        with FileCache(cache_directory=root, max_bytes=2 * _SIZE) as cache:
            cache.set_plan([sources["c"], sources["b"]])
            for name in "abc":
                cache.release_files(cache.get_file(sources[name]))
            cache.prefetch([sources["d"]])
            cache.wait_prefetched()

    number = 1
    while _die_at(number, work):
        _check_all(root, sources, 2 * _SIZE)
        number += 1
    assert number > 100, "it was killed at a hundred steps"


def _check_all(root: Path, sources: dict[str, str], quota: int) -> None:
    with FileCache(cache_directory=root, max_bytes=quota, wait_seconds=0) as cache:
        folder = CacheFolder(cache.options)
        for name, source in sources.items():
            path = cache.get_file(source)
            assert Path(path).read_bytes() == _content(name)
            cache.release_files(path)
            assert folder.used_bytes() <= quota
        cache.cleanup()
        states = folder.survey()
        assert {state.key.text for state in states} == set(os.listdir(folder.data))
        assert all(folder.read_record(state.key) is not None for state in states)


_GETS = """
import json, os, sys, time
from headrace.files.cache.cache import FileCache
options, sources, num_rounds = json.loads(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
with FileCache(**options) as cache:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(num_rounds):
        name = list(sources)[(number * 7 + os.getpid()) % len(sources)] if num_rounds > 4 else list(sources)[number]
        path = cache.get_file(sources[name])
        for _ in range(2):
            data = open(path, "rb").read()
            assert data == (name.encode() * len(data))[:len(data)] and len(data) == int(sys.argv[4]), (name, len(data))
        cache.release_files(path)
        cache.prefetch([sources[list(sources)[(number + 1) % len(sources)]]])
        if num_rounds > 4:
            print("round", flush=True)
    print(json.dumps(cache.counters.copied_bytes), flush=True)
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program that gets files, when it is ready; it goes on when it reads a line."""
    started: list[subprocess.Popen[str]] = []

    def start_one(root: Path, sources: dict[str, str], num_rounds: int, **options) -> subprocess.Popen[str]:
        arguments = [json.dumps({"cache_directory": str(root), **options}), json.dumps(sources), str(num_rounds)]
        command = [sys.executable, "-c", _GETS, *arguments, str(_SIZE)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_that_are_killed_at_random_moments_never_spoil_it_for_the_others(tmp_path, sources, start):
    """Room for three of four files: they make, remove, wait for and copy ahead all the time."""
    root, rng = tmp_path / "cache", random.Random(25)
    options = {"max_bytes": 3 * _SIZE, "wait_seconds": 120}
    processes = [start(root, sources, 1_000_000, **options) for _ in range(3)]
    for process in processes:
        _go(process)
    for _ in range(25):
        for process in processes:
            for _ in range(rng.randrange(1, 8)):
                line = process.stdout.readline()
                assert line == "round\n", process.stderr.read()
        victim = rng.randrange(3)
        processes[victim].send_signal(signal.SIGKILL)
        processes[victim].wait()
        processes[victim] = start(root, sources, 1_000_000, **options)
        _go(processes[victim])
    for process in processes:
        process.kill()
        process.wait()
    _check_all(root, sources, 3 * _SIZE)


def test_who_waits_for_a_process_that_was_stopped_says_so_and_gets_the_file_when_it_goes_on(tmp_path, sources, start):
    root = tmp_path / "cache"
    maker = start(root, sources, 1)
    # It is stopped in the middle of making the copy: when it waits for the room, which this test holds.
    with FileCache(cache_directory=root, wait_seconds=0.3) as cache:
        folder = CacheFolder(cache.options)
        room = lock_exclusive_nowait(f"{root}/room.lock")
        _go(maker)
        seen = threading.Event()
        while not os.listdir(folder.entries):
            seen.wait(0.002)
        maker.send_signal(signal.SIGSTOP)
        room.close()
        with pytest.raises(CacheError, match=rf"waited for process {maker.pid} \(.*\) to make the copy of this file"):
            cache.get_file(sources["a"])
        maker.send_signal(signal.SIGCONT)
        maker.communicate(timeout=120)
        assert maker.returncode == 0
        assert Path(cache.get_file(sources["a"])).read_bytes() == _content("a")


def test_a_source_that_is_replaced_all_the_time_is_copied_whole_or_refused(tmp_path):
    source, stop = tmp_path / "s", threading.Event()
    source.write_bytes(bytes(3_000_000))

    def replace() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            (tmp_path / "new").write_bytes(bytes([number % 256]) * 3_000_000)
            os.replace(tmp_path / "new", source)

    writer = threading.Thread(target=replace)
    writer.start()
    num_whole = 0
    try:
        with FileCache(cache_directory=tmp_path / "cache", max_bytes=10_000_000) as cache:
            for _ in range(20):
                try:
                    path = cache.get_file(source)
                except SourceError as error:
                    assert "changed" in str(error)  # noqa: PT017 - it may happen or not
                    continue
                data = Path(path).read_bytes()
                assert len(data) == 3_000_000
                assert data == data[:1] * len(data)
                num_whole += 1
                cache.release_files(path)
    finally:
        stop.set()
        writer.join()
    assert num_whole
