"""The trainer's side of one connection to an agent: frames in, frames out, nothing that blocks.

The bytes of values are received straight into the memory that they stay in, several values by one system call, but for
those that came with the messages before them. Invariants: messages come out in the order in which they were sent, each
when its value is complete and has the right checksum and tag, and are noted in the dialogue when they do; what an agent
announces is checked against its credit before memory is taken for it.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..codec.codec import find_code
from ..events import Done
from .dialogue import Dialogue
from .memory import ReceiveMemory
from .port.stranger import Connection
from .seal import HEAD_BYTES, PIECE_BYTES, Head, Value, ValueSeal
from .tls import TlsSocket
from .wire import FromAgent, RemoteResult, ToAgent, WireError, charge, decode_from_agent

# Bytes that are read at once where messages are expected: enough for many small results, and little to be copied where
# the bytes of a large one come with its message.
_BUFFER_BYTES = 64 << 10
# The same behind the last value that is known of: the next messages are there, and hardly anything has to be copied.
_TAIL_BYTES = 4 << 10
# Memory for so many bytes of the values that are known to follow is made ready together, and filled by one system call:
# one for 16 items of 64 KiB, or two of 1 MiB, where it was more than one for each.
_READY_BYTES = 4 << 20
# How often one connection is read, and how many bytes, before others have their turn.
_MAX_READS = 16
_MAX_TURN_BYTES = 8 << 20
_NOTHING = memoryview(b"")
# Buffers of one system call: Linux allows 1024.
_MAX_BUFFERS = 64


class _Coming(NamedTuple):
    """A value that is being received, or comes next.

    Attributes:
        value: Its memory.
        computed: Its checksum and tag; `None`: it has neither.
    """

    value: memoryview
    computed: ValueSeal | None


class AgentLink:
    """A connection to an agent that has introduced itself.

    Args:
        connection: Connection of the listener; owned from now on.
        memory: Where the values of its worker are received.
        dialogue: What is said over it, and perhaps was over another one before.

    Attributes:
        host: The name of its machine.
        is_local: Whether that is this machine, so that no network is between.
        lost: Why the connection is of no use any more, as words; `None`: it is.
        is_blocked: Whether the socket takes no more now.
        num_sent: Bytes that it has taken in all.
        num_received: Bytes that were read from it in all.
        unacknowledged_bytes: Bytes of values, that the agent does not know to be here.
        abandoned_bytes: Bytes of values that had memory here and were not complete when it was closed, see `charge`:
            that is free again.
    """

    def __init__(self, connection: Connection, memory: ReceiveMemory, dialogue: Dialogue) -> None:
        self.host, self.pid = connection.introduction.host, connection.introduction.pid
        self.is_local = connection.is_local
        self.lost: str | None = None
        self.is_blocked = False
        self.num_sent = self.num_received = 0
        self.unacknowledged_bytes = self.abandoned_bytes = 0
        self._dialogue, self._num_acknowledged, self._acknowledges = dialogue, dialogue.num_heard, False
        self._sock = connection.sock
        self._incoming, self._outgoing_seal = connection.incoming, connection.outgoing
        self._memory = memory
        self._outgoing: deque[memoryview] = deque()
        self._messages: list[ToAgent] = []
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0  # of what is in the buffer and was not looked at
        self._head: Head | None = None  # of a frame whose messages are not there yet
        self._decoded: deque[FromAgent] = deque()  # of a frame whose values are being received
        self._codes: deque[range] = deque()  # where code is in the values of these messages that were not begun
        self._coming: deque[_Coming] = deque()  # values that were begun, and have memory
        self._rest = _NOTHING  # what is missing of the first of them
        self._num_landed = 0  # bytes of the next ones that lie where they stay already
        self._complete: list[FromAgent] = []  # messages that were not returned, because there was no memory for a value
        self._low_water_bytes = 1  # this many have to be there before `fileno` is readable

    def fileno(self) -> int:
        """Return the descriptor, to wait on."""
        return self._sock.fileno()

    # --- out ---

    def put(self, message: ToAgent) -> None:
        """Send a message with the next `flush`."""
        self._dialogue.say(message)
        self._messages.append(message)

    def put_again(self) -> None:
        """Send all messages that were not heard with the next `flush`."""
        self._messages += [message for message, _ in self._dialogue.unheard]

    def acknowledge(self) -> None:
        """Tell what was heard with the next `flush`, if anything was since that was told last."""
        self._acknowledges = self._num_acknowledged != self._dialogue.num_heard

    def put_frame(self, messages: Any, values: Sequence[Value] = ()) -> None:
        """Send a frame with the next `flush`, before all messages that are put from now on."""
        seal, num_heard = self._outgoing_seal, self._dialogue.num_heard
        frame = seal.frame(messages, values, num_heard)
        self._num_acknowledged, self._acknowledges, self.unacknowledged_bytes = num_heard, False, 0
        self._outgoing.append(memoryview(frame))
        self._outgoing += seal.parts(values)

    def flush(self) -> None:
        """Send what the socket takes."""
        if self._messages or self._acknowledges:
            self.put_frame(self._messages)
            self._messages = []
        outgoing = self._outgoing
        while outgoing and self.lost is None:
            try:
                num_bytes = self._sock.sendmsg([outgoing[idx] for idx in range(min(len(outgoing), _MAX_BUFFERS))])
            except BlockingIOError:
                break
            except OSError as error:
                # What it had sent may still be there to be read, which is done when the socket says that it is over.
                outgoing.clear()
                self._sending_failed(error)
                break
            self.num_sent += num_bytes
            while num_bytes and num_bytes >= outgoing[0].nbytes:
                num_bytes -= outgoing.popleft().nbytes
            if num_bytes:
                outgoing[0] = outgoing[0][num_bytes:]
        self.is_blocked = bool(outgoing)

    def _sending_failed(self, error: OSError) -> None:
        if not isinstance(error, ConnectionResetError | BrokenPipeError):
            self.lost = str(error.strerror or error)

    # --- in ---

    def expect_values(self, *, with_checksums: bool) -> None:
        """Say whether values that come in have checksums, as the agent was told."""
        self._incoming.checks_values = with_checksums

    def receive(self) -> list[FromAgent]:
        """Return the messages that are complete; none if nothing new is."""
        messages = self._complete
        num_reads, until = 0, self.num_received + _MAX_TURN_BYTES
        try:
            if self._decoded and self._start < self._end:  # there may have been no memory for the value
                self._take_in(messages)
            # What TLS has taken from the system already makes nothing readable.
            while self._read(messages) and (
                (num_reads < _MAX_READS and self.num_received < until) or self._is_pending()
            ):
                num_reads += 1
            self._set_low_water()
        except WireError as error:
            self.lost = error.what
        self._complete = []
        for message in messages:
            self._dialogue.hear(message)
        return messages

    @property
    def is_patient(self) -> bool:
        """Whether bytes may have come although `fileno` is not readable: to be read now and then nevertheless."""
        return self._low_water_bytes > 1

    def _is_pending(self) -> bool:
        return isinstance(self._sock, TlsSocket) and self._sock.pending() > 0

    def _set_low_water(self) -> None:
        """Avoid a wake for each small part of a large value: one costs as much as a copy of 100 KiB."""
        rest_bytes = self._rest.nbytes
        num_bytes = min(rest_bytes - _BUFFER_BYTES // 2, PIECE_BYTES) if rest_bytes > _BUFFER_BYTES else 1
        if num_bytes != self._low_water_bytes:
            with contextlib.suppress(OSError):  # one that is lost, as is heard next
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)
            self._low_water_bytes = num_bytes

    def _read(self, messages: list[FromAgent]) -> bool:
        """Read once; tell whether there may be more."""
        targets = self._targets()
        try:
            num_bytes = self._sock.recvmsg_into(targets)[0] if len(targets) > 1 else self._sock.recv_into(targets[0])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.lost = str(error.strerror or error)
            return False
        if num_bytes == 0:
            self.lost = "it was closed"
            return False
        self.num_received += num_bytes
        sizes = [target.nbytes for target in targets]
        num_landed = min(num_bytes, sum(sizes[:-1]))
        self._end += num_bytes - num_landed
        if num_landed:
            num_first = min(num_landed, sizes[0])
            self._num_landed = num_landed - num_first
            self._take_first(num_first)
        del targets  # even an empty view of a value would hold its memory
        self._take_in(messages)
        return num_bytes == sum(sizes)

    def _targets(self) -> list[memoryview]:
        """Return where the next bytes go: to values, as far as nothing else is between them, and then to the buffer."""
        if not self._rest.nbytes:
            return [self._buffer[self._end :]]
        targets = [self._rest]
        for before, coming in itertools.pairwise(self._coming):
            if before.computed is not None:
                break
            targets.append(coming.value)
        self._start = self._end = 0
        targets.append(self._buffer[:_TAIL_BYTES])
        return targets

    def _take_in(self, messages: list[FromAgent]) -> None:
        """Go through what was read."""
        decoded = self._decoded
        while True:
            while decoded:
                message = decoded[0]
                if type(message) is Done and type(message.result) is RemoteResult:
                    if not self._coming:
                        self._begin_values()
                    if not self._is_first_complete():
                        return
                    self._finish_first()
                messages.append(decoded.popleft())
            if not self._decode_frame():
                return

    def _begin_values(self) -> None:
        """Make memory ready for the next values."""
        self._memory.drain()
        num_bytes = 0
        for message in self._decoded:
            if type(message) is Done and type(message.result) is RemoteResult:
                self._coming.append(self._begin_value(message.result))
                if len(self._coming) == 1:  # now: there may be no memory for the next one
                    self._rest = self._coming[0].value
                num_bytes += message.result.num_bytes
                if num_bytes >= _READY_BYTES or len(self._coming) == _MAX_BUFFERS:
                    break

    def _begin_value(self, result: RemoteResult) -> _Coming:
        memory = self._memory
        if charge(result.num_bytes) + memory.held_bytes > memory.max_bytes:
            raise WireError(f"a result of {result.num_bytes} bytes is more than the credit that the worker had")
        result.data = memory.reserve(result.num_bytes)
        return _Coming(memoryview(result.data), self._incoming.begin_value(self._codes.popleft()))

    def _take_first(self, num_bytes: int) -> None:
        """Take note of bytes that lie where they stay, in the first value."""
        computed = self._coming[0].computed
        if computed is not None:
            computed.update(self._rest[:num_bytes])
        self._rest = self._rest[num_bytes:]

    def _is_first_complete(self) -> bool:
        """Tell whether the first value is there with its checksum and tag, and check them."""
        num_bytes = min(self._end - self._start, self._rest.nbytes)
        if num_bytes:
            self._rest[:num_bytes] = self._buffer[self._start : self._start + num_bytes]
            self._start += num_bytes
            self._take_first(num_bytes)
        if self._rest.nbytes:
            return False
        value, computed = self._coming[0]
        if computed is None:
            return True
        if self._end - self._start < computed.num_bytes:
            self._make_room(computed.num_bytes)
            return False
        start, self._start = self._start, self._start + computed.num_bytes
        computed.check(value, self._buffer[start : self._start])
        return True

    def _finish_first(self) -> None:
        """Take note that the first value is complete, and go on with the next one."""
        self.unacknowledged_bytes += self._coming.popleft().value.nbytes
        self._rest = _NOTHING  # even an empty view of the value would hold its memory
        if self._coming:
            self._rest = self._coming[0].value
            num_there = min(self._num_landed, self._rest.nbytes)
            self._num_landed -= num_there
            self._take_first(num_there)

    def _decode_frame(self) -> bool:
        """Decode the messages of the next frame, if they are there."""
        if self._head is None:
            if self._end - self._start < HEAD_BYTES:
                self._make_room(HEAD_BYTES)
                return False
            start, self._start = self._start, self._start + HEAD_BYTES
            self._head = self._incoming.open_head(self._buffer[start : self._start])
        head = self._head
        if self._end - self._start < head.num_bytes:
            self._make_room(head.num_bytes)
            return False
        start, self._start, self._head = self._start, self._start + head.num_bytes, None
        self._decode(self._buffer[start : self._start], head)
        if self._start == self._end and self._buffer.nbytes > _BUFFER_BYTES:
            self._buffer, self._start, self._end = memoryview(bytearray(_BUFFER_BYTES)), 0, 0
        return True

    def _make_room(self, num_bytes: int) -> None:
        """Make room for `num_bytes` in the buffer from `start` on."""
        start, num_there = self._start, self._end - self._start
        if start:
            self._buffer[:num_there] = bytes(self._buffer[start : self._end])
            self._start, self._end = 0, num_there
        if num_bytes > self._buffer.nbytes:
            larger = memoryview(bytearray(num_bytes))
            larger[:num_there] = self._buffer[:num_there]
            self._buffer = larger

    def _decode(self, packet: memoryview, head: Head) -> None:
        self._incoming.check_packet(head, packet)
        self._dialogue.note_heard(head.num_heard)
        try:
            messages = decode_from_agent(packet)
            results = [message.result for message in messages if type(message) is Done]
            values = [(one.num_bytes, find_code(one.header)) for one in results if type(one) is RemoteResult]
        except Exception as error:  # msgspec's, and those of a failure that is no failure
            raise WireError(f"a message cannot be read: {error}") from error
        if sum(self._incoming.part_bytes(*value) for value in values) != head.num_part_bytes:
            raise WireError("a frame does not have the length of its values")
        self._decoded += messages
        self._codes += [code for _, code in values]

    def close(self) -> None:
        """Close the connection; harmless twice. Values that were received stay valid."""
        self.lost = self.lost or "it was closed"
        self._outgoing.clear()
        self.abandoned_bytes += sum(charge(coming.value.nbytes) for coming in self._coming)
        self._coming.clear()
        self._rest = _NOTHING
        self._decoded.clear()
        with contextlib.suppress(OSError):  # so that the other side sees it, whatever has a copy of the descriptor
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def disown(self) -> None:
        """In a process that was forked off the trainer: close our copy of the descriptor, and nothing else."""
        self.lost = self.lost or "it belongs to another process"
        self._sock.close()
