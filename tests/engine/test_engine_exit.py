"""The end of a program that never closed its engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from headrace.engine import Engine, Job
engine = Engine(Job(lambda info: abs), num_workers=2, executor={executor!r})
for delivered in engine.run(range(100)):
    if delivered.ticket == 3:
        {end}
"""


@pytest.mark.parametrize("executor", ["inline", "thread"])
@pytest.mark.parametrize(
    ("end", "status", "message"), [("break", 0, ""), ("raise SystemExit(5)", 5, ""), ("1 / 0", 1, "ZeroDivisionError")]
)
def test_a_program_that_never_closes_its_engine_ends_in_silence(
    executor: str, end: str, status: int, message: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(executor=executor, end=end)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == status
    assert done.stderr.strip().splitlines()[-1:] == ([f"{message}: division by zero"] if message else [])
    assert "headrace" not in done.stderr


@pytest.mark.parametrize("end", ["break", "engine.close(); break"])
def test_where_warnings_are_errors_worker_processes_end_in_silence_too(end: str) -> None:
    script = SCRIPT.format(executor="process", end=end)
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
