"""What workers need is imported before they are asked for, where that was wanted, and nobody is left who did it."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.engine import Engine, Job
from headrace.engine.process.executor import ProcessExecutor
from headrace.engine.process.warden_client import _shared

# A module that says who imports it, on a pipe that only then has a writer; `{then}`: what it does next.
_MODULE = """
import os
with open({fifo!r}, "w") as file:
    file.write(str(os.getpid()))
{then}
"""
_FOR_EVER = "import threading; threading.Event().wait()"


class Slow:
    """A module that takes long to import."""

    def __init__(self, folder: Path, then: str) -> None:
        self.fifo = folder / "fifo"
        self.name = "takes_long"
        os.mkfifo(self.fifo)
        (folder / f"{self.name}.py").write_text(_MODULE.format(fifo=str(self.fifo), then=then))

    def wait_for_import(self) -> int:
        """Wait until somebody imports it; return the process."""
        return int(self.fifo.read_text())


MakeSlow = Callable[..., Slow]


@pytest.fixture
def make_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeSlow:
    def make(then: str = "") -> Slow:
        monkeypatch.syspath_prepend(str(tmp_path))
        return Slow(tmp_path, then)

    return make


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert not _shared
    assert len(os.listdir("/proc/self/fd")) == before


def _open(slow: Slow, **options: Any) -> Engine:
    job = Job(lambda info: lambda number: (number, os.getppid(), os.environ.get("FLAVOUR")), preload=(slow.name,))
    return Engine(job, num_workers=2, executor=ProcessExecutor(**options))


def test_it_is_imported_before_there_are_workers_and_once_for_all_of_them(make_slow: MakeSlow) -> None:
    slow = make_slow()
    with _open(slow) as engine, _open(slow) as another:
        engine.prepare()
        warden = slow.wait_for_import()
        engine.prepare()
        another.prepare()
        for one in (engine, another):
            values = [result.value for result in one.run(range(20))]
            assert values == [(number, warden, None) for number in range(20)]
        engine.prepare()


@pytest.mark.parametrize("end", ["close", "drop"])
def test_an_import_that_hangs_ends_with_an_engine_that_was_never_used(make_slow: MakeSlow, end: str) -> None:
    slow = make_slow(_FOR_EVER)
    engine = _open(slow)
    engine.prepare()
    warden = slow.wait_for_import()
    if end == "close":
        engine.close()
    else:
        del engine
        gc.collect()
    assert not Path(f"/proc/{warden}").exists()


def test_one_that_others_use_goes_on(make_slow: MakeSlow) -> None:
    slow = make_slow()
    with _open(slow) as first:
        first.prepare()
        warden = slow.wait_for_import()
        second = _open(slow)
        second.prepare()
        stream = first.run(range(100))
        assert next(stream).value[1] == warden
        second.close()
        assert [result.value[1] for result in stream] == [warden] * 99
        assert first.report.num_restarts == 0


def test_what_changed_meanwhile_reaches_the_workers(make_slow: MakeSlow, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = make_slow()
    with _open(slow) as engine:
        engine.prepare()
        warden = slow.wait_for_import()
        monkeypatch.setenv("FLAVOUR", "salt")
        engine.start()
        assert not Path(f"/proc/{warden}").exists()
        new = slow.wait_for_import()
        assert new != warden
        assert next(engine.run([5])).value == (5, new, "salt")


def test_one_that_is_killed_meanwhile_is_replaced(make_slow: MakeSlow) -> None:
    slow = make_slow()
    with _open(slow) as engine:
        engine.prepare()
        warden = slow.wait_for_import()
        os.kill(warden, signal.SIGKILL)
        os.waitid(os.P_PID, warden, os.WEXITED | os.WNOWAIT)
        engine.start()
        new = slow.wait_for_import()
        assert next(engine.run([5])).value == (5, new, None)


@pytest.mark.parametrize("options", [{"start_method": "spawn"}, {"threads_per_worker": 2}])
def test_nothing_is_begun_where_each_worker_imports_for_itself(make_slow: MakeSlow, options: dict[str, Any]) -> None:
    slow = make_slow()
    with _open(slow, **options) as engine:
        engine.prepare()
        assert not _shared
        assert next(engine.run([5])).value[0] == 5


def test_what_is_wrong_is_said_at_the_start(make_slow: MakeSlow, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = make_slow()
    monkeypatch.setattr(sys, "executable", "")
    with _open(slow) as engine:
        engine.prepare()
        with pytest.raises(ValueError, match="does not know its own executable"):
            engine.start()


def test_a_closed_engine_prepares_nothing(make_slow: MakeSlow) -> None:
    engine = _open(make_slow())
    engine.close()
    engine.prepare()
    assert not _shared


def test_a_forked_child_leaves_it_alone(make_slow: MakeSlow) -> None:
    slow = make_slow()
    with _open(slow) as engine:
        engine.prepare()
        warden = slow.wait_for_import()
        child = os.fork()
        if not child:
            engine.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert next(engine.run([5])).value[1] == warden


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_nothing_is_left_of_a_program_that_ends_without_a_word(make_slow: MakeSlow, end: str) -> None:
    slow = make_slow(_FOR_EVER)
    text = (
        "import os\nfrom headrace.engine import Engine, Job\n"
        f"engine = Engine(Job(lambda info: abs, preload=({slow.name!r},)), num_workers=1)\n"
        f"engine.prepare()\nprint(open({str(slow.fifo)!r}).read(), flush=True)\ninput()\n{end}"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as program:
        assert program.stdout is not None
        poll = select.poll()
        pidfd = os.pidfd_open(int(program.stdout.readline()))
        poll.register(pidfd, select.POLLIN)
        program.communicate(b"\n")
    ended = poll.poll(120_000)
    os.close(pidfd)
    assert ended, "the warden lives on"
