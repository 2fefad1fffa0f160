"""Starts agents somewhere, and tells of their ends: the contract, and two launchers.

A launcher knows how to get a process of ours to run on some machine (`agent.serve`). It never sees a ticket, and need
not be quick: an agent that has connected is heard through its connection.
"""

from __future__ import annotations

import socket
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from ..process.exit_cause import describe_exit
from ..process.proc_tree import kill_tree
from ..process.start import environment_of_warden, python_command
from ..process.worker_config import Shipment
from ..user.job import Job
from .handshake import SECRET_VARIABLE
from .tls import TLS_VARIABLE, Tls


@dataclass(frozen=True)
class Invitation:
    """What an agent needs to connect back.

    Attributes:
        worker_idx: For which worker it is started.
        seat: The number that it has to say; never the same for two.
        addresses: Addresses of the trainer, "host:port": to be tried in turn.
        secret: Secret of the run: to be passed on in a way that others cannot see, never in a command line.
        tls: Where its certificates are, if the connection is to be encrypted.

    Examples:
        >>> from headrace.engine.remote import Invitation
        >>> invitation = Invitation(worker_idx=0, seat=7, addresses=("node1:5000",), secret=b"...")
        >>> sorted(invitation.environment)
        ['HEADRACE_WORKER_SECRET']
    """

    worker_idx: int
    seat: int
    addresses: tuple[str, ...]
    secret: bytes = field(repr=False)
    tls: Tls | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables that an agent has to find in its environment: the secret among them."""
        tls = {} if self.tls is None else {TLS_VARIABLE: msgspec.json.encode(self.tls).decode()}
        return {SECRET_VARIABLE: self.secret.decode(), **tls}


class Launched(ABC):
    """One agent that was started, or is expected.

    Attributes:
        where: Where it is, as far as that is known before it connects, as words: "on this machine".
        waits_for_place: Whether it waits for room on some machine, which may take any time, and is no stall.

    Examples:
        >>> from headrace.engine.remote import Launched
        >>> class Started(Launched):
        ...     where = "on this machine"
        ...
        ...     def __init__(self, process):
        ...         self.process = process
        ...
        ...     def ending(self):
        ...         code = self.process.poll()
        ...         return None if code is None else f"ended with exit code {code}"
        ...
        ...     def end(self, seconds):
        ...         self.process.terminate()
    """

    where: str
    waits_for_place: bool = False

    @abstractmethod
    def ending(self) -> str | None:
        """Return how it ended, as words ("was killed by signal 9 (SIGKILL)"); `None` as long as it has not.

        Must not wait. What cannot tell returns "has ended" or the like: it is asked when the connection was lost, too.
        """

    @abstractmethod
    def end(self, seconds: float) -> None:
        """End it, with all that it has started, if it does not end by itself within `seconds`.

        Its connection was closed before, of which it should end. May be called again.
        """

    def disown(self) -> None:  # noqa: B027 - most hold nothing that a fork would share
        """In a process that was forked off the trainer: let go of it, and leave it alone."""


class Launcher(ABC):
    """Starts agents; the calls come from one thread.

    Attributes:
        host: Where the trainer listens for what it starts, unless something else is said; `""`: on all addresses.
        starts: Whether it starts agents. Else somebody else does, and any that knows the secret will do.

    Examples:
        >>> import os
        >>> import subprocess
        >>> import sys
        >>> from headrace.engine.remote import Launcher
        >>> class Subprocesses(Launcher):  # see `Launched` for what it returns
        ...     def launch(self, invitation):
        ...         what = f"serve_one({list(invitation.addresses)}, {invitation.seat})"
        ...         code = f"from headrace.engine.remote.agent import serve_one; {what}"
        ...         environment = {**os.environ, **invitation.environment}
        ...         return Started(subprocess.Popen([sys.executable, "-c", code], env=environment))
    """

    host: ClassVar[str] = ""
    starts: ClassVar[bool] = True

    def public_host(self) -> str:
        """Return the name or address of this machine for what it starts, where the trainer listens on all of them."""
        return socket.gethostname()

    def carry(self, job: Job, shipment: Shipment) -> Shipment:
        """Take note of what its workers are to do, before the first is launched, and return what they are given.

        Raises:
            ConfigError: There cannot be such workers.
        """
        del job
        return shipment

    @abstractmethod
    def launch(self, invitation: Invitation) -> Launched:
        """Start an agent for one worker. Must not wait until it runs.

        Raises:
            ConfigError: That is not possible.
        """


class ConnectedWorkers(Launcher):
    """Waits for workers that somebody else starts, by `headrace worker --connect HOST:PORT`: with srun, or ssh.

    More of them than are needed wait until one is missing.

    Examples:
        >>> import headrace as hr
        >>> from headrace.engine.remote import ConnectedWorkers
        >>> executor = hr.RemoteExecutor(ConnectedWorkers(), port=7070, secret=b"16 bytes or more")
        >>> # then, on other machines: headrace worker --connect HOST:7070
    """

    starts = False

    def launch(self, invitation: Invitation) -> Launched:
        """Expect one more."""
        return _Expected(invitation)


class _Expected(Launched):
    def __init__(self, invitation: Invitation) -> None:
        addresses = " or ".join(invitation.addresses)
        self.where = f"one that is to be started by: headrace worker --connect {addresses}"

    def ending(self) -> str | None:
        return None

    def end(self, seconds: float) -> None:
        del seconds  # what started it sees to it


class LocalLauncher(Launcher):
    """Starts agents as processes of this machine: for tests, and to compare with worker processes.

    Args:
        environment: Variables to set for them, besides those of this process.
    """

    host = "localhost"

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self._environment = dict(environment or {})

    def launch(self, invitation: Invitation) -> Launched:
        """Start a process."""
        arguments = f"{list(invitation.addresses)!r}, {invitation.seat}"
        return _LocalProcess(
            python_command("headrace.engine.remote.agent", "serve_one", arguments),
            {**environment_of_warden(), **self._environment, **invitation.environment},
        )


class _LocalProcess(Launched):
    """A child of this process, in a session of its own."""

    where = "on this machine"

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
            command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def ending(self) -> str | None:
        exit_code = self._process.poll()
        return None if exit_code is None else describe_exit(exit_code)

    def end(self, seconds: float) -> None:
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            kill_tree(self._process.pid)
            self._process.wait()

    def disown(self) -> None:
        self._process.returncode = 0
