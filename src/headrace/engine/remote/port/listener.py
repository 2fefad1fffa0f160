"""Listens for agents, checks that they know the secret, and gives each to an executor that waits for one.

Invariants: nothing here blocks; a stranger can send as many bytes as a step of the handshake has, and no more; there
is a limit on the strangers at a time, and each is given up if a step takes some seconds; others wait in the queue of
the system until there is room, and who has many connections cannot keep out who has one; strangers take a small part of
the time, after which they are left alone for a while, but those that turn out to be agents; one that is refused is
logged.
Several executors of one loader listen on one port, which they share. Not thread-safe.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import time
from collections import Counter
from typing import Protocol

from headrace.errors import ConfigError

from ...process.channel import needs_descriptors
from ..addresses import join_address, listen, set_up_socket
from ..handshake import find_mismatch
from ..tls import Tls, TlsSocket
from ..wire import WireError
from .stranger import Connection, Stranger

_logger = logging.getLogger("headrace.engine")

_MAX_STRANGERS = 64
# Agents that know the secret and for which there is no work yet: they wait for a worker that ends.
_MAX_SPARES = 1024
_HANDSHAKE_SECONDS = 10.0
# Where others wait, who has said nothing for so long is given up, first of all one of the address with the most.
_CROWD_SECONDS = 1.0
# The share of its thread's time for connections that turn out to be no agents, on average; the seconds of it that are
# saved up for a crowd; and how long one `pump` looks at strangers.
_STRANGERS_PART = 0.1
_SAVED_SECONDS = 0.25
_PUMP_SECONDS = 0.01
# So many connections are looked at before the system is asked again which are ready: it has them take turns.
_AT_ONCE = 16
# How many refused connections are worth a warning each.
_MAX_WARNINGS = 10


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


class Listener:
    """Listens on one port, on all addresses of a host, of IPv4 and IPv6.

    Args:
        host: Name or address to listen on; `""`: all addresses of this machine.
        port: 0: any that is free.
        secret: Secret of the run.
        tls: Its certificates; `None`: connections are not encrypted.

    Raises:
        ConfigError: The address cannot be listened on, or the certificates cannot be used.

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
        self._saved_seconds, self._pumped_at = _SAVED_SECONDS, time.monotonic()  # for strangers
        self._is_resting = False  # from strangers, which wake no thread then
        self._strangers: dict[int, Stranger] = {}  # by descriptor, the oldest first
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
        """How many agents wait to become a missing worker, however they were started."""
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
        now = time.monotonic()
        self._saved_seconds += _STRANGERS_PART * (now - self._pumped_at)
        self._saved_seconds, self._pumped_at = min(self._saved_seconds, _SAVED_SECONDS), now
        self._rest_from_now_on(self._saved_seconds <= 0.0)
        listening = self._hear_all(now + _PUMP_SECONDS)
        if listening is not None and not self._is_resting:
            self._give_up_silent()  # all have been heard, so that none is given up that has said something
            for sock in listening:
                self._accept(sock, now + _PUMP_SECONDS)
            if not self._accepts:
                self._accept_from_now_on(self._has_room())
        self._saved_seconds -= time.monotonic() - now
        self._rest_from_now_on(self._saved_seconds <= 0.0)

    def _hear_all(self, deadline: float) -> list[socket.socket] | None:
        """Hear all that have something to say; return who has others waiting, or None if there was no time for all."""
        while True:
            ready = [fd for fd, _ in self._epoll.poll(0, _AT_ONCE)]
            if all(fd in self._by_fd for fd in ready):
                return [self._by_fd[fd] for fd in ready]
            for fd in ready:
                if fd in self._spares:  # which have nothing to say: it has ended
                    self._epoll.unregister(fd)
                    self._spares.pop(fd).sock.close()
                elif fd in self._strangers:
                    self._hear(self._strangers[fd])
                    if time.monotonic() >= deadline:
                        return None

    def _give_up_silent(self) -> None:
        given_up_at = time.monotonic() - _HANDSHAKE_SECONDS
        for stranger in [stranger for stranger in self._strangers.values() if stranger.heard_at <= given_up_at]:
            self._drop(stranger, f"it said too little in {_HANDSHAKE_SECONDS:g} s")

    def _rest_from_now_on(self, is_resting: bool) -> None:
        """Leave strangers alone until time was saved up for them, or look at them again."""
        if is_resting == self._is_resting:
            return
        self._is_resting = is_resting
        for stranger in self._strangers.values():
            if is_resting:
                self._epoll.unregister(stranger)
            else:
                self._epoll.register(stranger, select.EPOLLIN)
        self._accept_from_now_on(not is_resting)

    def close(self) -> None:
        """Close the port, and all connections of agents that were not taken; in a forked process, too."""
        for sock in self._sockets:
            sock.close()
        for stranger in self._strangers.values():
            stranger.close()
        for connection in self._spares.values():
            connection.sock.close()
        self._epoll.close()
        self._strangers.clear()
        self._spares.clear()
        self._waiting.clear()
        self._taken.clear()
        self._by_fd.clear()

    # --- strangers ---

    def _accept(self, listening: socket.socket, deadline: float) -> None:
        for _ in range(_MAX_STRANGERS):
            if (start := time.monotonic()) >= deadline:
                return
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
                set_up_socket(sock)
                stranger = Stranger(sock, self._context, host, port)
            except OSError as error:  # it has gone already
                sock.close()
                self._note_refused(host, port, str(error.strerror or error))
                continue
            self._strangers[stranger.fileno()] = stranger
            self._epoll.register(stranger, select.EPOLLIN)
            stranger.seconds += time.monotonic() - start

    def _has_room(self) -> bool:
        """Tell whether there may be one more stranger; to that end, one is given up that has had its time."""
        if len(self._strangers) < _MAX_STRANGERS:
            return True
        oldest = self._oldest_of_most()
        if time.monotonic() - oldest.heard_at < _CROWD_SECONDS:
            return False
        self._drop(oldest, "others wait, and it says nothing")
        return True

    def _oldest_of_most(self) -> Stranger:
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

    def _hear(self, stranger: Stranger) -> None:
        start, is_known = time.monotonic(), False
        try:
            is_known = stranger.hear(self._secret)
        except WireError as error:
            self._drop(stranger, error.what)
        except OSError as error:
            self._drop(stranger, str(error.strerror or error))
        if is_known:
            self._forget_stranger(stranger)
            self._arrive(stranger.introduced())
        stranger.seconds += time.monotonic() - start
        if is_known:
            self._saved_seconds += stranger.seconds  # it was none

    def _drop(self, stranger: Stranger, why: str) -> None:
        self._forget_stranger(stranger)
        stranger.hang_up()
        self._note_refused(stranger.host, stranger.port, why)

    def _forget_stranger(self, stranger: Stranger) -> None:
        del self._strangers[stranger.fileno()]
        if not self._is_resting:
            self._epoll.unregister(stranger)

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
        secret: Secret of the run.
        tls: Its certificates.
    """

    def __init__(self, host: str, port: int, secret: bytes, tls: Tls | None = None) -> None:
        self._options = host, port, secret, tls
        self._listener: Listener | None = None
        self._num_users = 0

    def open(self) -> Listener:
        """Return what listens there, for one more user, who has to `close` it.

        Raises:
            ConfigError: The address cannot be listened on.
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
