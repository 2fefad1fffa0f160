"""What a trainer, its warden and its workers say to each other: small, typed, and nothing else.

Invariants: a packet is a list of messages and stands alone; it is never split, because sockets keep packets whole. A
packet of no messages says nothing, and wakes the reader that waits for one. A record of a ring is one message.
What a worker says is an event of the engine (`events.py`), or a word for its trainer alone. Values are not in here but
in the arena; the result of a `Done` says where. User objects are opaque bytes: of those, only failures are unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..events import Done, Failed, Ready, SetupFailed, StreamEnded
from ..user.failure import Failure
from ..user.job import Mode
from ..user.ship import ship_payload
from .results import InlineArray, InlineResult, SlotResult


class Message(msgspec.Struct, frozen=True, array_like=True):
    """One message. Its class travels as a small number, its fields in order."""


# --- from the trainer to a worker ---


class BeginRun(Message, frozen=True, tag=0):
    """A run begins; an earlier one is over. `payload` is a parcel for streams, and empty for tasks."""

    run_id: int
    is_stream: bool
    payload: bytes
    first_item: int

    @classmethod
    def of(cls, run_id: int, mode: Mode, payload: object) -> BeginRun:
        """Return the message for a new run, with its payload pickled."""
        is_stream = mode is Mode.STREAM
        return cls(run_id, is_stream, ship_payload(payload) if is_stream else b"", 0)


class Submit(Message, frozen=True, tag=1):
    """A burst of tickets. Their payloads are parcels for tasks, and None for streams."""

    run_id: int
    tickets: Sequence[int]
    payloads: Sequence[bytes | None]


class Cancel(Message, frozen=True, tag=2):
    """A run is over: its tickets are dropped."""

    run_id: int


class GiveUp(Message, frozen=True, tag=3):
    """No slot will become free: the consumer keeps what fills them, and waits for this worker.

    Void if the worker has seen another number of credits since it said that it waits.
    """

    num_credits: int


ToWorker = BeginRun | Submit | Cancel | GiveUp

# --- from a worker to the trainer: events, and besides ---


class Starved(Message, frozen=True, tag=5):
    """The worker waits for a free slot: all of them are held by the trainer. It has seen `num_credits` credits."""

    num_credits: int


class SentAfterRecord(Message, frozen=True, tag=6):
    """The other message of this packet comes after `num_records` records of the ring, and before the next one."""

    num_records: int


Outcome = Done[InlineArray | InlineResult | SlotResult] | Failed
ToTrainer = Ready | Outcome | SetupFailed | StreamEnded | Starved | SentAfterRecord

# --- from the trainer to its warden ---


class Spawn(Message, frozen=True, tag=0):
    """Start a worker. The packet carries the descriptors of `worker_main.WorkerFds`, and those that are handed over.

    Attributes:
        life: Number of this start, never used twice by one trainer.
        worker_idx: Whose life it is.
        executable: Command of a fresh interpreter to execute; empty: the fork itself is the worker.
        environment: What to change in the environment of a fresh interpreter.
        modules: Modules of Headrace that the worker will import: imported before the fork, once for all workers.
    """

    life: int
    worker_idx: int
    executable: list[str]
    environment: dict[str, str]
    modules: list[str]


class Kill(Message, frozen=True, tag=1):
    """End a worker and all of its descendants, if it has not ended by itself after a grace."""

    life: int
    grace_seconds: float


class Finish(Message, frozen=True, tag=2):
    """End all workers of this channel, those that do not end by themselves after a grace, and then the channel."""

    grace_seconds: float


class Connect(Message, frozen=True, tag=3):
    """Serve one more channel. The packet carries its descriptor."""


class Prepare(Message, frozen=True, tag=4):
    """Import modules that workers will need: a `Spawn` that names them may follow, or nothing."""

    modules: list[str]


ToWarden = Spawn | Kill | Finish | Connect | Prepare

# --- from the warden to its trainer ---


class Spawned(Message, frozen=True, tag=0):
    """A worker runs. The packet carries the descriptor for its `ProcessHandle`."""

    life: int
    pid: int


class HasExited(Message, frozen=True, tag=1):
    """A worker is gone: its exit code, or minus the signal that killed it."""

    life: int
    exit_code: int


class NotSpawned(Message, frozen=True, tag=2):
    """A worker could not be started."""

    life: int
    reason: str


FromWarden = Spawned | HasExited | NotSpawned


def _encode_failure(failure: Failure) -> bytes:
    return failure.to_bytes()


def decode_failure(_kind: type, data: bytes) -> Failure:
    """Decode the one object in a message that is none of msgspec's."""
    return Failure.from_bytes(data)


encode_packet = msgspec.msgpack.Encoder(enc_hook=_encode_failure).encode
"""Encode a sequence of messages as one packet."""

encode_record = encode_packet
"""Encode one message as a record."""

BELL = encode_packet(())
"""A packet that only wakes."""

decode_for_worker: Callable[[bytes], Sequence[ToWorker]] = msgspec.msgpack.Decoder(list[ToWorker]).decode
"""Decode what a trainer sent to a worker."""

decode_for_trainer: Callable[[bytes], Sequence[ToTrainer]] = msgspec.msgpack.Decoder(
    list[ToTrainer], dec_hook=decode_failure
).decode
"""Decode what a worker sent to its trainer."""

_LIST = b"\xdd"  # MessagePack: a list, its number of elements in the next four bytes


def decode_records(num_records: int, data: bytes) -> Sequence[ToTrainer]:
    """Decode records of a worker that lie one after the other: all of them at once."""
    return decode_for_trainer(_LIST + num_records.to_bytes(4, "big") + data)


decode_for_warden: Callable[[bytes], Sequence[ToWarden]] = msgspec.msgpack.Decoder(list[ToWarden]).decode
"""Decode what a trainer sent to its warden."""

decode_from_warden: Callable[[bytes], Sequence[FromWarden]] = msgspec.msgpack.Decoder(list[FromWarden]).decode
"""Decode what a warden sent to its trainer."""
