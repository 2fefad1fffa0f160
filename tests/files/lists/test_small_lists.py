from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SourceError
from headrace.files import read_seq_lens, read_tag_list
from headrace.files.lists.file_list import read_file_list

TAGS = st.text(st.characters(exclude_characters="\r\n\ufeff", exclude_categories=["Cs"]), min_size=1)


@given(tags=st.lists(TAGS), newline=st.sampled_from(["\n", "\r\n"]), packed=st.booleans())
def test_tags_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, tags: list[str], newline: str, packed: bool
) -> None:
    data = "".join(tag + newline for tag in tags).encode()
    path = tmp_path_factory.mktemp("lists") / ("tags.txt.gz" if packed else "tags.txt")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert read_tag_list(path) == tags


@pytest.mark.parametrize("name", ["a.pkl", "a.pkl.gz", "a.pickle"])
@pytest.mark.parametrize("read", [read_tag_list, read_seq_lens, read_file_list])
def test_a_pickle_is_refused_before_it_is_read(tmp_path: Path, name: str, read: Any) -> None:
    with pytest.raises(SourceError, match="can run any code"):
        read(tmp_path / name)


def test_bad_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "tags").write_bytes(b"a\nb\nc\xff\nd\n")
    with pytest.raises(SourceError, match=r"(?s)not UTF-8: byte 0xff.*tags, line 3, byte 5"):
        read_tag_list(tmp_path / "tags")


def test_a_gzip_file_torn_anywhere_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b"some\ntags\n")
    for size in range(1, len(whole)):
        (tmp_path / "tags.gz").write_bytes(whole[:size])
        with pytest.raises(SourceError, match="truncated or wrong"):
            read_tag_list(tmp_path / "tags.gz")


@given(lens=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**63 - 1)))
def test_lengths_come_back_from_json_and_from_a_literal(
    tmp_path_factory: pytest.TempPathFactory, lens: dict[str, int]
) -> None:
    folder = tmp_path_factory.mktemp("lens")
    (folder / "a.json").write_text(json.dumps(lens))
    (folder / "b.py.gz").write_bytes(gzip.compress(repr(lens).encode()))
    assert read_seq_lens(folder / "a.json") == lens
    assert read_seq_lens(folder / "b.py.gz") == lens


@pytest.mark.parametrize(
    "length",
    ["-1", "NaN", "Infinity", "1e999", "-1.5", '"3"', "null", "true", "[1]", '{"data": 1}', str(2**63), "1e300"],
)
def test_a_length_that_is_not_a_number_of_frames_or_seconds_is_refused_with_its_tag(
    tmp_path: Path, length: str
) -> None:
    (tmp_path / "lens").write_text(f'{{"good": 1, "seq-7": {length}}}')
    with pytest.raises(SourceError, match="the length of tag 'seq-7' is"):
        read_seq_lens(tmp_path / "lens")


@pytest.mark.parametrize(
    "text",
    ["", "{", "{'a': f()}", "{'a': __import__('os').getpid()}", "{'a': nan}", "[" * 100_000, "{[]: 1}", "{'a': 1,\0}"],
)
def test_what_is_no_plain_data_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "lens").write_text(text)
    with pytest.raises(SourceError, match="neither JSON"):
        read_seq_lens(tmp_path / "lens")


def test_what_is_no_dict_of_tags_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lens").write_text("[1, 2]")
    with pytest.raises(SourceError, match="holds a list, not a dict"):
        read_seq_lens(tmp_path / "lens")
    (tmp_path / "lens").write_text("{1: 2}")
    with pytest.raises(SourceError, match="a tag is 1, not a string"):
        read_seq_lens(tmp_path / "lens")


@pytest.mark.parametrize("packed", [False, True])
def test_a_byte_order_mark_is_no_part_of_the_first_tag(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("tags.txt.gz" if packed else "tags.txt")
    data = "t1\nä\n".encode("utf-8-sig")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert read_tag_list(path) == ["t1", "ä"]
