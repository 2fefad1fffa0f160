"""A TCP proxy on this machine that delays, drips, resets, truncates, stalls, half-closes, or changes bits."""

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

Kind = Literal["reset", "truncate", "stall", "slow", "drip", "delay", "half-close", "flip"]
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: unsent bytes are dropped, and the other side gets a reset
_STEP_BYTES = 1 << 16
_SLOW_BYTES, _SLOW_SECONDS = 8192, 0.002
_NUM_DRIPS = 3000
_DELAY_SECONDS = 0.2


@dataclass
class Trouble:
    """What happens to one connection after so many bytes were sent back to who is behind the proxy's target.

    Attributes:
        kind: "reset" or "truncate": the connection ends so; "stall": nothing goes through any more; "slow": in small
            pieces with pauses; "drip": some thousand bytes one by one; "delay": a pause, once; "half-close": the
            receiver hears that no more comes, and may go on talking; "flip": one bit of the next byte is another.
        after_bytes: Of those that were sent.
        of: Who sends them: the client, or what is behind the proxy.
        happened: Set when it has begun.
    """

    kind: Kind
    after_bytes: int = 0
    of: Literal["client", "server"] = "client"
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
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            num_bytes = 0
            talking = [client, server]
            while talking:
                ready = select.select([*talking, self._stop], [], [])[0]
                if self._stop in ready:
                    return
                for one in ready:
                    other = server if one is client else client
                    data = one.recv(_STEP_BYTES)
                    if not data:
                        return
                    if trouble is None or one is not (client if trouble.of == "client" else server):
                        other.sendall(data)
                        continue
                    rest = trouble.after_bytes - num_bytes
                    num_bytes += len(data)
                    if rest < 0 and trouble.kind not in ("slow", "drip"):  # it was once
                        other.sendall(data)
                    elif rest < len(data):
                        trouble.happened.set()
                        before = max(rest, 0)
                        other.sendall(data[:before])
                        if not self._make_trouble(trouble, (client, server), one, data[before:], num_bytes):
                            return
                        if trouble.kind == "half-close":
                            talking.remove(one)
                    else:
                        other.sendall(data)

    def _make_trouble(
        self, trouble: Trouble, pair: tuple[socket.socket, socket.socket], one: socket.socket, data: bytes, end: int
    ) -> bool:
        """Do to the next bytes of one what is to be done; tell whether the connection goes on."""
        other = pair[1] if one is pair[0] else pair[0]
        match trouble.kind:
            case "slow":
                self._send_slowly(other, data)
            case "drip":
                num_drips = max(trouble.after_bytes + _NUM_DRIPS - (end - len(data)), 0)
                for at in range(min(num_drips, len(data))):
                    other.sendall(data[at : at + 1])
                other.sendall(data[num_drips:])
            case "delay":
                select.select([self._stop], [], [], _DELAY_SECONDS)
                other.sendall(data)
            case "flip":
                other.sendall(bytes([data[0] ^ 1 << trouble.after_bytes % 8]) + data[1:])
            case "half-close":
                other.shutdown(socket.SHUT_WR)
            case "stall":
                select.select([self._stop], [], [])
                return False
            case "reset":
                for sock in pair:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                return False
            case "truncate":
                return False
        return True

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
