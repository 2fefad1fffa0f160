"""What the trainer and the actor of a worker send each other as arguments and results of Ray's calls.

Both sides run the same versions of what is named in `Versions`, which is checked before anything else is sent.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.version import __version__

from ..user.job import Mode
from ..user.worker_info import CurrentItem

CONTROL = "control"  # the concurrency group that answers while a worker works

# A call answers as many tickets as take so long or make so many bytes, whichever is less: a call costs Ray and both
# processes some 0.5 ms in all, and more with a large result. With 4 MiB, items of 64 KiB took half as much processor
# time again; 16 MiB gained little.
CALL_SECONDS = 0.03
CALL_BYTES = 8 << 20
MAX_CALL_TICKETS = 4096


class Versions(NamedTuple):
    """What has to agree for values to be carried: pickles of a newer version cannot be read by an older one."""

    python: str
    headrace: str
    numpy: str
    cloudpickle: str

    @classmethod
    def here(cls) -> Versions:
        """Return those of this process; of NumPy and cloudpickle the major ones."""
        return cls(
            f"{sys.version_info.major}.{sys.version_info.minor}",
            __version__,
            np.__version__.partition(".")[0],
            version("cloudpickle").partition(".")[0],
        )

    def check(self, trainer: Versions, where: str) -> None:
        """Refuse a trainer of other versions.

        Raises:
            ConfigError: They differ.
        """
        if self != trainer:
            pairs = zip(self._fields, trainer, self, strict=True)
            differ = [f"{name} {theirs} and {own}" for name, theirs, own in pairs if theirs != own]
            raise ConfigError(
                f"the trainer and this worker have different versions: {', '.join(differ)}",
                where=where,
                fix="install the same on all nodes, or have Ray do it: RayExecutor(runtime_env={'pip': [...]})",
            )


@dataclass(frozen=True, slots=True)
class Role:
    """Which worker an actor is, and what its trainer was started with.

    Attributes:
        worker_idx: Its number.
        num_workers: How many there were at the start.
        argv: `sys.argv` of the trainer.
        path: `sys.path` of the trainer: where it is a shared folder, its modules are found there.
        call_bytes: How many bytes of results a call should return at most.
    """

    worker_idx: int
    num_workers: int
    argv: list[str]
    path: list[str]
    call_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor runs: Ray's ID of its node, the name of the host, and its process."""

    node_id: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class RayRun:
    """A run begins; an earlier one is over.

    Attributes:
        run_id: Its number.
        mode: Tasks or streams.
        payload: Streams: a parcel. `None` for tasks.
        first_item: Streams: how many items to pass over.
    """

    run_id: int
    mode: Mode
    payload: bytes | None = None
    first_item: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """How far a worker is: how many items it has noted, and the last one."""

    num_items: int
    item: CurrentItem | None


@dataclass(slots=True)
class Reply:
    """What a call has done of the tickets of a worker: the next ones, in order.

    Attributes:
        run_id: Their run.
        tickets: Those that are answered.
        seconds: What user code took for all of them.
        pack_seconds: What it took to put their values together.
        header: Header of the codec: the list of their values, `None` where there is none.
        data: The bytes of the values, `uint8[num_bytes]`, in memory that the next call writes to again.
        failures: Position in `tickets` -> what went wrong, as bytes.
        skipped: Position in `tickets` -> items that were left out of it.
        num_items: Streams: the iterator has ended after so many items.
        cause: How the worker has ended, if it has: nothing more comes from it.
    """

    run_id: int
    tickets: list[int] = field(default_factory=list)
    seconds: float = 0.0
    pack_seconds: float = 0.0
    header: bytes = b""
    data: NDArray[np.uint8] | None = None
    failures: dict[int, bytes] = field(default_factory=dict)
    skipped: dict[int, list[bytes]] = field(default_factory=dict)
    num_items: int | None = None
    cause: str | None = None
