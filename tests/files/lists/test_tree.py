from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.files.lists.tree import map_leaves, tree_key, tree_leaves

NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=5) | st.text('a",:[](){}\\', min_size=1)
TREES = st.recursive(
    NAMES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text('ab":{}', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
Pair = namedtuple("Pair", ["audio", "text"])


def _same_types(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(two, dict) and one.keys() == two.keys() and all(_same_types(one[k], two[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(two) and len(one) == len(two) and all(map(_same_types, one, two))
    return one == two


@given(one=TREES, two=TREES)
def test_two_trees_share_a_key_only_if_they_are_equal(one: Any, two: Any) -> None:
    assert (tree_key(one) == tree_key(two)) == _same_types(one, two)


@given(tree=TREES)
def test_mapping_calls_the_function_on_the_leaves_in_order_and_keeps_the_structure(tree: Any) -> None:
    seen: list[str] = []

    def note(name: str) -> str:
        seen.append(name)
        return name

    assert _same_types(map_leaves(tree, note), tree)
    assert seen == tree_leaves(tree)
    assert tree_leaves(map_leaves(tree, lambda name: f"{name}!")) == [f"{name}!" for name in seen]


def test_mapping_keeps_the_order_of_a_dict_and_tuples_with_names() -> None:
    tree = OrderedDict(z=Pair("a.wav", "a.txt"), y=["b"])
    mapped = map_leaves(tree, str.upper)
    assert mapped == {"z": Pair("A.WAV", "A.TXT"), "y": ["B"]}
    assert list(mapped) == ["z", "y"]
    assert mapped["z"].audio == "A.WAV"


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        (None, "None is not a file name, but of type NoneType"),
        (("a", 3), "3 is not a file name, but of type int"),
        (["a", b"b"], "b'b' is not a file name, but of type bytes"),
        ({"a", "b"}, "is not a file name, but of type set"),
        ({1: "a"}, "has the key 1"),
        (("a", ""), "a file name is empty"),
        ("a\0b", "null character"),
    ],
)
@pytest.mark.parametrize("function", [tree_leaves, tree_key, lambda tree: map_leaves(tree, str)])
def test_what_is_no_tree_of_names_is_refused(function: Any, tree: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        function(tree)
