"""Streams that are not the same in each worker are refused, and those that are the same never are."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import SourceError
from headrace.batching import FixedCount
from headrace.engine import get_worker_info
from headrace.loading import DataLoader
from headrace.loading.streams.marks import WindowMarks, mark_of, mark_of_window


class Stream:
    """Gives what a function says, anew in each epoch."""

    def __init__(self, numbers, make=lambda number: {"data": np.full(3, number)}):
        self.numbers, self.make = numbers, make

    def __iter__(self):
        return map(self.make, self.numbers())


def worker():
    info = get_worker_info()
    return 0 if info is None else info.worker_idx


def shuffled():
    return random.Random(worker()).sample(range(60), 60)


def numbers_of(stream, executor="process", **options):
    options = {"batching": FixedCount(4), "window_seqs": 12, "num_workers": 2, **options}
    with DataLoader(stream, executor=executor, **options) as loader:
        return [number for batch in loader for number in batch["data"][:, 0].tolist()]


@pytest.mark.parametrize("executor", ["process", "thread"])
@pytest.mark.parametrize(
    "numbers",
    [
        shuffled,
        lambda: range(worker(), 60, 2),  # shares itself out among the workers
        lambda: range(50 + worker()),
        lambda: range(60 + 12 * worker()),
        lambda: [*range(48), *(range(48, 60) if worker() else range(59, 47, -1))],
    ],
)
def test_a_stream_that_differs_between_workers_is_refused(numbers, executor):
    with pytest.raises(SourceError, match="the workers of the loader have read different streams"):
        numbers_of(Stream(numbers), executor)


def test_a_stream_that_nobody_seeded_may_be_read_by_one_worker():
    assert sorted(numbers_of(Stream(shuffled), num_workers=1)) == list(range(60))


@pytest.mark.parametrize("batch_size", [1, 12, 40])
def test_windows_that_different_workers_make_batches_of_are_compared(batch_size):
    with pytest.raises(SourceError, match="different streams"):
        numbers_of(Stream(shuffled), batching=FixedCount(batch_size), window_seqs=12, executor="thread")


def test_what_is_no_array_is_no_reason_to_refuse_a_stream():
    def make(number):
        return {"data": np.full(3, number), "anything": {object(): {1, 2}}, "objects": np.array([object()])}

    def collate(seqs):
        return {"data": np.stack([seq["data"] for seq in seqs])}

    assert numbers_of(Stream(lambda: range(60), make), collate=collate, executor="thread") == list(range(60))


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


def test_windows_are_forgotten_once_all_workers_have_told_them():
    marks = WindowMarks("stream", 1, 2)
    for window in range(5000):
        for worker_idx in (0, 1):
            marks.take(worker_idx, [(window, 7 * window)])
        assert not marks._open
    marks.end(5000)
    with pytest.raises(SourceError, match="one worker has read 4999 windows"):
        marks.end(4999)
