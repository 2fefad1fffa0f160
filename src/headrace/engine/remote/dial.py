"""How an agent reaches its trainer: connects, shows that it knows the secret, is given a job, and sends and receives.

Invariants: what the socket says of its end is `TrainerGone`, and nothing else is; who does not read is waited for, and
who does not answer is not.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Sequence

from headrace.errors import ConfigError

from .addresses import split_address
from .handshake import GREETING_BYTES, PROOF_BYTES, check_trainer, derive_keys, introduce, respond
from .listener import set_up_socket
from .seal import HEAD_BYTES, Seal
from .tls import Tls, TlsSocket, bind_secret, connect_tls
from .wire import Refused, Welcome, WireError, decode_answer

# How long one attempt to connect takes at most.
_CONNECT_SECONDS = 10.0
RETRY_SECONDS = 0.5
"""How long to wait before the next attempt."""

# While nothing can be sent: how often to look whether the other machine answers. It is taken for gone as late as one
# that is sent nothing, see `set_up_socket`.
_LOOK_SECONDS = 5.0
_ANSWER_SECONDS = 25.0
_MAX_UNANSWERED = 3
# Of Linux: packets that were sent again, and probes, without an answer to any; milliseconds since the last answer.
_TCP_INFO = struct.Struct("=2xBB52xI")

Socket = socket.socket | TlsSocket


class TrainerGone(Exception):
    """The connection has ended."""


def connect(addresses: Sequence[str], deadline: float, tls: Tls | None) -> Socket:
    """Return a connection to the first address that takes one."""
    targets = [split_address(address) for address in addresses]
    context = None if tls is None else tls.context_of_worker()
    while True:
        errors: list[str] = []
        for address, target in zip(addresses, targets, strict=True):
            try:
                sock = socket.create_connection(target, _CONNECT_SECONDS)
                sock.settimeout(None)
                set_up_socket(sock)
                return sock if tls is None or context is None else connect_tls(sock, context, tls.name or target[0])
            except OSError as error:
                errors.append(f"{address}: {error.strerror or error}")
        if time.monotonic() >= deadline:
            raise ConfigError(
                f"a worker cannot reach its trainer: {'; '.join(errors)}",
                where=socket.gethostname(),
                fix="start the trainer first or give a longer --wait, and let its port be open to this machine",
            )
        time.sleep(RETRY_SECONDS)


def shake_hands(sock: Socket, secret: bytes) -> tuple[Seal, Seal]:
    """Show that this agent knows the secret, and see that the other side does: as long as a busy trainer takes.

    Returns:
        The seals of what comes from the trainer and of what goes to it.
    """
    if isinstance(sock, TlsSocket):
        secret = bind_secret(secret, sock.certificate)
    greeting = bytes(read(sock, GREETING_BYTES))
    response = respond(secret, greeting)
    write(sock, [memoryview(response)])
    try:
        proof = bytes(read(sock, PROOF_BYTES))
    except TrainerGone:
        raise WireError(
            "the trainer has closed the connection before it had shown that it knows the secret",
            fix="give the worker and the trainer the same secret; if they have it, the trainer has just ended",
        ) from None
    check_trainer(secret, greeting, response, proof)
    keys = derive_keys(secret, greeting, response)
    return Seal(keys.of_trainer), Seal(keys.of_agent)


def wait_for_job(sock: Socket, seat: int, incoming: Seal, outgoing: Seal) -> tuple[Welcome, list[memoryview]]:
    """Introduce this agent, and wait until it is needed."""
    write(sock, [memoryview(outgoing.frame(introduce(seat)))])
    head = incoming.open_head(read(sock, HEAD_BYTES))
    packet = read(sock, head.num_bytes)
    incoming.check_packet(head, packet)
    answer = decode_answer(packet)
    if isinstance(answer, Refused):
        raise ConfigError(answer.what, where=socket.gethostname(), fix=answer.fix or None)
    if sum(num_bytes + incoming.checksum_bytes for num_bytes in answer.buffer_bytes) != head.num_part_bytes:
        raise WireError("the job does not have the length of its parts")
    buffers = []
    for num_bytes in answer.buffer_bytes:
        buffers.append(buffer := read(sock, num_bytes))
        computed = incoming.begin_value()
        computed.update(buffer)
        incoming.check_value(computed, read(sock, incoming.checksum_bytes))
    return answer, buffers


@contextlib.contextmanager
def connection_ends() -> Iterator[None]:
    """Say that the trainer is gone when an operation of the socket fails: nothing else may be meant by that."""
    try:
        yield
    except BlockingIOError:
        raise
    except ssl.SSLError as error:
        raise WireError(f"TLS has failed: {error.reason or error}") from error
    except OSError as error:
        raise TrainerGone from error


def read(sock: Socket, num_bytes: int) -> memoryview:
    """Return exactly so many bytes."""
    data = memoryview(bytearray(num_bytes))
    rest = data
    while rest:
        with connection_ends():
            received = sock.recv_into(rest)
        if not received:
            raise TrainerGone
        rest = rest[received:]
    return data


def write(sock: Socket, parts: list[memoryview]) -> None:
    """Send all bytes, and take them off the list; waits as long as the trainer does not read.

    Raises:
        TrainerGone: Its machine has not answered for half a minute.
    """
    while parts:
        try:
            with connection_ends():
                num_bytes = sock.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            _wait_for_room(sock)
            continue
        while parts and num_bytes >= parts[0].nbytes:
            num_bytes -= parts.pop(0).nbytes
        if num_bytes:
            parts[0] = parts[0][num_bytes:]


def _wait_for_room(sock: Socket) -> None:
    """Wait until more can be sent."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    while not poll.poll(1000 * _LOOK_SECONDS):
        if has_no_answer(sock, _ANSWER_SECONDS):
            raise TrainerGone


def has_no_answer(sock: Socket, seconds: float) -> bool:
    """Return whether the machine at the other end has not answered several packets, and nothing else for so long.

    One whose process does not read, for hours maybe, answers. The option TCP_USER_TIMEOUT does not tell the two apart.
    """
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    counts: tuple[int, int, int] = _TCP_INFO.unpack(info)
    num_resent, num_probes, milliseconds = counts
    return max(num_resent, num_probes) >= _MAX_UNANSWERED and milliseconds >= 1000 * seconds
