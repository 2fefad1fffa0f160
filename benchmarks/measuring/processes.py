"""Turns in processes of their own, and what this process and its descendants use, read from /proc."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def run_turn(module: str, *args: str, limit: float) -> dict[str, Any] | None:
    """Run `python -m MODULE ARGS`; return what its last line says as JSON, or None, after a line that says why.

    The whole group is killed in the end, so that no worker of one turn is left in the next.
    """
    command = [sys.executable, "-m", module, *args]
    folder, pipe = Path(__file__).parent.parent, subprocess.PIPE
    turn = subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        out, err = turn.communicate(timeout=limit)
        return json.loads(out.splitlines()[-1])  # type: ignore[no-any-return]
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        if isinstance(error, subprocess.TimeoutExpired):
            print(f"{', '.join(args)}: not done after {limit:.0f} s")
        else:
            print(f"{', '.join(args)}: failed: {(err.splitlines() or ['no output'])[-1]}")
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(turn.pid, signal.SIGKILL)
        turn.wait()


def descendants(pid: int | None = None) -> list[int]:
    """Return the processes below one, nearest first."""
    found: list[int] = []
    for task in Path(f"/proc/{pid or os.getpid()}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found + [one for child in found for one in descendants(child)]


def cpu_seconds() -> float:
    """Return the processor time of this process and all below it, those that have ended included."""
    return sum(map(_cpu_seconds_of, [os.getpid(), *descendants()]))


def _cpu_seconds_of(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system, ended_user, ended_system = map(int, text.rpartition(")")[2].split()[11:15])
    return (user + system + ended_user + ended_system) * _TICK_SECONDS


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of a process: pages that it shares count by its share."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
