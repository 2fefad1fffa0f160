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


lengths = st.one_of(st.integers(0, 40), st.integers(MAX_RECORD_BYTES - 9, MAX_RECORD_BYTES), st.integers(0, 9000))


@given(st.lists(st.one_of(lengths, st.none()), max_size=200), st.booleans())
def test_records_come_out_as_they_went_in_whenever_they_are_read(steps: list[int | None], in_order: bool) -> None:
    worker, trainer = make_pair()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rings, "_IN_ORDER", in_order)
        written, read = [], []
        for number, length in enumerate(steps):
            if length is None:
                read += trainer.read()
                continue
            record = bytes([number % 256]) * length
            if not worker.write(record):
                read += trainer.read()
                assert read == written
                assert worker.write(record)
            written.append(record)
        read += trainer.read()
    assert read == written
    assert worker.num_records == len(written)
    assert trainer.read() == []


def test_a_ring_takes_what_fits_and_no_more() -> None:
    worker, trainer = make_pair()
    record = bytes(1020)
    num_written = 0
    while worker.write(record):
        num_written += 1
    assert num_written == RECORD_BYTES // 1024
    assert len(trainer.read()) == num_written
    assert worker.write(record)


def test_a_record_that_is_too_long_is_refused_and_changes_nothing() -> None:
    worker, trainer = make_pair()
    assert not worker.write(bytes(MAX_RECORD_BYTES + 1))
    assert trainer.read() == []
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
    assert trainer.read() == [b"a", b"b"]


WRITER = """
import os, random, sys
from headrace.engine.memory.rings import WorkerRings
fd, bell, seed, num_records = map(int, sys.argv[1:])
rings, dice = WorkerRings(fd), random.Random(seed)
for number in range(num_records):
    record = number.to_bytes(8, "little") * dice.choice([1, 1, 1, 50, 900])
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
            records = trainer.read()
            if not records:
                trainer.say_asleep()
                records = trainer.read()
                if not records:
                    # A bell that is not rung would be a wait without an end.
                    assert poll.poll(20_000), f"nobody woke the reader after {number} records"
                    os.read(bell, 100)
                trainer.say_awake()
            for record in records:
                assert record[:8] == record[-8:] == number.to_bytes(8, "little")
                number += 1
    finally:
        os.close(bell)
        writer.kill() if number < num_records else None
        assert writer.wait() in (0, -9)
