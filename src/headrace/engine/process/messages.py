"""What a trainer, its warden and its workers say to each other: small, typed, and nothing else.

Invariants: a packet is a list of messages and stands alone; it is never split, because sockets and rings keep packets
whole. A packet of no messages says nothing, and wakes whoever waits for one.
Results are not in here but in the arena; a `Done` says where. User objects are opaque bytes: nothing is unpickled here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True):
    """One message. Its class travels as a small number, its fields in order."""


# --- from the trainer to a worker ---


class Begin(Message, frozen=True, tag=0):
    """A run begins; an earlier one is over. `payload` is a parcel for streams, and empty for tasks."""

    run_id: int
    is_stream: bool
    payload: bytes
    first_item: int


class Submit(Message, frozen=True, tag=1):
    """One more ticket. `payload` is a parcel for tasks, and empty for streams."""

    run_id: int
    ticket: int
    payload: bytes


class Cancel(Message, frozen=True, tag=2):
    """A run is over: its tickets are dropped."""

    run_id: int


class GiveUp(Message, frozen=True, tag=3):
    """No slot will become free: the consumer keeps what fills them, and waits for this worker.

    Void if the worker has seen another number of credits since it said that it waits.
    """

    num_credits: int


ToWorker = Begin | Submit | Cancel | GiveUp

# --- from a worker to the trainer ---


class IsReady(Message, frozen=True, tag=0):
    """The worker has been set up."""


class Done(Message, frozen=True, tag=1):
    """A ticket is done. `slot_idx` is -1 where the bytes of the value follow the header; no slot is used then."""

    run_id: int
    ticket: int
    header: bytes
    slot_idx: int
    offset: int
    num_bytes: int
    seconds: float
    transport_seconds: float
    skipped: list[bytes]


class NotDone(Message, frozen=True, tag=2):
    """User code raised an exception over a ticket."""

    run_id: int
    ticket: int
    failure: bytes


class NotSetUp(Message, frozen=True, tag=3):
    """The worker cannot be set up: it will do nothing."""

    failure: bytes


class StreamEnded(Message, frozen=True, tag=4):
    """The worker's iterator has ended."""

    run_id: int
    num_items: int


class Starved(Message, frozen=True, tag=5):
    """The worker waits for a free slot: all of them are held by the trainer. It has seen so many credits."""

    num_credits: int


class SentAfterRecord(Message, frozen=True, tag=6):
    """The other message of this packet comes after so many records of the ring, and before the next one."""

    num_records: int


ToTrainer = IsReady | Done | NotDone | NotSetUp | StreamEnded | Starved | SentAfterRecord

# --- from the trainer to its warden ---


class Spawn(Message, frozen=True, tag=0):
    """Start a worker. The packet carries the descriptors of `worker_main.Links`, and those that are handed over.

    Attributes:
        life: Number of this start, never used twice by one trainer.
        worker_idx: Whose life it is.
        executable: Command of a fresh interpreter to execute; empty: the fork itself is the worker.
        environment: What to change in the environment of a fresh interpreter.
        modules: Modules of ours that the worker will import: imported before the fork, once for all workers.
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

encode_packet = msgspec.msgpack.Encoder().encode
"""Encode a sequence of messages as one packet."""

BELL = encode_packet(())
"""A packet that only wakes."""

_to_worker: msgspec.msgpack.Decoder[list[ToWorker]] = msgspec.msgpack.Decoder(list[ToWorker])
_to_trainer: msgspec.msgpack.Decoder[list[ToTrainer]] = msgspec.msgpack.Decoder(list[ToTrainer])
_to_warden: msgspec.msgpack.Decoder[list[ToWarden]] = msgspec.msgpack.Decoder(list[ToWarden])
_from_warden: msgspec.msgpack.Decoder[list[FromWarden]] = msgspec.msgpack.Decoder(list[FromWarden])


def decode_for_worker(packet: bytes) -> Sequence[ToWorker]:
    """Decode what a trainer sent to a worker."""
    return _to_worker.decode(packet)


def decode_for_trainer(packet: bytes) -> Sequence[ToTrainer]:
    """Decode what a worker sent to its trainer."""
    return _to_trainer.decode(packet)


def decode_for_warden(packet: bytes) -> Sequence[ToWarden]:
    """Decode what a trainer sent to its warden."""
    return _to_warden.decode(packet)


def decode_from_warden(packet: bytes) -> Sequence[FromWarden]:
    """Decode what a warden sent to its trainer."""
    return _from_warden.decode(packet)
