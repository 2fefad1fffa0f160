"""A connection whose other end is not known yet: how it becomes one to an agent that knows the secret.

Invariants: nothing here blocks; of each step as many bytes are taken in as it has, and with TLS few records at a time.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from dataclasses import dataclass

from ..handshake import MAX_INTRODUCTION_BYTES, RESPONSE_BYTES, answer, derive_keys, make_greeting
from ..seal import HEAD_BYTES, Head, Seal
from ..tls import TlsSocket
from ..wire import Introduction, Refused, WireError, decode_introduction
from .gate import Gate

# Records of TLS of one stranger, before others have their turn.
_RECORDS_AT_ONCE = 8


@dataclass
class Connection:
    """A connection to an agent that knows the secret.

    Attributes:
        sock: It does not block.
        introduction: Introduction of the agent.
        incoming: Of what the agent says.
        outgoing: Of what the trainer says.
        num_heard: How much of their dialogue the agent has heard, if it comes to go on with one.
    """

    sock: socket.socket | TlsSocket
    introduction: Introduction
    incoming: Seal
    outgoing: Seal
    num_heard: int = 0

    @property
    def is_local(self) -> bool:
        """Whether the other end is on this machine, as far as can be told here."""
        try:
            return bool(self.sock.getsockname()[0] == self.sock.getpeername()[0])
        except OSError:  # it is gone, of which will be heard
            return False

    def refuse(self, what: str, fix: str) -> None:
        """Tell the agent that there is no use for it, and hang up."""
        with contextlib.suppress(OSError):
            self.sock.send(self.outgoing.frame(Refused(what, fix)))
        self.sock.close()


class Stranger:
    """A connection whose other end is not known yet.

    Args:
        sock: The connection; owned from now on.
        context: TLS context of the trainer, if connections are encrypted.
        host: The other end, as the next one.
        port: Its port.

    Raises:
        OSError: It has gone already.

    Attributes:
        heard_at: When it had said a whole step.
        seconds: That were spent on it.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext | None, host: str, port: int) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._gate = None if context is None else Gate(sock, context)
        self._channel: socket.socket | TlsSocket = sock if self._gate is None else self._gate.tls
        self.host, self.port = host, port
        self.heard_at, self.seconds = time.monotonic(), 0.0
        self._greeting = make_greeting()
        self._is_greeted = False
        self._num_needed = RESPONSE_BYTES
        self._received = bytearray()
        self._seals: tuple[Seal, Seal] | None = None  # of what it says and of what it is told, once it is proven
        self._head: Head | None = None  # of its introduction
        self._introduction: Introduction | None = None
        if self._gate is None:
            self._greet()

    def fileno(self) -> int:
        """Return the descriptor, to wait on."""
        return self._sock.fileno()

    def hear(self, secret: bytes) -> bool:
        """Take in what it says, with TLS some records of it; tell whether it is known now.

        Raises:
            WireError: It does not know the secret, or does not keep to the handshake.
            OSError: It is gone.
        """
        if self._gate is None:
            return self._take_in(secret)
        for _ in range(_RECORDS_AT_ONCE):
            is_complete = self._gate.let_in()
            if not self._is_greeted and self._gate.tls.shake_hands():
                self._greet()
            if self._is_greeted and self._take_in(secret):
                self._gate.let_all_out()
                return True
            self._gate.let_out()
            if not is_complete:
                break
        return False

    def introduced(self) -> Connection:
        """Return the connection to the agent that it has turned out to be, which owns it from now on."""
        assert self._seals is not None
        assert self._head is not None
        assert self._introduction is not None
        sock = self._sock if self._gate is None else self._gate.open()
        return Connection(sock, self._introduction, *self._seals, self._head.num_heard)

    def hang_up(self) -> None:
        """Close the connection, after the last word of TLS, which says why."""
        if self._gate is not None:
            with contextlib.suppress(OSError):
                self._gate.let_out()
        self.close()

    def close(self) -> None:
        """Close the connection; in a forked process, our copy of it."""
        if self._gate is None:
            self._sock.close()
        else:
            self._gate.close()

    def _greet(self) -> None:
        self._is_greeted = True
        self._say(self._greeting)

    def _say(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # of so few bytes all fit; if it is gone, that is heard next
            self._channel.send(data)

    def _take_in(self, secret: bytes) -> bool:
        """Take in what can be read; tell whether the last step was taken."""
        while self._introduction is None:
            try:
                data = self._channel.recv(self._num_needed - len(self._received))
            except BlockingIOError:
                return False
            if not data:
                raise ConnectionResetError("it was closed before it had identified itself")
            self._received += data
            if len(self._received) == self._num_needed:
                step = bytes(self._received)
                self._received.clear()
                self.heard_at = time.monotonic()  # the consumer may have been away, and not the stranger
                self._take_step(step, secret)
        return True

    def _take_step(self, step: bytes, secret: bytes) -> None:
        if self._seals is None:
            self._say(answer(secret, self._greeting, step))
            keys = derive_keys(secret, self._greeting, step)
            self._seals, self._num_needed = (Seal(keys.of_agent), Seal(keys.of_trainer)), HEAD_BYTES
        elif self._head is None:
            self._head = head = self._seals[0].open_head(step, MAX_INTRODUCTION_BYTES)
            if head.num_part_bytes or not head.num_bytes:
                raise WireError("its first message has a wrong length")
            self._num_needed = head.num_bytes
        else:
            self._seals[0].check_packet(self._head, step)
            try:
                self._introduction = decode_introduction(step)
            except Exception as error:
                raise WireError(f"its first message cannot be read: {error}") from error
