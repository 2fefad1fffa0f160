"""`TarWriter`: what it writes is read back the same, by others too, and it leaves a whole file or nothing."""

import gc
import io
import os
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import ConfigError, SourceError
from headrace.sources import TarSource, TarWriter
from headrace.sources.tar.archive import METADATA_NAME, escape, split_name, unescape
from headrace.specs import DataSpec
from headrace.testing import check_source

SEQ = {"data": np.ones((3, 4), np.float32), "classes": np.arange(3, dtype=np.int32)}


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))


def write_seqs(path, seqs, **options):
    with TarWriter(path, **options) as writer:
        for tag, data in seqs:
            writer.append(tag, data)
    return path


def members_of(path):
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


# --- what it writes ---


def test_each_array_is_a_member_that_numpy_reads_and_the_note_is_the_last(tmp_path):
    path = write_seqs(tmp_path / "shard.tar", [("a/1", SEQ), ("a/2", SEQ)])
    members = members_of(path)
    assert list(members) == ["a/1.data.npy", "a/1.classes.npy", "a/2.data.npy", "a/2.classes.npy", METADATA_NAME]
    stream = io.BytesIO()
    np.save(stream, SEQ["data"])
    assert members["a/1.data.npy"] == stream.getvalue()
    with tarfile.open(path) as archive:
        member = archive.getmember("a/1.data.npy")
        assert (member.mode, member.uid, member.mtime, member.uname) == (0o644, 0, 0, "")
    assert path.stat().st_size % 10240 == 0


def test_text_is_written_as_text_where_asked_for(tmp_path):
    text = np.frombuffer("größe".encode(), np.uint8)
    specs = {"orth": DataSpec("uint8", sparse=True, dim=256), "data": DataSpec("float32", dim=1)}
    path = tmp_path / "shard.tar"
    write_seqs(path, [("a", {"orth": text, "data": np.ones(2, "f4")})], specs=specs, as_text=["orth"])
    assert members_of(path)["a.orth.txt"].decode() == "größe"
    source = TarSource(path)
    assert source.specs == specs
    assert bytes(source.read(0, "orth")).decode() == "größe"
    check_source(source)
    source.close()


def test_layouts_and_labels_are_kept_to_the_letter(tmp_path):
    specs = {
        "speaker": DataSpec("float32", (3,), dim=3, has_time=False),
        "data": DataSpec("float32", (None, 2), dim=2),
        "classes": DataSpec("int16", sparse=True, dim=3),
        "number": DataSpec("int64", sparse=True, dim=10, has_time=False),
        "unknown": DataSpec("int32", sparse=True),
        "a.b/c:d": DataSpec("bool", dim=1),
        "": DataSpec("complex128", (2, 2), dim=2),
    }
    data = {
        "speaker": np.ones(3, "f4"),
        "data": np.ones((2, 5, 2), "f4"),
        "classes": np.array([2, 0], "i2"),
        "number": np.array(7),
        "unknown": np.array([-5], "i4"),
        "a.b/c:d": np.array([True]),
        "": np.ones((1, 2, 2), "c16"),
    }
    path = write_seqs(tmp_path / "shard.tar", [("x", data)], specs=specs, labels={"classes": ["a", "b", "ü"]})
    source = TarSource(path)
    assert list(source.specs.items()) == list(specs.items())
    assert source.labels == {"classes": ["a", "b", "ü"]}
    for key, array in data.items():
        np.testing.assert_array_equal(source.read(0, key), array)
        assert source.read(0, key).dtype == array.dtype
    check_source(source)
    source.close()


def test_archives_of_one_corpus_join_their_notes_and_others_are_refused(tmp_path):
    one, two, three = (write_seqs(tmp_path / f"{top}.tar", [("a.b", {"x": np.array([top])})]) for top in (4, 9, 2))
    source = TarSource([one, two, three])
    assert source.specs["x"].dim == 10
    assert source.index.tags[:] == ["a.b"] * 3
    other = write_seqs(tmp_path / "other.tar", [("a", {"x": np.array([1]), "y": np.array([1])})])
    with pytest.raises(SourceError, match=r"has the members .*'y\.npy'"):
        TarSource([one, other])
    other = write_seqs(tmp_path / "labels.tar", [("a", {"x": np.array([1])})], labels={"x": ["p", "q"]})
    with pytest.raises(SourceError, match="are not of one corpus: 'x'"):
        TarSource([one, other])


def test_fields_of_ones_own_still_get_the_layout_of_the_writer(tmp_path):
    path = write_seqs(tmp_path / "shard.tar", [("a", SEQ)], labels={"classes": list("wxyz")})
    source = TarSource(path, fields={"targets": "classes.npy"})
    assert source.specs == {"targets": DataSpec("int32", sparse=True, dim=4)}
    assert source.labels == {"targets": list("wxyz")}


def test_an_archive_of_no_sequences_still_knows_its_keys(tmp_path):
    specs = {"data": DataSpec("float32", (4,), dim=4), "orth": DataSpec("uint8", sparse=True, dim=256)}
    source = TarSource(write_seqs(tmp_path / "shard.tar", [], specs=specs, as_text=["orth"]))
    assert len(source) == 0
    assert dict(source.specs) == specs
    check_source(source)
    assert len(TarSource(write_seqs(tmp_path / "nothing.tar", [], labels={"classes": ["a"]}))) == 0


# --- laws ---

TAGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@examples(200)
@given(TAGS | st.text("/.%_a\0", max_size=9))
def test_any_tag_is_a_name_inside_the_archive_from_which_it_is_read_again(tag):
    key = escape(tag)
    assert unescape(key) == tag
    assert split_name(f"{key}.data.npy") == (key, "data.npy")
    assert os.path.normpath(f"{key}.data.npy") == f"{key}.data.npy"
    assert not key.startswith("/")


@examples(200)
@given(TAGS | st.text("/.%_a", max_size=5), TAGS | st.text("/.%_a", max_size=5))
def test_different_tags_have_different_names(one, other):
    assert (escape(one) == escape(other)) == (one == other)


# --- what it refuses ---


@pytest.mark.parametrize(
    ("tag", "message"),
    [(b"bytes", "not a str"), (7, "not a str"), ("\ud800", "Unicode"), ("first", "was there before")],
)
def test_a_tag_that_cannot_be_stored_or_came_before_is_refused(tmp_path, tag, message):
    with TarWriter(tmp_path / "shard.tar") as writer:
        writer.append("first", SEQ)
        with pytest.raises(SourceError, match=message):
            writer.append(tag, SEQ)
        assert writer.num_seqs == 1


def test_other_byte_orders_strides_and_numbers_are_stored_plainly(tmp_path):
    rows = np.arange(24, dtype=">f4").reshape(4, 6)
    specs = {"data": DataSpec("float32", (3,), dim=3), "n": DataSpec("int32", sparse=True, dim=9, has_time=False)}
    with TarWriter(tmp_path / "shard.tar", specs=specs) as writer:
        writer.append("a", {"data": rows[::2, ::-2], "n": 5})
        writer.append("b", {"data": np.asfortranarray(rows[:, :3]), "n": np.int32(3)})
    source = TarSource(tmp_path / "shard.tar", index=None)
    assert source.read(0, "data").tolist() == rows[::2, ::-2].tolist()
    assert source.read(1, "data").tolist() == rows[:, :3].tolist()
    assert source.read(0, "n").shape == ()
    assert source.has_fast_rows
    source.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"specs": {"data": DataSpec("U3")}}, "'data' has the dtype U3"),
        ({"specs": {"data": DataSpec("longdouble")}}, "'data' has the dtype longdouble"),
        (
            {"specs": {"data": DataSpec("float32")}, "labels": {"clases": ["x"]}},
            "labels for the unknown data key 'clases'",
        ),
        (
            {"specs": {"data": DataSpec("float32")}, "as_text": ["data"]},
            r"as_text is for keys of uint8\[T\], and 'data'",
        ),
        ({"as_text": "data"}, "as_text is a list"),
        ({"labels": {"classes": [1, 2]}}, "not a list of texts"),
        ({"labels": {"classes": "abc"}}, "not a list of texts"),
        ({"labels": {"classes": ["\ud800"]}}, "not a list of texts"),
        ({"specs": {"\ud800": DataSpec("float32")}}, "cannot be the name"),
    ],
)
def test_a_wrong_option_is_refused_at_once_and_leaves_nothing(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        TarWriter(tmp_path / "shard.tar", **options)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_damaged_or_changed_metadata_are_refused(tmp_path):
    path = write_seqs(tmp_path / "shard.tar", [("a", SEQ)])
    members = members_of(path)

    def rewrite(metadata, **changed):
        with tarfile.open(path, "w") as archive:
            for name, data in {**members, METADATA_NAME: metadata, **changed}.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))

    metadata = members[METADATA_NAME]
    stream = io.BytesIO()
    np.save(stream, np.ones((3, 5), np.float32))
    for wrong, match in (
        (b"{", "cannot be read"),
        (metadata.replace(b'"version":1', b'"version":2'), "version 2"),
        (metadata.replace(b"float32", b"float99"), "cannot be read"),
        (metadata.replace(b'"labels":{', b'"labels":{"more":["x"]'), "contradict each other"),
        (metadata.replace(b"float32", b"float64"), r"says float64\[None, 4\].*are float32\[3, 4\]"),
    ):
        rewrite(wrong)
        with pytest.raises(SourceError, match=match):
            TarSource(path)
    rewrite(metadata, **{"a.data.npy": stream.getvalue()})
    with pytest.raises(SourceError, match=r"says float32\[None, 4\].*are float32\[3, 5\]"):
        TarSource(path)


# --- whole or nothing ---


def test_members_that_were_taken_out_are_missed(tmp_path):
    path = write_seqs(tmp_path / "shard.tar", [("a", SEQ)])
    members = members_of(path)
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if name != "a.classes.npy":
                archive.addfile(info, io.BytesIO(data))
    with pytest.raises(SourceError, match=r"not all of them are there"):
        TarSource(path)
    assert list(TarSource(path, fields={"x": "data.npy"}).specs) == ["x"]
