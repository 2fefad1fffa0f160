from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.datasets.join.joint import JointTags
from headrace.errors import ConfigError, SourceError
from headrace.index.lookup import TagTable
from headrace.index.tags import BLOCK, GeneratedTags, PackedTags, Tags, chain_tags, pack_tags, pack_texts

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
# Few letters, so that duplicates, empty tags and tags that look like a rule are common.
TAG_LISTS = st.lists(TEXT | st.text("a0é", max_size=2), max_size=30)


def as_columns(tags: list[str]) -> list[Any]:
    """The same tags in every form that is taken; fixed width only where NumPy keeps trailing nulls apart."""
    forms: list[Any] = [tags, tuple(tags), [tag.encode() for tag in tags], np.array(tags, dtype=object)]
    if not any(tag.endswith("\0") for tag in tags):
        forms += [np.array([tag.encode() for tag in tags], dtype="S"), np.array(tags, dtype="U")]
    return forms


@given(tags=TAG_LISTS)
def test_tags_are_the_same_whatever_they_were_given_as(tags: list[str]) -> None:
    for column in as_columns(tags):
        packed = pack_tags(column)
        assert list(packed) == tags
        assert type(packed) is type(pack_tags(tags))


@given(tags=TAG_LISTS, data=st.data())
def test_indices_slices_and_takes_are_those_of_a_list(tags: list[str], data: st.DataObject) -> None:
    packed = pack_tags(tags)
    bounds = st.none() | st.integers(-35, 35)
    part = slice(data.draw(bounds), data.draw(bounds), data.draw(st.none() | st.integers(-3, 3).filter(bool)))
    assert packed[part] == tags[part]
    assert len(packed) == len(tags)
    if tags:
        indices = data.draw(st.lists(st.integers(-len(tags), len(tags) - 1)))
        assert packed.take(np.array(indices, dtype=np.int64)) == [tags[index] for index in indices]
        assert [packed[index] for index in indices] == [tags[index] for index in indices]


def outcome(action: Callable[..., Any], *given: Any) -> Any:
    """What an action returns, as plain objects; or the type of what it raises."""
    try:
        found = action(*given)
    except Exception as error:  # noqa: BLE001 - any: what a list raises
        return type(error)
    return list(found) if isinstance(found, Tags) else found


ACTIONS: dict[str, Callable[[Any, list[str], list[str], str, int, int], Any]] = {
    "equals a list": lambda tags, same, other, *_: [tags == same, same == tags, tags == other, other == tags],
    "differs": lambda tags, same, other, *_: [tags != same, same != tags, tags != other, other != tags],
    "equals what is no list": lambda tags, *_: [tags == 5, tags == None, tags == "a", tags == {}],  # noqa: E711
    "more": lambda tags, _, other, *__: [tags + other, other + tags],
    "more of what is no list": lambda tags, *_: tags + "a",
    "no list and more": lambda tags, *_: 5 + tags,
    "in place": lambda tags, same, other, *_: [same.__iadd__(tags), same.extend(tags), same],
    "membership": lambda tags, same, other, tag, *_: [tag in tags, 5 in tags, None in tags, tag not in tags],
    "index": lambda tags, same, other, tag, *_: tags.index(tag),
    "index from": lambda tags, same, other, tag, start, stop: tags.index(tag, start),
    "index within": lambda tags, same, other, tag, start, stop: tags.index(tag, start, stop),
    "index of no tag": lambda tags, *_: tags.index(5),
    "count": lambda tags, same, other, tag, *_: tags.count(tag),
    "backwards": lambda tags, *_: [list(reversed(tags)), tags[::-1]],
    "sorted": lambda tags, *_: [sorted(tags), sorted(tags, key=len), max(tags, default=""), sorted(set(tags))],
    "one": lambda tags, same, other, tag, start, stop: tags[start],
    "one by a number of NumPy": lambda tags, same, other, tag, start, stop: tags[np.int32(start)],
    "one by what is no number": lambda tags, *_: tags[0.0],
    "some": lambda tags, same, other, tag, start, stop: [tags[start:stop], tags[:stop:-2], tags[start::3]],
    "some by a step of 0": lambda tags, *_: tags[::0],
    "copied": lambda tags, *_: [*pickle.loads(pickle.dumps(tags))],
    "truth": lambda tags, *_: [bool(tags), len(tags)],
    "unpacked": lambda tags, *_: [[*tags], dict(enumerate(tags)), list(zip(tags, tags, strict=True)), ",".join(tags)],
    "hash": lambda tags, *_: hash(tags),
    "array": lambda tags, *_: np.array(tags, dtype=object).tolist(),
    "with an array": lambda tags, same, *_: (tags == np.array(same, dtype=object)).tolist() if same else None,
}


@pytest.mark.parametrize("action", ACTIONS)
@given(lists=st.lists(TAG_LISTS, min_size=1, max_size=3), data=st.data())
@examples(15)
def test_what_a_list_of_tags_does_they_do(action: str, lists: list[list[str]], data: st.DataObject) -> None:
    joint = [tag for tags in lists for tag in tags]
    rule = [f"a{idx}" for idx in range(len(joint))]
    kinds: list[tuple[Tags, list[str]]] = [
        (pack_tags(joint), joint),
        (PackedTags(np.zeros(1, np.int64), np.zeros(0, np.uint8)), []),
        (GeneratedTags(len(rule), "a"), rule),
        (JointTags([pack_tags(tags) for tags in lists]), joint),
    ]
    some = data.draw(TAG_LISTS)
    for lazy, plain in kinds:
        other = data.draw(st.sampled_from([some, plain, [*plain, "a"], plain[:-1], [*plain[:-1], "b"]]))
        tag = data.draw(st.sampled_from([*plain, "a", "zz"]))
        start, stop = data.draw(st.integers(-35, 35)), data.draw(st.integers(-35, 35))

        found, expected = (
            outcome(ACTIONS[action], tags, [*plain], [*other], tag, start, stop) for tags in (lazy, [*plain])
        )
        assert found == expected


@given(lists=st.lists(TAG_LISTS, min_size=1, max_size=3), other=TAG_LISTS)
@examples(40)
def test_tags_equal_those_of_the_same_strings_however_they_are_held(lists: list[list[str]], other: list[str]) -> None:
    joint = [tag for tags in lists for tag in tags]
    held: list[Any] = [pack_tags(joint), JointTags([pack_tags(tags) for tags in lists]), packed_anyway(joint)]
    for one in held:
        for another in [*held, joint, tuple(joint)]:
            assert one == another == one
            assert (one != another) is False
        assert (one == pack_tags(other)) == (joint == other) == (one == tuple(other))
        assert one + pack_tags(other) == one + tuple(other) == joint + other
        assert pack_tags(other) + one == tuple(other) + one == other + joint


@given(lists=st.lists(TAG_LISTS, max_size=4))
@examples(60)
def test_chained_tags_are_those_of_one_list(lists: list[list[str]]) -> None:
    chained, expected = (
        chain_tags([pack_texts(tags) for tags in lists]),
        pack_tags([tag for tags in lists for tag in tags]),
    )
    assert type(chained) is type(expected)
    assert chained == expected


def test_tags_that_follow_a_rule_only_as_a_whole_are_chained_to_it() -> None:
    parts = [pack_texts([f"seq-{number}" for number in range(start, start + 3)]) for start in (0, 3, 6)]
    assert isinstance(chain_tags(parts), GeneratedTags)
    assert isinstance(chain_tags(parts[::-1]), PackedTags)


def packed_anyway(tags: list[str]) -> PackedTags:
    """Packed, also where a rule would do."""
    ends = np.cumsum([0, *(len(tag.encode()) for tag in tags)])
    return PackedTags(ends, np.frombuffer("".join(tags).encode(), np.uint8))


def test_the_text_of_tags_is_short() -> None:
    assert repr(pack_tags(["a", "b"])) == "<2 tags: 'a', 'b'>"
    assert repr(pack_tags([])) == "<0 tags>"
    assert repr(GeneratedTags(10**9)) == "<1000000000 tags: 'seq-0', 'seq-1', 'seq-2', ...>"
    assert len(repr(pack_tags(["x" * 10_000] * 100))) < 200


@pytest.mark.parametrize("tags", [pack_tags(["a", "b", "c"]), GeneratedTags(3)])
def test_an_index_outside_is_refused_with_the_size(tags: Tags) -> None:
    for index in (3, -4):
        with pytest.raises(IndexError, match=rf"{index} is outside a corpus of 3"):
            tags[index]
        with pytest.raises(IndexError, match=rf"{index} is outside a corpus of 3"):
            tags.take([0, index])
    with pytest.raises(TypeError, match="float64"):
        tags.take([0.5])


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_tags_are_right_across_blocks(size: int) -> None:
    tags = [f"é{idx * 7}" if idx % 5 == 0 else f"tag-{idx}" for idx in range(size)]
    assert list(pack_tags(tags)) == tags
    generated = [f"x{idx}" for idx in range(size)]
    assert list(pack_tags(generated)) == generated
    assert isinstance(pack_tags(generated), GeneratedTags)
    generated[-1] = "y"
    assert list(pack_tags(generated)) == generated
    assert isinstance(pack_tags(generated), PackedTags)


@given(prefix=TEXT, size=st.integers(0, 30), probe=TEXT)
def test_generated_tags_are_those_of_the_list(prefix: str, size: int, probe: str) -> None:
    rule, tags = GeneratedTags(size, prefix), [f"{prefix}{idx}" for idx in range(size)]
    assert list(rule) == tags
    for tag in [
        *tags,
        f"{prefix}{size}",
        f"{prefix}00",
        f"{prefix}-1",
        f"{prefix}+1",
        f"{prefix} 1",
        f"{prefix}²",
        probe,
    ]:
        assert rule.find(tag) == (tags.index(tag) if tag in tags else None)
    assert rule.find(prefix + "9" * 10_000) is None


def test_generated_tags_take_no_memory() -> None:
    rule = GeneratedTags(2**62, "u")
    assert rule[-1] == f"u{2**62 - 1}"
    assert rule.find(rule[-1]) == 2**62 - 1


def test_a_wrong_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match="-1"):
        GeneratedTags(-1)
    with pytest.raises(ConfigError, match="UTF-8"):
        GeneratedTags(1, "\ud800")


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["a", "\ud800"], "is not UTF-8 text"),
        (["a", b"\xff"], "is not UTF-8 text"),
        ([b"a", b"\xff"], "is not UTF-8 text"),
        ([b"\xc3", b"\xa4"], "is not UTF-8 text"),  # only together they are text
        (np.array([b"\xc3", b"\xa4"]), "is not UTF-8 text"),
        (["a", 1], "is a int, not a string"),
        (np.array([1, 2]), "is a int, not a string"),
        (np.array([["a"], ["b"]]), "2 axes"),
        ("ab", "a str, not a sequence"),
        (iter("ab"), "not a sequence"),
        ([None], "is a NoneType"),
    ],
)
def test_what_is_no_text_is_refused(tags: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        pack_tags(tags)


@given(tags=TAG_LISTS, data=st.data())
def test_packed_tags_survive_pickling_and_stay_read_only(tags: list[str], data: st.DataObject) -> None:
    copy = pickle.loads(pickle.dumps(pack_tags(tags)))
    assert list(copy) == tags
    if isinstance(copy, PackedTags):
        assert not copy.blob.flags.writeable
        assert not copy.offsets.flags.writeable


def weak_hash(tag: bytes) -> int:
    return len(tag) % 2


@pytest.mark.parametrize("hash_tag", [TagTable.__dataclass_fields__["hash_tag"].default, weak_hash])
@given(tags=TAG_LISTS, probes=st.lists(TEXT, max_size=5))
def test_a_table_finds_first_and_last_also_when_hashes_collide(
    hash_tag: Any, tags: list[str], probes: list[str]
) -> None:
    table = TagTable.build(pack_tags(tags), hash_tag)
    queries = probes + tags + tags[::-1]
    firsts, lasts = table.find(queries)
    for query, first, last in zip(queries, firsts.tolist(), lasts.tolist(), strict=True):
        places = [idx for idx, tag in enumerate(tags) if tag == query] or [-1]
        assert (first, last) == (places[0], places[-1])
    assert table.groups().tolist() == [tags.index(tag) for tag in tags]
