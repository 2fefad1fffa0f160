"""Lines of text files: where they are, what they become, and what is refused."""

import bz2
import gzip
import os
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import ConfigError, SourceError
from headrace.sources import TextSource
from headrace.sources.shared import lines
from headrace.testing import check_source

TEXT = "a b c\n\n  b  a \r\nc\tc\nä\u2028b\nlast"
LINES = ["a b c", "", "  b  a ", "c\tc", "ä\u2028b", "last"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache folder, of this test alone."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_bytes(TEXT.encode())
    return path


def _texts(source):
    return [source.read_text(corpus_idx) for corpus_idx in range(len(source))]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"vocab": "chars"},
        {"vocab": {"class": "Utf8ByteTargets", "seq_postfix": [0]}},
        {"tags": "place", "skip_empty": True},
        {"fields": {"bytes": {"field": "text", "vocab": "bytes"}, "line": {"field": "text", "vocab": None}}},
    ],
)
def test_a_text_file_keeps_the_contract_of_a_source(file, options):
    check_source(TextSource(file, index=None, **options))
    check_source(TextSource([file, file], index=None, **options))


def test_lines_end_with_a_line_feed_and_nothing_else(file):
    source = TextSource(file)
    assert _texts(source) == LINES
    for corpus_idx, line in enumerate(LINES):
        assert source.read(corpus_idx, "data").tobytes() == line.encode()
    assert source.specs["data"].dim == 256
    assert list(source.index.tags) == [f"line-{i}" for i in range(6)]
    assert source.index.find_tags(["line-4"]).tolist() == [4]


def test_tags_may_name_file_and_line(tmp_path, file):
    (tmp_path / "more.txt").write_text("x\n")
    source = TextSource([file, tmp_path / "more.txt"], tags="place", skip_empty=True)
    assert list(source.index.tags) == [*(f"corpus.txt:{n}" for n in (1, 3, 4, 5, 6)), "more.txt:1"]
    assert source.read_text(5) == "x"


@given(st.lists(st.text(alphabet="ab \r\u2028é\x0b", max_size=12), max_size=12), st.integers(1, 9), st.booleans())
@examples(40)
def test_lines_are_found_wherever_blocks_of_the_file_end(tmp_path_factory, texts, block_bytes, has_end):
    path = tmp_path_factory.mktemp("blocks") / "corpus.txt"
    content = "\n".join(texts) + ("\n" if has_end and texts else "")
    path.write_bytes(content.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_BLOCK_BYTES", block_bytes)
        found = _texts(TextSource(path, index=None))
    wanted = content.split("\n")
    assert found == [line.removesuffix("\r") for line in (wanted if wanted[-1] else wanted[:-1])]


def test_an_empty_line_is_skipped_also_before_a_carriage_return(tmp_path):
    (tmp_path / "crlf.txt").write_bytes(b"a\r\n\r\n\n b\r\n")
    assert _texts(TextSource(tmp_path / "crlf.txt", skip_empty=True)) == ["a", " b"]
    assert _texts(TextSource(tmp_path / "crlf.txt")) == ["a", "", "", " b"]


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_a_compressed_file_is_decompressed_once_and_read_at_any_place(tmp_path, cache, suffix, compress):
    path = tmp_path / f"corpus.txt{suffix}"
    path.write_bytes(compress(TEXT.encode()))
    source = TextSource(path, index=None)
    check_source(source)
    assert _texts(source) == LINES
    assert source.files == (str(path),)
    copies = list((cache / "plain").iterdir())
    stamp = os.stat(copies[0])
    assert _texts(TextSource(path, index=None)) == LINES
    assert [copy.name for copy in (cache / "plain").iterdir()] == [copies[0].name]
    assert os.stat(copies[0]).st_ino == stamp.st_ino


def test_a_torn_compressed_file_leaves_no_copy(tmp_path, cache):
    path = tmp_path / "truncated.txt.gz"
    path.write_bytes(gzip.compress(random.Random(1).randbytes(5000))[:3000])
    with pytest.raises(SourceError, match="damaged"):
        TextSource(path)
    assert list((cache / "plain").iterdir()) == []


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python has it itself")
def test_zst_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.txt.zst").write_bytes(b"(\xb5/\xfd")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SourceError, match=r"pyarrow") as caught:
        TextSource(tmp_path / "a.txt.zst")
    assert "headrace[arrow]" in caught.value.fix


def test_text_that_is_not_utf8_names_line_and_byte(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"ab\nc \xff d\n")
    with pytest.raises(SourceError, match="not UTF-8: byte 0xff") as caught:
        TextSource(tmp_path / "bad.txt")
    assert caught.value.where == f"{tmp_path / 'bad.txt'}, line 2, byte 5"


def test_an_unknown_word_names_the_line(file):
    with pytest.raises(SourceError, match="'last' is none of the 4 labels") as caught:
        TextSource(file, vocab={"class": "Vocabulary", "labels": ["a", "b", "c", "ä"], "unknown_label": None})
    assert caught.value.where == f"{file}, line 6"


def test_an_index_is_kept_and_fits_one_vocabulary_only(tmp_path, file):
    options = {"vocab": {"class": "CharacterTargets", "labels": ["@", "a"]}}
    TextSource(file, **options).index.save(tmp_path / "own.hrindex")
    again = TextSource(file, index=tmp_path / "own.hrindex", **options)
    assert again.read(0, "data").tolist() == [1, 0, 0, 0, 0]
    with pytest.raises(SourceError, match="the index was made for"):
        TextSource(file, index=tmp_path / "own.hrindex", vocab="chars")


def test_wrong_options_are_refused(file):
    for options, message in (
        ({"vocab": "chars", "fields": {}}, "either vocab= or fields="),
        ({"tags": "names"}, "tags is 'names'"),
        ({"fields": {"data": {"field": "txt", "vocab": "bytes"}}}, "a line has only 'text'"),
    ):
        with pytest.raises(ConfigError, match=message):
            TextSource(file, **options)
    with pytest.raises(ConfigError, match="empty list"):
        TextSource([])
    with pytest.raises(SourceError, match="does not exist"):
        TextSource(file.with_name("nowhere.txt"))
