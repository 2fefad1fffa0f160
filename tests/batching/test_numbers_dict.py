import operator
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import NumbersDict
from headrace.errors import ConfigError

KEYS = ["data", "classes", "orth"]
_numbers = st.dictionaries(st.sampled_from(KEYS), st.integers(-50, 50))
numbers_dicts = st.builds(
    lambda numbers, default: NumbersDict(numbers_dict=numbers, broadcast_value=default),
    _numbers,
    st.none() | st.integers(-50, 50),
)


def _parts(numbers):
    return dict(numbers.items()), numbers.broadcast_value


@pytest.mark.parametrize(
    ("op", "neutral", "expected"),
    [
        (operator.add, 0, ({"a": 1, "b": 5}, None)),
        (operator.sub, 0, ({"a": 1, "b": -5}, None)),
        (operator.mul, 1, ({"a": 1, "b": 5}, None)),
        (operator.truediv, 1, ({"a": 1.0, "b": 0.2}, None)),
        (operator.floordiv, 1, ({"a": 1, "b": 0}, None)),
    ],
)
def test_a_key_of_one_side_only_meets_the_neutral_element(op, neutral, expected):
    assert _parts(op(NumbersDict({"a": 1}), NumbersDict({"b": 5}))) == expected
    assert op(NumbersDict({"a": 7}), neutral)["a"] == 7


def test_a_default_stands_for_the_other_keys_and_is_combined_too():
    assert _parts(NumbersDict(3) + NumbersDict({"a": 1, "b": 2})) == ({"a": 4, "b": 5}, 3)
    assert _parts(NumbersDict({"a": 1}) - NumbersDict(3)) == ({"a": -2}, -3)
    assert _parts(NumbersDict(3) // NumbersDict({"a": 2}, broadcast_value=2)) == ({"a": 1}, 1)


def test_plain_numbers_and_dicts_are_operands_on_the_right_and_numbers_on_the_left_of_sums_and_products():
    lengths = NumbersDict({"a": 4})
    assert _parts(lengths + 2) == ({"a": 6}, None)
    assert _parts(2 + lengths) == ({"a": 6}, None)
    assert _parts(2 - lengths) == ({"a": -2}, None)
    assert _parts(3 * lengths) == ({"a": 12}, None)
    assert _parts(NumbersDict({"a": 4}, broadcast_value=1) + 2) == ({"a": 6}, 3)
    assert _parts(NumbersDict(5) - 1) == ({}, 4)
    assert _parts(NumbersDict() + 1) == ({}, None)
    assert _parts(lengths + {"a": 1, "c": 1}) == ({"a": 5, "c": 1}, None)
    assert _parts(-lengths) == ({"a": -4}, None)


@pytest.mark.parametrize("op", [operator.truediv, operator.floordiv])
def test_there_is_no_reflected_division(op):
    with pytest.raises(TypeError):
        op(2, NumbersDict({"a": 4}))


@pytest.mark.parametrize("other", ["x", None, [1], True])
def test_arithmetic_with_something_else_is_a_type_error(other):
    with pytest.raises(TypeError):
        NumbersDict(1) + other


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ({}, {}, True),
        ({}, 3, True),
        (3, 3, True),
        (3, 4, False),
        ({}, {"a": 1}, False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (1, {"a": 1, "b": 1}, True),
        (3, {"a": 1}, False),
        (NumbersDict({"a": 1}, broadcast_value=3), {"a": 1}, True),
        (NumbersDict({"a": 1}, broadcast_value=3), {"a": 1, "b": 3}, True),
        (NumbersDict({"a": 1}, broadcast_value=3), NumbersDict({"a": 1}, broadcast_value=4), False),
    ],
)
def test_equality_compares_keys_with_defaults_and_defaults_only_if_both_have_one(left, right, equal):
    assert (NumbersDict(left) == NumbersDict(right)) is equal
    assert (NumbersDict(right) == NumbersDict(left)) is equal
    assert (NumbersDict(left) != NumbersDict(right)) is not equal


def test_equality_with_a_number_or_a_dict_is_that_with_its_numbers_dict():
    assert NumbersDict({"a": 4}) == {"a": 4}
    assert NumbersDict({"a": 4}) == 4
    assert NumbersDict({"a": 4}) != 5
    assert NumbersDict({"a": 4}) != "4"


def test_a_key_without_value_is_a_key_error_and_get_falls_back_to_the_own_default_first():
    numbers = NumbersDict({"a": 1})
    with pytest.raises(KeyError):
        numbers["b"]
    assert numbers.get("b", 7) == 7
    assert NumbersDict({"a": 1}, broadcast_value=3).get("b", 7) == 3
    assert NumbersDict(3)["b"] == 3
    assert "b" not in NumbersDict(3)


def test_items_can_be_set_in_a_copy_without_changing_the_original():
    numbers = NumbersDict({"a": 1})
    copy = numbers.copy()
    copy["b"] = 2
    assert _parts(copy) == ({"a": 1, "b": 2}, None)
    assert _parts(numbers) == ({"a": 1}, None)
    with pytest.raises(ConfigError, match="'x'"):
        copy["b"] = "x"


def test_iteration_and_the_built_in_max_are_forbidden_with_the_way_to_do_it():
    with pytest.raises(TypeError, match=r"\.keys\(\)"):
        list(NumbersDict({"a": 1}))
    with pytest.raises(TypeError, match=r"max_value"):
        max(NumbersDict({"a": 1}))
    with pytest.raises(TypeError):
        hash(NumbersDict(1))


def test_extremes_are_over_all_numbers_and_the_default():
    numbers = NumbersDict({"a": 1, "b": 9}, broadcast_value=3)
    assert (numbers.max_value(), numbers.min_value(), numbers.values()) == (9, 1, [1, 9, 3])
    with pytest.raises(ValueError, match="empty"):
        NumbersDict().max_value()


def test_max_and_min_of_several_are_by_key():
    assert _parts(NumbersDict.max([{"a": 1, "b": 5}, {"a": 3}])) == ({"a": 3, "b": 5}, None)
    assert _parts(NumbersDict.max([NumbersDict(3), {"b": 5, "a": 1}])) == ({"a": 3, "b": 5}, 3)
    assert _parts(NumbersDict.min([NumbersDict(3), {"b": 5, "a": 1}])) == ({"a": 1, "b": 3}, 3)
    assert _parts(NumbersDict.max([NumbersDict(), {"a": 1}])) == ({"a": 1}, None)
    with pytest.raises(ConfigError, match="at least one"):
        NumbersDict.max([])


def test_plain_numbers_count_in_max_and_min_for_what_they_meet():
    assert _parts(NumbersDict.min([NumbersDict({"data": 5}), 3])) == ({"data": 3}, None)
    assert _parts(NumbersDict.max([7, NumbersDict({"data": 5})])) == ({"data": 7}, None)
    assert _parts(NumbersDict.max([NumbersDict({"data": 5}), 3, 4])) == ({"data": 5}, 4)
    assert _parts(NumbersDict.max([2])) == ({}, 2)
    assert NumbersDict.min([NumbersDict({"data": 5}) + 10, NumbersDict({"data": 11})]) == 11
    with pytest.raises(TypeError, match="not \\['a', 3\\]"):
        NumbersDict.max(["a", 3])


def test_assignments_change_the_object_itself():
    total = NumbersDict({"a": 1})
    held, numbers = total, total.dict
    total += {"a": 2, "b": 3}
    total *= 2
    assert held is total
    assert numbers == {"a": 6, "b": 6}
    total //= 4
    total -= NumbersDict(1)
    assert _parts(held) == ({"a": 0, "b": 0}, -1)
    total /= 2
    assert held.value == -0.5


def test_the_names_of_the_documented_class():
    numbers = NumbersDict({"a": 1, "b": 2})
    numbers.dict["c"] = 3
    assert (numbers.dict, numbers.value, numbers.keys_set) == ({"a": 1, "b": 2, "c": 3}, None, {"a", "b", "c"})
    numbers.value = 7
    assert (numbers["z"], numbers.broadcast_value, numbers.has_value_for("z")) == (7, 7, True)
    numbers.value = None
    assert not numbers.has_value_for("z")
    assert (numbers.pop("c"), numbers.pop("c", 9)) == (3, 9)
    del numbers["b"]
    assert _parts(numbers.unary_op(lambda number: number + 1)) == ({"a": 2}, None)
    with pytest.raises(ConfigError, match="as the default"):
        numbers.value = "x"


def test_any_compare_is_over_our_keys_and_the_pair_of_defaults():
    less = operator.lt
    assert NumbersDict({"a": 1}).any_compare(NumbersDict(3), less)
    assert not NumbersDict({"a": 1}).any_compare(NumbersDict({"b": 5}), less)
    assert NumbersDict({"a": 1, "b": 2}).any_compare(NumbersDict({"b": 5}), less)
    assert not NumbersDict(3).any_compare(NumbersDict({"a": 9}), less)
    assert NumbersDict({"a": 1}, broadcast_value=1).any_compare(NumbersDict({"a": 0}, broadcast_value=3), less)


def test_constant_like_and_copy_like_take_the_keys_of_another():
    assert _parts(NumbersDict.constant_like(7, NumbersDict({"a": 1, "b": 2}))) == ({"a": 7, "b": 7}, None)
    assert _parts(NumbersDict.constant_like(7, NumbersDict(3))) == ({}, 7)
    assert _parts(NumbersDict({"a": 1, "b": 2}).copy_like(NumbersDict({"b": 0, "c": 4}))) == ({"b": 2}, None)
    assert _parts(NumbersDict(4).copy_like(NumbersDict({"b": 0}))) == ({"b": 4}, None)
    assert _parts(NumbersDict(4).copy_like(NumbersDict(3))) == ({}, 4)


def test_keys_union_has_each_key_once_in_the_order_of_first_appearance():
    assert NumbersDict.keys_union(NumbersDict({"c": 1, "a": 1}), NumbersDict({"b": 1, "a": 2})) == ["c", "a", "b"]


def test_has_values_counts_the_default_and_truth_asks_for_a_number_that_is_not_zero():
    assert [NumbersDict(x).has_values() for x in ({}, 0, {"a": 0})] == [False, True, True]
    assert [bool(NumbersDict(x)) for x in ({}, 0, {"a": 0}, {"a": 2}, 3)] == [False, False, False, True, True]


@pytest.mark.parametrize("value", ["5", [5], {"a": "5"}, {"a": None}, True, {"a": False}, np.bool_(True), object()])
def test_something_that_is_no_number_is_refused(value):
    with pytest.raises(ConfigError, match="holds numbers"):
        NumbersDict(value)


def test_a_default_beside_a_value_is_refused_because_one_would_win_silently():
    with pytest.raises(ConfigError, match="value and a default"):
        NumbersDict(5, broadcast_value=3)
    with pytest.raises(ConfigError, match="value and a default"):
        NumbersDict(NumbersDict({"a": 5}), broadcast_value=3)
    with pytest.raises(ConfigError, match="twice"):
        NumbersDict({"a": 1}, numbers_dict={"a": 1})


@given(numbers_dicts)
def test_repr_and_pickle_give_an_equal_object_back(numbers):
    assert _parts(eval(repr(numbers), {"NumbersDict": NumbersDict})) == _parts(numbers)
    assert _parts(pickle.loads(pickle.dumps(numbers))) == _parts(numbers)


@given(numbers_dicts, numbers_dicts, numbers_dicts)
def test_sums_commute_and_associate_and_a_difference_undoes_them(a, b, c):
    assert _parts((a + b) + c) == _parts(a + (b + c))
    assert _parts(a + b) == _parts(b + a)
    undone = (a + b) - b
    assert all(undone[key] == a.get(key, 0) for key in undone.keys())  # noqa: SIM118


@given(numbers_dicts, numbers_dicts, st.sampled_from([operator.add, operator.sub, operator.mul]))
def test_every_key_behaves_as_its_numbers_do(a, b, op):
    neutral = 1 if op is operator.mul else 0
    result = op(a, b)
    for key in KEYS:
        if a.get(key) is not None or b.get(key) is not None:
            assert result[key] == op(a.get(key, neutral), b.get(key, neutral))
        else:
            assert result.get(key) is None


@given(numbers_dicts, numbers_dicts)
def test_the_maximum_is_never_below_either_side(a, b):
    largest = NumbersDict.max([a, b])
    for side in (a, b):
        assert all(largest[key] >= side[key] for key in side.keys())  # noqa: SIM118
        assert not side.any_compare(largest, operator.gt)


@given(numbers_dicts, numbers_dicts)
def test_equality_is_symmetric(a, b):
    assert (a == b) is (b == a)
    assert a == a.copy()
