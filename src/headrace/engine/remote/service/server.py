"""The service: listens for trainers, gives each the workers that it asks for, and has equal recipes share a pool.

For each worker of a trainer there is an agent, which connects to that trainer: a thread of this process where results
may be shared, and a process of its own, as `headrace worker` is, where they may not. Invariants: nothing of a trainer
is looked at before it has shown that it knows the secret, and nothing is unpickled in this process at all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from headrace.errors import ConfigError, HeadraceError, check_count

from ...process.exits import end_with_process
from ...process.worker_config import Shipment
from ..agent import be_agent
from ..dial import Socket, Trainer, TrainerGone, connect_once, read
from ..handshake import ANY_SEAT, check_secret
from ..launcher import Invitation, Launched, LocalLauncher
from ..notice import LeaveNotice
from ..port.listener import Listener
from ..port.stranger import Connection
from ..seal import HEAD_BYTES
from ..tls import Tls
from ..wire import Refused, Welcome, WireError
from .cache import ResultCache
from .pool import Pool
from .recipe import DIGEST_BYTES
from .wire import MAX_ASK_BYTES, Ask, Granted, decode_ask, secret_of_port
from .worker import PooledWorker

_logger = logging.getLogger("headrace.engine")

# A trainer has so long to say what it wants.
_ASK_SECONDS = 10.0
# How long one attempt to connect to a trainer takes at most.
_CONNECT_SECONDS = 10.0
_LOOK_SECONDS = 0.5
# Agents of their own have so long to end by themselves.
_END_SECONDS = 1.0


class ServiceReport(NamedTuple):
    """What a service has done.

    Attributes:
        num_connected: Workers of trainers that are connected, and share.
        num_recipes: Different recipes of these.
        num_computed: Tickets that were computed, of the recipes of now.
        num_joined: Tickets of these that waited for what another trainer had asked for.
        num_hits: Tickets that were found, in all.
        num_bytes: Bytes of what is kept.
    """

    num_connected: int
    num_recipes: int
    num_computed: int
    num_joined: int
    num_hits: int
    num_bytes: int


class Service:
    """Owns worker processes, for trainers that ask for them.

    Args:
        host: Name or address to listen on; `""`: all addresses of this machine.
        port: On which to listen; 0: any that is free.
        secret: That trainers have to know, at least 16 characters.
        num_workers: Processes for each recipe.
        max_bytes: Limit on the results that are kept, of all recipes.
        tls: Certificates, with which connections are encrypted, in both directions.

    Raises:
        ConfigError: A wrong option, or the address cannot be listened on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        secret: str | bytes,
        *,
        num_workers: int,
        max_bytes: int = 8 << 30,
        tls: Tls | None = None,
    ) -> None:
        self._num_workers = check_count("num_workers", num_workers, minimum=1)
        self.cache = ResultCache(check_count("max_bytes", max_bytes))
        self._secret, self._tls = check_secret(secret), tls
        if tls is not None:
            tls.context_of_worker()  # what is wrong is said now
        self._listener = Listener(host, port, secret_of_port(self._secret), tls)
        self._pools: dict[bytes, Pool] = {}
        self._ending: set[Pool] = set()  # which are not asked any more
        self._launched: list[Launched] = []
        self._lock = threading.Lock()  # of these; processes are started while it is held, but nothing is waited for
        self._is_closing = False
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        end_with_process(self)
        self._listener.expect(_Door(self._listener, self._let_in))

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.port

    def serve(self) -> None:
        """Serve trainers until `stop`."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        while not self._is_closing:
            poll.poll(1000 * _LOOK_SECONDS)
            self._listener.pump()
            with self._lock:
                for launched in [one for one in self._launched if one.ending() is not None]:
                    self._launched.remove(launched)
                    launched.end(0.0)

    def stop(self) -> None:
        """Have `serve` return: for other threads, and handlers of signals."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """End all workers within a few seconds; their trainers take them for dead. Harmless when closed."""
        self._is_closing = True
        with self._lock:
            pools, self._pools = [*self._pools.values(), *self._ending], {}
            launched, self._launched = self._launched, []
        for pool in pools:
            pool.close()
        deadline = time.monotonic() + _END_SECONDS
        for one in launched:
            one.end(max(deadline - time.monotonic(), 0.0))
        if self._wake_fd >= 0:
            self._listener.close()
            os.close(self._wake_fd)
            self._wake_fd = -1

    def disown(self) -> None:
        """In a process that was forked off this one: close our copies, and leave all else alone."""
        self._is_closing = True
        self._pools, self._launched = {}, []
        if self._wake_fd >= 0:
            self._listener.close()
            os.close(self._wake_fd)
            self._wake_fd = -1

    def report(self) -> ServiceReport:
        """Return what it has done."""
        with self._lock:
            pools = list(self._pools.values())
        return ServiceReport(
            sum(pool.num_askers for pool in pools),
            len(pools),
            sum(pool.num_computed for pool in pools),
            sum(pool.num_joined for pool in pools),
            self.cache.num_hits,
            self.cache.num_bytes,
        )

    # --- one trainer, in a thread of its own ---

    def _let_in(self, connection: Connection) -> None:
        """Do what a trainer asks for, which has shown that it knows the secret."""
        try:
            ask, sock, trainer = self._hear(connection)
        except (OSError, TrainerGone, HeadraceError) as error:
            _logger.warning("a trainer on %s was given up: %s", connection.introduction.host, error)
            connection.sock.close()
            return
        try:
            if sock is not None:
                open_worker = partial(self._open_worker, ask.recipe)
                be_agent(trainer, sock, ask.seat, LeaveNotice(0.0), open_worker)
        except HeadraceError as error:
            _logger.warning("a worker of a trainer on %s was given up: %s", connection.introduction.host, error)
        except Exception:
            if not self._is_closing:
                _logger.exception("a worker of a trainer on %s was given up", connection.introduction.host)

    def _hear(self, connection: Connection) -> tuple[Ask, Socket | None, Trainer]:
        """Read the request of a trainer, and answer.

        Returns:
            The request; and if this thread is to be its agent, the agent's connection, and the trainer.
        """
        ask = _read_ask(connection)
        reply: Refused | Granted = Granted()
        trainer = Trainer(ask.addresses, self._secret, self._tls)
        agent_sock: Socket | None = None
        if ask.addresses and ask.recipe:
            found = connect_once(trainer, _CONNECT_SECONDS)
            if isinstance(found, list):
                why = "; ".join(map(str, found))
                fix = "let the trainer's port be open to the machine of the service, or give SharedService(host=...)"
                reply = Refused(f"it cannot connect to this trainer: {why}", fix)
            else:
                agent_sock = found
        elif ask.addresses:
            self._launch(ask)
        with connection.sock as sock, contextlib.suppress(OSError):  # who has gone does not need it
            sock.send(connection.outgoing.frame(reply))
        return ask, agent_sock, trainer

    def _launch(self, ask: Ask) -> None:
        invitation = Invitation(ask.worker_idx, ask.seat, tuple(ask.addresses), self._secret, self._tls)
        with self._lock:
            if not self._is_closing:
                self._launched.append(LocalLauncher().launch(invitation))

    # --- pools ---

    def _open_worker(self, recipe: bytes, welcome: Welcome) -> PooledWorker:
        join = partial(self._join, recipe, welcome)
        return PooledWorker(welcome.max_bytes, join, partial(self._leave, recipe))

    def _join(self, recipe: bytes, welcome: Welcome, asker: PooledWorker, shipment: Shipment) -> Pool:
        with self._lock:
            if self._is_closing:
                raise HeadraceError("the service ends")
            pool = self._pools.get(recipe)
            if pool is None or pool.is_broken:
                pool = Pool(self.cache, self._num_workers)
                pool.start(shipment, welcome.sys_path, welcome.max_bytes, welcome.num_threads)
                self._pools[recipe] = pool
            pool.join(asker)
            return pool

    def _leave(self, recipe: bytes, asker: PooledWorker, pool: Pool) -> None:
        with self._lock:
            is_last = pool.leave(asker) == 0
            if is_last and self._pools.get(recipe) is pool:
                del self._pools[recipe]
            if is_last:
                self._ending.add(pool)
        if is_last:
            pool.close()
            with self._lock:
                self._ending.discard(pool)


def _read_ask(connection: Connection) -> Ask:
    """Return what a trainer asks for; it has some seconds to say it.

    Raises:
        WireError: It is no request.
        TrainerGone: There is none.
    """
    sock = connection.sock
    sock.settimeout(_ASK_SECONDS)
    head = connection.incoming.open_head(read(sock, HEAD_BYTES), MAX_ASK_BYTES)
    packet = read(sock, head.num_bytes)
    connection.incoming.check_packet(head, packet)
    try:
        ask = decode_ask(packet)
    except msgspec.MsgspecError as error:
        raise WireError(f"its request cannot be read: {error}") from error
    if len(ask.recipe) not in (0, DIGEST_BYTES):
        raise WireError("the digest of its recipe has a wrong length")
    return ask


class _Door:
    """Whom the listener gives each trainer to that knows the secret and has the same versions.

    Args:
        listener: The listener.
        let_in: Called with each, in a thread of its own.
    """

    seat = ANY_SEAT
    takes_any = True

    def __init__(self, listener: Listener, let_in: Callable[[Connection], None]) -> None:
        self._listener, self._let_in = listener, let_in

    def welcome(self, connection: Connection) -> None:
        """Let a trainer in, and expect the next one."""
        self._listener.forget(self)
        self._listener.expect(self)
        threading.Thread(target=self._let_in, args=(connection,), name="headrace-trainer", daemon=True).start()

    def welcome_back(self, connection: Connection) -> bool:
        """Return False: no connection comes back here."""
        del connection
        return False

    def refuse(self, error: ConfigError) -> None:
        """Expect the next one; this one was told why."""
        _logger.warning("%s", error)
        self._listener.expect(self)
