"""Names and records of copies."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.files.cache.entry import (
    EntryKey,
    EntryRecord,
    derive_mtime_ns,
    name_of,
    plain_source,
)
from headrace.files.fetch import SourceStat

_NAMES = st.binary(min_size=1, max_size=300).map(lambda name: os.fsdecode(name.replace(b"\0", b"_")))
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
_URLS = st.builds(
    lambda kind, rest: kind + rest,
    st.sampled_from(["s3://", "http://host/", "memory://", "zip://a.hdf::s3://", "simplecache::s3://"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=300),
)
_SOURCES = st.one_of(_PATHS, _URLS)
_STATS = st.builds(SourceStat, st.integers(0, 2**63 - 1), st.text(max_size=30))


@given(_SOURCES)
def test_the_name_of_a_copy_is_one_harmless_component(source):
    name = name_of(source)
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert "\0" not in name
    assert len(os.fsencode(name)) <= 250


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/a/" + "n" * 246 + ".hdf", "n" * 246 + ".hdf"),
        ("/a/b/", "file"),
        ("s3://bucket/a/train.000.hdf", "train.000.hdf"),
        ("https://host/a/train.hdf?X-Signature=a/b#c", "train.hdf"),
        ("https://host/a%2Fb%20c.hdf", "a_b c.hdf"),
        ("https://host/%2e%2e", "file"),
        ("zip://inner/a.hdf::s3://bucket/x.zip", "a.hdf"),
        ("simplecache::s3://bucket/x.hdf", "x.hdf"),
        ("s3://bucket/" + "n" * 300 + ".hdf", "n" * 124 + "~" + "n" * 120 + ".hdf"),
    ],
)
def test_the_name_keeps_the_suffix_that_readers_look_at(source, name):
    assert name_of(source) == name


@given(st.lists(st.tuples(_SOURCES, _STATS), min_size=2, max_size=2, unique=True))
def test_two_versions_or_sources_never_share_a_key(pair):
    first, second = (EntryKey.of(*one) for one in pair)
    assert first.text != second.text
    assert EntryKey.parse(first.text) == first


@pytest.mark.parametrize("text", ["", "a.json", ".headrace-0-0-0-0.tmp", "0" * 32, "g" * 32 + "-" + "0" * 16 + "-1"])
def test_other_names_are_no_keys(text):
    assert EntryKey.parse(text) is None


@given(_SOURCES, _STATS)
def test_a_record_comes_back_as_it_was_and_no_part_of_it_is_one(source, stat):
    record = EntryRecord.of(source, stat, mtime_ns=5)
    data = record.encode()
    assert EntryRecord.parse(data) == record
    assert all(EntryRecord.parse(data[:size]) is None for size in range(0, len(data), 7))
    assert EntryRecord.parse(data + b"}") is None


@pytest.mark.parametrize("changed", [("format", 1), ("version", 3), ("source", None), ("more", 1)])
def test_a_record_of_another_format_is_none(changed):
    record = json.loads(EntryRecord.of("/a", SourceStat(1, "2"), mtime_ns=5).encode())
    assert EntryRecord.parse(json.dumps(record | dict([changed])).encode()) is None


def test_a_copy_gets_the_time_of_its_local_source_and_a_fixed_one_for_an_object():
    assert derive_mtime_ns("/a", SourceStat(1, "1700000000123456789")) == 1700000000123456789
    first, second = (derive_mtime_ns("s3://a/b", SourceStat(1, version)) for version in ("x", "y"))
    assert first == derive_mtime_ns("s3://a/b", SourceStat(1, "x"))
    assert first != second
    assert 0 <= first < 2**63


@pytest.mark.parametrize(
    ("source", "plain"),
    [("/a//b/../c", "/a//b/../c"), (Path("/a/b"), "/a/b"), ("file:///a/b", "/a/b"), ("s3://a/b", "s3://a/b")],
)
def test_a_source_is_taken_as_it_is(source, plain):
    assert plain_source(source) == plain


@pytest.mark.parametrize("source", ["a.hdf", "", "./a", "~/a", "/a\0b", "file://a.hdf", 3, None, b"/a"])
def test_what_names_no_file_is_refused(source):
    with pytest.raises(ConfigError, match="FileCache"):
        plain_source(source)
