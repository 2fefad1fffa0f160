"""fork, demux, round_robin_demux, unzip: their buffers, rounds, threads and copies."""

import copy
import gc
import pickle
import warnings

import pytest
from tests.pipes.random_chains import parity

from headrace.errors import ConfigError
from headrace.pipes import IterPipe
from headrace.pipes.core.base import read
from headrace.pipes.core.walk import list_pipes
from headrace.pipes.iter import IterableWrapper


class Watched(IterPipe):
    """Knows how often it was begun, and whether it was closed."""

    def __init__(self, datapipe):
        self.datapipe = datapipe
        self.num_begun = self.num_closed = 0

    def __iter__(self):
        self.num_begun += 1
        try:
            yield from read(self.datapipe)
        finally:
            self.num_closed += 1


def numbers(n=5):
    return IterableWrapper(range(n))


def test_fork_gives_all_to_each_whoever_reads_first():
    a, b = numbers().fork(2)
    assert (list(a), list(b)) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert list(a.zip(b.map(parity))) == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)]
    assert (len(a), len(b)) == (5, 5)


def test_fork_of_one_is_the_source():
    pipe = numbers()
    assert pipe.fork(1) is pipe
    with pytest.raises(ConfigError, match="larger than 0"):
        pipe.fork(0)


def test_fork_copies_if_asked():
    rows = IterableWrapper([[[1]]], deepcopy=False)
    same, shallow, deep = (next(iter(rows.fork(2, copy=how)[0])) for how in (None, "shallow", "deep"))
    original = rows.iterable[0]
    assert same is original
    assert shallow is not original
    assert shallow[0] is original[0]
    assert deep[0] is not original[0]
    with pytest.raises(ConfigError, match="Unknown copy method"):
        rows.fork(2, copy="both")


def test_the_source_is_read_once_for_all():
    source = Watched(numbers())
    a, b = source.fork(2)
    assert sum(1 for _ in a.zip(b)) == 5
    assert (source.num_begun, source.num_closed) == (1, 1)


@pytest.mark.parametrize(
    "split",
    [
        lambda pipe, size: pipe.fork(2, buffer_size=size),
        lambda pipe, size: pipe.demux(2, parity, buffer_size=size),
        lambda pipe, size: pipe.round_robin_demux(2, buffer_size=size),
        lambda pipe, size: pipe.zip(numbers(10)).unzip(2, buffer_size=size),
    ],
)
def test_a_full_buffer_is_an_error_that_names_its_size(split):
    _, second = children = split(numbers(10), 2)
    with pytest.raises(BufferError, match="buffer size 2 is insufficient"):
        list(second)
    children = split(numbers(10), 10)
    assert [len(list(child)) for child in children] in ([5, 5], [10, 10])
    with pytest.warns(UserWarning, match="Unlimited buffer size"):
        assert split(numbers(10), -1)[0]


def test_a_reader_that_has_stopped_or_gone_fills_no_buffer():
    early, late = numbers(100).fork(2, buffer_size=3)
    assert sum(1 for _ in early.header(2).zip_longest(late)) == 100
    kept, gone = numbers(100).fork(2, buffer_size=3)
    del gone
    gc.collect()
    assert len(list(kept)) == 100


def test_a_reader_that_begins_again_begins_a_round_for_all_and_says_so():
    a, b = numbers().fork(2)
    first, other = iter(a), iter(b)
    assert (next(first), next(other)) == (0, 0)
    with pytest.warns(UserWarning, match="Some child DataPipes are not exhausted"):
        second = iter(a)
    assert next(second) == 0
    with pytest.raises(RuntimeError, match="has been invalidated"):
        next(other)


def test_a_second_epoch_needs_no_warning():
    a, b = numbers().fork(2)
    joined = a.zip(b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for item in joined:
            if item == (2, 2):
                break
        assert [len(list(joined)) for _ in range(2)] == [5, 5]
        assert list(a) == list(b)


def test_the_source_is_closed_when_all_readers_have_left():
    source = Watched(numbers())
    a, b = source.fork(2)
    iterator = iter(a.zip(b))
    next(iterator)
    assert source.num_closed == 0
    del iterator
    assert source.num_closed == 1


def test_copies_have_readers_of_their_own():
    a, b = numbers().fork(2)
    pipe = a.zip(b)
    for made in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
        iterator = iter(pipe)
        next(iterator)
        assert list(made) == [(number, number) for number in range(5)]
        assert next(iterator) == (1, 1)
        assert len(list_pipes(made)) == len(list_pipes(pipe)) == 5


def test_prefetched_readers_do_not_race():
    source = Watched(numbers(2000))
    children = source.fork(3, buffer_size=100)
    pipe = children[0].prefetch(5).zip(*[child.prefetch(7) for child in children[1:]])
    for _ in range(2):
        assert [row for row in pipe if len(set(row)) > 1] == []
    assert source.num_begun == source.num_closed == 2


def test_demux_sends_each_item_to_its_reader():
    even, odd = numbers().demux(2, parity)
    assert (list(even), list(odd)) == ([0, 2, 4], [1, 3])
    with pytest.raises(TypeError, match="length"):
        len(even)


def test_demux_drops_what_belongs_to_nobody_if_asked():
    a, b = numbers().demux(2, lambda item: None if item == 2 else item % 2, drop_none=True)
    assert (list(a), list(b)) == ([0, 4], [1, 3])


@pytest.mark.parametrize("answer", [None, 2, -1])
def test_demux_says_what_the_function_returned(answer):
    with pytest.raises(ValueError, match=f"between 0 and 1. {answer} is returned"):
        list(numbers().demux(2, lambda _: answer)[0])


def test_round_robin_demux_deals_out():
    children = numbers(10).round_robin_demux(3)
    assert [list(child) for child in children] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert [len(child) for child in children] == [4, 3, 3]
    with pytest.raises(ConfigError, match="larger than 0"):
        numbers().round_robin_demux(0)
    pipe = numbers()
    with pytest.warns(UserWarning, match="no-op"):
        assert pipe.round_robin_demux(1) == [pipe]


def test_unzip_makes_a_reader_of_each_column_that_is_wanted():
    rows = IterableWrapper([(1, 2, 3), (4, 5, 6)])
    assert [list(child) for child in rows.unzip(3)] == [[1, 4], [2, 5], [3, 6]]
    assert [list(child) for child in rows.unzip(3, columns_to_skip=[1])] == [[1, 4], [3, 6]]
    with pytest.raises(RuntimeError, match="All instances are being filtered out"):
        rows.unzip(2, columns_to_skip=[0, 1])
    children = rows.unzip(4)
    with pytest.raises(IndexError):
        list(children[0])
