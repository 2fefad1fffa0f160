"""Two indices joined by their tags: the fast way against the plain one, and what is remembered."""

import os

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SourceError
from headrace.index import AMBIGUOUS, MISSING, CorpusIndex, GeneratedTags, join_tags, open_or_join, storage
from headrace.index import join as join_store
from headrace.index.join import TagJoin
from headrace.index.lookup import TagTable

TAGS = st.lists(st.text("ab0ä", max_size=3), max_size=30) | st.builds(
    GeneratedTags, st.integers(0, 9), st.sampled_from(["a", "seq-"])
)


def corpus(tags):
    return CorpusIndex.from_columns(tags=tags, lengths={})


def plain_join(left, right):
    places = {}
    for place, tag in enumerate(right):
        places[tag] = AMBIGUOUS if tag in places else place
    return [places.get(tag, MISSING) for tag in left]


def check_counts(join, left, right):
    expected = plain_join(left, right)
    assert join.of(np.arange(len(left))).tolist() == expected
    assert (join.num_seqs, join.num_others) == (len(left), len(right))
    assert join.num_missing == expected.count(MISSING)
    assert join.num_ambiguous == expected.count(AMBIGUOUS)
    assert join.num_unused == len(right) - len({place for place in expected if place >= 0})
    assert join.is_complete == (not join.num_missing and not join.num_ambiguous)


@given(TAGS, TAGS)
def test_a_join_is_that_of_a_dict(left, right):
    check_counts(join_tags(corpus(left), corpus(right)), left, right)


@given(st.lists(st.text("ab", min_size=1, max_size=8), unique=True, max_size=40), st.randoms(use_true_random=False))
def test_a_join_of_shuffled_tags_finds_each(tags, random):
    shuffled = list(tags)
    random.shuffle(shuffled)
    check_counts(join_tags(corpus(tags), corpus(shuffled)), tags, shuffled)


@given(TAGS.filter(lambda tags: not isinstance(tags, GeneratedTags)), TAGS)
def test_colliding_hashes_change_nothing(left, right):
    def weak(data):
        return xxhash.xxh3_64_intdigest(data) % 3

    indices = corpus(left), corpus(right)
    for index in indices:
        index.__dict__["_table"] = TagTable.build(index.tags, weak)
    check_counts(join_tags(*indices), left, right)


def test_the_same_tags_in_the_same_order_need_no_column():
    tags = ["b", "a", "c"]
    assert join_tags(corpus(tags), corpus(list(tags))).others is None
    assert join_tags(corpus(GeneratedTags(5)), corpus(GeneratedTags(5))).others is None
    assert join_tags(corpus(["a", "a"]), corpus(["a", "a"])).of(np.arange(2)).tolist() == [AMBIGUOUS] * 2


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Let every join of stored indices be kept; return a function that stores an index."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(join_store, "_MIN_KEPT_SEQS", 1)
    monkeypatch.setattr("headrace.files.kept._warned_of", set())

    def store(name, tags):
        path = tmp_path / f"{name}.hrindex"
        corpus(tags).save(path)
        return CorpusIndex.open(path)

    return store


def joins(tmp_path):
    folder = tmp_path / "cache" / "joins"
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("right", [["c", "a", "b", "d"], ["a", "b", "c"], ["x"], ["a", "b", "b", "c"]])
def test_a_stored_join_is_what_was_joined(stored, tmp_path, right):
    indices = stored("left", ["a", "b", "c"]), stored("right", right)
    for _ in range(2):
        join = open_or_join(*indices)
        check_counts(join, ["a", "b", "c"], right)
        assert join.where == str(joins(tmp_path)[0])
    assert len(joins(tmp_path)) == 1


def test_a_join_of_other_tags_is_another_one(stored, tmp_path):
    left = stored("left", ["a", "b"])
    for tags in (["a", "b", "c"], ["c", "b", "a"]):
        check_counts(open_or_join(left, stored("right", tags)), ["a", "b"], tags)
    assert len(joins(tmp_path)) == 2


def test_what_is_in_memory_or_small_is_not_kept(stored, tmp_path, monkeypatch):
    open_or_join(corpus(["a"]), stored("right", ["a"]))
    monkeypatch.setattr(join_store, "_MIN_KEPT_SEQS", 2)
    open_or_join(stored("left", ["a"]), stored("right", ["a"]))
    assert joins(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "garbage", "other"])
def test_a_damaged_join_is_made_again(stored, tmp_path, damage):
    indices = stored("left", ["a", "b", "c"]), stored("right", ["c", "b", "a"])
    open_or_join(*indices)
    (path,) = joins(tmp_path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "garbage":
        path.write_bytes(b"nonsense")
    else:
        corpus(["a"]).save(path)
    check_counts(open_or_join(*indices), ["a", "b", "c"], ["c", "b", "a"])
    check_counts(open_or_join(*indices), ["a", "b", "c"], ["c", "b", "a"])


def test_places_that_lead_outside_are_refused(stored, tmp_path):
    indices = stored("left", ["a", "b", "c"]), stored("right", ["c", "b", "a"])
    open_or_join(*indices)
    (path,) = joins(tmp_path)
    data = bytearray(path.read_bytes())
    place = data.rindex(np.array([2, 1, 0], "<i4").tobytes())
    data[place : place + 4] = np.array([7], "<i4").tobytes()
    path.write_bytes(data)
    with pytest.raises(SourceError, match="damaged") as caught:
        CorpusIndex.open(path, check_files=False)
    assert str(path) in str(caught.value)
    np.testing.assert_array_equal(open_or_join(*indices).of(np.arange(3)), [2, 1, 0])  # it was made again
    path.write_bytes(data)
    joined = CorpusIndex._of_stored(storage.open_stored(path, known=bytes(data[32:48])))
    wrong = TagJoin(joined.locator("places"), 3, 3, 0, 0, 0, where=str(path))
    with pytest.raises(SourceError, match="damaged") as caught:
        wrong.of(np.arange(3))
    assert str(path) in str(caught.value)


def test_a_folder_that_cannot_be_used_is_said_once(stored, tmp_path, caplog):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "joins").write_text("a file is in the way")
    indices = stored("left", ["a", "b"]), stored("right", ["b", "a"])
    for _ in range(2):
        check_counts(open_or_join(*indices), ["a", "b"], ["b", "a"])
    assert len([record for record in caplog.records if record.name == "headrace.index"]) == 1


def test_only_the_joins_that_were_used_last_are_kept(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(join_store, "_MAX_KEPT_FILES", 3)
    left = stored("left", ["a", "b"])
    rights = [stored(f"right{i}", ["b", "a", f"c{i}"]) for i in range(5)]
    now = os.stat(tmp_path).st_mtime - 1000
    for time, right in enumerate(rights[:3]):
        open_or_join(left, right)
        newest = max(joins(tmp_path), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (now + time, now + time))
    used = open_or_join(left, rights[0])  # the oldest was used again
    open_or_join(left, rights[3])
    assert len(joins(tmp_path)) == 3
    assert used.where in map(str, joins(tmp_path))
    check_counts(used, ["a", "b"], ["b", "a", "c0"])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [("table/indices", 9, "look-up table"), ("tags/offsets", 99, "beyond the text"), ("tags/offsets", -1, "beyond")],
)
def test_a_damaged_index_is_named(stored, tmp_path, column, value, message):
    left, right = stored("left", ["a", "b", "c"]), stored("right", ["c", "b", "a"])
    data = bytearray((tmp_path / "right.hrindex").read_bytes())
    (entry,) = (entry for entry in right._stored.header.columns if entry.name == column)
    width = np.dtype(entry.dtype).itemsize
    start = len(data) - storage._columns_bytes(right._stored.header) + entry.offset + width
    data[start : start + width] = np.array([value], entry.dtype).tobytes()
    path = tmp_path / "damaged.hrindex"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=message) as caught:
        join_tags(left, CorpusIndex._of_stored(storage.open_stored(path, known=bytes(data[32:48]))))
    assert str(path) in str(caught.value)
