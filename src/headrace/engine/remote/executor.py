"""Workers on other machines: tickets and results go over TCP, and everything else is as with worker processes.

The trainer listens, a launcher has agents started, which connect back, show that they know the secret of the run, and
are given the job. Results come straight into memory that is reused, with the leases of local ones. Invariants: no
method waits for a worker, but `stack_of` for up to a second, and `close`; an agent that is gone, or says nothing for
`dead_seconds`, is the death of its worker, which the supervisor decides about, and one whose connection breaks has
`return_seconds` to come back; what is said of silence is said only
after all that had come was read, because the consumer may have been away for hours; what a ticket costs does not depend
on how many workers there are.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from headrace.errors import ConfigError, check_count

from ..codec.codec import NO_CODE
from ..events import Event, Offered, Vacant, events_of_others
from ..executor import Executor
from ..interrupts import interrupts_wait
from ..memory.lease import MemoryWatcher
from ..process.channel import needs_descriptors
from ..process.exits import end_with_process
from ..process.messages import Begin, Cancel, Submit
from ..process.worker_config import Shipment
from ..user.job import Job, Mode
from ..user.ship import ship_payload
from .handshake import choose_secret
from .launcher import Launcher
from .link import AgentLink
from .memory import ReceiveMemory
from .port.listener import Listener, SharedPort
from .seal import Digests, Value
from .seat import LossesByHost, Seat
from .tls import Tls
from .wire import Welcome

# While a worker waits for memory: how often to look whether the consumer's other threads have dropped a view.
_STARVED_SECONDS = 0.005
# How often launchers are asked, and agents that say nothing are looked after. These are looks at all of them, so where
# there are many, they take so large a part of the time at most.
_LOOK_SECONDS = 0.05
_LOOK_PART = 0.05
# Agents say something this often in the time after which silence is taken for death.
_SIGNS = 4
_STACK_SECONDS = 1.0
# Agents end their workers within this time after their connection was closed; those that do not are ended.
_END_SECONDS = 1.7
# Where workers come and go by themselves: how long one that has left may be replaced, before others do its work.
_VACANT_SECONDS = 3.0


class RemoteExecutor(Executor):
    """Carries tickets to workers on other machines.

    Args:
        launcher: Starts them, or waits for those that somebody else starts.
        host: Name or address of this machine, as workers reach it; it is listened on there. `None`: what the launcher
            says, usually all addresses.
        port: On which to listen; 0: any that is free.
        secret: Secret of the run, at least 16 characters. `None`: a new one; if workers are started elsewhere,
            that of the environment variable HEADRACE_WORKER_SECRET.
        max_bytes: Limit on the memory that results of each worker take, here and there, in bytes.
        threads_per_worker: How many threads numerical libraries use in a worker.
        dead_seconds: After how long a machine that says nothing is taken for dead.
        return_seconds: When a connection breaks, the worker lives on and connects again, and nothing is lost: for so
            long. After that it is taken for dead, too. 0: at once.
        max_workers: If workers are started elsewhere, those that connect while an epoch runs join it, up to this many
            in all, until the consumer asks for fewer. `None`: they wait until one is missing.
        checks_values: Whether the bytes of large values have checksums of their own, as all else has. `None`: where a
            network is between.
        tls: Certificates, with which connections are encrypted; `None`: they are not.

    Raises:
        ConfigError: A wrong option.
    """

    name = "remote"
    runs_in = "process"
    may_be_elsewhere = True
    is_resizable = True

    def __init__(
        self,
        launcher: Launcher,
        *,
        host: str | None = None,
        port: int = 0,
        secret: str | bytes | None = None,
        max_bytes: int = 2 << 30,
        threads_per_worker: int = 1,
        dead_seconds: float = 2.0,
        return_seconds: float = 2.0,
        max_workers: int | None = None,
        checks_values: bool | None = None,
        tls: Tls | None = None,
    ) -> None:
        if not dead_seconds > 0:
            raise ConfigError(f"dead_seconds is {dead_seconds}", fix="give seconds, more than 0")
        if not return_seconds >= 0:
            raise ConfigError(f"return_seconds is {return_seconds}", fix="give seconds, 0 or more")
        self._launcher = launcher
        self._host = launcher.host if host is None else host
        self._secret = choose_secret(secret, is_shared=not launcher.starts)
        if tls is not None:
            tls.context_of_trainer()  # what is wrong is said now
        self._tls = tls
        self._port = SharedPort(self._host, check_count("port", port, maximum=(1 << 16) - 1), self._secret, tls)
        self._max_bytes = check_count("max_bytes", max_bytes, minimum=1, maximum=1 << 48)
        self._num_threads = check_count("threads_per_worker", threads_per_worker, minimum=1)
        self._dead_seconds, self._return_seconds = dead_seconds, return_seconds
        if max_workers is not None and launcher.starts:
            raise ConfigError(
                f"max_workers={max_workers}: {type(launcher).__name__} starts workers itself, and none join",
                fix="call resize(n) of the loader for more of them, or use ConnectedWorkers()",
            )
        self._is_elastic = max_workers is not None
        self._max_workers = 0 if max_workers is None else check_count("max_workers", max_workers)
        self._checks_values = checks_values
        self._listener: Listener | None = None
        self._epoll: select.epoll | None = None
        self._watcher: MemoryWatcher | None = None
        self._losses = LossesByHost()
        self._shipment: Shipment | None = None
        self._digests = Digests()  # of its arrays
        self._begin: Begin | None = None
        self._seats: dict[int, Seat] = {}  # by number of the worker
        self._ending: list[tuple[float, Seat]] = []  # of workers that were removed, and when they have to have ended
        self._num_workers = 0  # at the start
        self._by_fd: dict[int, tuple[Seat, AgentLink, bool]] = {}  # listened to; whether for room in it as well
        self._unsent: set[Seat] = set()  # which have something to say, or a connection that is new
        self._starved: set[Seat] = set()  # which wait for memory
        self._events: list[Event] = []
        self._looked_at, self._look_seconds = 0.0, _LOOK_SECONDS
        self._seconds_waited = 0.0  # in `wait`, in all: the clock of waiting

    # --- lifetime ---

    def another(self) -> RemoteExecutor:
        """Return one of the same options, whose workers connect to the same port."""
        other = RemoteExecutor.__new__(type(self))  # constructors of sub-classes make launchers of their own
        RemoteExecutor.__init__(
            other,
            self._launcher,
            host=self._host,
            secret=self._secret,
            max_bytes=self._max_bytes,
            threads_per_worker=self._num_threads,
            dead_seconds=self._dead_seconds,
            return_seconds=self._return_seconds,
            max_workers=self._max_workers if self._is_elastic else None,
            checks_values=self._checks_values,
            tls=self._tls,
        )
        other._port = self._port
        other.on_death = self.on_death
        return other

    def listen(self) -> str:
        """Begin to listen, if that was not done, and return the address for `headrace worker --connect`.

        Raises:
            ConfigError: The address cannot be listened on.
        """
        return self._open_listener().addresses(self._public_host())[0]

    def _open_listener(self) -> Listener:
        if self._listener is None:
            end_with_process(self)
            self._listener = self._port.open()
        return self._listener

    def start(self, job: Job, num_workers: int) -> None:
        """Have the workers started."""
        self.start_some(job, range(num_workers), num_workers)

    def start_some(self, job: Job, worker_idxs: range, num_workers: int) -> None:
        """Have some of the workers of a job started.

        Args:
            job: What they do.
            worker_idxs: Which workers: all others are somebody else's. Methods are called with these numbers.
            num_workers: How many there are in all.

        Raises:
            ConfigError: The job cannot be carried to them, or the address cannot be listened on.
        """
        if not sys.platform.startswith("linux"):
            raise ConfigError(
                f"remote workers need Linux, and this is {sys.platform!r}",
                fix="use executor='thread' or executor='inline'",
            )
        shipment = self._launcher.carry(job, Shipment.of(job, self.name))
        end_with_process(self)
        try:
            with interrupts_wait(), needs_descriptors(f"{len(worker_idxs)} remote workers are started"):
                self._shipment, self._digests, self._begin = shipment, Digests(), None
                listener = self._open_listener()
                self._epoll = select.epoll()
                self._epoll.register(listener, select.EPOLLIN)
                self._num_workers = num_workers
                for worker_idx in worker_idxs:
                    self._add_seat(worker_idx)
        except BaseException:
            self.close()
            raise

    def _add_seat(self, worker_idx: int) -> Seat:
        write_welcome = partial(self._write_welcome, max(self._num_workers, worker_idx + 1))
        memory = ReceiveMemory(self._max_bytes)
        times = self._dead_seconds, self._return_seconds
        seat = Seat(worker_idx, memory, *times, self._losses, write_welcome, self._unsent)
        self._seats[worker_idx] = seat
        seat.memory.watch(self._watcher)
        self._launch(seat)
        return seat

    def _launch(self, seat: Seat) -> None:
        """Have an agent started for a worker, and expect it."""
        listener = self._open_listener()
        listener.forget(seat)
        seat.launch(self._launcher, listener.addresses(self._public_host()), self._secret, self._tls)
        listener.expect(seat)

    def _public_host(self) -> str:
        return self._host or self._launcher.public_host()

    def _write_welcome(
        self, num_workers: int, worker_idx: int, credit_bytes: int, is_local: bool, dialogue: bytes
    ) -> tuple[Welcome, list[Value]]:
        """Return what an agent is given."""
        shipment = self._shipment
        assert shipment is not None
        parcel = shipment.parcel
        buffers = [buffer.raw() for buffer in parcel.buffers]
        welcome = Welcome(
            worker_idx=worker_idx,
            num_workers=num_workers,
            executor=shipment.executor,
            formats=shipment.formats,
            argv=shipment.argv,
            cwd=shipment.cwd,
            preload=list(shipment.preload),
            modules=sorted(parcel.modules),
            job=parcel.data,
            buffer_bytes=[buffer.nbytes for buffer in buffers],
            buffer_digests=self._digests.of(buffers),
            sys_path=[os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)],
            max_bytes=self._max_bytes,
            num_threads=self._num_threads,
            credit_bytes=credit_bytes,
            alive_seconds=self._dead_seconds / _SIGNS,
            checks_values=not is_local and self._tls is None if self._checks_values is None else self._checks_values,
            dialogue=dialogue,
            return_seconds=self._return_seconds,
        )
        return welcome, [(buffer, NO_CODE) for buffer in buffers]

    def close(self) -> None:
        """End the workers."""
        with interrupts_wait():
            self._close()

    def _close(self) -> None:
        seats = [*self._seats.values(), *(seat for _, seat in self._ending)]
        self._seats, self._ending = {}, []
        deadline = time.monotonic() + _END_SECONDS
        try:
            for seat in seats:
                if self._listener is not None:
                    self._listener.forget(seat)
                seat.hang_up()
            if self._listener is not None:
                self._listener = None
                self._port.close()
            for seat in seats:
                seat.end(max(deadline - time.monotonic(), 0.0))
        finally:
            for seat in seats:
                seat.memory.close()
            self._forget()

    def __del__(self) -> None:
        if getattr(self, "_listener", None) is not None:
            self.close()

    def disown(self) -> None:
        """In a process that was forked off the trainer: close all descriptors, and leave the workers alone."""
        for seat in (*self._seats.values(), *(seat for _, seat in self._ending)):
            seat.disown()
        self._port.disown()
        self._seats, self._ending = {}, []
        self._forget()

    def _forget(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
        self._listener = self._epoll = self._shipment = self._begin = None
        for known in (self._by_fd, self._unsent, self._starved, self._events):
            known.clear()

    def restart(self, worker_idx: int, first_item: int) -> None:
        """Have a worker replaced: by its agent, or by another agent."""
        seat = self._seats[worker_idx]
        self._events = events_of_others(self._events, worker_idx)
        with interrupts_wait(), needs_descriptors(f"worker {worker_idx} is restarted"):
            seat.restart(first_item, self._begin, partial(self._launch, seat))
        self._send(seat)

    def add_worker(self, worker_idx: int) -> None:
        """Have one more agent started, or expect one."""
        with interrupts_wait(), needs_descriptors(f"worker {worker_idx} is started"):
            seat = self._add_seat(worker_idx)
        if self._begin is not None:
            seat.begin(self._begin)

    def remove_worker(self, worker_idx: int) -> None:
        """Hang up, of which an agent ends; one that does not is ended. Memory lives as long as what lies in it."""
        self._events = events_of_others(self._events, worker_idx)
        with interrupts_wait():
            seat = self._seats.pop(worker_idx)
            self._max_workers = min(self._max_workers, len(self._seats))  # it would come back at once
            if self._listener is not None:
                self._listener.forget(seat)
            if seat.link is None:  # no agent is there to hear it
                seat.end(0.0)
            seat.hang_up()
            self._unsent.discard(seat)
            self._starved.discard(seat)
            seat.memory.close()
            self._ending.append((time.monotonic() + _END_SECONDS, seat))

    # --- work ---

    def begin_run(self, run_id: int, mode: Mode, payload: Any = None) -> None:
        """Tell all workers of a run."""
        self._begin = Begin.of(run_id, mode, payload)
        for seat in self._seats.values():
            seat.begin(self._begin)

    pack = staticmethod(ship_payload)  # once: what is submitted again is at hand

    def submit(self, worker_idx: int, run_id: int, ticket: int, payload: bytes | None) -> None:
        """Send a ticket to a worker."""
        self.submit_burst(worker_idx, run_id, (ticket,), (payload,))

    def submit_burst(
        self, worker_idx: int, run_id: int, tickets: Sequence[int], payloads: Sequence[bytes | None]
    ) -> None:
        """Send tickets to a worker in one message."""
        seat = self._seats[worker_idx]
        seat.put(Submit(run_id, tickets, payloads))
        self._send(seat, tells_all=True)

    def cancel(self, run_id: int) -> None:
        """Tell all workers that a run is over."""
        if self._begin is not None and self._begin.run_id == run_id:
            self._begin = None
            for seat in self._seats.values():
                seat.put(Cancel(run_id))
                self._send(seat)

    def wait(self, timeout_seconds: float) -> Sequence[Event]:
        """Wait for agents: for new ones, and for what they say."""
        start = time.monotonic()
        deadline = start + timeout_seconds
        while True:
            is_starved = self._flush(start)
            left = 0.0 if self._events else max(0.0, deadline - time.monotonic())
            self._listen(min(left, _STARVED_SECONDS if is_starved else self._look_seconds), start)
            if self._events or time.monotonic() >= deadline:
                break
        self._flush(start)  # an agent that has just come waits for its job
        self._seconds_waited += time.monotonic() - start
        events, self._events = self._events, []
        return events

    def fileno(self) -> int:
        """Return the descriptor that is readable when `look` would find something."""
        assert self._epoll is not None
        return self._epoll.fileno()

    def look(self, seconds: float) -> Sequence[Event]:
        """Return the events, as `wait` does, after `seconds` in which the consumer waited elsewhere."""
        self._seconds_waited += seconds
        return self.wait(0.0)

    @property
    def patience_seconds(self) -> float:
        """How long somebody who waits in place of `wait` may stay away."""
        return _STARVED_SECONDS if self._starved else self._look_seconds

    def is_remote(self, worker_idx: int) -> bool:  # noqa: ARG002 - all are
        """Return True: the results of each come by the network."""
        return True

    def watch_memory(self, watcher: MemoryWatcher | None) -> None:
        """Tell a watcher of the memory that results are received into."""
        self._watcher = watcher
        for seat in self._seats.values():
            seat.memory.watch(watcher)

    def stack_of(self, worker_idx: int) -> str | None:
        """Ask the agent of a worker for its stack; where there is none, say what is waited for."""
        seat = self._seats[worker_idx]
        if not seat.ask_stack() or seat.link is None:
            return seat.where
        poll, deadline = select.poll(), time.monotonic() + _STACK_SECONDS
        poll.register(seat.link, select.POLLIN)
        while (
            seat.stack is None
            and seat.link is not None
            and (left := deadline - time.monotonic()) > 0
            and poll.poll(1000 * left)
        ):
            self._events += seat.receive(time.monotonic(), self._seconds_waited)
        return f"{seat.where}\n{seat.stack or ''}".rstrip()

    # --- what comes back ---

    def _flush(self, start: float) -> bool:
        """Send what gathered; return whether a worker waits for memory."""
        for seat in list(self._unsent):
            self._send(seat)
        for seat in list(self._starved):
            self._send(seat)
            if seat.worker_idx == self.awaited_worker_idx:
                seat.fail_starved_worker(self._seconds_waited + time.monotonic() - start)
            if seat.starved_since is None:
                self._starved.discard(seat)
        return bool(self._starved)

    def _send(self, seat: Seat, *, tells_all: bool = False) -> None:
        """Send what a connection takes, and listen to it from now on: for room in it, too, where it has none."""
        seat.flush(tells_all=tells_all)
        link = seat.link
        if link is None or link.lost is not None:
            return
        assert self._epoll is not None
        fd, events = link.fileno(), select.EPOLLIN | (select.EPOLLOUT if link.is_blocked else 0)
        known = self._by_fd.get(fd)
        if known is None or known[1] is not link:  # of one that was closed, the system has forgotten the number
            self._epoll.register(fd, events)
        elif known[2] != link.is_blocked:
            self._epoll.modify(fd, events)
        else:
            return
        self._by_fd[fd] = seat, link, link.is_blocked

    def _listen(self, timeout_seconds: float, start: float) -> None:
        """Take in what has come, after waiting for it if need be."""
        assert self._epoll is not None
        assert self._listener is not None
        ready = self._epoll.poll(timeout_seconds)
        now = time.monotonic()
        for fd, events in ready:
            known = self._by_fd.get(fd)
            if known is None:
                self._listener.pump()
                continue
            seat = known[0]
            if events & select.EPOLLOUT:
                self._unsent.add(seat)
            if events & ~select.EPOLLOUT:
                self._events += seat.receive(now, self._seconds_waited + now - start)
                if seat.starved_since is not None:
                    self._starved.add(seat)
        if now - self._looked_at > self._look_seconds:
            self._look(self._listener, now, self._seconds_waited + now - start)
            self._looked_at = time.monotonic()
            self._look_seconds = max(_LOOK_SECONDS, (self._looked_at - now) / _LOOK_PART)

    def _look(self, listener: Listener, now: float, waited: float) -> None:
        """See to what nothing else tells of: silence, the ends of agents, memory that was freed."""
        listener.pump()
        for seat in self._seats.values():
            self._send(seat, tells_all=True)
            self._events += seat.look_after(now, waited)
        are_there = any(seat.is_there for seat in self._seats.values())
        for seat in self._seats.values():
            self._events += seat.look_for_place(now, others_are_there=are_there)
        if self._is_elastic and self._begin is not None and not self._begin.is_stream:
            self._fit_to_agents(listener, now)
        self._by_fd = {fd: known for fd, known in self._by_fd.items() if known[1].lost is None}
        ending, self._ending = self._ending, []
        for deadline, seat in ending:
            if seat.has_ended or now > deadline:
                seat.end(0.0)
            else:
                self._ending.append((deadline, seat))

    def _fit_to_agents(self, listener: Listener, now: float) -> None:
        """Offer spare agents as workers, and let others do the tickets of workers that have no agent any more."""
        num_more = min(listener.num_spares, self._max_workers - len(self._seats))
        if num_more > 0:
            self._events.append(Offered(num_more))
        for seat in self._seats.values():
            if seat.vacant_since is None or now - seat.vacant_since < _VACANT_SECONDS:
                continue
            lenders = [other for other in self._seats.values() if other.link is not None and not other.has_exited]
            if lenders:
                seat.vacant_since = now
                self._events.append(Vacant(seat.worker_idx))
                if seat.has_work:
                    listener.expect_first(seat)
                    self._events.append(lenders[-1].lend(seat.worker_idx))
