"""Packets arrive whole, whatever their size, with their descriptors, and the end of the other side is seen."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine import CurrentItem, Failure
from headrace.engine.events import Done, Failed, Ready, SetupFailed, StreamEnded
from headrace.engine.process.channel import MAX_PACKET_BYTES, Channel, read_memfd, write_memfd
from headrace.engine.process.messages import (
    BeginRun,
    Cancel,
    GiveUp,
    SentAfterRecord,
    Starved,
    Submit,
    decode_for_trainer,
    decode_for_worker,
    decode_records,
    encode_packet,
    encode_record,
)
from headrace.engine.process.results import InlineArray, InlineResult, SlotResult
from headrace.errors import ConfigError


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, sock = Channel.pair()
    theirs = Channel(sock)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("num_bytes", [1, 100, MAX_PACKET_BYTES, MAX_PACKET_BYTES + 1, 3_000_000])
def test_a_packet_of_any_size_arrives_whole(num_bytes: int, ends: tuple[Channel, Channel]) -> None:
    packet = b"\x91" + random.Random(1).randbytes(num_bytes - 1)  # a list, and no mark of a spilled one
    for sender, receiver in (ends, ends[::-1]):
        assert sender.send(packet)
        assert receiver.receive() == (packet, [])
        assert receiver.receive(block=False) is None


@pytest.mark.parametrize("num_bytes", [1, MAX_PACKET_BYTES + 1])
def test_descriptors_arrive_with_their_packet_and_are_closed_on_exec(
    num_bytes: int, ends: tuple[Channel, Channel]
) -> None:
    fds = [write_memfd("test", text) for text in (b"first", b"second")]
    assert ends[0].send(b"x" * num_bytes, fds)
    for fd in fds:
        os.close(fd)
    received = ends[1].receive()
    assert received is not None
    packet, arrived = received
    assert packet == b"x" * num_bytes
    assert [read_memfd(fd) for fd in arrived] == [b"first", b"second"]
    assert not any(os.get_inheritable(fd) for fd in arrived)
    for fd in arrived:
        os.close(fd)


def test_the_trainers_end_never_blocks_and_goes_on_when_there_is_room(ends: tuple[Channel, Channel]) -> None:
    packet = b"x" * 10_000
    num_sent = 0
    while ends[0].send(packet):
        num_sent += 1
    assert num_sent > 0
    assert ends[1].receive() == (packet, [])
    assert ends[0].send(b"last")
    packets = [ends[1].receive() for _ in range(num_sent)]
    assert packets[-1] == (b"last", [])


def test_what_was_sent_before_the_end_is_still_received(ends: tuple[Channel, Channel]) -> None:
    ends[1].send(b"last words")
    ends[1].shut_down()
    assert ends[0].receive() == (b"last words", [])
    assert ends[0].receive() == (b"", [])
    with pytest.raises(OSError, match="Broken pipe"):
        ends[0].send(b"too late")


def test_last_words_arrive_from_an_end_that_had_not_received_all(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(b"never received")
    ends[1].send(b"last")
    ends[1].send(b"words")
    ends[1].close()
    assert [ends[0].receive() for _ in range(4)] == [(b"last", []), (b"words", []), (b"", []), (b"", [])]


def test_a_copy_of_the_descriptor_does_not_hide_the_end(ends: tuple[Channel, Channel]) -> None:
    copy = os.dup(ends[1].fileno())
    ends[1].shut_down()
    assert ends[0].receive() == (b"", [])
    os.close(copy)


def test_descriptors_that_cannot_arrive_are_an_error(ends: tuple[Channel, Channel]) -> None:
    fds = [write_memfd("test", b"") for _ in range(4)]
    ends[0].send(b"x", fds)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fds) + 1, hard))
    try:
        with pytest.raises(ConfigError, match="ulimit -n"):
            ends[1].receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fds:
            os.close(fd)


numbers = st.integers(0, 2**63 - 1)
to_worker = st.one_of(
    st.builds(BeginRun, numbers, st.booleans(), st.binary(), numbers),
    st.builds(Submit, numbers, st.lists(numbers), st.lists(st.none() | st.binary())),
    st.builds(Cancel, numbers),
    st.builds(GiveUp, numbers),
)
results = st.one_of(
    st.builds(InlineResult, st.binary(), st.binary().map(bytearray), numbers),
    st.builds(InlineArray, st.binary().map(bytearray), numbers, st.text(max_size=1), st.lists(numbers).map(tuple)),
    st.builds(SlotResult, st.binary(), st.integers(0, 99), numbers, numbers),
)
to_trainer = st.one_of(
    st.builds(Done, numbers, numbers, numbers, results, st.floats(0, 9), st.floats(0, 9), st.just(())),
    st.builds(Ready, numbers),
    st.builds(StreamEnded, numbers, numbers, numbers),
    st.builds(Starved, numbers),
    st.builds(SentAfterRecord, numbers),
)


@given(st.lists(to_worker))
def test_messages_to_a_worker_survive_their_packet(messages: list[BeginRun | Submit | Cancel | GiveUp]) -> None:
    assert decode_for_worker(encode_packet(messages)) == messages


@given(st.lists(to_trainer))
def test_messages_to_the_trainer_survive_their_packet(messages: list[object]) -> None:
    assert decode_for_trainer(encode_packet(messages)) == messages


@given(st.lists(to_trainer))
def test_records_that_lie_one_behind_the_other_are_the_messages_of_one_packet(messages: list[object]) -> None:
    assert decode_records(len(messages), b"".join(map(encode_record, messages))) == messages


@given(st.text(st.characters()), st.none() | st.text(), st.booleans())
def test_failures_survive_their_packet_whatever_their_text(text: str, tag: str | None, ends_stream: bool) -> None:
    failure = Failure("ValueError", text, "trace \udc80", CurrentItem(tag, 2), ValueError(text), ends_stream)
    packet = encode_packet([Failed(1, 2, failure, 3), SetupFailed(4, failure), Done(5, 6, skipped=(failure,))])
    failed, not_set_up, done = decode_for_trainer(packet)
    assert (failed.worker_idx, failed.ticket, failed.run_id, not_set_up.worker_idx) == (1, 2, 3, 4)
    for crossed in (failed.failure, not_set_up.failure, *done.skipped):
        assert (crossed.type_name, crossed.text, crossed.traceback) == ("ValueError", text, "trace \udc80")
        assert (crossed.item, crossed.ends_stream) == (CurrentItem(tag, 2), ends_stream)
        assert type(crossed.exception) is ValueError
        assert crossed.exception.args == (text,)


def test_an_end_that_the_collector_has_closed_is_an_end(ends: tuple[Channel, Channel]) -> None:
    end, _ = ends
    end.close()
    assert end.receive() == end.receive(block=False) == (b"", [])
