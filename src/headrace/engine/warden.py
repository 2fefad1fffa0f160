"""The trainer's side of the zygote: start it, have workers started and ended, hear of their ends, let it go.

Invariants: the zygote is not forked off the trainer unless that was asked for; it is a child of the trainer that only
this class waits for; nothing here blocks for longer than the times named below, even if the zygote hangs.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence

from headrace.errors import ConfigError

from .channel import Channel
from .exit_cause import describe_exit
from .job import Job
from .messages import Finish, FromWarden, Kill, Spawn, Spawned, ToWarden, decode_from_warden, encode_packet
from .proc_tree import kill_tree
from .start_method import (
    StartMethod,
    command_of_worker,
    command_of_zygote,
    environment_of_threads,
    environment_of_zygote,
)
from .worker_main import Links
from .zygote import be_zygote

# Idle workers end in some 20 ms. One that is busy, or whose exit handlers take longer, is killed after this.
_GRACE_SECONDS = 1.0
# After that the zygote only has to kill and collect.
_MAX_END_SECONDS = 0.7
# How long a full socket to the zygote is waited for; it holds hundreds of requests.
_MAX_SEND_SECONDS = 2.0


class Warden:
    """A running zygote. Not thread-safe.

    Args:
        method: Where workers come from.
        job: Given to a zygote that is forked off the trainer.
        num_threads: How many threads numerical libraries may use in a worker.
        modules: Modules of ours that workers will import.

    Raises:
        ConfigError: This system cannot do it.
    """

    def __init__(self, method: StartMethod, job: Job, num_threads: int, modules: Sequence[str] = ()) -> None:
        self._is_fresh = method is StartMethod.SPAWN or (num_threads != 1 and method is not StartMethod.FORK)
        self._executable = command_of_worker() if self._is_fresh else []
        self._environment = dict(environment_of_threads(num_threads)) if self._is_fresh else {}
        self._modules = [] if self._is_fresh else sorted(modules)
        trainer_pidfd = _open_own_pidfd()
        self._channel, theirs = Channel.pair()
        try:
            if method is StartMethod.FORK:
                self.pid = _fork_zygote(theirs.fileno(), trainer_pidfd, job, [self._channel.fileno()])
            else:
                self.pid = _exec_zygote(theirs.fileno(), trainer_pidfd)
            self._pidfd = os.pidfd_open(self.pid)
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
            os.close(trainer_pidfd)

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to `receive`."""
        return self._channel.fileno()

    def spawn(self, life: int, worker_idx: int, links: Links) -> None:
        """Have a worker started. The caller closes its descriptors."""
        self._send(Spawn(life, worker_idx, self._executable, self._environment, self._modules), links)

    def kill(self, life: int, grace_seconds: float = 0.0) -> None:
        """Have a worker and all of its descendants ended, after a grace."""
        self._send(Kill(life, grace_seconds))

    def receive(self) -> tuple[Sequence[FromWarden], int | None] | None:
        """Return what the zygote has told, and the pidfd that came with a `Spawned`, which the caller owns.

        Never blocks. No messages at all means that the zygote is gone.

        Returns:
            None if there is nothing.

        Raises:
            ConfigError: The trainer may not open any more files.
        """
        received = self._channel.receive(block=False)
        if received is None:
            return None
        packet, fds = received
        messages = decode_from_warden(packet) if packet else ()
        assert len(fds) == sum(isinstance(message, Spawned) for message in messages)
        return messages, fds[0] if fds else None

    def close(self) -> str:
        """End all workers and the zygote, within 2 s; return how the zygote ended. To be called once."""
        try:
            if self._send(Finish(_GRACE_SECONDS)):
                _wait_readable(self._pidfd, _GRACE_SECONDS + _MAX_END_SECONDS / 2)
        finally:
            self._channel.close()  # ends it at once, if it still lives
            if not _wait_readable(self._pidfd, _MAX_END_SECONDS / 2):
                self._kill_zygote()
            os.close(self._pidfd)
            status = _collect(self.pid)
        return "ended" if status is None else describe_exit(os.waitstatus_to_exitcode(status))

    def disown(self) -> None:
        """In a process that was forked off the trainer: close our copies, and nothing else."""
        self._channel.close()
        os.close(self._pidfd)

    def _kill_zygote(self) -> None:
        """End a zygote that hangs, and before it all that it would have ended: nobody inherits its orphans."""
        kill_tree(self.pid)  # not collected yet, so the pid is still its own

    def _send(self, message: ToWarden, fds: Sequence[int] = ()) -> bool:
        """Send a request; False if the zygote is gone. One that does not read is ended: its workers end with it."""
        packet = encode_packet([message])
        deadline = time.monotonic() + _MAX_SEND_SECONDS
        try:
            while not self._channel.send(packet, fds):
                if not _wait_writable(self._channel.fileno(), deadline - time.monotonic()):
                    self._kill_zygote()
                    return False
        except OSError:
            return False
        return True


def _open_own_pidfd() -> int:
    try:
        return os.pidfd_open(os.getpid())
    except (AttributeError, OSError) as error:
        raise ConfigError(
            f"worker processes need pidfds of Linux 5.3 or later, and this system has none ({error})",
            where=f"platform {sys.platform!r}",
            fix="use executor='thread' or executor='inline'",
        ) from error


def _exec_zygote(control: int, trainer_pidfd: int) -> int:
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
        command_of_zygote(control, trainer_pidfd),
        pass_fds=(control, trainer_pidfd),
        env=environment_of_zygote(),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.returncode = 0  # so that Popen leaves it alone: it is collected by `Warden.close`
    return process.pid


def _fork_zygote(control: int, trainer_pidfd: int, job: Job, fds_of_trainer: Sequence[int]) -> int:
    if threading.active_count() > 1:
        names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
        warnings.warn(
            f"start_method='fork' forks a process in which {len(names)} more threads run ({', '.join(names[:5])}): a "
            "lock that one of them holds now stays locked in the workers for ever. start_method=None has no such risk.",
            RuntimeWarning,
            stacklevel=2,
        )
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    exit_code = 1
    try:
        os.setsid()
        for fd in fds_of_trainer:
            os.close(fd)
        be_zygote(os.dup(control), trainer_pidfd, job)
        exit_code = 0
    except SystemExit as error:
        exit_code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - nothing of the trainer's stack may run in this process
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(exit_code)


def _collect(pid: int) -> int | None:
    """Wait for a child that is about to end; None if somebody else has done so."""
    deadline = time.monotonic() + _MAX_END_SECONDS
    while time.monotonic() < deadline:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return status
        time.sleep(0.001)
    return None


def _wait_readable(fd: int, seconds: float) -> bool:
    return _wait(fd, select.POLLIN, seconds)


def _wait_writable(fd: int, seconds: float) -> bool:
    return _wait(fd, select.POLLOUT, seconds)


def _wait(fd: int, events: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, events)
    return bool(poll.poll(1000 * max(0.0, seconds)))
