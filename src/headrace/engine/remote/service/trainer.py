"""A trainer's side: has a service be its workers.

Everything but how workers are had is that of workers on other machines, see `RemoteExecutor`: the workers of the
service connect to the trainer. So the trainer dials once for each worker and says where it listens; a connection that
breaks, credit, leases and keep-alive are as with all remote workers.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from typing import Any

import msgspec

from headrace.errors import ConfigError

from ...process.worker_config import Shipment
from ...user.job import Job
from ..addresses import split_address
from ..dial import Trainer, TrainerGone, connect_once, read, shake_hands, write
from ..executor import RemoteExecutor
from ..handshake import ANY_SEAT, SECRET_VARIABLE, choose_secret, introduce
from ..launcher import Invitation, Launched, Launcher
from ..seal import HEAD_BYTES
from ..wire import Refused, WireError
from .recipe import digest_recipe
from .wire import MAX_ASK_BYTES, Ask, decode_reply, secret_of_port

_CONNECT_SECONDS = 10.0
# A service that was reached has so long to answer: it connects to this trainer first.
_ANSWER_SECONDS = 60.0
_RETRY_SECONDS = 0.25


class SharedService(RemoteExecutor):
    """Has the workers of a service do the work, which several trainings share: see `headrace serve`.

    What comes out is what local workers make. Trainings whose recipes are equal get each batch that several of them
    want from one computation, as long as the service has room to keep it. One object carries one loader.

    Args:
        address: Address of the service, "host:port".
        secret: Secret of the service, at least 16 characters; `None`: the environment variable HEADRACE_WORKER_SECRET.
        data_version: Any text: only trainings that give the same one share. For what the service cannot see: the
            contents of files that a function of yours reads.
        ignore_arguments: Whether trainings with different command lines share. Their workers then see none: of
            `sys.argv`, the name of the program only.
        wait_seconds: How long a service that is not reached is waited for when a worker has to be replaced.
        host: Name or address of this machine, as the service reaches it; it is listened on there. `None`: the one by
            which this machine reaches the service.
        options: Those of `RemoteExecutor`: `port`, `max_bytes`, `threads_per_worker`, `dead_seconds`,
            `return_seconds`, `checks_values`, `tls`.

    Raises:
        ConfigError: A wrong option, there is no secret, or the address has no machine.
    """

    name = "shared"

    def __init__(
        self,
        address: str,
        *,
        secret: str | bytes | None = None,
        data_version: str = "",
        ignore_arguments: bool = False,
        wait_seconds: float = 30.0,
        host: str | None = None,
        **options: Any,
    ) -> None:
        if not wait_seconds >= 0:
            raise ConfigError(f"wait_seconds is {wait_seconds}", fix="give seconds, 0 or more")
        if not isinstance(data_version, str):
            raise ConfigError(f"data_version is {data_version!r}", fix='give a text, such as "2024-05"')
        secret = choose_secret(secret, is_shared=True)
        host = _own_address(address) if host is None else host
        self._service_options = {
            "secret": secret,
            "data_version": data_version,
            "ignore_arguments": ignore_arguments,
            "wait_seconds": wait_seconds,
            "host": host,
            **options,
        }
        self._address = address
        others = data_version, options.get("max_bytes"), options.get("threads_per_worker")
        service = Trainer([address], secret_of_port(secret), options.get("tls"), _ANSWER_SECONDS)
        launcher = _Launcher(service, wait_seconds, others, ignores_arguments=ignore_arguments)
        super().__init__(launcher, host=host, secret=secret, **options)

    def another(self) -> SharedService:
        """Return one of the same options, which listens on a port of its own."""
        return SharedService(self._address, **{**self._service_options, "port": 0})


class _Launcher(Launcher):
    """Asks a service for workers.

    Args:
        service: Where it is, and what is proven there.
        wait_seconds: How long to try to reach it.
        others: What the recipe depends on, besides what workers are given.
        ignores_arguments: Whether workers do not see the command line, and the recipe does not depend on it.
    """

    def __init__(
        self, service: Trainer, wait_seconds: float, others: tuple[object, ...], *, ignores_arguments: bool
    ) -> None:
        self._service, self._wait_seconds = service, wait_seconds
        self._others, self._ignores_arguments = others, ignores_arguments
        self._missed_at: float | None = None  # since when the service was not reached
        self._recipe = b""

    def carry(self, job: Job, shipment: Shipment) -> Shipment:
        """See that the service is there, and find out what may be shared."""
        ask(self._service, Ask([], ANY_SEAT, 0, b""), 0.0)
        self._missed_at = None
        if self._ignores_arguments:
            shipment = replace(shipment, argv=shipment.argv[:1])
        self._recipe = digest_recipe(shipment, *self._others) if job.is_pure else b""
        return shipment

    def launch(self, invitation: Invitation) -> Launched:
        """Ask for one, in a thread."""
        addresses = list(invitation.addresses)
        request = Ask(addresses, invitation.seat, invitation.worker_idx, self._recipe)
        return _Asked(self, request)

    def ask(self, request: Ask, is_over: threading.Event) -> None:
        """Ask for something, and wait for a service that is not reached; of all that wait none waits for longer."""
        since = self._missed_at = time.monotonic() if self._missed_at is None else self._missed_at
        ask(self._service, request, since + self._wait_seconds - time.monotonic(), is_over)
        self._missed_at = None


class _Asked(Launched):
    """A worker that a service was asked for."""

    where = "asked of the shared service"

    def __init__(self, launcher: _Launcher, request: Ask) -> None:
        self._ending: str | None = None
        self._is_over = threading.Event()
        threading.Thread(target=self._ask, args=(launcher, request), name="headrace-ask", daemon=True).start()

    def _ask(self, launcher: _Launcher, request: Ask) -> None:
        try:
            launcher.ask(request, self._is_over)
        except ConfigError as error:
            self._ending = f"could not be had: {error.what}" + (f" ({error.fix})" if error.fix else "")

    def ending(self) -> str | None:
        return self._ending

    def end(self, seconds: float) -> None:
        del seconds  # its agent ends with its connection
        self._is_over.set()


def ask(service: Trainer, request: Ask, wait_seconds: float, is_over: threading.Event | None = None) -> None:
    """Ask a service for something, and wait for the answer.

    Args:
        service: Where it is, and what is proven there.
        request: What to ask.
        wait_seconds: How long to try to reach it.
        is_over: Set when it is not wanted any more.

    Raises:
        ConfigError: It is not reached, does not know the secret, or refuses.
    """
    [address] = service.addresses
    deadline, is_over = time.monotonic() + wait_seconds, is_over or threading.Event()
    while True:
        try:
            found = connect_once(service, _CONNECT_SECONDS)
            why = "; ".join(map(str, found)) if isinstance(found, list) else ""
        except WireError as error:
            raise ConfigError(
                f"the TLS handshake with the shared service failed: {error.what}", where=address
            ) from error
        if not isinstance(found, list):
            break
        if time.monotonic() >= deadline or is_over.wait(_RETRY_SECONDS):
            raise ConfigError(
                f"the shared service cannot be reached: {why}",
                where=address,
                fix=f"start it: headrace serve --bind {address}, with the secret in {SECRET_VARIABLE}",
            )
    with found as sock:
        sock.settimeout(_ANSWER_SECONDS)
        try:
            incoming, outgoing = shake_hands(sock, service)
            frames = (introduce(ANY_SEAT), request)
            write(sock, [memoryview(outgoing.frame(message)) for message in frames])
            head = incoming.open_head(read(sock, HEAD_BYTES), MAX_ASK_BYTES)
            packet = read(sock, head.num_bytes)
            incoming.check_packet(head, packet)
            reply = decode_reply(packet)
        except (WireError, TrainerGone, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"what listens there is no shared service of this secret: {error or 'the connection has ended'}",
                where=address,
                fix=f"give both the same secret, in {SECRET_VARIABLE}, and both certificates or neither",
            ) from error
    if isinstance(reply, Refused):
        raise ConfigError(f"the shared service refuses: {reply.what}", where=address, fix=reply.fix or None)


def _own_address(address: str) -> str:
    """Return the address by which this machine reaches another one; nothing is sent."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, target in found:
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(target)
                return str(sock.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"the shared service cannot be reached: {error.strerror or error}", where=address) from error
    raise AssertionError("a name has an address, or there is an error")
