"""What goes through shared rings comes out whole, in order, once, and wakes who sleeps."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.memory import rings
from headrace.engine.memory.rings import (
    CREDIT_WORDS,
    MAX_RECORD_BYTES,
    RECORD_BYTES,
    TrainerRings,
    WorkerRings,
    create_rings,
)


@pytest.fixture
def fd() -> Iterator[int]:
    fd = create_rings()
    yield fd
    os.close(fd)


def make_pair() -> tuple[WorkerRings, TrainerRings]:
    fd = create_rings()
    try:
        return WorkerRings(fd), TrainerRings(fd)
    finally:
        os.close(fd)


def read(trainer: TrainerRings, lengths: list[int]) -> list[bytes]:
    """Read, and cut what comes at the lengths of the next records."""
    num_records, data = trainer.read()
    found = []
    for _ in range(num_records):
        length = lengths.pop(0)
        found.append(data[:length])
        data = data[length:]
    assert data == b""
    return found


lengths = st.one_of(st.integers(0, 40), st.integers(MAX_RECORD_BYTES - 9, MAX_RECORD_BYTES), st.integers(0, 9000))


@given(st.lists(st.one_of(lengths, st.none()), max_size=200), st.booleans())
def test_records_come_out_as_they_went_in_whenever_they_are_read(steps: list[int | None], in_order: bool) -> None:
    worker, trainer = make_pair()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rings, "_IN_ORDER", in_order)
        written, found, unread = [], [], []
        for number, length in enumerate(steps):
            if length is None:
                found += read(trainer, unread)
                continue
            record = bytes([number % 256]) * length
            if not worker.write(record):
                found += read(trainer, unread)
                assert found == written
                assert worker.write(record)
            written.append(record)
            unread.append(len(record))
        found += read(trainer, unread)
    assert found == written
    assert worker.num_records == len(written)
    assert trainer.read() == (0, b"")


def test_a_ring_takes_what_fits_and_no_more() -> None:
    worker, trainer = make_pair()
    record = bytes(1024)
    num_written = 0
    while worker.write(record):
        num_written += 1
    assert num_written == RECORD_BYTES // 1024
    assert trainer.read() == (num_written, bytes(RECORD_BYTES))
    assert worker.write(record)


def test_a_record_that_is_too_long_is_refused_and_changes_nothing() -> None:
    worker, trainer = make_pair()
    assert not worker.write(bytes(MAX_RECORD_BYTES + 1))
    assert trainer.read() == (0, b"")
    assert worker.num_records == 0


@given(st.lists(st.lists(st.integers(0, 4095), max_size=4000), max_size=12))
def test_credits_come_out_as_they_went_in(gifts: list[list[int]]) -> None:
    worker, trainer = make_pair()
    for gift in gifts:
        trainer.give_credits(gift)
        assert worker.take_credits() == gift
    assert worker.num_credits == trainer.num_credits == sum(map(len, gifts))
    assert worker.take_credits() == []


def test_as_many_credits_as_there_can_be_slots_fit_at_once() -> None:
    worker, trainer = make_pair()
    for _ in range(3):
        trainer.give_credits(list(range(CREDIT_WORDS)))
        assert worker.take_credits() == list(range(CREDIT_WORDS))


def test_who_sleeps_is_woken_once() -> None:
    worker, trainer = make_pair()
    assert worker.write(b"a")
    assert not worker.should_wake()
    trainer.say_asleep()
    assert worker.write(b"b")
    assert worker.should_wake()
    assert not worker.should_wake()
    trainer.say_asleep()
    trainer.say_awake()
    assert not worker.should_wake()
    assert trainer.read() == (2, b"ab")


WRITER = """
import os, random, sys
from headrace.engine.memory.rings import WorkerRings
fd, bell, seed, num_records = map(int, sys.argv[1:])
rings, dice = WorkerRings(fd), random.Random(seed)
for number in range(num_records):
    record = number.to_bytes(8, "little") + bytes([number % 251]) * (length := dice.choice([0, 1, 1, 50, 900]))
    record = length.to_bytes(2, "little") + record
    while not rings.write(record):
        os.sched_yield()
    if rings.should_wake():
        os.write(bell, b"!")
    if dice.random() < 0.01:
        os.sched_yield()
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_sleeper_misses_nothing_that_another_process_writes(fd: int, seed: int) -> None:
    bell, theirs = os.pipe()
    num_records = 20_000
    arguments = [sys.executable, "-c", WRITER, *map(str, (fd, theirs, seed, num_records))]
    trainer = TrainerRings(fd)
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    writer = subprocess.Popen(arguments, pass_fds=(fd, theirs))
    os.close(theirs)
    number = 0
    try:
        while number < num_records:
            num_records_read, data = trainer.read()
            if not data:
                trainer.say_asleep()
                num_records_read, data = trainer.read()
                if not data:
                    # A bell that is not rung would be a wait without an end.
                    assert poll.poll(120_000), f"nobody woke the reader after {number} records"
                    os.read(bell, 100)
                trainer.say_awake()
            for _ in range(num_records_read):
                length = int.from_bytes(data[:2], "little")
                assert data[2 : 10 + length] == number.to_bytes(8, "little") + bytes([number % 251]) * length
                data = data[10 + length :]
                number += 1
            assert data == b""
    finally:
        os.close(bell)
        writer.kill() if number < num_records else None
        assert writer.wait() in (0, -9)


@pytest.mark.parametrize("num_before", [2**40 - 3000, 2**64 - 3000, 3 * 2**40 - 1])
def test_numbers_of_bytes_and_records_begin_anew(num_before: int) -> None:
    worker, trainer = make_pair()
    worker._num_written = worker._num_read = num_before  # bytes
    worker.num_records = num_before
    trainer._words[0] = trainer._seen = (num_before & 2**24 - 1) << 40 | num_before & 2**40 - 1
    trainer._words[8] = num_before & 2**40 - 1
    for number in range(1500):
        record = bytes([number % 251]) * (1 + number % 900)
        assert worker.write(record)
        assert trainer.read() == (1, record)
    while worker.write(bytes(1000)):
        pass
    num_records, data = trainer.read()
    assert (num_records, len(data)) == (RECORD_BYTES // 1000, RECORD_BYTES // 1000 * 1000)
