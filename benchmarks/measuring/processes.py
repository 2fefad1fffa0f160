"""What this process and its descendants use, read from /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


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
