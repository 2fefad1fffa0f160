"""What goes wrong, when, and how often: a script that a server follows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "status",  # answer with this status, and Retry-After if given
    "cut",  # reset the connection after some bytes of the body
    "truncate",  # close the connection in order after some bytes of the body
    "stall",  # stop after some bytes of the body until `release` is set, or the server ends
    "slow",  # send the body in pieces of 1 KiB, with a pause after each
    "wrong_range",  # say another Content-Range than what is sent
    "no_range_header",  # leave Content-Range out
    "ignore_range",  # answer with status 200 and the whole
    "shorter_range",  # send less than asked for, and say so
    "longer_body",  # with `ignore_range` semantics: the body has more bytes than the file (no Content-Length)
    "packed",  # say Content-Encoding: gzip
    "call",  # call something, then answer as usual
]


@dataclass
class Fault:
    """Something that goes wrong with some requests.

    Attributes:
        kind: What.
        times: With how many requests; -1: with all.
        skip: How many requests that match pass before it starts.
        method: Only with requests of this method.
        path: Only with requests whose path ends so.
        status: For `status`.
        retry_after: For `status`.
        after_bytes: Bytes of the body that are sent before.
        release: For `stall`: what ends it.
        started: Set when a request met the fault.
        call: For `call`.
    """

    kind: Kind
    times: int = 1
    skip: int = 0
    method: str = "GET"
    path: str = ""
    status: int = 500
    retry_after: str | None = None
    after_bytes: int = 0
    release: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)
    call: Callable[[], None] = lambda: None


class Faults:
    """The script: for each request, the first fault that applies is used up."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, kind: Kind, **details: object) -> Fault:
        """Add a fault and return it."""
        fault = Fault(kind, **details)  # type: ignore[arg-type]
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Drop all faults and release who stalls."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.release.set()

    def take(self, method: str, path: str) -> Fault | None:
        """Return the fault that a request meets, if any."""
        with self._lock:
            for fault in self._faults:
                if fault.method != method or not path.endswith(fault.path) or fault.times == 0:
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                fault.started.set()
                return fault
        return None
