"""What runs on the worker's machine: connects to the trainer, and is the agent of a worker as long as it is needed.

What an agent does is in `session.py`. It ends when its trainer is gone; one that was started for whichever worker is
needed looks for a while whether the trainer has begun anew.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from headrace.errors import ConfigError, HeadraceError

from .dial import (
    GREETING_SECONDS,
    MIN_GREETING_SECONDS,
    RETRY_SECONDS,
    Connected,
    Socket,
    Trainer,
    TrainerGone,
    TrainerSilent,
    connect,
    shake_hands,
    wait_for_job,
)
from .handshake import ANY_SEAT, take_secret
from .notice import LeaveNotice
from .session import OpenWorker, Session, open_process
from .tls import Tls, take_tls
from .wire import WireError

_EXIT_USAGE = 2
WAIT_SECONDS = 300.0
"""How long a worker of somebody else tries to reach the trainer first, if nothing else is said."""

# After SIGTERM, an agent of `serve_one` has so long: some seconds less than what most systems grant.
_GRACE_SECONDS = 20.0


def serve_one(addresses: Sequence[str], seat: int) -> None:
    """Be the agent of one worker, until its connection ends: what `LocalLauncher` starts."""
    notice = LeaveNotice(_GRACE_SECONDS)
    notice.listen()
    try:
        serve_seat(addresses, seat, take_secret(), take_tls(), notice)
    except HeadraceError as error:
        sys.stderr.write(f"headrace worker: {error}\n")
        raise SystemExit(_EXIT_USAGE) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def serve_seat(addresses: Sequence[str], seat: int, secret: bytes, tls: Tls | None, notice: LeaveNotice) -> None:
    """Be the agent of one worker, until its connection ends; for its arguments see `Invitation`.

    Raises:
        ConfigError: The trainer is not reached, or has no use for this worker.
        WireError: It does not know the secret, or its certificate is refused.
    """
    trainer = Trainer(addresses, secret, tls)
    be_agent(trainer, connect(trainer, time.monotonic()), seat, notice)


def serve(
    addresses: Sequence[str],
    secret: bytes,
    *,
    wait_seconds: float | None,
    return_seconds: float,
    grace_seconds: float = _GRACE_SECONDS,
    tls: Tls | None = None,
) -> int:
    """Be an agent for whichever worker the trainer needs, again and again, until it is not reached any more.

    Args:
        addresses: Addresses of the trainer, "host:port": tried in turn.
        secret: Secret of the run.
        wait_seconds: How long to try to reach the trainer first; and how long one that is reached may be busy then,
            but for some seconds in any case. `None`: `WAIT_SECONDS`, and an hour.
        return_seconds: The same after a connection has ended: the trainer may have begun anew.
        grace_seconds: How long to finish what was begun after SIGTERM, the notice to leave.
        tls: Certificates, if connections are to be encrypted.

    Returns:
        How many connections there were.

    Raises:
        ConfigError: An address or a certificate is wrong, the trainer was not reached at all, or it has no use for
            this worker.
        WireError: It does not know the secret, or its certificate is refused.
    """
    notice = LeaveNotice(grace_seconds)
    notice.listen()
    greeting_seconds = GREETING_SECONDS if wait_seconds is None else max(wait_seconds, MIN_GREETING_SECONDS)
    trainer = Trainer(addresses, secret, tls, greeting_seconds)
    num_sessions, deadline = 0, time.monotonic() + (WAIT_SECONDS if wait_seconds is None else wait_seconds)
    while True:
        try:
            sock = connect(trainer, deadline)
        except ConfigError:
            if num_sessions:
                return num_sessions
            raise
        is_known = be_agent(trainer, sock, ANY_SEAT, notice)
        num_sessions += is_known
        if notice.deadline is not None:
            return num_sessions
        if is_known:
            deadline = time.monotonic() + return_seconds
        elif time.monotonic() >= deadline:
            if num_sessions:
                return num_sessions
            raise ConfigError(
                "the connection is closed before anything was received, or nothing is received",
                where=", ".join(addresses),
                fix="give --tls-ca if the trainer has tls=...; if it has not, the port is somebody else's, or the "
                "trainer is busy for longer than --wait",
            )
        time.sleep(RETRY_SECONDS)


def be_agent(
    trainer: Trainer, sock: Socket, seat: int, notice: LeaveNotice, open_worker: OpenWorker = open_process
) -> bool:
    """Be the agent of a worker until the connection ends for good; return whether it was one to a trainer at all.

    Args:
        trainer: Whose worker.
        sock: A new connection to it, owned from now on.
        seat: See `Invitation`.
        notice: Whether to leave.
        open_worker: Makes the worker.

    Raises:
        ConfigError: The trainer has no use for this worker, or this machine has no such workers.
        WireError: It does not know the secret.
    """
    is_known = False
    with sock:
        try:
            connected = Connected(sock, *shake_hands(sock, trainer))
            is_known = True
            welcome, buffers = wait_for_job(connected, seat)
            notice.on_notice = _leave_soon
            session = Session(trainer, connected, welcome, buffers, notice, open_worker)
            del buffers
            try:
                notice.on_notice = session.note_begun
                session.run()
            finally:
                session.close()
        except TrainerSilent:
            seconds = trainer.greeting_seconds
            sys.stderr.write(f"headrace worker: what listens there has said nothing for {seconds:g} s\n")
        except TrainerGone:
            pass
        except WireError as error:
            if not is_known:
                raise
            sys.stderr.write(f"headrace worker: the connection was given up: {error}\n")
        finally:
            notice.on_notice = None
    return is_known


def _leave_soon() -> None:
    """Being told to leave while the worker is started is seen to as soon as it is: nothing has begun yet."""
