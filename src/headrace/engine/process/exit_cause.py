"""Why a worker ended, in words: its exit status, whether memory ran out, and its last stack."""

from __future__ import annotations

import signal
from pathlib import Path

MEMORY_ADVICE = "give the job more memory, or use fewer workers, smaller batches or fewer tickets_per_worker"
# Enough for the innermost frames of every thread; the rest of a stack is of no use in an error.
_MAX_STACK_CHARS = 6000


class ExitCauses:
    """Why workers, or their warden, have ended, by what the kernel has counted since it was asked last."""

    def __init__(self) -> None:
        self._oom_kills: int | None = None

    def begin(self) -> None:
        """Count from now on."""
        self._oom_kills = count_oom_kills()

    def of_worker(self, exit_code: int, stack: str) -> tuple[str, str]:
        """Return how a worker ended and, where it is known, why; and what to do about it.

        Args:
            exit_code: Or minus the number of the signal.
            stack: What its fault handler wrote before it died.
        """
        before, now = self._oom_kills, count_oom_kills()
        cause = explain_exit(exit_code, oom_kills_before=before, oom_kills_now=now, stack=stack)
        if before is None or not is_out_of_memory(exit_code, before, now):
            return cause, ""
        self._oom_kills = before + 1  # the others are those of other workers
        return cause, MEMORY_ADVICE

    def of_warden(self, pid: int, ending: str) -> tuple[str, str]:
        """Return why workers have ended whose warden has, and what to do about it.

        Args:
            pid: Process id of the warden.
            ending: How it ended, as words.
        """
        before, self._oom_kills = self._oom_kills, count_oom_kills()
        cause = f"lost its warden process {pid}, which {ending}"
        if not is_out_of_memory(-signal.SIGKILL, before, self._oom_kills):
            return cause, ""
        return f"{cause}, probably because memory ran out", MEMORY_ADVICE


def describe_exit(exit_code: int) -> str:
    """Say how a process ended: its exit code, or minus the number of the signal that killed it."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "unnamed"
    return f"was killed by signal {-exit_code} ({name})"


def explain_exit(exit_code: int, *, oom_kills_before: int | None, oom_kills_now: int | None, stack: str) -> str:
    """Say how a worker ended and, where it is known, why.

    Args:
        exit_code: Or minus the number of the signal.
        oom_kills_before: `count_oom_kills` when the worker was started.
        oom_kills_now: The same now.
        stack: What its fault handler wrote before it died.
    """
    text = describe_exit(exit_code)
    if is_out_of_memory(exit_code, oom_kills_before, oom_kills_now):
        text += (
            f", probably because memory ran out: the out-of-memory kills of its control group rose from "
            f"{oom_kills_before} to {oom_kills_now}"
        )
    if stack.strip():
        text += f"\n{stack.strip()[:_MAX_STACK_CHARS]}"
    return text


def is_out_of_memory(exit_code: int | None, oom_kills_before: int | None, oom_kills_now: int | None) -> bool:
    """Tell whether the kernel probably killed a process for lack of memory, see `explain_exit`."""
    if exit_code != -signal.SIGKILL or oom_kills_before is None or oom_kills_now is None:
        return False
    return oom_kills_now > oom_kills_before


def count_oom_kills(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how many processes of our control group the kernel has killed for lack of memory; None if it does not say.

    Where no control group tells, it is the count of the whole machine.

    Args:
        proc: Where the kernel tells about processes.
        cgroups: Where control groups are mounted.
    """
    for line in _lines(proc / "self/cgroup"):
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            mount, name = cgroups, "memory.events"
        elif "memory" in controllers.split(","):
            mount, name = cgroups / "memory", "memory.oom_control"
        else:
            continue
        # Inside a container the path may be that of the host; the mount itself is then the container's.
        for folder in (mount / path.lstrip("/"), mount):
            for entry in _lines(folder / name):
                if entry.startswith("oom_kill "):
                    return int(entry.split()[1])
    return next((int(entry.split()[1]) for entry in _lines(proc / "vmstat") if entry.startswith("oom_kill ")), None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
