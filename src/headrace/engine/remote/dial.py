"""How an agent reaches its trainer: connects, shows that it knows the secret, is given a job, and sends and receives.

Invariants: what the socket says of its end is `TrainerGone`, and nothing else is; who does not read is waited for, and
who does not answer is not; nor is who takes the connection and does not show in time that it is the trainer.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.errors import ConfigError

from ..codec.codec import NO_CODE
from .addresses import set_up_socket, split_address
from .dialogue import Dialogue
from .handshake import ANY_SEAT, GREETING_BYTES, PROOF_BYTES, check_trainer, derive_keys, introduce, respond
from .seal import HEAD_BYTES, Head, Seal, digest
from .tls import Tls, TlsSocket, bind_secret, connect_tls
from .wire import Refused, Welcome, WelcomeBack, WireError, decode_answer

# How long one attempt to connect takes at most.
_CONNECT_SECONDS = 10.0
GREETING_SECONDS = 3600.0
"""How long a trainer that was reached may be busy with something else until it has shown that it knows the secret."""

MIN_GREETING_SECONDS = _CONNECT_SECONDS
"""So long it may in any case."""

RETRY_SECONDS = 0.5
"""How long to wait before the next attempt."""

# The same for one that comes back.
_RETURN_SECONDS = 0.05

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


class TrainerSilent(TrainerGone):
    """What listens there has not shown in time that it is the trainer."""


class HungUp(TrainerGone):
    """The trainer has said that it needs this worker no more."""


class Trainer(NamedTuple):
    """Where a trainer is, and how it is known.

    Attributes:
        addresses: "host:port": tried in turn.
        secret: Secret of the run.
        tls: Certificates, if connections are to be encrypted.
        greeting_seconds: How long after it was reached it may take to show that it knows the secret.
    """

    addresses: Sequence[str]
    secret: bytes
    tls: Tls | None
    greeting_seconds: float = GREETING_SECONDS


def connect(trainer: Trainer, deadline: float) -> Socket:
    """Return a connection to the first address that takes one.

    Raises:
        ConfigError: None does, until the deadline; or an address or a certificate is wrong.
        WireError: There is no TLS with it.
    """
    while True:
        found = connect_once(trainer, _CONNECT_SECONDS)
        if not isinstance(found, list):
            return found
        if time.monotonic() >= deadline:
            raise ConfigError(
                f"a worker cannot reach its trainer: {'; '.join(map(str, found))}",
                where=socket.gethostname(),
                fix="start the trainer first or give a longer --wait, and let its port be open to this machine",
            )
        time.sleep(RETRY_SECONDS)


class Unreached(NamedTuple):
    """Why there is no connection to an address.

    Without the error itself: its traceback would keep all that our callers have at hand, such as results of a worker
    that waits for their memory, until the garbage collector came by.
    """

    address: str
    why: str
    is_refused: bool

    def __str__(self) -> str:
        return f"{self.address}: {self.why}"


def connect_once(trainer: Trainer, seconds: float) -> Socket | list[Unreached]:
    """Return a connection to the first address that takes one, or why none does."""
    targets = [split_address(address) for address in trainer.addresses]
    tls = trainer.tls
    context = None if tls is None else tls.context_of_worker()
    errors: list[Unreached] = []
    for address, target in zip(trainer.addresses, targets, strict=True):
        try:
            sock = socket.create_connection(target, seconds)
            sock.settimeout(None if context is None else trainer.greeting_seconds)
            set_up_socket(sock)
            return sock if tls is None or context is None else connect_tls(sock, context, tls.name or target[0])
        except OSError as error:
            is_refused = isinstance(error, ConnectionRefusedError)
            errors.append(Unreached(address, str(error.strerror or error), is_refused))
    return errors


class Connected(NamedTuple):
    """A connection on which both sides know each other.

    Attributes:
        sock: It blocks.
        incoming: Seal of what the trainer says.
        outgoing: Of what it is told.
        num_heard: Messages of the dialogue that the trainer has heard.
    """

    sock: Socket
    incoming: Seal
    outgoing: Seal
    num_heard: int = 0


def come_back(trainer: Trainer, dialogue: Dialogue, seconds: float) -> Connected:
    """Connect again to go on with a dialogue.

    Args:
        trainer: Where it is.
        dialogue: With it.
        seconds: How long to try to reach it. One that is reached is waited for as long as it may be busy.

    Raises:
        TrainerGone: It is not reached, has ended, or has given this agent up.
    """
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(WireError):
            found = connect_once(trainer, left)
            if not isinstance(found, list):
                return _go_on(found, trainer, dialogue)
            if all(one.is_refused for one in found):
                break  # there is no listener any more, so the dialogue is lost
        time.sleep(min(_RETURN_SECONDS, max(deadline - time.monotonic(), 0.0)))
    raise TrainerGone


def _go_on(sock: Socket, trainer: Trainer, dialogue: Dialogue) -> Connected:
    """Tell the trainer who comes back.

    Raises:
        HungUp: It has given this agent up.
        WireError: The connection is of no use, and perhaps another one is.
    """
    try:
        incoming, outgoing = shake_hands(sock, trainer)
        introduction = introduce(ANY_SEAT, dialogue.key)
        write(sock, [memoryview(outgoing.frame(introduction, num_heard=dialogue.num_heard))])
        head, answer = _read_answer(sock, incoming)
    except TrainerGone:
        sock.close()
        raise WireError("the trainer has closed the connection") from None
    except BaseException:
        sock.close()
        raise
    if not isinstance(answer, WelcomeBack):
        sock.close()
        raise HungUp
    return Connected(sock, incoming, outgoing, head.num_heard)


def shake_hands(sock: Socket, trainer: Trainer) -> tuple[Seal, Seal]:
    """Show that this agent knows the secret, and see that the other side does: as long as a busy trainer may take.

    Returns:
        The seals of what comes from the trainer and of what goes to it.

    Raises:
        TrainerSilent: It has not shown it by then.
        TrainerGone: The connection has ended.
        WireError: It does not know the secret.
    """
    deadline = time.monotonic() + trainer.greeting_seconds
    secret = bind_secret(trainer.secret, sock.certificate) if isinstance(sock, TlsSocket) else trainer.secret
    greeting = bytes(read(sock, GREETING_BYTES, deadline))
    response = respond(secret, greeting)
    write(sock, [memoryview(response)])
    try:
        proof = bytes(read(sock, PROOF_BYTES, deadline))
    except TrainerSilent:
        raise
    except TrainerGone:
        raise WireError(
            "the trainer has closed the connection before it had shown that it knows the secret",
            fix="give the worker and the trainer the same secret; if they have it, the trainer has just ended",
        ) from None
    check_trainer(secret, greeting, response, proof)
    keys = derive_keys(secret, greeting, response)
    return Seal(keys.of_trainer), Seal(keys.of_agent)


def wait_for_job(connected: Connected, seat: int) -> tuple[Welcome, list[memoryview]]:
    """Introduce this agent, and wait until it is needed."""
    sock, incoming, outgoing, _ = connected
    write(sock, [memoryview(outgoing.frame(introduce(seat)))])
    head, answer = _read_answer(sock, incoming)
    if isinstance(answer, Refused):
        raise ConfigError(answer.what, where=socket.gethostname(), fix=answer.fix or None)
    if not isinstance(answer, Welcome):
        raise WireError("the trainer continues a session that was never begun")
    sizes = answer.buffer_bytes
    if sum(incoming.part_bytes(num_bytes, NO_CODE) for num_bytes in sizes) != head.num_part_bytes:
        raise WireError("the length of the job is not the sum of its parts")
    buffers = []
    for num_bytes, known in zip(sizes, answer.buffer_digests, strict=True):
        buffers.append(buffer := read(sock, num_bytes))
        computed = incoming.begin_value(NO_CODE)
        assert computed is not None, "what comes with a job has checksums"
        computed.update(buffer)
        computed.check(buffer, read(sock, computed.num_bytes))
        if digest(buffer) != known:
            raise WireError("bytes were changed on the way: an array of the job has a wrong digest")
    return answer, buffers


def _read_answer(sock: Socket, incoming: Seal) -> tuple[Head, Refused | Welcome | WelcomeBack]:
    """Wait for what the trainer says to an introduction."""
    head = incoming.open_head(read(sock, HEAD_BYTES))
    packet = read(sock, head.num_bytes)
    incoming.check_packet(head, packet)
    return head, decode_answer(packet)


@contextlib.contextmanager
def connection_ends() -> Iterator[None]:
    """Say that the trainer is gone when an operation of the socket fails: nothing else may be meant by that."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise _meaning_of(error) from error


def _meaning_of(error: OSError) -> WireError | TrainerGone:
    if isinstance(error, ssl.SSLError):
        return WireError(f"TLS has failed: {error.reason or error}")
    return TrainerGone()


def read(sock: Socket, num_bytes: int, deadline: float | None = None) -> memoryview:
    """Return exactly `num_bytes` bytes.

    Raises:
        TrainerSilent: They were not there in time.
        TrainerGone: The connection has ended.
    """
    data = memoryview(bytearray(num_bytes))
    rest = data
    while rest:
        with connection_ends():
            received = sock.recv_into(rest) if deadline is None else _receive_until(sock, rest, deadline)
        if not received:
            raise TrainerGone
        rest = rest[received:]
    return data


def _receive_until(sock: Socket, target: memoryview, deadline: float) -> int:
    before = sock.gettimeout()
    sock.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        return sock.recv_into(target)
    except TimeoutError:
        raise TrainerSilent from None
    finally:
        sock.settimeout(before)


def write(sock: Socket, parts: list[memoryview]) -> None:
    """Send all bytes, and take them off the list; waits as long as the trainer does not read.

    Raises:
        TrainerGone: Its machine has not answered for half a minute.
    """
    while parts:
        try:
            num_bytes = sock.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            _wait_for_room(sock)
            continue
        except OSError as error:
            raise _meaning_of(error) from error
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
