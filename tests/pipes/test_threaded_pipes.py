"""prefetch, threadpool_map, async_map_batches: order, errors, ends. The fixture sees that no thread is left."""

import asyncio
import gc
import threading

import pytest
from tests.pipes.random_chains import add_one

from headrace.errors import ConfigError, StalledError
from headrace.pipes import IterPipe
from headrace.pipes.graph.state import graph_state, restore_graph
from headrace.pipes.iter import IterableWrapper
from headrace.pipes.ops.buffers import read_ahead

_SECONDS = 120  # until a test that hangs fails


def numbers(n=5):
    return IterableWrapper(range(n))


def fail_at_three(number):
    if number == 3:
        raise KeyError("three")
    return number


class Gated(IterPipe):
    """Gives a number each time that the gate is opened."""

    def __init__(self):
        self.gate = threading.Semaphore(0)
        self.num_asked = threading.Semaphore(0)
        self.num_closed = 0

    def __iter__(self):
        try:
            for number in range(100):
                self.num_asked.release()
                assert self.gate.acquire(timeout=_SECONDS)
                yield number
        finally:
            self.num_closed += 1


@pytest.mark.parametrize("size", [1, 2, 10, 1000])
@pytest.mark.parametrize("length", [0, 1, 500])
def test_prefetch_changes_nothing(size, length):
    pipe = numbers(length).prefetch(size)
    for _ in range(3):
        assert list(pipe) == list(range(length))
    assert len(pipe) == length


def test_prefetch_reads_so_many_ahead_and_no_more():
    source = Gated()
    iterator = iter(source.prefetch(3))
    for _ in range(50):
        source.gate.release()
    assert [next(iterator) for _ in range(10)] == list(range(10))
    for _ in range(11):  # those that were taken, and one ahead
        assert source.num_asked.acquire(timeout=_SECONDS)
    num_more = 0
    while source.num_asked.acquire(timeout=0.05):
        num_more += 1
    assert num_more <= 2


@pytest.mark.parametrize("stage", ["prefetch", "threadpool_map"])
def test_errors_come_in_their_place(stage):
    pipe = numbers().map(fail_at_three).prefetch(2) if stage == "prefetch" else numbers().threadpool_map(fail_at_three)
    for _ in range(2):
        iterator = iter(pipe)
        assert [next(iterator) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(KeyError, match="three"):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)


def test_base_exceptions_cross_threads():
    def leave(_):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        list(numbers().map(leave).prefetch())


def test_leaving_early_ends_the_thread_and_closes_the_source():
    source = Gated()
    for _ in range(200):
        source.gate.release()
    for times in (1, 2):
        for number in source.prefetch(4).map(add_one):
            if number == 3:
                break
        gc.collect()
        assert source.num_closed == times


def test_an_epoch_can_begin_again_at_any_time():
    pipe = numbers(1000).prefetch(5).prefetch(7)
    for stop in (1, 3, 20):
        for number, item in enumerate(pipe):
            assert item == number
            if number == stop:
                break
    assert len(list(pipe)) == 1000


def test_a_source_that_gives_nothing_is_left_behind_with_a_warning(monkeypatch):
    monkeypatch.setattr(read_ahead, "_STOP_SECONDS", 0.05)
    source = Gated()
    iterator = iter(source.prefetch(2))
    source.gate.release()
    assert next(iterator) == 0
    assert source.num_asked.acquire(timeout=_SECONDS)
    assert source.num_asked.acquire(timeout=_SECONDS)
    with pytest.warns(ResourceWarning, match="left running"):
        iterator._raw.close()
    source.gate.release()


def test_prefetch_pauses_and_resumes_without_loss():
    pipe = numbers(1000).prefetch(10)
    iterator = iter(pipe)
    items = [next(iterator)]
    pipe.pause()
    with pytest.raises(RuntimeError, match=r"call resume\(\) first"):
        items.extend(iterator)
    assert 1 <= len(items) <= 12
    pipe = numbers(1000).prefetch(10)
    iterator = iter(pipe)
    items = [next(iterator)]
    pipe.pause()
    items += [next(iterator)]
    pipe.resume()
    assert items + list(iterator) == list(range(1000))


def test_a_state_of_what_does_not_come_to_rest_is_an_error(monkeypatch):
    monkeypatch.setattr(read_ahead, "_HOLD_SECONDS", 0.05)
    source = Gated()
    pipe = source.prefetch(2)
    iterator = iter(pipe)
    source.gate.release()
    next(iterator)
    with pytest.raises(StalledError, match="was still waiting for an item"):
        graph_state(pipe)
    for _ in range(100):
        source.gate.release()
    assert next(iterator) == 1


def test_prefetch_that_is_shut_down_gives_what_it_has_and_ends():
    pipe = numbers(1000).prefetch(10)
    iterator = iter(pipe)
    next(iterator)
    pipe.shutdown()
    assert graph_state(pipe) is None
    assert len(list(iterator)) <= 11
    assert list(pipe) == list(range(1000))


def test_a_state_is_exact_while_threads_read_ahead():
    def build():
        return numbers(300).shuffle(buffer_size=20).set_seed(4).prefetch(9).map(add_one).prefetch(4)

    expected = list(build())
    pipe = build()
    for number, _ in enumerate(pipe):
        if number % 40 == 7:
            fresh = build()
            restore_graph(fresh, graph_state(pipe))
            assert list(fresh) == expected[number + 1 :]


def test_a_state_behind_a_pending_error_is_unknown():
    pipe = numbers().map(fail_at_three).prefetch(10)
    iterator = iter(pipe)
    next(iterator)
    while pipe._ahead.error is None:
        pipe._ahead.wait()
    assert graph_state(pipe) is None


@pytest.mark.parametrize("build", [lambda: numbers().prefetch(0), lambda: numbers().threadpool_map(abs, max_workers=0)])
def test_numbers_are_checked_when_built(build):
    with pytest.raises(ConfigError, match=r"buffer_size|max_workers"):
        build()


def test_threadpool_map_runs_several_at_once_and_keeps_the_order():
    together = threading.Barrier(4, timeout=_SECONDS)

    def work(number):
        together.wait()
        return -number

    pipe = numbers(8).threadpool_map(work, scheduled_tasks=4, max_workers=4)
    assert list(pipe) == [0, -1, -2, -3, -4, -5, -6, -7]


def test_threadpool_map_takes_columns_and_options_of_the_pool():
    rows = IterableWrapper([{"a": 1}]).threadpool_map(abs, "a", "b", thread_name_prefix="mine")
    assert list(rows) == [{"a": 1, "b": 1}]
    assert len(rows) == 1


def test_threadpool_map_does_not_read_further_than_scheduled():
    seen = []
    pipe = numbers(100).map(lambda number: seen.append(number) or number).threadpool_map(abs, scheduled_tasks=5)
    iterator = iter(pipe)
    next(iterator)
    assert seen == [0, 1, 2, 3, 4]


async def double(number):
    await asyncio.sleep(0)
    return 2 * number


def test_async_map_batches_keeps_the_order_and_limits_how_many_run():
    running = most = 0

    async def work(number):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - number):
            await asyncio.sleep(0)
        running -= 1
        return number

    assert list(numbers(10).async_map_batches(work, 5, max_concurrency=3)) == list(range(10))
    assert most == 3


def test_async_map_batches_takes_columns_and_gives_batches():
    assert list(numbers(5).async_map_batches(double, 2, flatten=False)) == [[0, 2], [4, 6], [8]]
    assert list(IterableWrapper([(1, 2)]).async_map_batches(double, 2, input_col=0, output_col=-1)) == [(1, 2, 2)]


def test_async_map_batches_raises_the_error_itself_and_ends_the_others():
    ended = []

    async def work(number):
        if number == 1:
            raise KeyError("one")
        try:
            await asyncio.sleep(_SECONDS)
        finally:
            ended.append(number)

    with pytest.raises(KeyError, match="one"):
        list(numbers(3).async_map_batches(work, 3))
    assert sorted(ended) == [0, 2]


def test_async_map_batches_wants_coroutines():
    with pytest.raises(ConfigError, match="awaitable"):
        list(numbers().async_map_batches(abs, 2))
    with pytest.raises(ConfigError, match="max_concurrency"):
        numbers().async_map_batches(double, 2, max_concurrency=0)


def test_a_state_before_the_first_item_is_the_start():
    pipe, fresh = numbers().prefetch(2), numbers().prefetch(2)
    iterator = iter(pipe)
    restore_graph(fresh, graph_state(pipe))
    assert list(fresh) == list(iterator) == [0, 1, 2, 3, 4]


def test_pausing_twice_is_pausing_once():
    pipe = numbers(100).prefetch(3)
    iterator = iter(pipe)
    next(iterator)
    for act in (pipe.pause, pipe.pause, pipe.resume, pipe.resume):
        act()
    assert len(list(iterator)) == 99
