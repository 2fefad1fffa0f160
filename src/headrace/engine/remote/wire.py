"""What a trainer and the agents of its workers say to each other, once each knows who the other is.

A frame (`seal.py`) has messages, and after them the bytes of the values that these tell of, one after the other: they
are received straight to where they stay. Invariants: what an agent says comes in the order in which it happened;
lengths are checked before memory is taken for them; values and failures are opaque to the agent, and nothing is
unpickled there. Messages that a worker process knows as well are those of `../process/messages.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError

from ..codec.codec import decode
from ..events import Done, Failed, Ready, SetupFailed, StreamEnded
from ..process.messages import Begin, Cancel, Message, Submit, decode_failure
from ..process.results import InlineArray, InlineResult
from ..user.worker_info import CurrentItem

MAX_MESSAGE_BYTES = 1 << 30
"""Bytes of the messages of one frame: one that says more is not one of ours."""


_CHARGED_BYTES = 4096


def charge(num_bytes: int) -> int:
    """Return what a result of `num_bytes` counts against the credit of its worker: whole pages of a fixed size."""
    return -(-num_bytes // _CHARGED_BYTES) * _CHARGED_BYTES


class WireError(HeadraceError):
    """The other side does not keep to what was agreed on; the connection is given up."""


class RemoteResult(msgspec.Struct, array_like=True, tag=1):
    """A value whose bytes follow in the frame. Its memory is free when it is dropped, or the last view of the value.

    Attributes:
        header: Header of the codec.
        num_bytes: How many follow.
        data: These, `uint8[num_bytes]`: not sent, but set where they come in.
    """

    header: bytes
    num_bytes: Annotated[int, msgspec.Meta(ge=0)]
    data: Any = None

    def take(self) -> Any:
        """Decode the value: its arrays are views of the memory that it came in."""
        data: NDArray[np.uint8] = self.data
        self.data = None
        return decode(self.header, data)

    def discard(self) -> None:
        """Free the memory."""
        self.data = None


# --- before the first worker: msgpack, of bounded length ---


class Introduction(Message, frozen=True, tag=0):
    """Who an agent is: what has to be the same on both sides, and where it runs.

    Attributes:
        seat: The number that it was started with; -1: it was started by somebody else, for any worker.
        dialogue: The key of one that it goes on with, because its connection has broken; empty: it begins one.
        host: Name of its machine.
        pid: Process id of the agent.
        python: Its version, and what else of Python the bytes of values depend on.
        headrace: Its version.
        numpy: Its version.
    """

    seat: int
    dialogue: bytes
    host: str
    pid: int
    python: str
    headrace: str
    numpy: str


class Refused(Message, frozen=True, tag=0):
    """The trainer has no use for this agent, which should say why and end.

    Attributes:
        what: Happened.
        fix: What to do about it.
    """

    what: str
    fix: str


class Welcome(Message, frozen=True, tag=1):
    """Be this worker. The frame also carries the large arrays of the job.

    Attributes:
        worker_idx: Index of the worker.
        num_workers: How many there are in all.
        executor: The name of the executor.
        formats: See `Shipment`, as the next five.
        argv: Command line of the trainer.
        cwd: Working directory of the trainer.
        preload: Modules of other packages that the job needs.
        modules: Headrace's modules that the job needs.
        job: The pickle of the job.
        buffer_bytes: Sizes of the arrays.
        buffer_digests: Digests of the arrays, see `Digests`.
        sys_path: Where the trainer imports from: what the agent's machine has of it is looked at after its own.
        max_bytes: Limit on the memory of results, at both ends.
        num_threads: For numerical libraries in the worker.
        credit_bytes: How much may be sent, see `charge`, before the trainer says that some of it is free again.
        alive_seconds: How often to say something.
        checks_values: Whether values have checksums from now on, see `Seal`; their code has a tag in any case.
        dialogue: The key of what begins now, see `Dialogue`.
        return_seconds: How long to try to go on with it when the connection has broken.
    """

    worker_idx: int
    num_workers: int
    executor: str
    formats: list[bytes]
    argv: list[str]
    cwd: str
    preload: list[str]
    modules: list[str]
    job: bytes
    buffer_bytes: list[int]
    buffer_digests: list[bytes]
    sys_path: list[str]
    max_bytes: int
    num_threads: int
    credit_bytes: int
    alive_seconds: float
    checks_values: bool
    dialogue: bytes
    return_seconds: float


class WelcomeBack(Message, frozen=True, tag=2):
    """Go on, over this connection: each side says again what the other has not heard."""


# --- from the trainer: besides what a worker process is told ---


class Freed(Message, frozen=True, tag=10):
    """So many bytes of results, see `charge`, were freed since the `Welcome`, in all."""

    num_bytes: int


class RestartWorker(Message, frozen=True, tag=11):
    """Replace the worker; answered by `Restarted`."""

    first_item: int


class AskStack(Message, frozen=True, tag=12):
    """Answer by the stack of the worker."""


class GiveUpWaiting(Message, frozen=True, tag=13):
    """No memory will become free: the consumer keeps what fills it, and waits for this worker.

    Void if more has become free since the agent said that it waits.

    Attributes:
        num_bytes: Freed, as the agent had seen.
        kept_bytes: That the consumer keeps.
    """

    num_bytes: int
    kept_bytes: int


class HangUp(Message, frozen=True, tag=14):
    """The worker is not needed any more: the connection is about to be closed, and it is of no use to come back."""


ToAgent = Begin | Submit | Cancel | Freed | RestartWorker | AskStack | GiveUpWaiting | HangUp

# --- from an agent: events of its worker, and besides ---


class Alive(Message, frozen=True, tag=10):
    """The agent is there; perhaps its worker has made progress since the last message, too."""

    has_progress: bool


class HasEnded(Message, frozen=True, tag=11):
    """The worker is gone, see `Exited`; if in order, its agent ends, too."""

    cause: str
    item: CurrentItem | None
    advice: str
    is_orderly: bool = False


class Restarted(Message, frozen=True, tag=12):
    """What follows is of the new worker."""


class Stack(Message, frozen=True, tag=13):
    """The stack of the worker."""

    text: str | None


class WaitsForMemory(Message, frozen=True, tag=14):
    """The next result does not fit into the free memory; `num_bytes` were freed, as far as the worker knows."""

    num_bytes: int


Outcome = Done[InlineArray | InlineResult | RemoteResult] | Failed
FromAgent = Ready | Outcome | SetupFailed | StreamEnded | Alive | HasEnded | Restarted | Stack | WaitsForMemory


decode_from_agent: Callable[[bytes | memoryview], Sequence[FromAgent]] = msgspec.msgpack.Decoder(
    list[FromAgent], dec_hook=decode_failure
).decode
"""Decode the messages of an agent."""

decode_for_agent: Callable[[bytes | memoryview], Sequence[ToAgent]] = msgspec.msgpack.Decoder(list[ToAgent]).decode
"""Decode the messages of a trainer."""

decode_introduction: Callable[[bytes | memoryview], Introduction] = msgspec.msgpack.Decoder(Introduction).decode
"""Decode the first message of an agent."""

decode_answer: Callable[[bytes | memoryview], Refused | Welcome | WelcomeBack] = msgspec.msgpack.Decoder(
    Refused | Welcome | WelcomeBack
).decode
"""Decode what a trainer answers to it."""
