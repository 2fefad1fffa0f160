"""Where agents connect: listens, finds out who knows the secret, and gives each agent to whoever waits for one.

Invariants: nothing here blocks; a stranger can send as many bytes as a step of the handshake has, and no more; there
are at most so many strangers at a time, and each is given up if a step takes some seconds; others wait in the queue of
the system until there is room, and who has many connections cannot keep out who has one; one that is refused is logged.
Several executors of one loader listen on one port, which they share. Not thread-safe.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import ConfigError

from ..process.channel import needs_descriptors
from .addresses import join_address, listen
from .handshake import (
    MAX_INTRODUCTION_BYTES,
    RESPONSE_BYTES,
    answer,
    derive_keys,
    find_mismatch,
    make_greeting,
)
from .seal import HEAD_BYTES, Head, Seal
from .tls import Tls, TlsSocket
from .wire import Introduction, Refused, WireError, decode_introduction

_logger = logging.getLogger("headrace.engine")

_MAX_STRANGERS = 64
# Agents that know the secret and for which there is no work yet: they wait for a worker that ends.
_MAX_SPARES = 1024
_HANDSHAKE_SECONDS = 10.0
# Where others wait, who has said nothing for so long is given up, first of all one of the address with the most.
_CROWD_SECONDS = 1.0
# The system looks whether the other machine is there when nothing was heard for so long; so often, so many times.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
# How many refused connections are worth a warning each.
_MAX_WARNINGS = 10


def set_up_socket(sock: socket.socket) -> None:
    """Have a connection send at once, and have the system find out in half a minute that the other machine is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@dataclass
class Connection:
    """A connection to an agent that knows the secret.

    Attributes:
        sock: It does not block.
        introduction: Of the agent.
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


class Waiting(Protocol):
    """Who waits for an agent.

    Attributes:
        seat: The number that an agent for it says.
        takes_any: Whether one that was started by somebody else will do.
    """

    seat: int
    takes_any: bool

    def welcome(self, connection: Connection) -> None:
        """Take an agent, and own its connection."""

    def welcome_back(self, connection: Connection) -> bool:
        """Go on with an agent over another connection, and own it, if it is its own; tell whether it is."""

    def refuse(self, error: ConfigError) -> None:
        """Take note that its agent cannot be used."""


@dataclass
class _Stranger:
    """A connection whose other end is not known yet."""

    sock: socket.socket | TlsSocket
    host: str
    port: int
    heard_at: float
    greeting: bytes = field(default_factory=make_greeting)
    is_secured: bool = False  # by TLS, if there is to be any
    num_needed: int = RESPONSE_BYTES
    received: bytearray = field(default_factory=bytearray)
    seals: tuple[Seal, Seal] | None = None  # of what it says and of what it is told, once it is proven
    head: Head | None = None  # of its introduction


class Listener:
    """Listens on one port, on all addresses of a host, of IPv4 and IPv6.

    Args:
        host: Name or address to listen on; `""`: all addresses of this machine.
        port: 0: any that is free.
        secret: Of the run.
        tls: Its certificates; `None`: connections are not encrypted.

    Raises:
        ConfigError: Nobody can listen there, or the certificates cannot be used.

    Attributes:
        port: The port.
    """

    def __init__(self, host: str, port: int, secret: bytes, tls: Tls | None = None) -> None:
        self._context: ssl.SSLContext | None = None
        self._secret = secret
        if tls is not None:
            self._context, self._secret = tls.context_of_trainer(), tls.bind_secret(secret)
        self._sockets = listen(host, port)
        self.port: int = self._sockets[0].getsockname()[1]
        self._epoll = select.epoll()
        self._by_fd = {sock.fileno(): sock for sock in self._sockets}
        self._accepts = False
        self._accept_from_now_on(True)
        self._strangers: dict[int, _Stranger] = {}  # by descriptor, the oldest first
        self._spares: dict[int, Connection] = {}
        self._waiting: dict[int, Waiting] = {}
        self._taken: dict[int, Waiting] = {}  # who has got an agent, which may come back
        self._num_refused = 0

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to do."""
        return self._epoll.fileno()

    def addresses(self, host: str) -> tuple[str, ...]:
        """Return where agents reach it, for those that are to be started, the best first.

        Args:
            host: The name of this machine for others, where it listens on all of its addresses.
        """
        names = [host] if host else [sock.getsockname()[0] for sock in self._sockets]
        return tuple(join_address(name, self.port) for name in names)

    @property
    def num_spares(self) -> int:
        """How many agents wait for a worker that is missing, whoever started them."""
        return len(self._spares)

    def expect(self, waiting: Waiting) -> None:
        """Have an agent taken when it comes; at once, if one is spare that will do."""
        while waiting.takes_any and self._spares:
            fd, connection = next(iter(self._spares.items()))
            del self._spares[fd]
            self._epoll.unregister(fd)
            if _is_open(connection.sock):
                self._take(waiting, connection)
                return
            connection.sock.close()
        self._waiting[waiting.seat] = waiting

    def expect_first(self, waiting: Waiting) -> None:
        """Have the next agent that will do taken, before all that are expected."""
        self._waiting = {waiting.seat: waiting, **self._waiting}

    def forget(self, waiting: Waiting) -> None:
        """Expect it no more, nor that its agent comes back."""
        self._waiting.pop(waiting.seat, None)
        self._taken.pop(waiting.seat, None)

    def pump(self) -> None:
        """Do what there is to do: to be called when it is readable, and now and then.

        Raises:
            ConfigError: This process may open no more descriptors.
        """
        ready = [fd for fd, _ in self._epoll.poll(0)]
        for fd in ready:
            if fd in self._strangers:
                self._hear(self._strangers[fd])
            elif fd in self._spares:  # which have nothing to say: it has ended
                self._epoll.unregister(fd)
                self._spares.pop(fd).sock.close()
        if self._strangers:
            given_up_at = time.monotonic() - _HANDSHAKE_SECONDS
            for stranger in [stranger for stranger in self._strangers.values() if stranger.heard_at <= given_up_at]:
                self._drop(stranger, f"it said too little in {_HANDSHAKE_SECONDS:g} s")
        for fd in ready:  # the others have been heard, so that none is given up that has said something
            if fd in self._by_fd:
                self._accept(self._by_fd[fd])
        if not self._accepts:
            self._accept_from_now_on(self._has_room())

    def close(self) -> None:
        """Close the port, and all connections of agents that nobody has taken; in a forked process, too."""
        for sock in (*self._sockets, *(stranger.sock for stranger in self._strangers.values())):
            sock.close()
        for connection in self._spares.values():
            connection.sock.close()
        self._epoll.close()
        self._strangers.clear()
        self._spares.clear()
        self._waiting.clear()
        self._taken.clear()
        self._by_fd.clear()

    # --- strangers ---

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_MAX_STRANGERS):
            if not self._has_room():
                self._accept_from_now_on(False)
                return
            try:
                with needs_descriptors("a worker connects"):
                    sock, (host, port, *_) = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except ConfigError:
                if not self._strangers:
                    raise
                self._drop(self._oldest_of_most(), "this process may open no more descriptors")
                return
            try:
                sock.setblocking(False)
                set_up_socket(sock)
                wrapped = self._wrap(sock)
            except OSError as error:  # it has gone already
                sock.close()
                self._note_refused(host, port, str(error.strerror or error))
                continue
            stranger = _Stranger(wrapped, host, port, time.monotonic())
            self._strangers[stranger.sock.fileno()] = stranger
            self._epoll.register(stranger.sock, select.EPOLLIN)
            self._secure(stranger)

    def _has_room(self) -> bool:
        """Tell whether there may be one more stranger; to that end, one is given up that has had its time."""
        if len(self._strangers) < _MAX_STRANGERS:
            return True
        oldest = self._oldest_of_most()
        if time.monotonic() - oldest.heard_at < _CROWD_SECONDS:
            return False
        self._drop(oldest, "others wait, and it says nothing")
        return True

    def _oldest_of_most(self) -> _Stranger:
        """Return the first of the strangers of the address with the most."""
        [(host, _)] = Counter(stranger.host for stranger in self._strangers.values()).most_common(1)
        return next(stranger for stranger in self._strangers.values() if stranger.host == host)

    def _accept_from_now_on(self, accepts: bool) -> None:
        """Be woken by who connects, or leave it to the queue of the system."""
        if accepts == self._accepts:
            return
        self._accepts = accepts
        for sock in self._sockets:
            if accepts:
                self._epoll.register(sock, select.EPOLLIN)
            else:
                self._epoll.unregister(sock)

    def _wrap(self, sock: socket.socket) -> socket.socket | TlsSocket:
        if self._context is None:
            return sock
        return TlsSocket(self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False))

    def _secure(self, stranger: _Stranger) -> None:
        """Go on with TLS, if there is to be any, and greet when that is done."""
        try:
            stranger.is_secured = not isinstance(stranger.sock, TlsSocket) or stranger.sock.shake_hands()
        except WireError as error:
            self._drop(stranger, error.what)
        except OSError as error:
            self._drop(stranger, str(error.strerror or error))
        else:
            if stranger.is_secured:
                self._say(stranger, stranger.greeting)

    def _hear(self, stranger: _Stranger) -> None:
        """Take in what a stranger says: of each step as many bytes as it has."""
        if not stranger.is_secured:
            self._secure(stranger)
            if not stranger.is_secured:
                return
        while stranger.sock.fileno() in self._strangers:
            try:
                data = stranger.sock.recv(stranger.num_needed - len(stranger.received))
            except BlockingIOError:
                return
            except OSError as error:
                self._drop(stranger, str(error.strerror or error))
                return
            if not data:
                self._drop(stranger, "it was closed before it had said who it is")
                return
            stranger.received += data
            if len(stranger.received) == stranger.num_needed:
                try:
                    self._take_step(stranger, bytes(stranger.received))
                except WireError as error:
                    self._drop(stranger, error.what)

    def _take_step(self, stranger: _Stranger, step: bytes) -> None:
        stranger.received.clear()
        stranger.heard_at = time.monotonic()  # the consumer may have been away, and not the stranger
        if stranger.seals is None:
            self._say(stranger, answer(self._secret, stranger.greeting, step))
            keys = derive_keys(self._secret, stranger.greeting, step)
            stranger.seals, stranger.num_needed = (Seal(keys.of_agent), Seal(keys.of_trainer)), HEAD_BYTES
        elif stranger.head is None:
            stranger.head = head = stranger.seals[0].open_head(step, MAX_INTRODUCTION_BYTES)
            if head.num_part_bytes or not head.num_bytes:
                raise WireError("its introduction has a wrong length")
            stranger.num_needed = head.num_bytes
        else:
            stranger.seals[0].check_packet(stranger.head, step)
            try:
                introduction = decode_introduction(step)
            except Exception as error:
                raise WireError(f"its introduction cannot be read: {error}") from error
            del self._strangers[stranger.sock.fileno()]
            self._epoll.unregister(stranger.sock)
            self._arrive(Connection(stranger.sock, introduction, *stranger.seals, stranger.head.num_heard))

    def _say(self, stranger: _Stranger, data: bytes) -> None:
        with contextlib.suppress(OSError):  # of so few bytes all fit; if it is gone, that is heard next
            stranger.sock.send(data)

    def _drop(self, stranger: _Stranger, why: str) -> None:
        del self._strangers[stranger.sock.fileno()]
        self._epoll.unregister(stranger.sock)
        stranger.sock.close()
        self._note_refused(stranger.host, stranger.port, why)

    def _note_refused(self, host: str, port: int, why: str) -> None:
        self._num_refused += 1
        level = logging.WARNING if self._num_refused <= _MAX_WARNINGS else logging.DEBUG
        _logger.log(level, "a connection to port %d from %s was given up: %s", self.port, join_address(host, port), why)

    # --- agents ---

    def _arrive(self, connection: Connection) -> None:
        """Give an agent to who waits for it, or keep it."""
        introduction = connection.introduction
        waiting = self._waiting.get(introduction.seat)
        if waiting is None and introduction.seat < 0:
            waiting = next((one for one in self._waiting.values() if one.takes_any), None)
        mismatch = find_mismatch(introduction)
        if mismatch is not None:
            connection.refuse(mismatch.what, mismatch.fix or "")
            if waiting is None:
                _logger.warning("%s", mismatch)
            else:
                self.forget(waiting)
                waiting.refuse(mismatch)
        elif introduction.dialogue:
            if not any(taken.welcome_back(connection) for taken in self._taken.values()):
                connection.refuse("its work was given to others meanwhile", "")
        elif waiting is not None:
            self._take(waiting, connection)
        elif introduction.seat < 0 and len(self._spares) < _MAX_SPARES:
            self._spares[connection.sock.fileno()] = connection
            self._epoll.register(connection.sock, select.EPOLLIN)
        else:
            connection.refuse("another worker has taken its place", "")

    def _take(self, waiting: Waiting, connection: Connection) -> None:
        self.forget(waiting)
        self._taken[waiting.seat] = waiting
        waiting.welcome(connection)


class SharedPort:
    """The port of one executor, or of several of one loader: open as long as one of them uses it.

    Args:
        host: See `Listener`, as the next two.
        port: The port.
        secret: Of the run.
        tls: Its certificates.
    """

    def __init__(self, host: str, port: int, secret: bytes, tls: Tls | None = None) -> None:
        self._options = host, port, secret, tls
        self._listener: Listener | None = None
        self._num_users = 0

    def open(self) -> Listener:
        """Return what listens there, for one more user, who has to `close` it.

        Raises:
            ConfigError: Nobody can listen there.
        """
        if self._listener is None:
            self._listener = Listener(*self._options)
        self._num_users += 1
        return self._listener

    def close(self) -> None:
        """Use it no more."""
        self._num_users -= 1
        if self._num_users <= 0 and self._listener is not None:
            listener, self._listener = self._listener, None
            listener.close()

    def disown(self) -> None:
        """In a process that was forked off the trainer: close our copy; who uses it then has a port of its own."""
        listener, self._listener, self._num_users = self._listener, None, 0
        if listener is not None:
            listener.close()


def _is_open(sock: socket.socket | TlsSocket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False
