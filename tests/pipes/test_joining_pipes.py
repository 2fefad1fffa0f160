"""zip, concat, mux, cycle, repeat, header, enumerate, joins by key: what is documented of them."""

import warnings

import pytest

from headrace.errors import ConfigError
from headrace.pipes import IterPipe
from headrace.pipes.core.base import read
from headrace.pipes.iter import Concater, IterableWrapper, Multiplexer, Zipper
from headrace.pipes.map import SequenceWrapper


def numbers(n=5):
    return IterableWrapper(range(n))


class Counting(IterPipe):
    """Counts what is read from it."""

    def __init__(self, datapipe):
        self.datapipe = datapipe
        self.num_read = 0

    def __iter__(self):
        for item in read(self.datapipe):
            self.num_read += 1
            yield item


def test_zip_ends_with_the_shortest_and_zip_longest_with_the_longest():
    assert list(numbers(3).zip(numbers(5))) == [(0, 0), (1, 1), (2, 2)]
    assert list(numbers(1).zip_longest(numbers(3), fill_value=-1)) == [(0, 0), (-1, 1), (-1, 2)]
    assert (len(numbers(3).zip(numbers(5))), len(numbers(3).zip_longest(numbers(5)))) == (3, 5)


def test_mux_gives_whole_rounds_and_mux_longest_all():
    letters = IterableWrapper("abc")
    assert list(numbers(2).mux(letters)) == [0, "a", 1, "b"]
    assert list(numbers(1).mux_longest(letters, numbers(2))) == [0, "a", 0, "b", 1, "c"]
    assert (len(numbers(2).mux(letters)), len(numbers(2).mux_longest(letters))) == (4, 5)


def test_concat_is_plus():
    assert list(numbers(2) + IterableWrapper("a")) == [0, 1, "a"]
    assert len(numbers(2).concat(numbers(3))) == 5


@pytest.mark.parametrize("join", [Zipper, Concater, Multiplexer])
def test_joins_need_pipes(join):
    with pytest.raises(ConfigError, match="at least one pipe"):
        join()
    with pytest.raises(TypeError, match="required to be `IterDataPipe`"):
        join(numbers(), [1, 2])


def test_a_source_cannot_be_joined_with_itself():
    pipe = numbers()
    with pytest.raises(RuntimeError, match="fork"):
        list(pipe.zip(pipe))


def test_cycle_goes_round():
    assert list(numbers(2).cycle(2)) == [0, 1, 0, 1]
    assert list(numbers(2).cycle(0)) == []
    assert list(iter(numbers(2).cycle().header(5))) == [0, 1, 0, 1, 0]
    assert len(numbers(2).cycle(3)) == 6


def test_cycle_over_nothing_ends():
    assert list(numbers(0).cycle()) == []


def test_each_cycle_is_an_epoch_of_its_own():
    order = list(numbers(50).shuffle().set_seed(1).cycle(2))
    assert order[:50] != order[50:]
    assert sorted(order[:50]) == sorted(order[50:])


def test_cycle_for_ever_has_no_length_and_no_negative_count():
    with pytest.raises(TypeError, match="cycles forever"):
        len(numbers().cycle())
    with pytest.raises(ConfigError, match="non-negative"):
        numbers().cycle(-1)


def test_repeat_repeats_each_item():
    assert list(numbers(2).repeat(3)) == [0, 0, 0, 1, 1, 1]
    assert len(numbers(2).repeat(3)) == 6
    with pytest.raises(ConfigError, match="must be > 1"):
        numbers().repeat(1)


@pytest.mark.parametrize("limit", [0, 1, 3, 5, 9])
def test_header_reads_no_more_than_it_gives(limit):
    source = Counting(numbers(5))
    assert list(iter(source.header(limit))) == list(range(min(limit, 5)))
    assert source.num_read == min(limit, 5)


def test_header_without_a_limit_gives_all():
    assert list(numbers().header(None)) == [0, 1, 2, 3, 4]
    assert [len(numbers().header(limit)) for limit in (2, 9, None)] == [2, 5, 5]


def test_the_length_of_a_header_may_be_a_guess_and_says_so():
    with pytest.warns(UserWarning, match="inferred"):
        assert len(numbers().filter(bool).header(3)) == 3
    with pytest.raises(TypeError, match="cannot be determined"):
        len(numbers().filter(bool).header(None))
    with pytest.raises(ConfigError, match="limit"):
        numbers().header(-1)


def test_set_length_changes_the_length_only():
    pipe = numbers().filter(bool).set_length(99)
    assert (len(pipe), list(pipe)) == (99, [1, 2, 3, 4])
    with pytest.raises(ConfigError, match="length"):
        numbers().set_length(-1)


def test_enumerate_and_add_index_count():
    assert list(IterableWrapper("ab").enumerate(5)) == [(5, "a"), (6, "b")]
    rows = [{"a": 1}, {"a": 2}]
    numbered = IterableWrapper(rows, deepcopy=False).add_index("n")
    assert [list(numbered) for _ in range(2)] == [[{"a": 1, "n": 0}, {"a": 2, "n": 1}]] * 2
    assert rows == [{"a": 1}, {"a": 2}]
    with pytest.raises(NotImplementedError, match="dict"):
        list(numbers().add_index())


def test_zip_with_iter_joins_by_key_in_the_order_of_the_source():
    reference = IterableWrapper([(key, chr(97 + key)) for key in (2, 0, 1, 3)])
    pipe = numbers(3).zip_with_iter(reference, key_fn=int, ref_key_fn=lambda pair: pair[0])
    assert list(pipe) == [(0, (0, "a")), (1, (1, "b")), (2, (2, "c"))]
    merged = numbers(2).zip_with_iter(reference, int, lambda pair: pair[0], True, merge_fn=lambda a, b: b[1] * a)
    assert list(merged) == [(0, ""), (1, "b")]
    assert len(merged) == 2


def test_zip_with_iter_says_which_key_is_missing_or_double():
    with pytest.raises(BufferError, match="for the data 3"):
        list(numbers(5).zip_with_iter(numbers(3), int))
    with pytest.raises(ValueError, match="Duplicate key"):
        list(numbers(3).zip_with_iter(IterableWrapper([2, 2, 0]), int))


def test_zip_with_iter_drops_the_oldest_when_its_buffer_is_full():
    with pytest.warns(UserWarning, match="upper limit"), pytest.raises(BufferError, match="for the data 3"):
        list(numbers(5).zip_with_iter(IterableWrapper(range(4, -1, -1)), int, buffer_size=2))
    assert list(numbers(3).zip_with_iter(IterableWrapper([2, 1, 0]), int, buffer_size=None)) == [(0, 0), (1, 1), (2, 2)]


def test_joins_by_key_check_what_they_get():
    with pytest.raises(TypeError, match="ref_datapipe must be a IterDataPipe"):
        numbers().zip_with_iter([1], int)
    with pytest.raises(ConfigError, match="buffer_size"):
        numbers().zip_with_iter(numbers(), int, buffer_size=0)
    with pytest.raises(TypeError, match="map_datapipe must be a MapDataPipe"):
        numbers().zip_with_map(numbers(), int)


def test_zip_with_map_looks_up():
    table = SequenceWrapper({0: "a", 1: "b"})
    assert list(numbers(2).zip_with_map(table, int)) == [(0, "a"), (1, "b")]
    assert list(numbers(2).zip_with_map(table, int, lambda a, b: b * a, keep_key=True)) == [(0, ""), (1, "b")]
    with pytest.raises(KeyError, match="key_fn maps 2 to 2"):
        list(numbers(3).zip_with_map(table, int))


def test_no_attribute_of_a_pipe_hides_a_function():
    pipes = [numbers().async_map_batches(_later, 2), numbers().slice(0, 1), numbers().batch(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(callable(pipe.flatten) and callable(pipe.map) for pipe in pipes)


async def _later(item):
    return item
