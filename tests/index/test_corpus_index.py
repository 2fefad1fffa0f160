from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, OptionalNotImplementedError, SourceError
from headrace.files import FileStamp
from headrace.index import CorpusIndex, GeneratedTags

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
LENGTHS = st.integers(0, 3000) | st.integers(2**31 - 2, 2**63 - 1)


@st.composite
def corpora(draw: st.DrawFn) -> dict[str, Any]:
    tags = draw(
        st.lists(TEXT | st.text("a0", max_size=2), max_size=12) | st.builds(GeneratedTags, st.integers(0, 9), TEXT)
    )
    column = st.lists(LENGTHS, min_size=len(tags), max_size=len(tags))
    return {
        "tags": tags,
        "lengths": draw(st.dictionaries(TEXT, column, max_size=3)),
        "locators": draw(st.dictionaries(TEXT, column, max_size=2)),
        "meta": draw(
            st.dictionaries(TEXT, st.none() | st.integers(-5, 5) | TEXT | st.lists(st.booleans()), max_size=2)
        ),
    }


def small(**changes: Any) -> CorpusIndex:
    columns: dict[str, Any] = {"tags": ["a", "b", "ä"], "lengths": {"data": [3, 1, 2]}, "locators": {"row": [0, 3, 4]}}
    return CorpusIndex.from_columns(**(columns | changes))


@given(corpus=corpora())
def test_what_is_saved_is_what_is_opened(tmp_path_factory: pytest.TempPathFactory, corpus: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("index") / "a.hrindex"
    built = CorpusIndex.from_columns(**corpus)
    built.verify()
    built.save(path)
    opened = CorpusIndex.open(path)
    opened.verify()
    for index in (built, opened, pickle.loads(pickle.dumps(built)), pickle.loads(pickle.dumps(opened))):
        tags = list(corpus["tags"])
        assert list(index.tags) == tags
        assert index.num_seqs == len(index) == len(tags)
        assert index.data_keys == tuple(corpus["lengths"])
        for data_key, lengths in corpus["lengths"].items():
            assert index.lengths(data_key).tolist() == lengths
            assert index.lengths(data_key).dtype in (np.int32, np.int64)
            assert not index.lengths(data_key).flags.writeable
        for name, locators in corpus["locators"].items():
            assert index.locator(name).tolist() == locators
            assert not index.locator(name).flags.writeable
        assert index.meta == corpus["meta"]
        assert index.digest == built.digest
        assert index.tag_groups().tolist() == [tags.index(tag) for tag in tags]
        assert index.num_duplicates == len(tags) - len(set(tags))
        unique = [tag for tag in tags if tags.count(tag) == 1]
        assert index.find_tags(unique).tolist() == [tags.index(tag) for tag in unique]


def test_lengths_take_32_bits_where_they_fit() -> None:
    index = small(lengths={"short": [0, 1, 2**31 - 1], "long": [0, 1, 2**31]})
    assert index.lengths("short").dtype == np.int32
    assert index.lengths("long").dtype == np.int64


def test_the_columns_are_copies() -> None:
    lengths = np.array([3, 1, 2], dtype=np.int32)
    rows = lengths.copy()
    index = small(lengths={"data": lengths}, locators={"row": rows})
    digest = index.digest
    lengths[0] = rows[0] = 99
    assert index.lengths("data").tolist() == index.locator("row").tolist() == [3, 1, 2]
    assert digest == small().digest


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i4", "u8", "f2", "f4", "f8", "O"])
def test_the_digest_does_not_depend_on_the_dtype(dtype: str) -> None:
    lengths: Any = [3, 1, 2] if dtype == "O" else np.array([3, 1, 2], dtype=dtype)
    assert small(lengths={"data": lengths}).digest == small().digest


def test_the_digest_depends_on_tags_and_lengths_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    same = small(locators={}, meta={"x": 1}, files=[FileStamp.of(tmp_path / "f")]).built_from((), "kind")
    assert same.digest == small().digest
    lengths = {"b": [1, 2, 3], "a": [4, 5, 6]}
    assert small(lengths=lengths).digest == small(lengths=dict(sorted(lengths.items()))).digest
    assert small(tags=GeneratedTags(3)).digest == small(tags=["seq-0", "seq-1", "seq-2"]).digest
    assert (
        small(tags=GeneratedTags(0), lengths={}, locators={}).digest == small(tags=[], lengths={}, locators={}).digest
    )
    others = [
        small(tags=["a", "b", "c"]),
        small(tags=["ab", "", "ä"]),
        small(tags=GeneratedTags(3)),
        small(tags=GeneratedTags(3, "s")),
        small(lengths={"data": [3, 1, 3]}),
        small(lengths={"dat": [3, 1, 2]}),
        small(lengths={}),
        small(),
    ]
    assert len({other.digest for other in others}) == len(others)


def test_the_digest_is_pinned() -> None:
    # A state saved by one version of Headrace must fit the next one.
    assert small().digest == "2510e895b9f23c8fd73e302a7fb6a3b5"
    assert small(tags=GeneratedTags(3)).digest == "4a2d2b3e9d9791a0a607864b7c074f92"


@pytest.mark.parametrize(
    ("lengths", "shown"),
    [
        ([3, -1, 2], "-1"),
        ([3.0, float("nan"), 2.0], "nan"),
        ([3.0, float("inf"), 2.0], "inf"),
        ([3.0, 1.5, 2.0], "1.5"),
        ([3.0, 1e19, 2.0], r"1e\+19"),
        (np.array([3, 2**63, 2], dtype=np.uint64), str(2**63)),
    ],
)
def test_a_wrong_length_is_refused_with_tag_and_value(lengths: Any, shown: str) -> None:
    with pytest.raises(SourceError, match=rf"length of 'data' is {shown}\n.*sequence 1, tag 'b'"):
        small(lengths={"data": lengths})


@pytest.mark.parametrize("lengths", [["3", "1", "2"], [True, False, True], [3, None, 1], [1j, 2, 3], [2**70, 1, 2]])
def test_lengths_that_are_no_numbers_are_refused(lengths: Any) -> None:
    with pytest.raises(SourceError, match="'data'"):
        small(lengths={"data": lengths})


@pytest.mark.parametrize("column", [[1, 2], [1, 2, 3, 4], [], [[1, 2, 3]], 3])
@pytest.mark.parametrize("role", ["lengths", "locators"])
def test_a_column_of_the_wrong_length_is_refused_with_both_numbers(role: str, column: Any) -> None:
    shape = str(np.shape(column)).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(SourceError, match=rf"'x' has shape {shape}, but the corpus has 3 tags"):
        small(**{role: {"x": column}})


def test_locators_keep_their_dtype_and_must_be_numbers(tmp_path: Path) -> None:
    columns = {name: np.array([1, 2, 3], dtype=name) for name in ("u1", "i2", "u4", "i8", "f4", "f8")}
    small(locators=columns | {"big": np.array([1, 2, 3], dtype=">i4")}).save(tmp_path / "a.hrindex")
    opened = CorpusIndex.open(tmp_path / "a.hrindex")
    for name, column in columns.items():
        assert opened.locator(name).dtype == column.dtype
    assert opened.locator("big").tolist() == [1, 2, 3]
    with pytest.raises(SourceError, match="locator 'x' has dtype <U1"):
        small(locators={"x": ["a", "b", "c"]})


def test_meta_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        small(meta={"x": object()})


def test_meta_is_the_same_in_memory_and_in_a_file(tmp_path: Path) -> None:
    index = small(meta={"x": (1, 2)})
    index.save(tmp_path / "a.hrindex")
    assert index.meta == CorpusIndex.open(tmp_path / "a.hrindex").meta == {"x": [1, 2]}


def test_unknown_keys_and_locators_are_refused_with_the_known_ones() -> None:
    assert small().has_lengths("data")
    assert not small().has_lengths("dta")
    with pytest.raises(OptionalNotImplementedError, match="did you mean 'data'"):
        small().lengths("dta")
    with pytest.raises(SourceError, match=r"no locator 'file', it has \['row'\]"):
        small().locator("file")


def saved_and_not(index: CorpusIndex, folder: Path) -> list[CorpusIndex]:
    index.save(folder / "a.hrindex")
    return [index, CorpusIndex.open(folder / "a.hrindex")]


def test_an_unknown_tag_is_refused_with_a_similar_one_and_the_count(tmp_path: Path) -> None:
    for index in saved_and_not(small(tags=["speech-a", "speech-b", "x"]), tmp_path):
        with pytest.raises(SourceError, match=r"no tag 'speech-c' \(2 of the 3(.|\n)*did you mean 'speech-"):
            index.find_tags(["x", "speech-c", "y"])


def test_a_tag_that_occurs_twice_is_refused_only_when_it_is_looked_up(tmp_path: Path) -> None:
    for index in saved_and_not(small(tags=["b", "a", "b"]), tmp_path):
        assert index.find_tags(["a"]).tolist() == [1]
        with pytest.raises(SourceError, match="'b' is not unique: sequences 0 and 2 both"):
            index.find_tags(["a", "b"])


def test_a_look_up_of_something_else_is_refused() -> None:
    with pytest.raises(SourceError, match="not a list of tags"):
        small().find_tags("a")
    with pytest.raises(SourceError, match="cannot look up 3"):
        small().find_tags([3])  # type: ignore[list-item]
    assert small().find_tags([]).dtype == np.int64


def test_many_tags_are_found_in_a_mapped_table(tmp_path: Path) -> None:
    tags = [f"{idx * 2654435761 % 2**32:x}" for idx in range(100_000)]
    small(tags=tags, lengths={}, locators={}).save(tmp_path / "a.hrindex")
    index = CorpusIndex.open(tmp_path / "a.hrindex")
    wanted = np.random.default_rng(3).permutation(len(tags))
    assert np.array_equal(index.find_tags([tags[idx] for idx in wanted]), wanted)


def test_a_pickled_open_index_is_a_path(tmp_path: Path) -> None:
    index = small(tags=[f"t{idx}x" for idx in range(10_000)], lengths={}, locators={})
    index.save(tmp_path / "a.hrindex")
    opened = CorpusIndex.open(tmp_path / "a.hrindex")
    assert len(pickle.dumps(opened)) < 500
    assert pickle.loads(pickle.dumps(opened)).path == opened.path == str(tmp_path / "a.hrindex")


def test_a_pickled_index_that_was_replaced_is_refused(tmp_path: Path) -> None:
    small().save(tmp_path / "a.hrindex")
    pickled = pickle.dumps(CorpusIndex.open(tmp_path / "a.hrindex"))
    small(lengths={"data": [1, 1, 1]}).save(tmp_path / "a.hrindex")
    with pytest.raises(SourceError, match="the index was replaced"):
        pickle.loads(pickled)


def test_an_open_index_outlives_its_file(tmp_path: Path) -> None:
    small().save(tmp_path / "a.hrindex")
    opened = CorpusIndex.open(tmp_path / "a.hrindex")
    small(tags=["x", "y", "z"]).save(tmp_path / "a.hrindex")
    assert list(opened.tags) == ["a", "b", "ä"]
    os.unlink(tmp_path / "a.hrindex")
    assert list(opened.tags) == ["a", "b", "ä"]


def test_a_saved_index_can_be_saved_again_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.index.corpus.time.time", lambda: 1e9)  # the second in which it is written is in it
    small(meta={"x": 1}).save(tmp_path / "a.hrindex")
    CorpusIndex.open(tmp_path / "a.hrindex").save(tmp_path / "b.hrindex")
    assert (tmp_path / "a.hrindex").read_bytes() == (tmp_path / "b.hrindex").read_bytes()
