"""CSV and TSV files as sequences, and as manifests of recordings; recordings that a table in memory lists."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from examples_of_laws import examples
from headrace.errors import ConfigError, SourceError
from headrace.sources import CsvSource, open_source
from headrace.testing import check_source

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


def text_of(source: Any, corpus_idx: int, key: str) -> str:
    return bytes(source.read(corpus_idx, key)).decode()


@examples(40)
@given(rows=st.lists(st.tuples(TEXTS, TEXTS, st.integers(-(2**40), 2**40)), min_size=1, max_size=6), crlf=st.booleans())
def test_what_the_csv_module_writes_is_read_in_any_order(
    rows: list[tuple[str, str, int]], crlf: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n" if crlf else "\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([("a", "b", "n"), *rows])
    path.write_bytes(out.getvalue().encode())
    source = CsvSource(path, types={"a": "text", "b": "text"}, index=None)
    assert len(source) == len(rows)
    for corpus_idx in reversed(range(len(rows))):
        a, b, n = rows[corpus_idx]
        assert (text_of(source, corpus_idx, "a"), text_of(source, corpus_idx, "b")) == (a, b)
        assert source.read(corpus_idx, "n") == n
    check_source(source)


def test_types_are_those_of_the_first_record_unless_they_are_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\ufefftag,whole,part,code,word\nx,1,1,007,seven\n\ny,-2,0.5,008,eight\n")
    source = open_source(path)
    assert isinstance(source, CsvSource)
    assert list(source.index.tags) == ["x", "y"]
    assert {key: (spec.dtype, spec.has_time) for key, spec in source.specs.items()} == {
        "whole": ("int32", False),
        "part": ("float32", False),
        "code": ("uint8", True),
        "word": ("uint8", True),
    }
    assert text_of(source, 0, "code") == "007"
    fields: dict[str, Any] = {
        "y": "word",
        "n": {"field": "whole", "dtype": "int64"},
        "c": {"field": "word", "vocab": None},
    }
    named = CsvSource(path, fields=fields, types={"whole": "int"})
    assert (named.specs["n"].dtype, named.labels["c"]) == ("int64", ["eight", "seven"])
    check_source(named)
    path.write_text(path.read_text() + "z,,1,1,one\n")
    with pytest.raises(SourceError, match=r"(?s)'whole' has '', and a number.*a\.csv, line 5"):
        CsvSource(path, index=None)


def test_tsv_has_no_quotes_and_wrong_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('a\tb\n"x\ty, "z"\n')
    source = CsvSource(path)
    assert (text_of(source, 0, "a"), text_of(source, 0, "b")) == ('"x', 'y, "z"')
    path = tmp_path / "b.csv"
    for content, what in (
        ("a,b\n1,2\n1,2,3\n", "3 fields, and there are 2 columns.*line 3"),
        ('a,b\n"x\ny",2\n"z,1\n', "unexpected end.*line 4"),
        ("a,a\n", "two columns 'a'"),
        ("a,\n", "column 2 of the header has no name"),
        ("", "is empty"),
    ):
        path.write_text(content)
        with pytest.raises(SourceError, match=f"(?s){what}"):
            CsvSource(path, index=None)
    with pytest.raises(ConfigError, match="no column 'c'"):
        CsvSource(tmp_path / "a.tsv", fields={"x": "c"})


def test_files_are_one_corpus_and_a_changed_file_is_indexed_anew(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text("n,t\n" + "".join(f'{10 * number + i},"a\n{i}"\n' for i in range(5)))
    source = CsvSource(tmp_path)
    assert [int(source.read(i, "n")) for i in range(15)] == [10 * n + i for n in range(3) for i in range(5)]
    assert text_of(source, 7, "t") == "a\n2"
    check_source(source)
    path = tmp_path / "index"
    source.index.save(path)
    assert CsvSource(tmp_path, index=path).read(14, "n") == 24
    (tmp_path / "1.csv").write_text("n,t\n7,x\n")
    with pytest.raises(SourceError):
        CsvSource(tmp_path, index=path)
    assert len(CsvSource(tmp_path)) == 11


# --- recordings ---


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    soundfile = pytest.importorskip("soundfile")
    for number, name in enumerate(("a", "b", "sub/c")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / f"{name}.wav", np.full(100 * (number + 1), 0.25), 8000)
    return tmp_path


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_manifest_may_be_a_table(recordings: Path, suffix: str) -> None:
    rows = [["audio", "text", "num_samples", "label"], ["a.wav", "one, two", "100", "1"], ["sub/c.wav", "x", "", "0"]]
    path = recordings / f"m.{suffix}"
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="," if suffix == "csv" else "\t").writerows(rows)
    targets = {"orth": "text", "classes": {"field": "label", "vocab": 2}}
    source = open_source(path, targets=targets)
    assert type(source).__name__ == "AudioSource"
    assert list(source.index.tags) == ["a.wav", "sub/c.wav"]
    assert source.index.lengths("data").tolist() == [100, 300]
    assert (text_of(source, 0, "orth"), source.read(0, "classes").tolist()) == ("one, two", 1)
    check_source(source)


def test_a_table_in_memory_lists_recordings_anywhere(recordings: Path) -> None:
    pairs = [(recordings / "a.wav", "one two"), (recordings / "sub/c.wav", "three")]
    targets = {"text": {"field": "text", "vocab": "chars"}}
    dataset = hr.AudioDataset(pairs, targets=targets)
    dicts = [{"audio": os.path.relpath(path, recordings), "text": text, "tag": path.stem} for path, text in pairs]
    rooted = hr.AudioDataset(dicts, root=recordings, targets=targets)
    for own, tags in ((dataset, [str(path) for path, _ in pairs]), (rooted, ["a", "c"])):
        with hr.DataLoader(own, batch_size=2, num_workers=1) as loader:
            (batch,) = loader
        assert batch.tags == tags
        assert batch.lengths["data"].tolist() == [100, 300]
        assert batch.lengths["text"].tolist() == [7, 5]
    check_source(dataset.source)
    with pytest.raises(ConfigError, match=r"(?s)have texts, and nothing says.*vocab"):
        hr.AudioDataset(pairs)
    assert list(hr.AudioDataset([path for path, _ in pairs]).get_data_keys()) == ["data"]
    with pytest.raises(ConfigError, match=r"row 0 .*"):
        hr.AudioDataset([(1, 2, 3)])
    with pytest.raises(SourceError, match="missing"):
        hr.AudioDataset([recordings / "none.wav"])


@pytest.mark.extra
def test_a_data_frame_lists_recordings(recordings: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"audio": ["a.wav", "b.wav"], "word": ["one", "two"]})
    dataset = hr.AudioDataset(frame, root=recordings, targets={"classes": "word"})
    assert dataset.source.labels["classes"] == ["one", "two"]
    assert dataset.source.read(1, "data").shape == (200, 1)
