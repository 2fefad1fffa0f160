"""Whether the machine has the memory that is about to be touched.

A page of a memfd that cannot be had is not an error to the one who touches it but the end of some process, chosen by
the kernel. So the question is asked before: of the machine (`MemAvailable`) and of every memory limit of the control
groups of this process (`memory.max`, or the older `memory.limit_in_bytes`). The answer is a snapshot, not a promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import CacheError

# Left to others, in bytes: a process whose memory ends here still has to say so. Too small only for a machine that is
# full already.
_SPARE_BYTES = 64 << 20

# Growth in bytes between two looks at the machine. A look takes some 0.1 ms, touching this many new bytes some 10 ms.
_STEP_BYTES = 16 << 20


@dataclass(frozen=True)
class Shortage:
    """A limit on memory that leaves too little: how many bytes it leaves, and whose limit it is."""

    num_bytes: int
    limit: str


def find_shortage(
    num_bytes: int, *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> Shortage | None:
    """Return the limit that forbids `num_bytes` more of memory, or None if all of them allow it.

    Args:
        num_bytes: What is about to be touched for the first time, in bytes.
        proc: Where the kernel tells about processes.
        cgroups: Where control groups are mounted.
    """
    for available, limit in _read_limits(num_bytes + _SPARE_BYTES, proc, cgroups):
        left = max(0, available - _SPARE_BYTES)
        if left < num_bytes:
            return Shortage(left, limit)
    return None


class MemoryGuard:
    """Asks for memory before it is touched, and looks at the machine once per step of growth.

    Args:
        find_shortage: Takes a number of bytes and returns what forbids them, or None.
        step_bytes: How much may be granted between two looks, in bytes.
    """

    def __init__(
        self, find_shortage: Callable[[int], Shortage | None] = find_shortage, *, step_bytes: int = _STEP_BYTES
    ) -> None:
        self._find_shortage = find_shortage
        self._step_bytes = step_bytes
        self._unseen_bytes = 0  # granted since the last look

    def ask(self, num_bytes: int) -> Shortage | None:
        """Return what forbids this many more bytes, or None: then they count as granted."""
        if self._unseen_bytes + num_bytes >= self._step_bytes:
            shortage = self._find_shortage(num_bytes)
            if shortage is not None:
                return shortage
            self._unseen_bytes = 0
        else:
            self._unseen_bytes += num_bytes
        return None


def shortage_error(num_bytes: int, shortage: Shortage) -> CacheError:
    """Return the error for memory that cannot be had."""
    return CacheError(
        f"an item needs {num_bytes} more bytes of shared memory, but only {shortage.num_bytes} can be had",
        where=shortage.limit,
        fix="lower max_bytes or the number of workers, drop results sooner, or give the job more memory",
    )


def _read_limits(wanted: int, proc: Path, cgroups: Path) -> Iterator[tuple[int, str]]:
    """Yield what each limit leaves, in bytes, and its name."""
    for line in _read_lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024, "this machine (MemAvailable)"
    for folder in _group_folders(proc, cgroups):
        for limit_name, usage_name, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            limit, usage = _read_number(folder / limit_name), _read_number(folder / usage_name)
            if limit is None or usage is None:
                continue
            if limit - usage < wanted:  # only then, because these statistics are expensive on a large machine
                usage -= _read_reclaimable(folder / "memory.stat", prefix)
            yield limit - usage, f"the memory limit of the control group {folder} ({limit} bytes)"


def _group_folders(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the folders of our control groups that may limit memory, from the innermost outwards.

    Inside a container the path may be that of the host and lead nowhere; the mount itself is then the container's.
    """
    for line in _read_lines(proc / "self/cgroup"):
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            mount = cgroups
        elif "memory" in controllers.split(","):
            mount = cgroups / "memory"
        else:
            continue
        folder = mount / path.lstrip("/")
        while folder != mount and mount in folder.parents:
            yield folder
            folder = folder.parent
        yield mount


def _read_reclaimable(path: Path, prefix: str) -> int:
    """Return the bytes of the page cache that count as used but make way when memory is needed."""
    names = (f"{prefix}inactive_file", f"{prefix}active_file")
    return sum(int(line.split()[1]) for line in _read_lines(path) if line.split(" ", 1)[0] in names)


def _read_number(path: Path) -> int | None:
    lines = _read_lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
