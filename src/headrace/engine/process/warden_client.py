"""The trainer's side of a warden: has workers started and ended, and hears of their ends.

A warden is one process (see `warden_server.py`), which all executors of this process whose workers start alike share,
each by a channel of its own. Invariants: a warden is a child of the trainer, executed anew, that only this module
waits for; it ends when its last user leaves. Executors of several threads may share one. A process that was forked off
the trainer has no wardens. A `WardenClient` blocks for no longer than the times named below, even if the warden hangs.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from headrace.errors import ConfigError

from .channel import Channel
from .exit_cause import describe_exit
from .messages import (
    Connect,
    Finish,
    FromWarden,
    Kill,
    Prepare,
    Spawn,
    Spawned,
    ToWarden,
    decode_from_warden,
    encode_packet,
)
from .proc_tree import ProcessHandle, wait_for, wait_readable
from .start import StartMethod, command_of_warden, command_of_worker, environment_of_threads, environment_of_warden
from .worker_main import WorkerFds

# After the grace of its workers the warden only has to kill and collect.
MAX_END_SECONDS = 0.7
# How long a full socket to the warden is waited for; it holds hundreds of requests.
_MAX_SEND_SECONDS = 2.0


class WardenProcess:
    """A running warden.

    Raises:
        ConfigError: This system cannot do it.
    """

    def __init__(self) -> None:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:  # what is closed: if it fails; always
            self._root, root_of_warden = Channel.pair()
            ours.callback(self._root.close)
            theirs.callback(root_of_warden.close)
            own_end = os.pidfd_open(os.getpid())
            theirs.callback(os.close, own_end)
            self.pid = _exec_warden([root_of_warden.fileno(), own_end])
            self._process = ProcessHandle(self.pid, self._open_pidfd())
            ours.pop_all()
        self._num_users = 0
        self._ending: str | None = None

    def _open_pidfd(self) -> int:
        try:
            return os.pidfd_open(self.pid)
        except OSError as error:
            self._root.close()  # ends it
            _collect(self.pid)
            if isinstance(error, ProcessLookupError):  # it was collected by the system: SIGCHLD is ignored
                raise _not_begun("ended") from error
            raise

    def join(self) -> Channel | None:
        """Return one more channel to it; None if it is gone. For each call there has to be one `leave`."""
        ours, theirs = Channel.pair()
        try:
            if self._process.wait_for_end(0) or not send_to_warden(self._root, self, Connect(), [theirs.fileno()]):
                ours.close()
                return None
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._num_users += 1
        return ours

    def leave(self) -> str:
        """Let it end, if nothing else needs it; return how it ended."""
        with _lock:
            self._num_users -= 1
            is_gone = self._ending is None and self._process.wait_for_end(0)
            if self._num_users == 0 or is_gone:
                _forget(self)
                self._end()
            return self._ending or "goes on"

    def abandon(self) -> None:
        """Leave; if nothing else needs it, end it in the middle of what it does."""
        with _lock:
            self._num_users -= 1
            if self._num_users == 0:
                _forget(self)
                self.kill()
                self._end()

    def kill(self) -> None:
        """End a warden that hangs, and before it all that it would have ended: nothing would end them later."""
        if self._ending is None:
            self._process.kill_tree()

    def disown(self) -> None:
        """In a process that was forked off the trainer: close our copies, and nothing else."""
        if self._ending is None:
            self._ending = "belongs to another process"
            self._close()

    def _end(self) -> None:
        if self._ending is None:
            self._root.close()  # ends it
            if not self._process.wait_for_end(MAX_END_SECONDS / 2):
                self.kill()
            self._close()
            status = _collect(self.pid)
            self._ending = "ended" if status is None else describe_exit(os.waitstatus_to_exitcode(status))

    def _close(self) -> None:
        self._root.close()
        self._process.close()


_lock = threading.RLock()  # an executor may be collected, and so leave, in the middle of whatever its thread does
_shared: dict[Any, WardenProcess] = {}


def join_warden(preload: Sequence[str] = ()) -> tuple[WardenProcess, Channel]:
    """Return a warden and a channel to it: one that runs already, if its workers would start in the same way.

    Args:
        preload: Modules of others that it imports: workers that do not want them come from another one.

    Raises:
        ConfigError: This system cannot do it.
    """
    with _lock:
        key = (_key_of_start(), tuple(preload))
        warden = _shared.get(key)
        channel = None if warden is None else warden.join()
        if warden is None or channel is None:
            warden, channel = _start()
            _shared[key] = warden
        return warden, channel


def _start() -> tuple[WardenProcess, Channel]:
    warden = WardenProcess()
    channel = warden.join()
    if channel is None:
        warden._num_users = 0
        warden._end()
        raise _not_begun(warden._ending)
    return warden, channel


def _not_begun(ending: str | None) -> ConfigError:
    return ConfigError(
        f"the process that starts workers {ending} before it began",
        fix=f"look above for what it printed; {sys.executable} must be able to import headrace",
    )


def _key_of_start() -> Any:
    """Return what a process inherits from the one that executes it, as far as workers can see it."""
    environment = frozenset(environment_of_warden().items())
    return tuple(command_of_warden()), environment, frozenset(os.sched_getaffinity(0))


def _forget(warden: WardenProcess) -> None:
    for key in [key for key, one in _shared.items() if one is warden]:
        del _shared[key]


def _disown_all() -> None:
    global _lock
    _lock = threading.RLock()
    for warden in _shared.values():
        warden.disown()
    _shared.clear()


os.register_at_fork(after_in_child=_disown_all)


def send_to_warden(channel: Channel, warden: WardenProcess, message: ToWarden, fds: Sequence[int] = ()) -> bool:
    """Send a request; False if the warden is gone. One that does not read is ended: its workers end with it."""
    packet = encode_packet([message])
    deadline = time.monotonic() + _MAX_SEND_SECONDS
    try:
        while not channel.send(packet, fds):
            if not wait_for(channel.fileno(), select.POLLOUT, deadline - time.monotonic()):
                warden.kill()
                return False
    except OSError:
        return False
    return True


def _exec_warden(fds: Sequence[int]) -> int:
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
        command_of_warden(*fds),
        pass_fds=fds,
        env=environment_of_warden(),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.returncode = 0  # so that Popen leaves it alone: it is collected by `WardenProcess`
    return process.pid


def _collect(pid: int) -> int | None:
    """Wait for a child that is about to end; None if somebody else has done so."""
    deadline = time.monotonic() + MAX_END_SECONDS
    while time.monotonic() < deadline:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return status
        time.sleep(0.001)
    return None


# Idle workers end in some 20 ms. One that is busy, or whose exit handlers take longer, is killed after this.
_GRACE_SECONDS = 1.0


class WardenClient:
    """One executor's channel to a warden. Not thread-safe.

    Args:
        method: Where workers come from.
        num_threads: How many threads numerical libraries may use in a worker.
        modules: Modules of Headrace that workers will import.
        preload: Modules of others that are imported once for all workers, where these are forked off a clean start.

    Raises:
        ConfigError: This system cannot do it.
    """

    def __init__(
        self,
        method: StartMethod,
        num_threads: int,
        modules: Collection[str] = (),
        preload: tuple[str, ...] = (),
    ) -> None:
        self._is_fresh = method.is_fresh(num_threads)
        self._executable = command_of_worker() if self._is_fresh else []
        self._environment = dict(environment_of_threads(num_threads)) if self._is_fresh else {}
        preload = () if self._is_fresh else preload
        self._modules = [] if self._is_fresh else [*sorted(modules), *preload]
        self._warden, self._channel = join_warden(preload)

    @property
    def pid(self) -> int:
        """The warden's."""
        return self._warden.pid

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to `receive`."""
        return self._channel.fileno()

    def prepare(self) -> None:
        """Have the modules imported now that are imported before the first worker is forked otherwise."""
        self._send(Prepare(self._modules))

    def spawn(self, life: int, worker_idx: int, fds: WorkerFds, handed: Sequence[int] = ()) -> None:
        """Have a worker started, with more descriptors if wanted. The caller closes its descriptors."""
        self._send(Spawn(life, worker_idx, self._executable, self._environment, self._modules), (*fds, *handed))

    def kill(self, life: int, grace_seconds: float = 0.0) -> None:
        """Have a worker and all of its descendants ended, after a grace."""
        self._send(Kill(life, grace_seconds))

    def receive(self) -> tuple[Sequence[FromWarden], int | None] | None:
        """Return what the warden has told, and the descriptor that came with a `Spawned`, which the caller owns.

        Never blocks. No messages at all means that the warden is gone.

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
        """End all of its workers, and a warden that has no other executor, within 2 s; return how the warden ended.

        To be called once.
        """
        try:
            if self._send(Finish(_GRACE_SECONDS)):
                self._wait_for_end(_GRACE_SECONDS + MAX_END_SECONDS / 2)
        finally:
            self._channel.close()  # ends its workers at once, if they still live
            ending = self._warden.leave()
        return ending

    def abandon(self) -> None:
        """As `close`, for one that was asked for no worker: whatever the warden imports is not waited for."""
        self._channel.close()
        self._warden.abandon()

    def disown(self) -> None:
        """In a process that was forked off the trainer: close our copies, and nothing else."""
        self._channel.close()
        self._warden.disown()

    def _wait_for_end(self, seconds: float) -> None:
        """Wait until the warden has ended our workers and closes the channel."""
        deadline = time.monotonic() + seconds
        while wait_readable(self._channel.fileno(), deadline - time.monotonic()):
            try:
                heard = self.receive()
            except ConfigError:  # a descriptor was lost, of a worker that ends
                continue
            if heard is not None:
                messages, end = heard
                if end is not None:
                    os.close(end)
                if not messages:
                    return

    def _send(self, message: ToWarden, fds: Sequence[int] = ()) -> bool:
        """Send a request; False if the warden is gone. One that does not read is ended: its workers end with it."""
        return send_to_warden(self._channel, self._warden, message, fds)
