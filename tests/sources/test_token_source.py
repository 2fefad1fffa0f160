"""Runs of tokens: files, documents, blocks, targets; and the writer of Megatron's format."""

import os
import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import ConfigError, SourceError
from headrace.sources import TokenSource, TokenWriter
from headrace.specs import DataSpec
from headrace.testing import check_source

TOKENS = np.random.default_rng(1).integers(0, 1000, 103).astype(np.uint16)
DOCS = [TOKENS[a:b] for a, b in pairwise([0, 5, 5, 6, 40, 103])]
SPECS = {"data": DataSpec("uint16", sparse=True, dim=1000)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def raw(tmp_path):
    TOKENS.tofile(tmp_path / "raw.bin")
    return tmp_path / "raw.bin"


@pytest.fixture
def npy(tmp_path):
    np.save(tmp_path / "tokens.npy", TOKENS)
    return tmp_path / "tokens.npy"


@pytest.fixture
def megatron(tmp_path):
    with TokenWriter(tmp_path / "m.bin", specs=SPECS) as writer:
        for corpus_idx, document in enumerate(DOCS):
            writer.append(f"doc-{corpus_idx}", {"data": document})
    return tmp_path / "m.bin"


def test_every_kind_of_file_keeps_the_contract_of_a_source(raw, npy, megatron):
    for source in (
        TokenSource(raw, dtype="uint16", block_length=10),
        TokenSource(npy, block_length=10, overlap=3, targets="classes"),
        TokenSource(npy, block_length=1000, data_key="tokens"),
        TokenSource(npy, by="document", eos=int(TOKENS[7])),
        TokenSource(megatron, by="document", index=None),
        TokenSource(megatron.with_suffix(".idx"), by="document", targets="next", as_dtype="int64"),
        TokenSource(megatron.with_suffix(""), block_length=7, within_documents=True),
        TokenSource([megatron, npy], block_length=7, dim=1000, as_dtype="int32"),
    ):
        check_source(source)
        assert source.num_tokens in (103, 206)


@given(
    num_tokens=st.integers(0, 60),
    length=st.integers(1, 12),
    overlap=st.integers(0, 11),
    has_targets=st.booleans(),
    keep_rest=st.booleans(),
)
@examples(60)
def test_blocks_cover_the_tokens_in_order(tmp_path_factory, num_tokens, length, overlap, has_targets, keep_rest):
    overlap %= length
    path = tmp_path_factory.mktemp("blocks") / "t.npy"
    tokens = np.arange(num_tokens, dtype=np.uint16)
    np.save(path, tokens)
    targets = "next" if has_targets else None
    source = TokenSource(path, block_length=length, overlap=overlap, targets=targets, keep_rest=keep_rest)
    usable = max(num_tokens - has_targets, 0)
    stride = length - overlap
    starts = [start for start in range(0, usable, stride) if keep_rest or start + length <= usable]
    # A block that only repeats the end of the one before is none.
    starts = [start for start in starts if start == 0 or start + overlap < usable]
    blocks = [tokens[start : min(start + length, usable)].tolist() for start in starts]
    assert [source.read(i, "data").tolist() for i in range(len(source))] == blocks
    assert source.index.lengths("data").tolist() == list(map(len, blocks))
    if has_targets:
        assert [source.read(i, "next").tolist() for i in range(len(source))] == [[t + 1 for t in b] for b in blocks]
    if keep_rest and not overlap:
        assert [token for block in blocks for token in block] == list(range(usable))


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 5), st.integers(0, 4), st.booleans(), st.booleans())
@examples(40)
def test_blocks_within_documents_are_the_blocks_of_each_document(
    tmp_path_factory, lengths, length, overlap, has_targets, keep_rest
):
    overlap %= length
    folder = tmp_path_factory.mktemp("within")
    with TokenWriter(folder / "t.bin", dtype="int32") as writer:
        for corpus_idx, size in enumerate(lengths):
            writer.append(f"doc-{corpus_idx}", {"data": np.arange(size) + 100 * corpus_idx})
    options = {"block_length": length, "overlap": overlap, "keep_rest": keep_rest}
    options["targets"] = "next" if has_targets else None
    source = TokenSource(folder / "t.bin", within_documents=True, **options)
    wanted = []
    for corpus_idx, size in enumerate(lengths):
        np.save(folder / "one.npy", (np.arange(size) + 100 * corpus_idx).astype(np.int32))
        one = TokenSource(folder / "one.npy", **options)
        wanted += [{key: array.tolist() for key, array in one.read_seq(i).items()} for i in range(len(one))]
    found = [{key: array.tolist() for key, array in source.read_seq(i).items()} for i in range(len(source))]
    assert found == wanted


def test_documents_come_from_an_index_an_offsets_file_or_an_end_token(tmp_path, npy, megatron):
    np.save(tmp_path / "starts.npy", np.array([0, 5, 5, 6, 40]))
    from_idx = TokenSource(megatron, by="document")
    from_file = TokenSource(npy, by="document", documents=tmp_path / "starts.npy")
    assert list(from_idx.index.tags) == [f"doc-{i}" for i in range(5)]
    assert from_idx.specs["data"].dim == 1000
    for corpus_idx, document in enumerate(DOCS):
        np.testing.assert_array_equal(from_idx.read(corpus_idx, "data"), document)
        np.testing.assert_array_equal(from_file.read(corpus_idx, "data"), document)
    np.save(tmp_path / "eos.npy", np.array([3, 9, 9, 4, 9, 1], np.int32))
    by_end = TokenSource(tmp_path / "eos.npy", by="document", eos=9)
    assert [by_end.read(i, "data").tolist() for i in range(len(by_end))] == [[3, 9], [9], [4, 9], [1]]


def test_a_billion_tokens_are_opened_without_reading_them(tmp_path):
    path = tmp_path / "huge.bin"
    with open(path, "wb") as stream:
        stream.truncate(2 * 10**9)  # a file of holes, which takes no room
        stream.seek(2 * (10**9 - 1))
        stream.write(struct.pack("<H", 7))
    source = TokenSource(path, dtype="uint16", block_length=2048)
    assert len(source) == -(-(10**9) // 2048)
    assert source.read(len(source) - 1, "data")[-1] == 7
    assert source.read(12345, "data").sum() == 0


def test_the_files_are_those_of_megatron(megatron):
    data = megatron.with_suffix(".idx").read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    version, code, num_seqs, num_bounds = struct.unpack_from("<QBQQ", data, 9)
    assert (version, code, num_seqs, num_bounds) == (1, 8, 5, 6)
    assert np.frombuffer(data, "<i4", 5, 34).tolist() == [5, 0, 1, 34, 63]
    assert np.frombuffer(data, "<i8", 5, 54).tolist() == [0, 10, 10, 12, 80]
    assert np.frombuffer(data, "<i8", 6, 94).tolist() == [0, 1, 2, 3, 4, 5]
    assert megatron.read_bytes() == TOKENS.tobytes()
    assert not megatron.with_name("m.tags.txt").exists()


def test_documents_of_several_sequences_are_joined(tmp_path):
    tokens = np.arange(6, dtype=np.int32)
    tokens.tofile(tmp_path / "x.bin")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 3, 3)
    columns = [np.array([1, 2, 3], "<i4"), np.array([0, 4, 12], "<i8"), np.array([0, 2, 3], "<i8")]
    (tmp_path / "x.idx").write_bytes(head + b"".join(column.tobytes() for column in columns))
    source = TokenSource(tmp_path / "x.bin", by="document")
    assert [source.read(i, "data").tolist() for i in range(2)] == [[0, 1, 2], [3, 4, 5]]


def test_a_token_that_is_no_class_is_an_error_that_says_where(tmp_path):
    np.save(tmp_path / "t.npy", np.array([1, 2, 3, 50, -1], np.int32))
    source = TokenSource(tmp_path / "t.npy", block_length=2, dim=50)
    with pytest.raises(SourceError, match="token 50 is none of the 50 classes") as caught:
        source.read(1, "data")
    assert caught.value.where == f"{tmp_path / 't.npy'}, token 3, 'block-1'"
    with pytest.raises(SourceError, match="token -1 is none"):
        source.read_into(np.array([2]), "data", [np.zeros(1, np.int32)])


def _idx(head=b"MMIDIDX\x00\x00", version=1, code=8, lengths=(2,), pointers=(0,), bounds=(0, 1)):
    columns = [np.array(lengths, "<i4"), np.array(pointers, "<i8"), np.array(bounds, "<i8")]
    counts = struct.pack("<QBQQ", version, code, len(lengths), len(bounds))
    return head + counts + b"".join(column.tobytes() for column in columns)


@pytest.mark.parametrize(
    ("idx", "message"),
    [
        (b"something", "not an index of Megatron"),
        (_idx(version=2), "version 2"),
        (_idx(code=6), "code 6"),
        (_idx(code=77), "code 77"),
        (_idx()[:-3], r"has 59 bytes, but 1 sequences and 2 bounds take 62"),
        (_idx(lengths=(3,)), "says 3 tokens, and .* has 2"),
        (_idx(pointers=(2,)), "sequence 0 has 2 tokens from byte 2"),
        (_idx(lengths=(-2,)), "has -2 tokens"),
        (_idx(bounds=(0, 2)), "do not ascend from 0 to 1"),
        (_idx(bounds=(1,)), "do not ascend"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path, idx, message):
    np.array([1, 2], np.uint16).tofile(tmp_path / "x.bin")
    (tmp_path / "x.idx").write_bytes(idx)
    with pytest.raises(SourceError, match=message) as caught:
        TokenSource(tmp_path / "x.bin", by="document")
    assert "x.idx" in caught.value.where


def test_files_that_are_no_tokens_are_refused(tmp_path, raw):
    (tmp_path / "odd.bin").write_bytes(b"123")
    with pytest.raises(SourceError, match="3 bytes, which is not a multiple of the 2 of uint16"):
        TokenSource(tmp_path / "odd.bin", dtype="uint16", block_length=2)
    for array, num_cut in ((np.zeros((2, 2), np.int32), 0), (np.zeros(2), 0), (np.zeros(2, np.uint16), 1)):
        np.save(tmp_path / "t.npy", array)
        os.truncate(tmp_path / "t.npy", os.path.getsize(tmp_path / "t.npy") - num_cut)
        with pytest.raises(SourceError, match="not integers on one axis"):
            TokenSource(tmp_path / "t.npy", block_length=2)
    (tmp_path / "t.npy").write_bytes(b"tokens")
    with pytest.raises(SourceError, match="not a file in NumPy's format"):
        TokenSource(tmp_path / "t.npy", block_length=2)
    with pytest.raises(SourceError, match="cannot be read"):
        TokenSource(tmp_path / "nowhere.bin", dtype="uint16", block_length=2)
    source = TokenSource(raw, dtype="uint16", block_length=2)
    raw.write_bytes(b"12")
    with pytest.raises(SourceError, match="changed since it was indexed"):
        source.read(0, "data")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs block_length"),
        ({"block_length": 0}, "block_length must be"),
        ({"block_length": 4, "overlap": 4}, "overlap must be"),
        ({"by": "line"}, "by is 'line'"),
        ({"by": "document", "block_length": 4}, "takes no block_length"),
        ({"by": "document"}, "nothing says where documents end"),
        ({"block_length": 4, "targets": "data"}, "both 'data'"),
        ({"block_length": 4, "dtype": "float32"}, "not an integer"),
        ({"block_length": 4, "dtype": "int64"}, "dtype is int64, but the file says uint16"),
        ({"block_length": 4, "as_dtype": "uint8"}, "does not hold every uint16"),
        ({"by": "document", "eos": 1, "documents": "x"}, "and eos is 1"),
    ],
)
def test_a_wrong_option_is_an_error(npy, options, message):
    with pytest.raises(ConfigError, match=message):
        TokenSource(npy, **options)


def test_what_says_where_documents_end_must_fit(tmp_path, npy):
    np.save(tmp_path / "starts.npy", np.array([0, 200]))
    with pytest.raises(SourceError, match="do not ascend from 0 to the 103 tokens"):
        TokenSource(npy, by="document", documents=tmp_path / "starts.npy")
    with pytest.raises(SourceError, match="is nowhere in 103 tokens"):
        TokenSource(npy, by="document", eos=60000)
    TOKENS.tofile(tmp_path / "raw.bin")
    with pytest.raises(ConfigError, match="does not say their dtype"):
        TokenSource(tmp_path / "raw.bin", block_length=2)


def test_tags_that_are_too_few_and_notes_of_another_file_are_refused(tmp_path):
    with TokenWriter(tmp_path / "x.bin", specs=SPECS) as writer:
        writer.append("one", {"data": TOKENS[:3]})
        writer.append("two", {"data": TOKENS[3:4]})
    assert TokenSource(tmp_path / "x.bin", by="document").index.find_tags(["two"]).tolist() == [1]
    (tmp_path / "x.tags.txt").write_text("one\n")
    with pytest.raises(SourceError, match="1 tags for 2 documents"):
        TokenSource(tmp_path / "x.bin", by="document")
    (tmp_path / "x.specs.json").write_text('{"num_tokens": 9, "dim": 5}')
    with pytest.raises(SourceError, match="written for 9 tokens, but there are 4"):
        TokenSource(tmp_path / "x.bin", block_length=2)


def test_what_the_format_cannot_hold_is_refused_and_the_writer_goes_on(tmp_path):
    for specs, message in (
        ({"a": SPECS["data"], "b": SPECS["data"]}, "one data key"),
        ({"a": DataSpec("float32", (3,), dim=3)}, "holds class indices"),
        ({"a": DataSpec("uint32", sparse=True)}, "no code for uint32"),
    ):
        with pytest.raises(ConfigError, match=message):
            TokenWriter(tmp_path / "x.bin", specs=specs)
    with pytest.raises(ConfigError, match=r"must end with \.bin"):
        TokenWriter(tmp_path / "x.tokens")
    with TokenWriter(tmp_path / "x.bin", specs=SPECS) as writer:
        for wrong, message in (
            ({"data": np.array([1000])}, r"class indices are in 1000\.\.1000, and there are 1000 classes"),
            ({"data": np.array([-1])}, "-1 does not fit uint16"),
            ({"data": np.zeros(2)}, "the dtype is float64, not uint16"),
            ({"classes": TOKENS}, "the data keys"),
        ):
            with pytest.raises(SourceError, match=message):
                writer.append("bad", wrong)
        with pytest.raises(SourceError, match="contains a line end"):
            writer.append("a\nb", {"data": TOKENS})
        writer.append("good", {"data": TOKENS})
    source = TokenSource(tmp_path / "x.bin", by="document")
    assert list(source.index.tags) == ["good"]


def test_labels_and_the_number_of_classes_are_kept(tmp_path):
    with TokenWriter(tmp_path / "x.bin", labels={"data": ["p", "q"]}) as writer:
        writer.append("doc-0", {"data": np.array([0, 1], np.int32)})
    source = TokenSource(tmp_path / "x.bin", block_length=2, targets="classes")
    assert source.labels == {"data": ["p", "q"], "classes": ["p", "q"]}
    assert source.specs["classes"].dim == 2
