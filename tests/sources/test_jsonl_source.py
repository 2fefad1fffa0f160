"""Objects of JSON lines as arrays, and arrays as JSON lines."""

import gzip
import json
import pickle

import numpy as np
import pytest

from headrace.errors import ConfigError, SourceError
from headrace.sources import JsonlSource
from headrace.specs import DataSpec
from headrace.testing import check_source
from headrace.vocabularies.labels import LabelVocabulary

ROWS = [
    {"tag": "a", "x": 1.5, "n": 3, "l": [1, 2], "m": [[1, 2.5], [3, 4]], "t": "hä", "o": {"z": 1}, "s": ["a"]},
    {"tag": "b", "x": 2, "n": 4, "l": [], "m": [], "t": "", "o": {}, "s": []},
    {"tag": "b", "x": -1, "n": 4, "l": [7], "m": [[0, 0]], "t": "longer", "more": None},
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def _write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path):
    return _write(tmp_path / "corpus.jsonl", ROWS)


def test_every_field_with_an_array_form_becomes_a_key(file):
    source = JsonlSource(file)
    check_source(source)
    assert dict(source.specs) == {
        "x": DataSpec("float32", has_time=False, dim=1),
        "n": DataSpec("int32", sparse=True, has_time=False),
        "l": DataSpec("int32", sparse=True),
        "m": DataSpec("float32", (2,), dim=2),
        "t": DataSpec("uint8", sparse=True, dim=256),
    }
    assert list(source.index.tags) == ["a", "b", "b"]
    seq = source.read_seq(0)
    assert seq["x"].tolist() == 1.5
    assert seq["m"].tolist() == [[1, 2.5], [3, 4]]
    assert seq["t"].tobytes() == "hä".encode()
    assert source.read(1, "m").shape == (0, 2)
    assert source.read_slice(0, "m", 1, 2).tolist() == [[3, 4]]


def test_fields_are_chosen_with_dtypes_classes_and_vocabularies(file):
    source = JsonlSource(
        [file, file],
        fields={
            "classes": {"field": "l", "dtype": "uint8", "dim": 8},
            "chars": {"field": "t", "vocab": "chars"},
            "bytes": {"field": "t", "vocab": {"class": "Utf8ByteTargets"}},
            "word": {"field": "t", "vocab": None},
            "x": {"field": "x", "dtype": "float64"},
        },
        tag_field=None,
        index=None,
    )
    check_source(source)
    assert source.specs["classes"] == DataSpec("uint8", sparse=True, dim=8)
    assert source.specs["x"].dtype == "float64"
    assert list(source.index.tags) == [f"line-{i}" for i in range(6)]
    assert "".join(source.labels["chars"][i] for i in source.read(5, "chars")) == "longer"
    copy = pickle.loads(pickle.dumps(source))
    for key in source.specs:
        np.testing.assert_array_equal(copy.read(4, key), source.read(4, key))


def test_whole_numbers_take_the_dtype_that_holds_all_of_them(tmp_path):
    rows = [{"small": 1, "large": 2**40, "huge": 2**63, "mixed": 1, "flag": True}, {}]
    rows[1] = {"small": -5, "large": 0, "huge": 1, "mixed": 0.5, "flag": False}
    source = JsonlSource(_write(tmp_path / "n.jsonl", rows))
    dtypes = {key: spec.dtype for key, spec in source.specs.items()}
    assert dtypes == {"small": "int32", "large": "int64", "huge": "uint64", "mixed": "float32", "flag": "bool"}
    check_source(source)


def test_blank_lines_and_compressed_files_are_read(tmp_path):
    content = b'\n{"id": 7, "l": [1]}\n   \n{"id": 8, "l": [2, 3]}'
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(content))
    source = JsonlSource(tmp_path / "c.jsonl.gz", fields={"data": "l"}, tag_field="id")
    check_source(source)
    assert list(source.index.tags) == ["7", "8"]
    assert source.read(1, "data").tolist() == [2, 3]


def test_an_index_that_was_kept_is_used_again(tmp_path, file):
    JsonlSource(file).index.save(tmp_path / "i.hrindex")
    source = JsonlSource(file, index=tmp_path / "i.hrindex")
    check_source(source)
    with pytest.raises(SourceError, match="the index was made for"):
        JsonlSource(file, index=tmp_path / "i.hrindex", tag_field=None)


@pytest.mark.parametrize(
    ("second", "options", "message"),
    [
        ('{"l": [1], "t": 5}', {}, r"'t' has text\[T\] and int32"),
        ('{"l": [[1]], "t": ""}', {}, r"'l' has int32\[T\] and int32\[T, 1\]"),
        ('{"l": [[1, 2], [3]], "t": ""}', {}, "no number, text, or list of numbers"),
        ('{"l": [1, [2]], "t": ""}', {}, "no number, text, or list of numbers"),
        ('{"l": null, "t": ""}', {}, "'l' is null"),
        ('{"t": ""}', {}, "'l' is missing"),
        ('{"l": [1], "t": ""', {}, "not (a )?JSON"),
        ("[1, 2]", {}, "not (a )?JSON"),
        ('{"l": [NaN], "t": ""}', {}, "not (a )?JSON"),
        ('{"l": [9], "t": ""}', {"fields": {"l": {"field": "l", "dim": 9}}}, "are in 9..9, and there are 9 classes"),
        ('{"l": [300], "t": ""}', {"fields": {"l": {"field": "l", "dtype": "uint8"}}}, "do not fit uint8"),
        ('{"l": [0.5], "t": ""}', {"fields": {"l": {"field": "l", "dtype": "int32"}}}, "do not fit int32"),
        ('{"l": ["a"], "t": ""}', {}, "no number, text, or list of numbers"),
        ('{"l": [1], "t": "b"}', {"fields": {"t": {"field": "t", "vocab": ["a"]}}}, "'b', which is none"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, second, options, message):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"l": [1], "t": "a"}\n' + second + "\n")
    with pytest.raises(SourceError, match=message) as caught:
        JsonlSource(path, **options)
    assert str(caught.value.where).startswith(f"{path}, line 2")


def test_bytes_that_are_not_utf8_are_named_also_in_fields_that_nobody_asked_for(tmp_path):
    (tmp_path / "bad.jsonl").write_bytes(b'{"l": [1], "t": "a"}\n{"l": [1], "t": "\xff"}\n')
    with pytest.raises(SourceError, match="not UTF-8") as caught:
        JsonlSource(tmp_path / "bad.jsonl", fields={"l": "l"})
    assert "line 2, byte 38" in caught.value.where


def test_a_changed_file_and_wrong_options_are_noticed(file):
    source = JsonlSource(file, index=None)
    _write(file, ROWS[:2])
    with pytest.raises(SourceError, match="changed since it was indexed"):
        source.read(0, "x")
    for options, message in (
        ({"fields": {"l": {"field": "l", "dim": 0}}}, "dim is 0"),
        ({"fields": {"l": {"field": "l", "dytpe": "int8"}}}, "unknown option 'dytpe'"),
        ({"fields": {"l": {"field": "l", "dtype": "int33"}}}, "dtype of 'l'"),
        ({"fields": ["l"]}, "not a dict"),
        ({"tag_field": 5}, "tag_field is 5"),
    ):
        with pytest.raises(ConfigError, match=message):
            JsonlSource(file, **options)


def test_an_error_names_the_file_that_it_is_about(tmp_path):
    paths = [_write(tmp_path / f"{i}.jsonl", [{"tag": f"t{i}", "w": "a"}]) for i in range(2)]
    vocabulary = LabelVocabulary(labels=["a"], unknown_label=None)
    source = JsonlSource(paths, fields={"w": {"field": "w", "vocab": vocabulary}}, index=None)
    vocabulary._class_of.clear()  # as if it were another one
    for i, path in enumerate(paths):
        with pytest.raises(SourceError, match="none of the 1 labels") as caught:
            source.read(i, "w")
        assert str(path) in str(caught.value)
    source.close()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1700000099, 0.5], "float64"),
        ([1700000099.25], "float64"),
        ([[1700000099, 0.5]], "float64"),
        ([16777216, 0.5], "float32"),
        ([-1e30, 0.1], "float32"),
        ([1e300], "float64"),
        ([[0, 1e300]], "float64"),
        ([2**53 + 1], "int64"),
    ],
)
def test_a_field_has_a_dtype_that_keeps_its_whole_digits(tmp_path, values, dtype):
    source = JsonlSource(_write(tmp_path / "n.jsonl", [{"x": value} for value in values]), index=None)
    assert source.specs["x"].dtype == dtype
    source.close()


@pytest.mark.parametrize(
    "values", [[2**63, -1], [2**53 + 1, 0.5], [0.5, 2**53 + 1], [[2**53 + 1, 0.5]], [2**64 - 1, -1], [[], 1]]
)
def test_numbers_that_no_dtype_holds_together_are_refused(tmp_path, values):
    with pytest.raises(SourceError, match=r"no dtype holds both|do not fit one dtype"):
        JsonlSource(_write(tmp_path / "n.jsonl", [{"x": value} for value in values]), index=None)


def test_a_dtype_that_changes_whole_numbers_is_refused(tmp_path):
    path = _write(tmp_path / "n.jsonl", [{"x": [1700000099, 0.5]}])
    with pytest.raises(SourceError, match="do not fit float32, as 1700000099"):
        JsonlSource(path, fields={"x": {"field": "x", "dtype": "float32"}}, index=None)
    source = JsonlSource(path, fields={"x": {"field": "x", "dtype": "float64"}}, index=None)
    assert source.read(0, "x").tolist() == [1700000099, 0.5]
    source.close()


def test_a_field_that_is_not_there_is_answered_with_those_that_are(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "id": 3}\n')
    with pytest.raises(SourceError, match=r"'content' is missing(.|\n)*this line has text, id"):
        JsonlSource(path, fields={"data": {"field": "content", "vocab": "bytes"}})


def test_fields_that_become_no_arrays_are_told_unless_fields_are_chosen(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text('{"n": 1, "words": ["a"], "about": {"rate": 1}, "none": null, "tag": "a"}\n')
    JsonlSource(tmp_path / "a.jsonl").close()
    (said,) = caplog.messages
    assert "left out: 'words', 'about', 'none';" in said
    JsonlSource(tmp_path / "a.jsonl", fields={"n": "n"}).close()
    assert len(caplog.messages) == 1


# --- fields that only later lines have ---


@pytest.mark.parametrize("num_before", [1, 5000])
def test_a_field_that_only_later_lines_have_is_refused_where_nobody_chose_fields(tmp_path, num_before):
    rows = [{"tag": str(i), "x": i, "o": {}} for i in range(num_before)] + [{"tag": "late", "x": 0, "label": "yes"}]
    path = _write(tmp_path / "late.jsonl", rows)
    with pytest.raises(SourceError, match="the field 'label' is here, and not in the first line") as caught:
        JsonlSource(path)
    assert caught.value.where == f"{path}, line {num_before + 1}"
    assert 'fields={"x": "x"}' in str(caught.value.fix)
    with pytest.raises(SourceError, match="the field 'label'"):  # in another file than the first
        JsonlSource([_write(tmp_path / "one.jsonl", rows[:1]), _write(tmp_path / "two.jsonl", rows[-1:])])


def test_a_field_that_only_later_lines_have_is_left_out_on_purpose(tmp_path):
    path = _write(tmp_path / "late.jsonl", [{"x": 1}, {"x": 2, "label": "yes"}, {"x": 3, "label": None, "o": {"a": 1}}])
    source = JsonlSource(path, fields={"x": "x"})
    assert [source.read(i, "x").tolist() for i in range(3)] == [1, 2, 3]
    check_source(source)
    nothing = _write(tmp_path / "null.jsonl", [{"x": 1}, {"x": 2, "label": None, "o": {"a": 1}}])
    assert list(JsonlSource(nothing).specs) == ["x"]  # no array form: nothing is lost


def test_the_index_of_chosen_fields_is_not_taken_where_nobody_chose(tmp_path):
    path = _write(tmp_path / "late.jsonl", [{"x": 1}, {"x": 2, "label": "yes"}])
    JsonlSource(path, fields={"x": "x"}).index.save(tmp_path / "i.hrindex")
    with pytest.raises(SourceError, match="the index was made for"):
        JsonlSource(path, index=tmp_path / "i.hrindex")
