from __future__ import annotations

import os
from collections import OrderedDict, namedtuple
from pathlib import Path
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


def test_the_order_in_which_a_dict_was_built_does_not_count() -> None:
    one, two = {"b": "1", "a": ("2", "3")}, {"a": ("2", "3"), "b": "1"}
    assert tree_leaves(one) == tree_leaves(two) == ["2", "3", "1"]
    assert tree_key(one) == tree_key(two)


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


def test_a_path_object_is_a_leaf_and_counts_as_its_text() -> None:
    tree = (Path("a") / "b", "c")
    assert tree_leaves(tree) == ["a/b", "c"]
    assert tree_key(tree) == tree_key(("a/b", "c"))
    assert map_leaves(tree, os.path.basename) == ("b", "c")


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


@pytest.mark.parametrize("function", [tree_leaves, tree_key, lambda tree: map_leaves(tree, str)])
def test_a_tree_that_holds_itself_is_refused(function: Any) -> None:
    tree: list[Any] = ["a"]
    tree.append(tree)
    with pytest.raises(ConfigError, match="nested more than 32 deep"):
        function(tree)
