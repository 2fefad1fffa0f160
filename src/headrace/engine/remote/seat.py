"""One remote worker as the trainer sees it: an agent that is expected, connected, expected to come back, or lost.

Invariants: what is said to a worker whose agent has not connected yet is kept and said then; after a restart nothing of
the life before is reported; the end of a life is reported once. The memory that results come in stays over all lives.
An agent whose connection broke has some time to come back, and then the two go on where they were (`dialogue.py`); one
that was silent has had its time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import msgspec

from headrace.errors import ConfigError

from ..events import Beat, Done, Event, Exited, Failed, Reached, SetupFailed, Unreachable
from ..process.messages import Begin, Submit
from ..user.failure import Failure
from .dialogue import Dialogue
from .launcher import Invitation, Launched, Launcher
from .link import AgentLink
from .memory import ReceiveMemory
from .port.stranger import Connection
from .seal import Value
from .tls import Tls
from .wire import (
    Alive,
    AskStack,
    Freed,
    FromAgent,
    GiveUpWaiting,
    HangUp,
    HasEnded,
    Restarted,
    RestartWorker,
    Stack,
    ToAgent,
    WaitsForMemory,
    Welcome,
    WelcomeBack,
    WireError,
)

# While an agent waits for room on some machine, a sign of life is reported in its place so often.
_BEAT_SECONDS = 1.0
# One that waits for so long has its tickets done by others, if there are any: most start sooner where there is room.
_PLACE_SECONDS = 3.0
# A launcher has so long to tell how an agent ended whose connection was lost.
_ENDING_SECONDS = 0.5
# When a connection is lost for so long, or an agent has been silent for this part of the time after which it is taken
# for dead, others do its tickets as well. Where the network is up, an agent comes back within milliseconds.
_UNREACHABLE_SECONDS = 0.5
_UNREACHABLE_PART = 0.5
# It is looked this often at least whether one has come back, before it is given up: the consumer may be away for longer
# than an agent may take, and showing that it knows the secret takes some of these looks.
_MIN_LOOKS = 6
# An agent that was given its job has so long until the first sign of life, at least: it imports and starts processes.
_FIRST_SECONDS = 30.0
# A worker that waits for memory is told to give up when the consumer has waited for it so long without freeing any.
_HOARD_SECONDS = 5.0
# Freed bytes are reported with the next tickets, or when they are this many, or this part of all.
_FREED_BYTES = 1 << 20
_FREED_PART = 8
# Received results are acknowledged with the next tickets, or when they are this many bytes, for which their worker has
# to have more memory. With 2 MiB in place of 8, the trainer sends a frame for each third item of 1 MiB, not each fifth.
_KEPT_BYTES = 8 << 20

# Agents of one machine that are lost within this time may have been lost together.
_TOGETHER_SECONDS = 30.0

# Those of executors in worker processes are positive.
_accidents = itertools.count(-1, -1)
# A connection that holds this long was no bad one; this many bad ones may follow each other.
_GOOD_SECONDS = 60.0
_MAX_RETURNS = 8
# Seats of executors that share a listener must not be mistaken for each other.
_seats = itertools.count(1)

WriteWelcome = Callable[[int, int, bool, bytes], tuple[Welcome, list[Value]]]
"""Worker, credit in bytes, is it on this machine, key of the dialogue -> what an agent is told, and large arrays."""


class LossesByHost:
    """Finds out which agents were lost together: with their machine, or with its network.

    They are all agents of the machine that were connected when the first one was lost. One that came afterwards and is
    lost as well is another accident, so that a machine that ends them again and again uses up the budget.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, int]] = {}

    def accident_of(self, host: str, connected_at: float, lost_at: float) -> int:
        """Return the number of the accident by which an agent was lost."""
        first = self._first.get(host)
        if first is None or connected_at > first[0] or lost_at - first[0] > _TOGETHER_SECONDS:
            first = self._first[host] = lost_at, next(_accidents)
        return first[1]


class Seat:
    """What is known of one worker.

    Args:
        worker_idx: Which.
        memory: For its results.
        dead_seconds: How long an agent may say nothing.
        return_seconds: How long an agent may take to come back when its connection has broken.
        losses: Losses of all workers of the executor.
        write_welcome: Makes what an agent is given.
        unsent: Of the executor: it is in there when there is something to `flush`.

    Attributes:
        link: The connection to its agent, if there is one.
        has_exited: Whether its end was reported, and nothing was started in its place.
        vacant_since: No agent has taken the place of the one that it had, since this time on the clock of the system.
        starved_since: It waits for memory, since this time on the clock of waiting; `None`: it does not.
        stack: The last stack that its agent has sent, not taken yet.
    """

    def __init__(
        self,
        worker_idx: int,
        memory: ReceiveMemory,
        dead_seconds: float,
        return_seconds: float,
        losses: LossesByHost,
        write_welcome: WriteWelcome,
        unsent: set[Seat],
    ) -> None:
        self.worker_idx = worker_idx
        self.memory = memory
        self.link: AgentLink | None = None
        self.has_exited = False
        self.vacant_since: float | None = None
        self.starved_since: float | None = None
        self.stack: str | None = None
        self.seat = -1
        self.takes_any = False
        self._dead_seconds, self._return_seconds = dead_seconds, return_seconds
        self._losses = losses
        self._write_welcome = write_welcome
        self._unsent = unsent
        self._launched: Launched | None = None
        self._queue: list[ToAgent] = []  # for an agent that has not connected yet
        self._refused: ConfigError | None = None
        self._lost: tuple[float, str] | None = None  # when, and why
        self._dialogue: Dialogue | None = None  # with an agent that is connected, or may come back
        self._checks_values = False
        self._num_looks = 0  # since it was lost
        self._num_returns = 0  # one soon after the other
        self._host = ""
        self._connected_at = 0.0
        self._heard_at = 0.0
        self._launched_at = self._beat_at = 0.0
        self._is_unreachable = False  # as was told
        self._is_new = True  # nothing was heard of the agent since it was given its job
        self._num_sent = 0  # bytes of that, when it was looked at last
        self._num_restarts = 0  # that the agent was asked for, and has not answered
        self._freed_before = 0  # bytes of results, before the agent was welcomed
        self._told_bytes = 0  # that were freed since, as the agent was told
        self._starved_at = 0

    # --- the agent ---

    def launch(self, launcher: Launcher, addresses: tuple[str, ...], secret: bytes, tls: Tls | None) -> None:
        """Have an agent started, which is to be expected next."""
        self.seat, self.takes_any = next(_seats), not launcher.starts
        self.has_exited, self._lost, self._refused, self._is_unreachable = False, None, None, False
        self._launched_at = time.monotonic()
        self._launched = launcher.launch(Invitation(self.worker_idx, self.seat, addresses, secret, tls))

    def welcome(self, connection: Connection) -> None:
        """Take an agent, and give it the job."""
        self._dialogue = Dialogue()
        self.link = link = AgentLink(connection, self.memory, self._dialogue)
        self._num_returns = 0
        self._host, self._connected_at = link.host, time.monotonic()
        self.vacant_since = None
        self.memory.drain()
        credit_bytes = self.memory.max_bytes - self.memory.held_bytes
        welcome, buffers = self._write_welcome(self.worker_idx, credit_bytes, link.is_local, self._dialogue.key)
        link.put_frame(welcome, buffers)
        self._checks_values = welcome.checks_values
        link.expect_values(with_checksums=self._checks_values)
        self._freed_before, self._told_bytes, self._num_restarts = self.memory.freed_bytes, 0, 0
        self.starved_since, self._is_new, self._heard_at = None, True, 0.0
        self._is_unreachable = False  # its worker will say when it is ready
        queue, self._queue = self._queue, []
        for message in queue:
            link.put(message)
        self._unsent.add(self)

    def welcome_back(self, connection: Connection) -> bool:
        """Go on with the agent over another connection, if this one is its; tell whether it is."""
        dialogue = self._dialogue
        if dialogue is None or dialogue.key != connection.introduction.dialogue:
            return False
        try:
            dialogue.note_heard(connection.num_heard)
        except WireError as error:  # it is the right one, and of no use
            self.lose(time.monotonic(), error.what)
            self._dialogue = None
            return False
        self._close_link()  # the agent may have found out first
        now = time.monotonic()
        self._num_returns = 1 if now - self._connected_at > _GOOD_SECONDS else self._num_returns + 1
        self._connected_at, self._heard_at, self._lost = now, 0.0, None
        self.link = AgentLink(connection, self.memory, dialogue)
        self.link.put_frame(WelcomeBack())
        self.link.expect_values(with_checksums=self._checks_values)
        self.link.put_again()
        self._unsent.add(self)
        return True

    def refuse(self, error: ConfigError) -> None:
        """Take note that the agent that came cannot be used."""
        self._refused = error

    def restart(self, first_item: int, begin: Begin | None, relaunch: Callable[[], None]) -> None:
        """Replace the worker: by its agent, or if that is gone, by another agent."""
        if self.link is not None:
            self.has_exited, self.starved_since = False, None
            self._num_restarts += 1
            self.put(RestartWorker(first_item))
            return
        self.end(0.0)
        self.vacant_since = time.monotonic()
        self._queue = [] if begin is None else [msgspec.structs.replace(begin, first_item=first_item)]
        relaunch()

    @property
    def has_work(self) -> bool:
        """Whether tickets wait for an agent."""
        return any(isinstance(message, Submit) for message in self._queue)

    def lend(self, other: int) -> Exited:
        """Have its agent go, so that it can be that of another worker, and come back."""
        self.hang_up()
        self.has_exited = True
        return Exited(self.worker_idx, f"on {self._host} takes the place of worker {other} first", is_orderly=True)

    @property
    def where(self) -> str:
        """Where it is, as words."""
        if self.link is not None:
            return f"it is on {self._host}; its agent is process {self.link.pid} there"
        if self._dialogue is not None:
            return f"its agent on {self._host} has lost its connection, and may come back"
        return "its agent has not connected yet" + (f": {self._launched.where}" if self._launched is not None else "")

    def hang_up(self) -> None:
        """Close the connection: the agent ends."""
        self._dialogue = None
        if self.link is not None and self.link.lost is None:
            self.link.put(HangUp())
            self.link.flush()
        self._close_link()

    def _close_link(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            link.close()
            self._freed_before += link.abandoned_bytes  # it comes again, and is freed again

    def end(self, seconds: float) -> None:
        """See to it that the agent ends."""
        self.hang_up()
        launched, self._launched = self._launched, None
        if launched is not None:
            launched.end(seconds)

    @property
    def has_ended(self) -> bool:
        """Whether there is no agent any more."""
        return self._launched is None or self._launched.ending() is not None

    def disown(self) -> None:
        """In a process that was forked off the trainer: close descriptors, and leave the agent alone."""
        link, self.link = self.link, None
        if link is not None:
            link.disown()
        launched, self._launched = self._launched, None
        if launched is not None:
            launched.disown()

    # --- messages ---

    def begin(self, begin: Begin) -> None:
        """Tell of a run, in place of what was not told yet."""
        self._is_unreachable = False  # if it is, the run has not heard of it
        if self._dialogue is None:
            self._queue = [begin]
        else:
            self.put(begin)

    def put(self, message: ToAgent) -> None:
        """Say something with the next `flush`, or when the agent is there, or has come back."""
        if self.link is not None:
            self.link.put(message)
            self._unsent.add(self)
        elif self._dialogue is not None:
            self._dialogue.say(message)
        else:
            self._queue.append(message)

    def flush(self, *, tells_all: bool = False) -> None:
        """Send what the connection takes; of what was freed and what was heard, tell if it is worth a message."""
        self._unsent.discard(self)
        link = self.link
        if link is None:
            return
        self.memory.drain()
        freed_bytes = self.memory.freed_bytes - self._freed_before
        untold = freed_bytes - self._told_bytes
        if untold > 0 and (
            tells_all
            or self.starved_since is not None
            or untold >= min(_FREED_BYTES, self.memory.max_bytes // _FREED_PART)
        ):
            self._told_bytes = freed_bytes
            self.starved_since = None
            link.put(Freed(freed_bytes))
        if tells_all or self._holds_much(link):
            link.acknowledge()
        link.flush()

    def _holds_much(self, link: AgentLink) -> bool:
        """Tell whether enough bytes came to acknowledge them: until then the agent keeps them, to send them again."""
        return link.unacknowledged_bytes >= min(_KEPT_BYTES, self.memory.max_bytes // _FREED_PART)

    def fail_starved_worker(self, now: float) -> None:
        """Tell a worker that waits for memory, and for which the consumer waits, that none will come.

        Args:
            now: On the clock of waiting.
        """
        if self.starved_since is not None and now - self.starved_since > _HOARD_SECONDS and self.link is not None:
            self.starved_since = None
            self.put(GiveUpWaiting(self._starved_at, self.memory.held_bytes))

    def ask_stack(self) -> bool:
        """Ask for the stack of the worker; tell whether there is anybody to ask."""
        self.stack = None
        if self.link is None or self.has_exited:
            return False
        self.put(AskStack())
        self.link.flush()
        return True

    def receive(self, now: float, waited: float) -> list[Event]:
        """Return what has happened, as far as it was read.

        Args:
            now: On the clock of the system.
            waited: On the clock of waiting.
        """
        link = self.link
        if link is None:
            return []
        events: list[Event] = []
        num_received = link.num_received
        messages = link.receive()
        if link.num_received != num_received:
            self._heard_at = now
            if self._is_unreachable and not self.has_exited:
                self._is_unreachable = False
                events.append(Reached(self.worker_idx))
        if self._holds_much(link):
            self._unsent.add(self)
        self._is_new = self._is_new and not messages
        for message in messages:
            event = self._take(message, waited)
            if event is not None:
                events.append(event)
        if link.lost is not None:
            self.lose(now, link.lost)
            events += self._tell_end(now)
        return events

    def _take(self, message: FromAgent, waited: float) -> Event | None:
        """Return the event that a message tells, if it tells one."""
        if isinstance(message, Restarted):
            self._num_restarts -= 1
            return None
        if isinstance(message, Stack):
            self.stack = message.text or ""
            return None
        if self._num_restarts:
            return None  # of the life before; a value is dropped, and its memory free
        match message:
            case Done():
                if message.skipped:
                    return msgspec.structs.replace(message, skipped=tuple(map(self._on_host, message.skipped)))
                return message
            case Failed() | SetupFailed():
                return msgspec.structs.replace(message, failure=self._on_host(message.failure))
            case Alive(has_progress):
                return Beat(self.worker_idx) if has_progress and not self.has_exited else None
            case WaitsForMemory(num_bytes):
                if num_bytes == self._told_bytes:  # else more was freed meanwhile
                    self.starved_since, self._starved_at = waited, num_bytes
                return None
            case HasEnded(cause, item, advice, is_orderly):
                if is_orderly:
                    self.hang_up()
                if self.has_exited:
                    return None
                self.has_exited = True
                return Exited(
                    self.worker_idx,
                    f"on {self._host} {cause}",
                    item,
                    advice,
                    is_orderly=is_orderly,
                    has_no_place=is_orderly and not self.takes_any,
                )
        return message

    def _on_host(self, failure: Failure) -> Failure:
        return failure.on_host(self._host)

    # --- ends ---

    def lose(self, now: float, why: str) -> None:
        """Take note that the connection is of no use any more."""
        if self._lost is None:
            self._lost, self._num_looks = (now, why), 0
        if self._is_new or self.has_exited or self._num_returns >= _MAX_RETURNS:
            self._dialogue = None
        self._close_link()

    def look_after(self, now: float, waited: float) -> list[Event]:
        """Return what follows from the silence of an agent, or from its end, and what was not heard of it yet.

        Args:
            now: On the clock of the system.
            waited: On the clock of waiting.
        """
        link = self.link
        if link is None:
            self._num_looks += 1
            return self._tell_end(now)
        if link.lost is not None:  # found out when something was sent
            self.lose(now, link.lost)
            return self._tell_end(now)
        if self._heard_at == 0.0 or (self._is_new and link.num_sent != self._num_sent):
            self._heard_at = now
        self._num_sent = link.num_sent
        events: list[Event] = []
        # It may seem silent because this process has not listened.
        if link.is_patient or self._is_silent(now, _UNREACHABLE_PART):
            events += self.receive(now, waited)
        if self.link is not None and self._is_silent(now):
            self._dialogue = None
            self.lose(now, f"its agent there has said nothing for {now - self._heard_at:.1f} s")
            events += self._tell_end(now)
        elif self.link is not None and self._is_silent(now, _UNREACHABLE_PART):
            events += self._tell_unreachable()
        return events

    def _is_silent(self, now: float, part: float = 1.0) -> bool:
        limit = max(self._dead_seconds, _FIRST_SECONDS) if self._is_new else self._dead_seconds
        return now - self._heard_at > part * limit

    def _tell_unreachable(self) -> list[Event]:
        if self._is_unreachable or self.has_exited:
            return []
        self._is_unreachable = True
        return [Unreachable(self.worker_idx)]

    def _tell_end(self, now: float) -> list[Event]:
        """Return the end of a worker without a connection, if it was not told and all that is to be known of it is."""
        refused, self._refused = self._refused, None
        if refused is not None:
            self.has_exited = True
            return [SetupFailed(self.worker_idx, Failure.of(refused))]
        if self.has_exited:
            return []
        ending = self._launched.ending() if self._launched is not None else None
        if self._lost is not None:
            lost_at, why = self._lost
            is_waiting = self._launched is not None and not self.takes_any and now - lost_at < _ENDING_SECONDS
            if ending is None and (is_waiting or self._may_return(now, lost_at)):
                return self._tell_unreachable() if now - lost_at > _UNREACHABLE_SECONDS else []
            self._dialogue = None
            cause = f"on {self._host} was lost with its connection: {why}"
            accident = self._losses.accident_of(self._host, self._connected_at, lost_at)
            return self._report_exit(f"{cause}; its agent {ending}" if ending is not None else cause, accident)
        if ending is not None:
            return self._report_exit(f"has an agent, {self._launched_where()}, that {ending} before it had connected")
        return []

    def look_for_place(self, now: float, *, others_are_there: bool) -> list[Event]:
        """Return what follows from having no place yet on any machine: that is no stall, and others do its tickets."""
        events: list[Event] = []
        if self.link is None and self._lost is None and self._launched is not None and self._launched.waits_for_place:
            if others_are_there and now - self._launched_at > _PLACE_SECONDS:
                events += self._tell_unreachable()
            if now - self._beat_at > _BEAT_SECONDS:
                self._beat_at = now
                events.append(Beat(self.worker_idx))
        return events

    @property
    def is_there(self) -> bool:
        """Whether it has an agent that has begun."""
        return self.link is not None and not self._is_new and not self.has_exited

    def _may_return(self, now: float, lost_at: float) -> bool:
        if self._dialogue is None or not self._return_seconds:
            return False
        return now - lost_at < self._return_seconds or self._num_looks < _MIN_LOOKS

    def _launched_where(self) -> str:
        return "" if self._launched is None else self._launched.where

    def _report_exit(self, cause: str, accident: int | None = None) -> list[Event]:
        self.has_exited = True
        return [Exited(self.worker_idx, cause, accident=accident, has_no_place=not self.takes_any)]
