"""`headrace.batching` against the documented system itself, where it is installed."""

import operator
import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.batching import NumbersDict, parse_chunking, parse_context_window, plan_chunks, vary_chunking

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    returnn_util = pytest.importorskip("returnn.util.basic")
    from returnn.datasets.basic import Dataset
    from returnn.datasets.generating import StaticDataset

Theirs = returnn_util.NumbersDict
pytestmark = pytest.mark.filterwarnings("ignore")

_parts = st.tuples(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(-9, 9)), st.none() | st.integers(-9, 9)
)
_positive_parts = st.tuples(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 9)), st.none() | st.integers(1, 9)
)


def _ours(parts):
    return NumbersDict(numbers_dict=parts[0], broadcast_value=parts[1])


def _theirs(parts):
    return Theirs(numbers_dict=dict(parts[0]), broadcast_value=parts[1])


def _shown(numbers):
    """Make the two kinds comparable, by behaviour alone."""
    return {key: numbers[key] for key in numbers.keys()}, numbers.get("no such key")  # noqa: SIM118


@given(_parts, _parts)
def test_sums_products_extremes_and_comparisons_are_the_same(left, right):
    for op in (operator.add, operator.sub, operator.mul):
        assert _shown(op(_ours(left), _ours(right))) == _shown(op(_theirs(left), _theirs(right)))
    assert (_ours(left) == _ours(right)) is (_theirs(left) == _theirs(right))
    for name in ("max", "min"):
        ours = getattr(NumbersDict, name)([_ours(left), _ours(right)])
        assert _shown(ours) == _shown(getattr(Theirs, name)([_theirs(left), _theirs(right)]))
    for op in (operator.lt, operator.ge):
        assert _ours(left).any_compare(_ours(right), op) == _theirs(left).any_compare(_theirs(right), op)
    assert _shown(_ours(left).copy_like(_ours(right))) == _shown(_theirs(left).copy_like(_theirs(right)))
    assert _shown(NumbersDict.constant_like(7, _ours(left))) == _shown(Theirs.constant_like(7, _theirs(left)))
    assert repr(_ours(left).values()) == repr(_theirs(left).values())
    assert _ours(left).has_values() == _theirs(left).has_values()


_operand = st.one_of(_parts, st.integers(-9, 9))


def _made(make, operand):
    return make(operand) if isinstance(operand, tuple) else operand


@given(_operand, _operand)
def test_plain_numbers_on_either_side_are_the_same(left, right):
    assume(isinstance(left, tuple) or isinstance(right, tuple))
    for op in (operator.add, operator.sub, operator.mul):
        ours, theirs = (op(_made(make, left), _made(make, right)) for make in (_ours, _theirs))
        assert (ours.dict, ours.value) == (theirs.dict, theirs.value)
        assert repr(ours) == repr(theirs)
    if isinstance(left, tuple):
        for result_with_default in (True, False):
            ours, theirs = (
                make(left).elem_eq(_made(make, right), result_with_default=result_with_default)
                for make in (_ours, _theirs)
            )
            assert (ours.dict, ours.value) == (theirs.dict, theirs.value)
        for op in (operator.iadd, operator.isub, operator.imul):
            ours, theirs = _ours(left), _theirs(left)
            assert op(ours, _made(_ours, right)) is ours
            op(theirs, _made(_theirs, right))
            assert (ours.dict, ours.value) == (theirs.dict, theirs.value)
    assert (_made(_ours, left) == _made(_ours, right)) == (_made(_theirs, left) == _made(_theirs, right))


@given(st.lists(_operand, min_size=1, max_size=4))
def test_extremes_of_several_numbers_and_dicts_are_the_same(items):
    for name in ("max", "min"):
        ours = getattr(NumbersDict, name)([_made(_ours, item) for item in items])
        theirs = getattr(Theirs, name)([_made(_theirs, item) for item in items])
        assert (ours.dict, ours.value) == (theirs.dict, theirs.value)


@given(_parts, _positive_parts)
def test_divisions_are_the_same(left, right):
    for op in (operator.truediv, operator.floordiv):
        assert _shown(op(_ours(left), _ours(right))) == _shown(op(_theirs(left), _theirs(right)))


@pytest.mark.parametrize(
    "value",
    [
        None, 0, "0", (0, 5), {}, 50, "50", "50:25", (50, 25), [50, 25], "50:0", (50, None), (50, 0),
        {"data": 100, "classes": 50}, {"data": 0}, ({"data": 100}, {"data": 50}),
        ({"data": 100, "classes": 50}, {"data": 50, "classes": 0}), ({"data": 10}, None),
    ],
)  # fmt: skip
def test_forms_of_chunking_mean_the_same(value):
    size, step, custom = Dataset._parse_chunking(value)
    ours = parse_chunking(value)
    assert custom is None
    if ours is None:
        assert all(number == 0 for number in size.values())
    else:
        assert (_shown(ours.size), _shown(ours.step)) == (_shown(size), _shown(step))


@pytest.mark.parametrize(
    "value", ["10:5:2", "a", "", 1.5, -1, (10, -5), "10:-5", (10,), {"data": 10, "classes": 0}, ({"data": 1}, 5),
              ({"data": 10}, {"classes": 5}), ({"data": 10}, {"data": 0})],
)  # fmt: skip
def test_what_they_refuse_we_refuse(value):
    with pytest.raises((AssertionError, ValueError)):
        Dataset._parse_chunking(value)
    with pytest.raises(ValueError, match="chunk"):
        parse_chunking(value)


def _their_chunks(lengths, **options):
    seq = {
        key: np.zeros((n, 2) if key == "data" else n, "float32" if key == "data" else "int32")
        for key, n in lengths.items()
    }
    outputs = {key: (2, 2 if key == "data" else 1) for key in lengths}
    dataset = StaticDataset([seq], target_list=[key for key in lengths if key != "data"], output_dim=outputs, **options)
    dataset.initialize()
    dataset.init_seq_order(epoch=1)
    return [
        ({key: int(start[key]) for key in lengths}, {key: int(end[key]) for key in lengths})
        for _, start, end in dataset.iterate_seqs(used_data_keys=list(lengths))
    ]


def _our_chunks(lengths, chunking, min_chunk_size=0):
    plan = plan_chunks(NumbersDict(lengths), chunking, min_chunk_size)
    return [({key: start[key] for key in lengths}, {key: end[key] for key in lengths}) for start, end in plan]


@examples(60)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 12), st.integers(1, 3), st.integers(0, 5))
def test_chunks_are_the_same_where_they_lose_none(length, size, step, rate, min_size):
    lengths = {"data": length * rate, "classes": length}
    option = ({"data": size * rate, "classes": size}, {"data": step * rate, "classes": step})
    chunking = parse_chunking(option)
    try:
        theirs = _their_chunks(lengths, chunking=option, min_chunk_size=min_size)
    except AssertionError:  # the numbers of chunks differ
        assume(False)
    assert _our_chunks(lengths, chunking, min_size) == theirs


@examples(30)
@given(st.sampled_from([(20, 10, 10, 5), (20, 7, 10, 10), (9, 6, 3, 2)]), st.floats(0, 1), st.integers(8, 30))
def test_varied_chunks_are_the_same_for_the_same_random_number(sizes, variance, length):
    import random

    lengths = {"data": length, "classes": length}
    size, other_size, step, other_step = sizes
    option = ({"data": size, "classes": other_size}, {"data": step, "classes": other_step})
    try:
        theirs = _their_chunks(lengths, chunking=option, chunking_variance=variance)
    except AssertionError:
        assume(False)
    chunking = parse_chunking(option)
    if variance:
        chunking = vary_chunking(chunking, variance, random.Random(1).random())
    assert _our_chunks(lengths, chunking) == theirs


@pytest.mark.parametrize("value", [None, 0, 1, 2, 3, 4, 5, {"data": 4, "classes": 3}, ({"data": 2}, {"data": 5})])
def test_context_windows_are_the_same(value):
    dataset = StaticDataset([{"data": np.zeros((3, 2), "float32")}], context_window=value)
    dataset.initialize()
    dataset.init_seq_order(epoch=1)
    start, end = dataset.get_start_end_frames_full_seq(0)
    left, right = parse_context_window(value)
    assert (int(start["data"]), int(end["data"])) == (-(left.get("data", 0) or 0), 3 + (right.get("data", 0) or 0))
