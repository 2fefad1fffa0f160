"""Systems that lack something: the same stream, or an error that says what is missing, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sandbox

RunProgram = Callable[..., "subprocess.CompletedProcess[str]"]

# Prepares itself, takes a few results, is without a warden for a moment, and goes on; `{}`: what it lacks.
_PROGRAM = """
import os, signal, sys, threading, time
sys.path.insert(0, {folder!r})
import sandbox
import numpy as np
from headrace.engine import Engine, EngineOptions, Job
from headrace.engine.process.executor import ProcessExecutor
from headrace.engine.process.proc_tree import descendants_of, state_of

{prepare}

def wait_until(condition, what, pause):
    deadline = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < deadline, what
        pause(0.01)

def make(info):
    return lambda number: np.full(3000, number, np.int64)

def name_of(pid):
    return open(f"/proc/{{pid}}/comm").read().strip()

options = EngineOptions(tickets_per_worker=8)  # so that there is work left when something is killed
with Engine(Job(make), num_workers=2, executor=ProcessExecutor(start_method={method!r}), options=options) as engine:
    run = engine.run(range(60))
    seen = [next(run).value[0] for _ in range(20)]
    worker = next(pid for pid in descendants_of(os.getpid()) if name_of(pid).startswith("hr-worker"))
    os.kill(worker, signal.SIGKILL)
    seen += [next(run).value[0] for _ in range(20)]
    (warden,) = [pid for pid in descendants_of(os.getpid()) if name_of(pid) == "hr-warden"]
    os.kill(warden, signal.SIGKILL)
    # Else, on a busy machine, the workers that it leaves may do all the rest before it has ended, and stay in charge.
    wait_until(lambda: (state_of(warden) or "X")[0] in "ZX", "the warden lives on", threading.Event().wait)
    seen += [result.value[0] for result in run]
    assert seen == list(range(60)), seen
    executor = engine._workers.executor
    # The process that was started anew is told by the new warden, and its results may come before that.
    wait_until(lambda: "state " in (executor.stack_of(0) or ""), "no stack is told", executor.wait)
assert descendants_of(os.getpid()) == []
print("all is well")
"""

needs_sandbox = pytest.mark.skipif(not sandbox.is_possible(), reason="no sandbox on this machine")


def check(run_program: RunProgram, prepare: str, method: str | None = None) -> None:
    program = _PROGRAM.format(folder=str(Path(__file__).parent), prepare=prepare, method=method)
    result = run_program(program)
    assert result.stdout == "all is well\n", result.stderr
    assert result.returncode == 0, result.stderr


@needs_sandbox
def test_memfds_need_not_be_executable(run_program: RunProgram) -> None:
    check(run_program, "sandbox.forbid_executable_memfds()")


@pytest.mark.long
@needs_sandbox
@pytest.mark.parametrize("method", [None, "spawn"])
def test_descriptors_need_not_raise_signals(run_program: RunProgram, method: str | None) -> None:
    check(run_program, "sandbox.forbid_signals_of_descriptors()", method)


def test_ended_children_may_be_collected_by_the_system(run_program: RunProgram) -> None:
    check(run_program, "signal.signal(signal.SIGCHLD, signal.SIG_IGN)")


_COLLECTS = """
def collect(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, collect)
"""


def test_ended_children_may_be_collected_by_the_program(run_program: RunProgram) -> None:
    check(run_program, _COLLECTS)


# Tries with one descriptor more each time, until nothing is amiss.
_FEW_DESCRIPTORS = """
import os, resource, sys
import numpy as np
from headrace.engine import Engine, EngineOptions, Job, Restarting
from headrace.engine.process.proc_tree import descendants_of
from headrace.errors import HeadraceError

def make(info):
    return lambda payload: np.full(3000, payload[0], np.int64)

def try_once():
    with Engine(Job(make), num_workers=2, options=EngineOptions(on_death=Restarting(budget=1))) as engine:
        payloads = [bytes([number]) * (100_000 if number % 2 else 10) for number in range(6)]
        return [result.value.size for result in engine.run(payloads)]

try_once()  # what is opened once, for good
before = os.listdir("/proc/self/fd")
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
num_failed = num_done = 0
for limit in range(len(before) - 1, len(before) + 60):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        try_once()
    except HeadraceError as error:
        num_failed += 1
        text = str(error)
    except OSError as error:
        raise AssertionError(f"with a limit of {limit}") from error
    else:
        num_done += 1
        text = None
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert os.listdir("/proc/self/fd") == before, (limit, text)
    assert descendants_of(os.getpid()) == [], (limit, text)
    if num_done == 2:
        break
assert num_failed > 5 and num_done == 2, (num_failed, num_done)
print("all is well")
"""


def test_with_too_few_descriptors_the_error_says_so_and_nothing_is_left(run_program: RunProgram) -> None:
    result = run_program(_FEW_DESCRIPTORS)
    assert result.stdout == "all is well\n", result.stderr
    assert result.returncode == 0


# Leaves its mark when it is imported.
_MARKER = """
open({path!r}, "a").write(__name__ + "\\n")
raise ImportError("this is not the module that you look for")
"""


@pytest.mark.parametrize("method", [None, "spawn"])
def test_no_module_of_the_current_folder_is_imported_by_our_processes(tmp_path: Path, method: str | None) -> None:
    here, program = tmp_path / "here", tmp_path / "program"
    here.mkdir()
    program.mkdir()
    marks = tmp_path / "marks"
    for name in {*sys.stdlib_module_names, "numpy", "msgspec", "cloudpickle", "headrace", "sitecustomize"} - {
        "__main__"
    }:
        (here / f"{name}.py").write_text(_MARKER.format(path=str(marks)))
    (program / "mine.py").write_text("def double(number):\n    return 2 * number\n")
    text = f"""
import mine
from headrace.engine import Engine, EngineOptions, Job
from headrace.engine.process.executor import ProcessExecutor
with Engine(Job(lambda info: mine.double), num_workers=1, executor=ProcessExecutor(start_method={method!r})) as engine:
    print([result.value for result in engine.run(range(3))])
"""
    (program / "run.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    result = subprocess.run(
        [sys.executable, str(program / "run.py")],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout == "[0, 2, 4]\n", result.stderr
    assert not marks.exists(), marks.read_text()


# What a macOS system lacks, or a Linux one that has no memfds or pidfds (`{lack}`).
_WITHOUT_PROCESSES = """
import ctypes, fcntl, logging, mmap, os, select, signal, socket, sys
import asyncio, fsspec, h5py, msgspec, numpy as np, xxhash  # what others do there is their own concern
sys.path.insert(0, {folder!r})
import sandbox

def be_like_macos():
    def no_proc(event, args):
        if event in ("open", "os.listdir", "os.scandir") and str(args[0]).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", args[0])
    sys.addaudithook(no_proc)
    sys.platform = "darwin"
    for module, names in (
        (os, "memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING pipe2 pidfd_open sched_getaffinity sched_setaffinity "
             "posix_fadvise posix_fallocate copy_file_range eventfd splice O_DIRECT O_PATH"),
        (signal, "pidfd_send_signal sigtimedwait sigwaitinfo"),
        (select, "epoll EPOLLIN EPOLLOUT"),
        (socket, "MSG_CMSG_CLOEXEC MSG_NOSIGNAL SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED TCP_USER_TIMEOUT"),
        (fcntl, "F_ADD_SEALS F_SEAL_SHRINK F_OFD_SETLK F_SETSIG F_SETPIPE_SZ"),
        (mmap, "MADV_REMOVE MADV_POPULATE_WRITE MADV_HUGEPAGE MAP_POPULATE"),
    ):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)

{lack}

import headrace as hr
from headrace.engine.process.executor import ProcessExecutor

path = {path!r}
with hr.HDFWriter(path + "/corpus.hdf") as writer:
    for number in range(24):
        writer.append(f"seq-{{number}}", {{"data": np.full((number + 1, 2), number, np.float32)}})

def stream(**options):
    dataset = hr.HDFDataset([path + "/corpus.hdf"], seq_ordering="random")
    with hr.DataLoader(dataset, batching=hr.FrameBudget(60), transform=double, **options) as loader:
        return [(batch["data"].tobytes(), batch.tags) for epoch in (1, 2) for batch in loader]

def double(seq):
    return {{"data": 2 * seq["data"]}}

here = stream(num_workers=0)
assert len(here) > 4
assert stream(num_workers=2, executor="thread") == here
for executor in ("process", ProcessExecutor()):
    try:
        stream(num_workers=2, executor=executor)
    except hr.ConfigError as error:
        assert "executor='thread'" in str(error), error
    else:
        raise AssertionError("worker processes without what they need")
print("all is well")
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "lack",
    [
        "be_like_macos()",
        pytest.param("sandbox.forbid('memfd_create')", marks=needs_sandbox),
        pytest.param("sandbox.forbid('memfd_create', code=1)", marks=needs_sandbox),
        pytest.param("sandbox.forbid('pidfd_open')", marks=needs_sandbox),
        pytest.param("sandbox.forbid('pidfd_send_signal', code=1)", marks=needs_sandbox),
    ],
)
def test_a_system_that_cannot_have_worker_processes_is_told_of_threads(
    run_program: RunProgram, tmp_path: Path, lack: str
) -> None:
    program = _WITHOUT_PROCESSES.format(folder=str(Path(__file__).parent), path=str(tmp_path), lack=lack)
    result = run_program(program)
    assert result.stdout == "all is well\n", result.stderr
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
