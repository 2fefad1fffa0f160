import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order import (
    ArrayOrder,
    InterleavedOrder,
    Permutation,
    PermutedOrder,
    RangeOrder,
    RepeatedOrder,
    occurrences,
)


def _orders() -> st.SearchStrategy:
    sizes = st.integers(0, 40)
    plain = st.one_of(
        st.builds(lambda n: RangeOrder(range(n)), sizes),
        st.builds(lambda n: RangeOrder(range(n - 1, -1, -1)), sizes),
        st.builds(lambda indices: ArrayOrder(np.array(indices, np.int32)), st.lists(st.integers(0, 9))),
        st.builds(InterleavedOrder, st.integers(1, 6), st.integers(0, 6)),
        st.builds(lambda n, seed: PermutedOrder(Permutation(n, seed)), sizes, st.integers(0, 3)),
    )
    return st.one_of(plain, st.builds(RepeatedOrder, plain, st.integers(1, 4)))


@given(order=_orders(), data=st.data())
def test_blocks_slices_items_and_iteration_agree(order, data):
    everything = list(order)
    assert len(order) == len(everything)
    assert np.asarray(order).tolist() == everything
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    block = order.block(start, stop)
    assert block.dtype == np.int64
    assert block.tolist() == everything[start:stop]
    part = order.slice(start, stop)
    assert list(part) == everything[start:stop]
    assert part.may_repeat == order.may_repeat
    inner_start = data.draw(st.integers(0, len(part)))
    inner_stop = data.draw(st.integers(inner_start, len(part)))
    assert list(part.slice(inner_start, inner_stop)) == everything[start:stop][inner_start:inner_stop]
    for position in (0, len(order) // 2, len(order) - 1):
        if 0 <= position < len(order):
            assert order[position] == everything[position]
            assert order[position - len(order)] == everything[position]


@given(order=_orders())
def test_a_position_outside_is_an_index_error(order):
    for position in (len(order), -len(order) - 1):
        with pytest.raises(IndexError, match="outside an order of"):
            order[position]


@given(order=_orders())
def test_an_order_that_promises_not_to_repeat_does_not(order):
    if not order.may_repeat:
        assert len(set(order)) == len(order)


@given(order=_orders())
def test_occurrences_count_what_came_before(order):
    indices = list(order)
    assert occurrences(order).tolist() == [indices[:position].count(index) for position, index in enumerate(indices)]


def test_occurrences_need_no_memory_without_repetition():
    counts = occurrences(RangeOrder(range(2**40)))
    assert len(counts) == 2**40
    assert not counts.flags.writeable
    assert counts[2**39] == 0


def test_an_array_order_cannot_be_written_through_its_blocks():
    order = ArrayOrder(np.arange(5))
    with pytest.raises(ValueError, match="read-only"):
        order.block(0, 3)[0] = 9
    assert list(order) == [0, 1, 2, 3, 4]


def test_lazy_orders_of_huge_corpora_can_be_sliced():
    size = 2**62
    assert RangeOrder(range(size)).slice(size - 2, size).block(0, 2).tolist() == [size - 2, size - 1]
    order = PermutedOrder(Permutation(size, seed=1))
    assert len(order) == size
    part = order.slice(size // 2, size // 2 + 100)
    assert part.block(10, 20).tolist() == order.block(size // 2 + 10, size // 2 + 20).tolist()
    assert [part.position_of(index) for index in part] == list(range(100))
    assert part.position_of(order[0]) is None
