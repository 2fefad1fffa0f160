"""A TCP proxy on this machine that delays, resets, truncates, stalls, or sends on slowly."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["reset", "truncate", "stall", "slow"]
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: unsent bytes are dropped, and the other side gets a reset
_STEP_BYTES = 1 << 16
_SLOW_BYTES, _SLOW_SECONDS = 8192, 0.002


@dataclass
class Trouble:
    """What happens to one connection after so many bytes were sent back to who is behind the proxy's target.

    Attributes:
        kind: "reset" or "truncate": the connection ends so; "stall": nothing goes through any more; "slow": in small
            pieces with pauses.
        after_bytes: Of those that clients have sent.
        happened: Set when it has begun.
    """

    kind: Kind
    after_bytes: int = 0
    happened: threading.Event = field(default_factory=threading.Event)


class TcpProxy:
    """Passes connections on to a target; each meets the next trouble, those after the last one none."""

    def __init__(self, target: tuple[str, int], troubles: list[Trouble] | None = None) -> None:
        self._target = target
        self._troubles = list(troubles or [])
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.num_connections = 0
        self._stop, self._stopper = socket.socketpair()
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self._threads[0].start()

    def close(self) -> None:
        self._stopper.close()
        for thread in self._threads:
            thread.join()
        for sock in (self._listening, self._stop):
            sock.close()

    def _accept(self) -> None:
        while self._listening in select.select([self._listening, self._stop], [], [])[0]:
            client, _ = self._listening.accept()
            self.num_connections += 1
            trouble = self._troubles.pop(0) if self._troubles else None
            thread = threading.Thread(target=self._pass_on, args=(client, trouble), name="proxy")
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket, trouble: Trouble | None) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            num_bytes = 0
            while True:
                ready = select.select([client, server, self._stop], [], [])[0]
                if self._stop in ready:
                    return
                for one in ready:
                    other = server if one is client else client
                    data = one.recv(_STEP_BYTES)
                    if not data:
                        return
                    if one is client and trouble is not None and num_bytes + len(data) > trouble.after_bytes:
                        trouble.happened.set()
                        if trouble.kind == "slow":
                            self._send_slowly(other, data)
                            continue
                        other.sendall(data[: trouble.after_bytes - num_bytes])
                        if trouble.kind == "stall":
                            select.select([self._stop], [], [])
                            return
                        if trouble.kind == "reset":
                            for sock in (client, server):
                                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                        return
                    if one is client:
                        num_bytes += len(data)
                    other.sendall(data)

    @staticmethod
    def _send_slowly(other: socket.socket, data: bytes) -> None:
        for start in range(0, len(data), _SLOW_BYTES):
            other.sendall(data[start : start + _SLOW_BYTES])
            time.sleep(_SLOW_SECONDS)


@contextlib.contextmanager
def tcp_proxy(target: tuple[str, int], *troubles: Trouble) -> Iterator[TcpProxy]:
    """Run a proxy for the length of a block."""
    proxy = TcpProxy(target, list(troubles))
    try:
        yield proxy
    finally:
        proxy.close()
