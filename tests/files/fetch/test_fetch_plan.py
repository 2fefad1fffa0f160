"""Which range is asked for next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.files.fetch.plan import ByteRange, RangePlan


def _plan(size: int = 100, range_bytes: int = 10, num_streams: int = 4) -> RangePlan:
    return RangePlan([ByteRange(0, size)], range_bytes=range_bytes, num_streams=num_streams)


def _take_all(plan: RangePlan, now: float = 0.0) -> list[ByteRange]:
    taken = []
    while (wanted := plan.take(now)) is not None:
        taken.append(wanted)
    return taken


@st.composite
def gaps(draw: st.DrawFn) -> list[ByteRange]:
    ends = sorted(draw(st.sets(st.integers(0, 500), max_size=12)))
    return [ByteRange(start, stop) for start, stop in zip(ends[::2], ends[1::2], strict=False)]


@given(gaps(), st.integers(1, 60), st.integers(1, 5), st.data())
def test_each_missing_byte_comes_once_whatever_fails_or_comes_short(missing, range_bytes, num_streams, data):
    plan = RangePlan(missing, range_bytes=range_bytes, num_streams=num_streams)
    came: list[int] = []
    in_flight: list[ByteRange] = []
    now, num_failures = 0.0, 0
    while not plan.is_finished:
        in_flight += _take_all(plan, now)
        assert len(in_flight) <= num_streams
        if not in_flight:
            next_time = plan.next_time(now)
            assert next_time is not None  # else the fetch would wait for ever
            now = max(now, next_time)
            continue
        wanted = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
        assert 0 < len(wanted) <= range_bytes
        if num_failures < 20 and data.draw(st.booleans()):
            num_failures += 1
            plan.note_failed(wanted)
            plan.delay(wanted, now + data.draw(st.floats(0, 10)))
        else:
            num_bytes = data.draw(st.integers(1, len(wanted)))
            came += range(wanted.start, wanted.start + num_bytes)
            plan.note_came(wanted, num_bytes)
    assert sorted(came) == [byte for gap in missing for byte in range(gap.start, gap.stop)]
    assert _take_all(plan, now) == []


def test_ranges_are_asked_for_in_order_as_many_as_there_are_streams():
    plan = _plan()
    assert _take_all(plan) == [ByteRange(start, start + 10) for start in (0, 10, 20, 30)]
    assert plan.next_time(0.0) is None


def test_a_failure_halves_the_streams_and_ranges_that_come_bring_them_back():
    plan = _plan(size=1000, num_streams=8)
    in_flight = _take_all(plan)
    for failed in in_flight:
        plan.note_failed(failed)
        plan.delay(failed, 0.0)
    (single,) = _take_all(plan)
    plan.note_came(single, 10)
    most = 1
    while not plan.is_finished:
        taken = _take_all(plan)
        most = max(most, len(taken))
        for wanted in taken:
            plan.note_came(wanted, len(wanted))
    assert most == 8


def test_a_failed_range_waits_for_its_time_while_others_go_on():
    plan = _plan(size=30, num_streams=2)
    first, second = _take_all(plan)
    assert plan.note_failed(first) == 1
    plan.delay(first, until=5.0)
    plan.note_came(second, 10)
    assert plan.take(0.0) == ByteRange(20, 30)
    plan.note_came(ByteRange(20, 30), 10)
    assert plan.take(4.9) is None
    assert plan.next_time(4.9) == 5.0
    assert plan.take(5.0) == first
    assert plan.note_failed(first) == 2


def test_when_the_store_fails_and_not_a_range_everything_waits():
    plan = _plan(size=1000, num_streams=2)
    first, second = _take_all(plan)
    plan.note_failed(first)
    plan.delay(first, until=5.0)
    assert plan.next_time(0.0) is None  # only one stream is left, and it is in flight
    plan.note_failed(second)
    plan.delay(second, until=6.0)
    assert plan.take(5.5) is None
    assert plan.next_time(5.5) == 6.0
    assert _take_all(plan, 6.0) == [first]


def test_a_pause_holds_all_ranges():
    plan = _plan(num_streams=2)
    plan.pause(until=3.0)
    assert plan.take(2.0) is None
    assert plan.next_time(2.0) == 3.0
    assert plan.take(3.0) == ByteRange(0, 10)


def test_bytes_that_come_start_a_new_count_of_failures():
    plan = _plan(size=10)
    whole = plan.take(0.0)
    assert whole is not None
    assert plan.note_failed(whole) == 1
    plan.delay(whole, 0.0)
    assert plan.take(0.0) == whole
    plan.note_came(whole, 4)
    rest = plan.take(0.0)
    assert rest == ByteRange(4, 10)
    assert plan.note_failed(rest) == 1
