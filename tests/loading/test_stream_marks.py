"""A stream that is another one when it is read again is refused, and one that is the same never is."""

import os
import random
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import SourceError
from headrace.batching import FixedCount
from headrace.engine import get_worker_info
from headrace.loading import DataLoader
from headrace.loading.streams.marks import WindowMarks, mark_of, mark_of_window

pytestmark = pytest.mark.usefixtures("warm_workers")


class Stream:
    """Gives what a function says, anew in each epoch."""

    def __init__(self, numbers, make=lambda number: {"data": np.full(3, number)}):
        self.numbers, self.make = numbers, make

    def __iter__(self):
        return map(self.make, self.numbers())


def worker():
    info = get_worker_info()
    return (0, 1) if info is None else (info.worker_idx, info.num_workers)


def copy_of(seq):
    return dict(seq)


def numbers_of(stream, executor="process", **options):
    options = {"batching": FixedCount(4), "window_seqs": 12, "num_workers": 2, "transform": copy_of, **options}
    with DataLoader(stream, executor=executor, **options) as loader:
        return [number for batch in loader for number in batch["data"][:, 0].tolist()]


@pytest.mark.parametrize("transform", [None, copy_of])
@pytest.mark.parametrize("executor", ["process", "thread"])
def test_a_stream_that_shares_itself_out_among_workers_is_read_whole_as_one_worker_reads_it(executor, transform):
    def share():
        return range(worker()[0], 60, worker()[1])

    found = numbers_of(Stream(share), executor, num_workers=3, transform=transform)
    assert found == list(range(60))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_stream_that_nobody_seeded_gives_each_sequence_once(workers):
    stream = Stream(lambda: random.Random().sample(range(60), 60))
    assert sorted(numbers_of(stream, num_workers=workers)) == list(range(60))


def draws_anew():
    """Give other numbers each time, after 20 of which the process is killed the first time."""
    numbers = random.Random(os.path.exists(os.environ["TEST_DEATH"])).sample(range(60), 60)
    yield from numbers[:20]
    die_once()
    yield from numbers[20:]


@pytest.fixture
def deaths(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_DEATH", str(tmp_path / "died"))


def die_once():
    try:
        os.close(os.open(os.environ["TEST_DEATH"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_that_is_another_one_after_its_reader_died_is_refused(deaths, workers):
    with pytest.raises(SourceError, match="gave other sequences: they differ in window"):
        numbers_of(Stream(draws_anew), num_workers=workers)


def test_a_stream_that_is_shorter_after_its_reader_died_is_refused(deaths):
    def ends_early():
        was_there = os.path.exists(os.environ["TEST_DEATH"])
        yield from range(20)
        die_once()
        yield from range(20, 24 if was_there else 60)

    assert len(numbers_of(Stream(ends_early), num_workers=2)) == 24  # nobody has seen what would have come

    marks = WindowMarks("stream", 1)
    marks.take([(0, 5), (1, 6)])
    with pytest.raises(SourceError, match="the first one has window 1, and the second one ends before it"):
        marks.end(1)


def test_what_is_no_array_is_no_reason_to_refuse_a_stream():
    def make(number):
        return {"data": np.full(3, number), "anything": {object(): {1, 2}}, "objects": np.array([object()])}

    def collate(seqs):
        return {"data": np.stack([seq["data"] for seq in seqs])}

    found = numbers_of(Stream(lambda: range(60), make), collate=collate, executor="thread", transform=None)
    assert found == list(range(60))


ITEMS = st.recursive(
    st.integers(-9, 9) | st.floats(width=32) | st.text(max_size=9) | st.binary(max_size=9) | st.none() | st.booleans(),
    lambda items: st.lists(items, max_size=4) | st.dictionaries(st.text(max_size=3), items, max_size=4),
)


@given(ITEMS)
def test_a_mark_depends_on_the_item_only(item):
    assert mark_of(item) == mark_of(item)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=60), st.data())
def test_small_items_that_differ_anywhere_have_other_marks(values, data):
    place = data.draw(st.integers(0, len(values) - 1))
    others = list(values)
    others[place] += 1
    assert mark_of({"data": np.array(values)}) != mark_of({"data": np.array(others)})
    assert mark_of((np.array(values).reshape(1, -1).T, 1)) != mark_of((np.array(values).reshape(1, -1).T, 2))


def test_a_mark_is_of_all_windows_before():
    lengths = np.array([3, 4])
    first, other = (mark_of_window(0, lengths, marks) for marks in ([b"a", b"b"], [b"ab", b""]))
    assert first != other
    assert mark_of_window(first, lengths, [b"c", b"d"]) != mark_of_window(other, lengths, [b"c", b"d"])


def test_windows_that_were_told_before_must_be_the_same():
    marks = WindowMarks("stream", 1)
    for window in range(5000):
        marks.take([(window - 1, 7 * window - 7), (window, 7 * window)] if window else [(0, 0)])
    marks.take([(4999, 7 * 4999)])
    marks.end(5000)
    with pytest.raises(SourceError, match="they differ in window 4999"):
        marks.take([(4999, 1), (5000, 2)])
    with pytest.raises(SourceError, match="has window 4999"):
        marks.end(4999)
