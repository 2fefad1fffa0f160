"""The engine's stream is the plain loop's, for each executor and any number of workers, and nothing is left behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.engine import Engine, EngineOptions, Job, Raising, Skipping, empty, note_item, skip_item
from headrace.engine.group_size import GroupSize
from headrace.engine.process.executor import ProcessExecutor
from headrace.engine.user.worker_info import WorkerInfo
from headrace.errors import HeadraceError

pytestmark = pytest.mark.usefixtures("warm_workers")

NUM_WORKERS = st.integers(0, 5)
OPTIONS = st.builds(
    dict, tickets_per_worker=st.none() | st.integers(1, 9), look_ahead=st.none() | st.integers(1, 20)
)  # what may be chosen without an effect on the stream


def square_or_raise(bad: frozenset[int]):
    """Make a setup whose function squares, and raises for the numbers in `bad`."""

    def square(number: int) -> int:
        note_item(tag=f"seq-{number}", epoch=3)
        if number in bad:
            raise LookupError(f"no {number}")
        return number * number

    return lambda info: square


class Counting:
    """An iterator that can go on after it raised."""

    def __init__(self, worker_idx: int, length: int, bad: frozenset[int]) -> None:
        self.worker_idx, self.length, self.bad, self.item = worker_idx, length, bad, -1

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> tuple[int, int]:
        self.item += 1
        if self.item >= self.length:
            raise StopIteration
        if self.item in self.bad:
            raise LookupError(f"no {self.item} in worker {self.worker_idx}")
        return self.worker_idx, self.item


def count_streams(bad: frozenset[int] = frozenset()):
    """Make a setup whose function gives each worker as many items as the payload says."""

    def setup(info: WorkerInfo):
        return lambda lengths: Counting(info.worker_idx, lengths[info.worker_idx], bad)

    return setup


def read(run: Any, into: list[Any]) -> None:
    for delivered in run:
        into.append(delivered.value)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@examples(25)
@given(num_workers=NUM_WORKERS, options=OPTIONS, rounds=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 45))))
def test_runs_that_are_read_whole_or_abandoned_give_what_a_plain_loop_gives(
    engine_executors: str, num_workers: int, options: dict, rounds: list[tuple[int, int]]
) -> None:
    job = Job(square_or_raise(frozenset()))
    with Engine(job, num_workers=num_workers, executor=engine_executors, options=EngineOptions(**options)) as engine:
        for num_payloads, num_read in rounds:
            values = []
            for delivered in engine.run(range(num_payloads)):
                assert delivered.ticket == len(values)
                values.append(delivered.value)
                if len(values) == num_read:
                    break
            expected = [number * number for number in range(num_payloads)]
            assert values == (expected[:num_read] if num_read else expected)


@examples(12)
@given(
    lengths=st.lists(st.integers(0, 6000) | st.integers(0, 40_000), max_size=40),
    num_workers=st.integers(1, 3),
    options=OPTIONS,
    slot_bytes=st.sampled_from([1, 2, 63, 64, 4095, 4096, 4097, 1 << 15]),
    spare_bytes=st.sampled_from([0, 1, 4096, 1 << 20]),
    in_place=st.booleans(),
)
def test_neither_the_size_of_slots_nor_the_limit_on_memory_changes_the_stream(
    lengths: list[int], num_workers: int, options: dict, slot_bytes: int, spare_bytes: int, in_place: bool
) -> None:
    make = empty if in_place else np.empty

    def work(payload: tuple[int, int]) -> Any:
        number, length = payload
        array = make(length, np.uint8)
        array.fill(number)
        return array

    # The smallest limit that is legal for these results: the longest one with its description, in whole pages.
    max_bytes = max(slot_bytes, max(lengths, default=0) + 4096) + spare_bytes
    executor = ProcessExecutor(slot_bytes=slot_bytes, max_bytes=max_bytes)
    with Engine(
        Job(lambda info: work), num_workers=num_workers, executor=executor, options=EngineOptions(**options)
    ) as engine:
        for _ in range(2):
            num_delivered = 0
            for delivered in engine.run(enumerate(lengths)):
                assert delivered.value.tobytes() == bytes([num_delivered]) * lengths[num_delivered]
                num_delivered += 1
                del delivered  # one that keeps its result while it waits for the next needs more memory
            assert num_delivered == len(lengths)


class Picky(Exception):
    """Cannot be made anew from what pickle has of it; its text is what it is given."""

    def __init__(self, text: str, more: str) -> None:
        super().__init__(text)


class Trap:
    """Raises where it is unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


# How a ticket ends -> what a consumer sees of it, besides the number. Small results, results in a slot, errors whose
# text is too long for the ring of records (so that they go another way), items that are left out.
ENDS = ("number", "array", "empty array", "dict", "slot", "in place", "error", "long error", "odd error", "left out")


def end_as(end: str, number: int) -> Any:
    """Do what a ticket of this kind does."""
    match end:
        case "array":
            return np.full(number % 7, number)
        case "empty array":
            return np.empty((0, number), np.float32)
        case "dict":
            return {"data": np.full((2, number % 3), number, np.float32), "tag": f"seq-{number}", "pair": (number, "")}
        case "slot":
            return [np.full(3000, number), number]
        case "in place":
            array = empty(2000 + number, np.int32)
            array.fill(number)
            return array
        case "error":
            raise LookupError(number)
        case "long error":
            raise LookupError("x" * 50_000, number)
        case "odd error":
            raise Picky(f"odd {number}", "more")
        case "left out":
            skip_item(LookupError(number))
    return number


def told(value: Any) -> Any:
    """Return a value in a form that can be compared."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: told(part) for key, part in value.items()}
    return [told(part) for part in value] if isinstance(value, list) else value


@examples(20)
@given(
    ends=st.lists(st.sampled_from(ENDS), max_size=300),
    num_workers=st.integers(1, 3),
    ahead=st.lists(st.sampled_from([1, 2, 9, 64, 1000]), min_size=1, max_size=9),
    pauses=st.frozensets(st.integers(0, 300), max_size=3),
    trap=st.none() | st.integers(0, 300),
)
def test_whatever_comes_together_the_stream_is_the_same(
    ends: list[str], num_workers: int, ahead: list[int], pauses: frozenset[int], trap: int | None
) -> None:
    def work(number: int) -> Any:
        if number in pauses:
            time.sleep(0.002)
        return Trap() if number == trap else end_as(ends[number], number)

    expected = []
    for number, end in enumerate(ends):
        if number == trap:
            break
        with contextlib.suppress(LookupError, Picky):
            expected.append((number, told(number if end == "left out" else end_as(end, number))))
    choices = itertools.cycle(ahead)
    options = EngineOptions(on_error=Skipping(1000))
    with (
        patch.object(GroupSize, "choose", lambda self: next(choices)),
        Engine(Job(lambda info: work), num_workers=num_workers, options=options) as engine,
    ):
        kept, found = [], []
        run = engine.run(range(len(ends)))
        is_trapped = trap is not None and trap < len(ends)
        with pytest.raises(ValueError, match="no number") if is_trapped else contextlib.nullcontext() as caught:
            for delivered in run:
                found.append((delivered.ticket, told(delivered.value)))
                if delivered.ticket % 5 == 0:
                    kept.append(delivered)
                if delivered.ticket in pauses:
                    time.sleep(0.002)
        assert caught is None or f"ticket {trap}, " in "".join(caught.value.__notes__)
        assert found == expected
        assert [(ticket, told(value)) for ticket, value, _ in kept] == [one for one in expected if one[0] % 5 == 0]
        assert engine.report.num_skipped == sum(
            "error" in end or end == "left out" for end in ends[: len(ends) if trap is None else trap]
        )
        assert [delivered.value for delivered in engine.run([])] == []


@examples(25)
@given(
    num_workers=NUM_WORKERS,
    options=OPTIONS,
    num_payloads=st.integers(0, 40),
    bad=st.frozensets(st.integers(0, 60), max_size=3),
    payloads_end=st.none() | st.integers(0, 40),
)
def test_errors_of_workers_and_of_payloads_come_where_a_plain_loop_has_them(
    engine_executors: str,
    num_workers: int,
    options: dict,
    num_payloads: int,
    bad: frozenset[int],
    payloads_end: int | None,
) -> None:
    def payloads():
        for number in range(num_payloads):
            if number == payloads_end:
                raise OSError("no more payloads")
            yield number

    def plain_loop(into: list[int]) -> None:
        function = square_or_raise(bad)(None)
        for number in payloads():
            into.append(function(number))

    def outcome(loop, *arguments) -> tuple[list[int], str]:
        values: list[int] = []
        try:
            loop(*arguments, values)
        except (LookupError, OSError) as error:
            return values, repr(error)
        return values, "the end"

    job = Job(square_or_raise(bad))
    with Engine(job, num_workers=num_workers, executor=engine_executors, options=EngineOptions(**options)) as engine:
        for _ in range(2):  # the engine is as good as new after an error
            assert outcome(read, engine.run(payloads())) == outcome(plain_loop)


@examples(25)
@given(num_workers=NUM_WORKERS, options=OPTIONS, bad=st.frozensets(st.integers(0, 30), max_size=8))
def test_skips_are_the_same_for_any_number_of_workers_in_the_stream_and_on_disk(
    engine_executors: str, num_workers: int, options: dict, bad: frozenset[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quarantine.jsonl"
        policy = EngineOptions(on_error=Skipping(budget=8, quarantine=path), **options)
        with Engine(
            Job(square_or_raise(bad)), num_workers=num_workers, executor=engine_executors, options=policy
        ) as engine:
            values: list[int] = []
            read(engine.run(range(25)), values)
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    skipped = sorted(number for number in bad if number < 25)
    assert values == [number * number for number in range(25) if number not in bad]
    assert engine.report.num_skipped == len(skipped)
    assert [(line["ticket"], line["tag"], line["epoch"], line["error"]) for line in lines] == [
        (number, f"seq-{number}", 3, f"LookupError: no {number}") for number in skipped
    ]
    for line in lines:
        first, frame, *_ = line["traceback"].splitlines()
        assert first == "Traceback (most recent call last):"
        assert "in square" in frame
        assert line["traceback"].endswith(f"LookupError: no {line['ticket']}\n")


@examples(25)
@given(num_workers=NUM_WORKERS, options=OPTIONS, bad=st.frozensets(st.integers(0, 20), max_size=5))
def test_single_items_are_left_out_of_tickets_of_many(
    engine_executors: str, num_workers: int, options: dict, bad: frozenset[int]
) -> None:
    def setup(info):
        function = square_or_raise(bad)(info)

        def several(numbers: range) -> list[int]:
            values = []
            for number in numbers:
                try:
                    values.append(function(number))
                except LookupError as error:
                    skip_item(error)
            return values

        return several

    policy = EngineOptions(on_error=Skipping(budget=99), **options)
    with Engine(Job(setup), num_workers=num_workers, executor=engine_executors, options=policy) as engine:
        values: list[list[int]] = []
        read(engine.run([range(10), range(10, 20)]), values)
    assert [value for several in values for value in several] == [n * n for n in range(20) if n not in bad]
    assert engine.report.num_skipped == len([number for number in bad if number < 20])


@examples(25)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    options=OPTIONS,
    bad=st.frozensets(st.integers(0, 9), max_size=3),
    num_read=st.none() | st.integers(1, 20),
)
def test_streams_take_turns_as_plain_iterators_do(
    engine_executors: str, lengths: list[int], options: dict, bad: frozenset[int], num_read: int | None
) -> None:
    expected = [
        (worker_idx, item)
        for item in range(9)
        for worker_idx, length in enumerate(lengths)
        if item < length and item not in bad
    ]
    policy = EngineOptions(on_error=Skipping(budget=99), warn_seconds=0, **options)
    with Engine(Job(count_streams(bad)), num_workers=len(lengths), executor=engine_executors, options=policy) as engine:
        with contextlib.closing(engine.run_stream(lengths)) as run:
            values = [delivered.value for delivered, _ in zip(run, range(num_read or 99), strict=False)]
        assert values == expected[: num_read or 99]
        again: list[tuple[int, int]] = []
        read(engine.run_stream(lengths), again)
        assert again == expected


@examples(25)
@given(num_workers=NUM_WORKERS, options=OPTIONS, rounds=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 45))))
def test_in_turns_a_worker_goes_on_with_what_it_did_before(
    engine_executors: str, num_workers: int, options: dict, rounds: list[tuple[int, int]]
) -> None:
    def setup(info: WorkerInfo):
        numbers: list[int] = []
        current = [-1]

        def gather(payload: tuple[int, int]) -> tuple[int, list[int]]:
            run, number = payload
            if run != current[0]:
                current[0] = run
                numbers.clear()
            numbers.append(number)
            return info.worker_idx, list(numbers)

        return gather

    with Engine(
        Job(setup), num_workers=num_workers, executor=engine_executors, options=EngineOptions(**options)
    ) as engine:
        width = max(num_workers, 1)
        for run, (num_payloads, num_read) in enumerate(rounds):
            payloads = ((run, number) for number in range(num_payloads))
            expected = [(t % width, list(range(t % width, t + 1, width))) for t in range(num_payloads)]
            with contextlib.closing(engine.run(payloads, in_turns=True)) as results:
                values = [result.value for result, _ in zip(results, range(num_read or 99), strict=False)]
            assert values == expected[: num_read or 99]


def test_another_thread_can_interrupt_a_run_that_waits_and_the_next_run_is_whole() -> None:
    def setup(info: WorkerInfo):
        def work(number: int) -> int:
            if number < 0:
                threading.Event().wait()
            return number

        return work

    errors: list[BaseException] = []

    def read_all(run: Any) -> None:
        try:
            list(run)
        except HeadraceError as error:
            errors.append(error)

    with Engine(Job(setup), num_workers=2, executor="process", options=EngineOptions(on_stall=Raising())) as engine:
        run = engine.run([1, 2, -1])
        thread = threading.Thread(target=read_all, args=(run,))
        thread.start()
        engine.interrupt()
        thread.join()
        assert len(errors) == 1
        del run
        engine._workers.stop()  # the worker that waits for ever
        assert [delivered.value for delivered in engine.run(range(5))] == list(range(5))
