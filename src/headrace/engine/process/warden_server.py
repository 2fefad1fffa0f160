"""The warden: starts workers quickly, and sees to it that none is left when the trainer is gone.

It is executed anew (never forked off the trainer), imports what every worker needs, and forks. What is imported here is
imported once, and its memory is shared by all workers: so Headrace's modules that a job refers to are imported, too,
and of others those alone that the job names (`Job.preload`), or a few that are known to start no thread and to take
long (see `../user/ship.py`), in another warden. It has one thread when it forks, so that is safe; it needs
`OMP_NUM_THREADS=1` and its like in its environment: `import numpy` would start threads.

Invariants:

* it has a session of its own, so no signal of a terminal reaches it, and it inherits all orphans below it;
* it ends when the trainer's pidfd or the end of its root socket says so, and not before its last descendant has ended:
  a pidfd alone misses a trainer that executes another program, an end of file alone one whose forked child keeps the
  descriptor;
* it serves several executors of one trainer, each by a channel of its own: what one of them asks for, or its end,
  touches the workers of no other;
* a dead worker's process group, and those of its descendants that moved to another session, end with it.

`PR_SET_PDEATHSIG` is not used: it fires when the *thread* that started a process ends, and it would end a worker before
its guard could end the worker's children.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence

from headrace.errors import ConfigError

from .channel import Channel, close_all
from .messages import (
    Connect,
    Finish,
    HasExited,
    Kill,
    Message,
    NotSpawned,
    Prepare,
    Spawn,
    Spawned,
    decode_for_warden,
    encode_packet,
)
from .proc_tree import become_subreaper, children_of, descendants_of, kill_group, kill_quietly, kill_tree, name_process
from .worker_main import WorkerFds, end_after_hangup, guarded, run_worker, start_guard

# In the environment of a worker and of all it starts: how its orphans are told from those of others.
LIFE_VARIABLE = "HEADRACE_WORKER_LIFE"
# How long to wait for processes that do not end on SIGKILL (in a system call that cannot be interrupted).
_MAX_KILL_SECONDS = 5.0
# What a new worker has to be: the request, its descriptors, and the pidfds of the trainer and of the warden.
_Start = tuple[Spawn, list[int], Sequence[int]]


def be_warden(control: int, trainer_end: int) -> None:
    """Serve until the trainer is gone or wants no more. Returns in the workers too, at the end of each.

    Args:
        control: Descriptor of our end of the root socket.
        trainer_end: The pidfd of the trainer, opened by itself.
    """
    # Of the trainer's signal mask nothing is wanted: a SIGCHLD that is blocked would never wake the poll.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # SIGUSR1 asks a worker for its stack: one that does not listen yet must not die of it.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    name_process("hr-warden")
    gc.freeze()  # what is here now is never collected, so workers do not copy its pages
    warden = _Warden(Channel.of_fd(control), trainer_end)
    start = warden.serve()
    if start is None:
        warden.close()
    else:
        _be_worker(*start)


def _be_worker(spawn: Spawn, fds: Sequence[int], ends: Sequence[int]) -> None:
    """Be the worker that was asked for, in this process or in a fresh interpreter."""
    os.environ[LIFE_VARIABLE] = life_of(os.getppid(), spawn.life)
    if not spawn.executable:
        be_worker(spawn.worker_idx, fds, ends)
        return
    os.environ.update(spawn.environment)
    for fd in (*ends, *fds):
        os.set_inheritable(fd, True)
    numbers = ",".join(map(str, (spawn.worker_idx, *ends, *fds)))
    os.execv(spawn.executable[0], [*spawn.executable, numbers])  # noqa: S606 - no shell is wanted


def main_of_worker(numbers: str) -> None:
    """Be a worker in a fresh interpreter, which was executed by a fork of the warden."""
    worker_idx, *fds = map(int, numbers.split(","))
    for fd in fds:
        os.set_inheritable(fd, False)
    be_worker(worker_idx, fds[2:], fds[:2])


def be_worker(worker_idx: int, fds: Sequence[int], ends: Sequence[int]) -> None:
    """Be a worker, under guard. `fds` are those of `WorkerFds`, and then those that were handed over."""
    name_process(f"hr-worker-{worker_idx}")
    start_guard(ends)
    num_own = len(WorkerFds._fields)
    own, handed = WorkerFds(*fds[:num_own]), tuple(fds[num_own:])
    end_after_hangup(own.lifeline)
    run_worker(worker_idx, own, handed=handed)


def life_of(warden_pid: int, life: int) -> str:
    """Return the value of `LIFE_VARIABLE` in one worker: no other process on this machine has it."""
    return f"{warden_pid}.{life}"


class _Warden:
    """The state of the warden: its workers, and when the ones that must end are ended."""

    def __init__(self, root: Channel, trainer_end: int) -> None:
        self._root = root
        self._channels: dict[int, Channel] = {}  # by descriptor
        self._trainer_end, self._own_end = trainer_end, os.pidfd_open(os.getpid())
        self._life_of_pid: dict[int, int] = {}
        self._channel_of_pid: dict[int, Channel] = {}
        self._deadlines: dict[int, float] = {}  # by pid
        self._finishing: list[Channel] = []
        # A signal of an ended child wakes the poll: the handler does nothing, the byte in the socket does.
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._poll = select.poll()
        for fd in (root.fileno(), trainer_end, self._wake.fileno()):
            self._poll.register(fd, select.POLLIN)

    def serve(self) -> _Start | None:
        """Do what the trainer asks; return in a new worker with what it has to be, and in the warden at the end."""
        while True:
            ready = {fd for fd, _ in self._poll.poll(self._milliseconds_left())}
            if self._trainer_end in ready:
                break
            self._reap()
            for channel in [self._channels[fd] for fd in ready if fd in self._channels]:
                received = self._receive(channel)
                if received is None:
                    self._give_up(channel)
                elif (start := self._obey(channel, *received)) is not None:
                    return start
            if self._root.fileno() in ready:
                received = self._receive(self._root)
                if received is None:
                    break
                self._connect(*received)
            self._kill_overdue()
            self._end_finished()
        self._kill_all()
        return None

    def _receive(self, channel: Channel) -> tuple[Sequence[Message], list[int]] | None:
        """Return what the trainer sent; None at the end of the socket."""
        try:
            received = channel.receive(block=False)
        except ConfigError as error:  # descriptors were lost, with the one packet that carried any
            self._reply(channel, NotSpawned(-1, error.what))
            return (), []
        if received is None:
            return (), []
        packet, fds = received
        return (decode_for_warden(packet), fds) if packet else None

    def _connect(self, messages: Sequence[Message], fds: list[int]) -> None:
        """Serve more channels. One whose descriptor was lost has ended, as its other end sees."""
        for fd, message in zip(fds, messages, strict=False):
            assert isinstance(message, Connect)
            self._channels[fd] = Channel.of_fd(fd)
            self._poll.register(fd, select.POLLIN)

    def _give_up(self, channel: Channel) -> None:
        """End what a channel that has ended has left, at once."""
        for pid in self._pids_of(channel):
            kill_tree(pid)
        self._end(channel)

    def _end(self, channel: Channel) -> None:
        self._poll.unregister(channel.fileno())
        del self._channels[channel.fileno()]
        channel.close()

    def _end_finished(self) -> None:
        """End the channels that wait for the ends of their workers, and whose workers have ended."""
        for channel in self._finishing:
            if channel.fileno() >= 0 and not self._pids_of(channel):
                self._end(channel)
        self._finishing = [channel for channel in self._finishing if channel.fileno() >= 0]

    def _pids_of(self, channel: Channel) -> list[int]:
        return [pid for pid, owner in self._channel_of_pid.items() if owner is channel]

    def _obey(self, channel: Channel, messages: Sequence[Message], fds: list[int]) -> _Start | None:
        for message in messages:
            if isinstance(message, Spawn):  # alone in its packet, because of the descriptors
                return self._spawn(channel, message, fds)
            if isinstance(message, Kill):
                for pid in self._pids_of(channel):
                    if self._life_of_pid[pid] == message.life:
                        self._set_deadline(pid, message.grace_seconds)
            elif isinstance(message, Finish):
                self._finishing.append(channel)
                for pid in self._pids_of(channel):
                    self._set_deadline(pid, message.grace_seconds)
            elif isinstance(message, Prepare):
                self._import(message.modules)
        return None

    def _spawn(self, channel: Channel, spawn: Spawn, fds: list[int]) -> _Start | None:
        self._import(spawn.modules)
        end = pid = -1
        try:
            pid = os.fork()
            if pid == 0:
                self._become_child()
                return spawn, fds, (self._trainer_end, self._own_end)
            end = os.pidfd_open(pid)
        except OSError as error:
            if pid > 0:  # the limit on open files: the worker is of no use without a pidfd, so it ends
                kill_quietly(pid)
            else:
                self._reply(channel, NotSpawned(spawn.life, f"fork failed: {error.strerror}"))
        else:
            self._reply(channel, Spawned(spawn.life, pid), [end])
        if pid > 0:
            self._life_of_pid[pid], self._channel_of_pid[pid] = spawn.life, channel
        close_all(fds if end < 0 else [*fds, end])
        return None

    def _import(self, modules: Sequence[str]) -> None:
        """Import what the workers will need. One that cannot be imported is theirs to complain about.

        The collector looks at all modules again and again while they are imported, for a few kilobytes of garbage: a
        tenth of the time that torch takes.
        """
        wanted = [name for name in modules if name not in sys.modules]
        if not wanted:
            return
        is_collecting = gc.isenabled()
        gc.disable()
        with guarded(self._trainer_end):  # an import may take long, or for ever
            for name in wanted:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        if is_collecting:
            gc.enable()
        gc.freeze()

    def _become_child(self) -> None:
        """Leave behind what is the warden's."""
        os.setsid()
        self.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def close(self) -> None:
        """Close the sockets of this process; others that have them keep theirs."""
        signal.set_wakeup_fd(-1)
        self._wake.close()
        self._waker.close()
        for channel in (self._root, *self._channels.values()):
            channel.close()

    def _reap(self) -> None:
        """Collect all that have ended, and tell of the workers among them."""
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)
        while (ended := _wait_any(os.WNOHANG)) is not None:
            pid, status = ended
            life = self._life_of_pid.pop(pid, None)
            self._deadlines.pop(pid, None)
            if life is not None:
                kill_group(pid)
                self._kill_orphans_of(pid, life)
                self._reply(self._channel_of_pid.pop(pid), HasExited(life, os.waitstatus_to_exitcode(status)))

    def _kill_orphans_of(self, pid: int, life: int) -> None:
        """End what a dead worker has left to us, in whatever session. Orphans of living workers stay."""
        mark = f"{LIFE_VARIABLE}={life_of(os.getpid(), life)}".encode()
        for orphan in children_of(os.getpid()):
            if orphan not in self._life_of_pid and _belongs(orphan, pid, mark):
                kill_tree(orphan)

    def _set_deadline(self, pid: int, grace_seconds: float) -> None:
        deadline = time.monotonic() + grace_seconds
        self._deadlines[pid] = min(deadline, self._deadlines.get(pid, deadline))

    def _milliseconds_left(self) -> float | None:
        if not self._deadlines:
            return None
        return 1000 * max(0.0, min(self._deadlines.values()) - time.monotonic())

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for pid in [pid for pid, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[pid]
            kill_tree(pid)

    def _kill_all(self) -> None:
        """End every process below this one, and wait until they are gone."""
        deadline = time.monotonic() + _MAX_KILL_SECONDS
        own_pid = os.getpid()
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)
            while _wait_any(os.WNOHANG) is not None:
                pass
            below = descendants_of(own_pid)
            if not below:
                return
            for pid in below:
                kill_quietly(pid)
            poll.poll(20)

    def _reply(self, channel: Channel, message: Message, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # an executor that is gone, closed or not, is noticed by the poll
            channel.send(encode_packet([message]), fds)


def _wait_any(options: int) -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, options)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _belongs(orphan: int, worker_pid: int, mark: bytes) -> bool:
    """Return whether a process was started below a worker: by its session, or by the mark in its environment."""
    try:
        if os.getsid(orphan) == worker_pid:
            return True
        with open(f"/proc/{orphan}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False
