"""What every test of faults needs: programs that run on their own, and a check that nothing is left behind."""

from __future__ import annotations

import gc
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.engine.process.proc_tree import descendants_of

_DEADLINE_SECONDS = 120.0


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    gc.collect()
    before = _all_there_is()
    yield
    gc.collect()
    deadline, pause = time.monotonic() + _DEADLINE_SECONDS, threading.Event()
    while left := _all_there_is() - before:
        assert time.monotonic() < deadline, f"left: {left}"
        pause.wait(0.002)


def _all_there_is() -> set[object]:
    """Return the processes below this one, its descriptors, and its threads."""
    return {*descendants_of(os.getpid()), *_descriptors().items(), *threading.enumerate()}


def _descriptors() -> dict[str, str]:
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except FileNotFoundError:
            continue  # the one that listed them
        found[entry] = target
    return found


@pytest.fixture
def once(tmp_path: Path) -> Callable[[], bool]:
    """True for the first that asks, in whatever process: a file that can be made once."""

    def is_first(path: str = str(tmp_path / "once")) -> bool:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    return is_first


@pytest.fixture
def wait_for_end() -> Callable[..., None]:
    """Wait for the end of processes by their pidfds; for tests that opened these while the processes lived."""

    def wait(*pidfds: int) -> None:
        for pidfd in pidfds:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            ended = poll.poll(1000 * _DEADLINE_SECONDS)
            os.close(pidfd)
            assert ended, "a process lives on"

    return wait


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a Python program in a process of its own, as a file, from stdin, or in an interactive interpreter."""

    def run(text: str, how: str = "file") -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(text)
        arguments = {"file": [str(path)], "stdin": ["-"], "interactive": ["-i", "-q"]}[how]
        return subprocess.run(
            [sys.executable, "-X", "faulthandler", *arguments],
            input=None if how == "file" else text,
            capture_output=True,
            text=True,
            timeout=240,
            cwd=tmp_path,
            check=False,
        )

    return run
