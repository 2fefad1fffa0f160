"""What holds for Parquet and Arrow alike: which columns become which arrays, what is refused, what writers keep."""

import os
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import ConfigError, SourceError
from headrace.sources.tables.cells import Cells
from headrace.sources.tables.schema import layout_of
from headrace.specs import DataSpec
from headrace.testing import check_source

pa = pytest.importorskip("pyarrow")

from table_cases import COLUMNS, FORMS, SPECS, WRITERS, rows_of, seq_of, table_of  # noqa: E402 - needs pyarrow

pytestmark = pytest.mark.extra


@pytest.fixture(params=list(FORMS))
def form(request):
    return FORMS[request.param]


@pytest.fixture(params=list(WRITERS))
def writing(request):
    return WRITERS[request.param]


@pytest.fixture
def opened(form, tmp_path):
    """Return a function that writes rows and opens them."""
    make, write = form
    sources = []

    def open_rows(rows, columns=None, *, metadata=None, rows_per_piece=6, **options):
        path = tmp_path / f"t{len(sources)}"
        write(path, table_of(rows, columns, metadata), rows_per_piece)
        sources.append(make(path, **options))
        return sources[-1]

    yield open_rows
    for source in sources:
        source.close()


# --- what comes out ---


def test_columns_become_arrays_by_their_types(opened):
    source = opened(rows_of())
    check_source(source)
    assert source.specs == {
        "frames": DataSpec("float32", (3,), dim=3),
        "classes": DataSpec("int32", sparse=True),
        "label": DataSpec("int64", sparse=True, has_time=False),
        "text": DataSpec("uint8", sparse=True, dim=256),
        "raw": DataSpec("uint8", sparse=True, dim=256),
        "vector": DataSpec("float16", (2,), dim=2, has_time=False),
        "ragged": DataSpec("int8", (None,)),
        "ok": DataSpec("bool", (), dim=1, has_time=False),
        "flags": DataSpec("bool", (), dim=1),
    }
    for i, row in enumerate(rows_of()):
        seq = source.read_seq(i)
        assert seq["frames"].tolist() == row["frames"]
        assert seq["classes"].tolist() == row["classes"]
        assert seq["label"] == row["label"]
        assert seq["text"].tobytes().decode() == row["text"]
        assert seq["raw"].tobytes() == row["raw"]
        assert seq["vector"].tolist() == row["vector"]
        assert seq["ragged"].tolist() == row["ragged"]
        assert seq["ok"] == row["ok"]
        assert seq["flags"].tolist() == row["flags"]
    assert source.tag(3) == "seq-3"


def test_fields_choose_columns_and_encode_texts_and_classes(opened):
    fields = {
        "data": "frames",
        "classes": "text",
        "orth": "text",
        "chars": {"field": "text", "vocab": "chars"},
        "x": "inner.x",
        "more": {"field": "inner.more", "vocab": 2},
        "label": {"field": "label", "vocab": ["a", "b", "c"]},
    }
    source = opened(rows_of(), fields=fields, tag_field="label")
    check_source(source)
    assert list(source.specs) == list(fields)
    assert source.labels == {"classes": ["", "hä", "hähä"], "chars": ["h", "ä"], "label": ["a", "b", "c"]}
    assert source.read(2, "classes").tolist() == 2
    assert source.read(2, "orth").tobytes().decode() == "hähä"
    assert source.read(2, "chars").tolist() == [0, 1, 0, 1]
    assert source.read(5, "x") == 5
    assert source.specs["more"] == DataSpec("uint8", sparse=True, dim=2)
    assert source.specs["label"] == DataSpec("int64", sparse=True, dim=3, has_time=False)
    assert source.tag(4) == "1"
    source.close()
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(2, "chars").tolist() == [0, 1, 0, 1]
    copy.close()


def test_other_kinds_of_lists_and_texts_are_the_same(opened):
    columns = {
        "a": pa.list_view(pa.int16()),
        "b": pa.large_string(),
        "c": pa.list_(pa.list_(pa.int16(), 2)),
        "d": pa.large_binary(),
    }
    rows = [{"a": [1] * i, "b": "x" * i, "c": [[i, 1]] * i, "d": b"y" * i} for i in range(9)]
    if "Parquet" in type(opened([{"a": [1]}], {"a": pa.list_(pa.int8())})).__name__:
        columns["a"] = pa.list_(pa.int16())  # Parquet has no views
    source = opened(rows, columns)
    check_source(source)
    assert source.read(3, "c").tolist() == [[3, 1]] * 3
    assert source.read(4, "a").tolist() == [1] * 4


def test_labels_and_shapes_of_hugging_face_are_taken_from_the_schema(opened):
    metadata = {
        "huggingface": '{"info": {"features": {"label": {"names": ["no", "yes", "?"], "_type": "ClassLabel"}, '
        '"square": {"shape": [2, 2], "dtype": "int8", "_type": "Array2D"}}}}'
    }
    columns = {"label": pa.int64(), "square": pa.list_(pa.list_(pa.int8()))}
    rows = [{"label": i % 3, "square": [[i, 1], [2, 3]]} for i in range(7)]
    source = opened(rows, columns, metadata=metadata)
    check_source(source)
    assert source.labels == {"label": ["no", "yes", "?"]}
    assert source.specs["square"] == DataSpec("int8", (2, 2), dim=2, has_time=False)
    with pytest.raises(SourceError, match=r"in -1\.\.-1, and there are 3 classes(.|\n)*column 'label'"):
        opened([{"label": -1, "square": [[1, 1], [2, 3]]}], columns, metadata=metadata)
    with pytest.raises(SourceError, match="axis 0 of the column 'square' has 1 to 2 items, not 2"):
        opened([*rows, {"label": 0, "square": [[1, 1]]}], columns, metadata=metadata)


def test_a_category_is_its_text(form, tmp_path):
    make, write = form
    values = pa.array(["a", "b", "a", "c"]).dictionary_encode()
    write(tmp_path / "t", pa.table({"word": values, "n": [1, 2, 3, 4]}), 2)
    source = make(tmp_path / "t", fields={"classes": {"field": "word", "vocab": None}})
    check_source(source)
    assert [source.read(i, "classes").tolist() for i in range(4)] == [0, 1, 0, 2]
    source.close()


# --- nulls ---


@pytest.mark.parametrize(
    ("arrow_type", "value", "text"),
    [
        (pa.int32(), None, "is null"),
        (pa.string(), None, "is null"),
        (pa.list_(pa.float32()), None, "is null"),
        (pa.list_(pa.float32()), [1.0, None], "has a null in it"),
        (pa.list_(pa.list_(pa.int8())), [[1], None], "has a null in it"),
        (pa.list_(pa.list_(pa.int8())), [[1], [1, 2]], "has lists of different lengths in it"),
        (pa.list_(pa.list_(pa.list_(pa.int8()))), [[[1]], [[1, 2]]], "has lists of different lengths in it"),
        (pa.list_(pa.int8(), 2), [1, None], "has a null in it"),
    ],
)
def test_a_row_that_makes_no_array_is_refused_by_name(opened, arrow_type, value, text):
    good = {pa.int32(): 3, pa.string(): "x"}.get(arrow_type, [1, 2] if "[2]" in str(arrow_type) else [])
    rows = [{"x": good}] * 8 + [{"x": value}] + [{"x": good}] * 3
    with pytest.raises(SourceError, match=text) as caught:
        opened(rows, {"x": arrow_type})
    assert "'x'" in str(caught.value)
    assert "piece 1, row 2" in str(caught.value.where)  # the ninth row; pieces have six


def test_nulls_are_empty_where_that_is_wanted(opened):
    columns = {"l": pa.list_(pa.float32()), "t": pa.string(), "x": pa.float64(), "d": pa.list_(pa.list_(pa.int8()))}
    rows = [
        {"l": [1.0, None], "t": None, "x": None, "d": None},
        {"l": None, "t": "ab", "x": 2.0, "d": [[1, 2]]},
    ]
    source = opened(rows, columns, nulls="empty")
    check_source(source)
    assert np.isnan(source.read(0, "l")[1])
    assert np.isnan(source.read(0, "x"))
    assert [len(source.read(i, "t")) for i in range(2)] == [0, 2]
    assert len(source.read(1, "l")) == 0
    assert source.read(0, "d").shape == (0, 2)
    with pytest.raises(SourceError, match="is null"):
        opened([{"n": None}], {"n": pa.int8()}, nulls="empty")
    with pytest.raises(ConfigError, match="nulls is 'emty'") as caught:
        opened(rows, columns, nulls="emty")
    assert "did you mean 'empty'" in str(caught.value)


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fields": {"data": "farmes"}}, "(?s)no column 'farmes'.*did you mean 'frames'"),
        ({"fields": {"data": "when"}}, "timestamp.*which becomes no array"),
        ({"fields": {"data": "inner"}}, "which becomes no array"),
        ({"fields": {"data": {"field": "frames", "vocav": 3}}}, "no option 'vocav'"),
        ({"fields": {"data": {"field": "frames", "vocab": 3}}}, "are not class indices"),
        ({"fields": {"data": {"field": "label", "vocab": "chars"}}}, "number of classes, or a list of labels"),
        ({"fields": {"data": 3}}, "cannot be read: 3"),
        ({"fields": ["frames"]}, "fields is a dict"),
        ({"tag_field": "frames"}, "cannot be the tags"),
        ({"tag_field": "tga"}, "no column 'tga'"),
        ({"fields": {}}, "none of the columns"),
    ],
)
def test_wrong_options_are_refused(opened, options, text):
    with pytest.raises(ConfigError, match=text):
        opened(rows_of(), **options)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"classes": pa.large_list(pa.int64())}, "'classes' has other layout: .*int64.*, and in .*int32"),
        ({"classes": None}, "no column 'classes', which .*t0 has"),
        ({"extra": pa.int8()}, "a column 'extra', which .*t0 does not have"),
    ],
)
def test_a_file_of_another_schema_is_refused_by_column_and_file(form, tmp_path, change, text):
    make, write = form
    columns = {name: kind for name, kind in {**COLUMNS, **change}.items() if kind is not None}
    rows = [{**row, "extra": 1} for row in rows_of(4)]
    write(tmp_path / "t0", table_of(rows, COLUMNS), 3)
    write(tmp_path / "t1", table_of(rows, COLUMNS), 3)
    write(tmp_path / "t2", table_of(rows, columns), 3)
    paths = [tmp_path / name for name in ("t0", "t1", "t2")]
    with pytest.raises(SourceError, match=text) as caught:
        make(paths)
    assert str(tmp_path / "t2") in str(caught.value.where)
    source = make(paths, fields={"data": "frames"})  # those columns are the same
    assert len(source) == 12
    check_source(source)
    source.close()


def test_a_torn_file_is_refused(form, tmp_path):
    make, write = form
    write(tmp_path / "t", table_of(rows_of()), 5)
    whole = (tmp_path / "t").read_bytes()
    for content in (
        *(whole[:size] for size in (0, 40, len(whole) // 2, len(whole) - 8)),
        b"nothing of that kind\n" * 9,
    ):
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(SourceError, match=r"cannot be read|no end mark"):
            make(tmp_path / "t")


def test_an_index_of_other_options_is_refused(form, tmp_path):
    make, write = form
    write(tmp_path / "t", table_of(rows_of()), 5)
    source = make(tmp_path / "t", fields={"data": "frames"})
    source.index.save(tmp_path / "i")
    again = make(tmp_path / "t", fields={"data": "frames"}, index=tmp_path / "i")
    assert again.read(3, "data").tolist() == source.read(3, "data").tolist()
    with pytest.raises(SourceError, match="the index was made for"):
        make(tmp_path / "t", fields={"data": "classes"}, index=tmp_path / "i")


# --- writers ---


def test_what_was_written_comes_back_to_the_bit(writing, tmp_path):
    make_writer, make_source, options = writing
    rng = np.random.default_rng(0)
    seqs = [seq_of(i, rng) for i in range(23)]
    with make_writer(tmp_path / "t", specs=SPECS, labels={"label": list("abcde")}, rows_per_group=5, **options) as out:
        for i, seq in enumerate(seqs):
            out.append(f"ä{i % 7}", seq)
        assert out.num_seqs == 23
    source = make_source(tmp_path / "t")
    assert dict(source.specs) == SPECS
    assert source.labels == {"label": list("abcde")}
    for i, seq in enumerate(seqs):
        assert source.tag(i) == f"ä{i % 7}"
        for key, array in source.read_seq(i).items():
            assert (array.shape, array.dtype, array.tobytes()) == (seq[key].shape, seq[key].dtype, seq[key].tobytes())
    check_source(source)
    source.close()
    assert os.listdir(tmp_path) == ["t"]


def test_a_file_without_sequences_keeps_its_layout(writing, tmp_path):
    make_writer, make_source, options = writing
    with make_writer(tmp_path / "t", specs=SPECS, **options):
        pass
    with make_writer(tmp_path / "nothing", **options):
        pass
    source = make_source(tmp_path / "t")
    assert (len(source), dict(source.specs)) == (0, SPECS)
    check_source(source)
    assert len(make_source(tmp_path / "nothing")) == 0


def test_files_with_other_labels_are_no_one_corpus(writing, tmp_path):
    make_writer, make_source, options = writing
    for name, labels in (("a", ["x", "y"]), ("b", ["y", "x"])):
        with make_writer(tmp_path / name, labels={"c": labels}, **options) as out:
            out.append("s", {"c": np.array([0, 1, 1])})
    with pytest.raises(SourceError, match="'c' has other labels"):
        make_source([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"specs": {"x": DataSpec("complex64")}}, "dtype complex64, which this format cannot hold"),
        ({"specs": {"x": DataSpec("float32", (0,))}}, "frames of the shape"),
        ({"specs": {"tag": DataSpec("float32")}}, "holds the tags"),
        ({"specs": {"x": DataSpec("int8")}, "labels": {"y": ["a"]}}, "unknown data key 'y'"),
        ({"specs": {"x": DataSpec("int8", sparse=True, dim=3)}, "labels": {"x": ["a"]}}, "has the dim 3, but 1 labels"),
        ({"compression": "zip"}, "unknown compression 'zip'"),
        ({"rows_per_group": 0}, "rows_per_group must be at least 1"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(writing, tmp_path, options, text):
    make_writer, _, own = writing
    with pytest.raises(ConfigError, match=text):
        make_writer(tmp_path / "t", **{**own, **options})
    assert os.listdir(tmp_path) == []


def test_class_indices_are_checked_and_shapes_that_would_be_lost_refused(writing, tmp_path):
    make_writer, _, options = writing
    specs = {"c": DataSpec("int8", sparse=True, dim=3), "x": DataSpec("int8", (None,))}
    with make_writer(tmp_path / "t", specs=specs, **options) as out:
        out.append("a", {"c": np.array([2], np.int8), "x": np.zeros((0, 0), np.int8)})
        with pytest.raises(SourceError, match=r"class indices are in 0..3, and there are 3 classes"):
            out.append("b", {"c": np.array([0, 3], np.int8), "x": np.zeros((1, 1), np.int8)})
        with pytest.raises(SourceError, match=r"keeps no shape: \(0, 2\)"):
            out.append("b", {"c": np.array([0], np.int8), "x": np.zeros((0, 2), np.int8)})


def test_columns_that_others_add_or_take_away_later_are_seen(tmp_path):
    with WRITERS["arrow"][0](tmp_path / "t") as out:
        out.append("a", {"x": np.arange(3, dtype=np.int16), "y": np.ones((2, 2))})
    with pa.ipc.open_file(str(tmp_path / "t")) as reader:
        table = reader.read_all()
    more = table.append_column("z", pa.array([[1.5]])).drop_columns(["y", "tag"])
    with pa.ipc.new_file(str(tmp_path / "u"), more.schema) as writer:
        writer.write_table(more)
    source = WRITERS["arrow"][1](tmp_path / "u")
    assert list(source.specs) == ["x", "z"]
    assert source.tag(0) == "seq-0"
    check_source(source)
    source.close()


def test_files_are_closed_where_the_system_allows_no_more(form, tmp_path):
    resource = pytest.importorskip("resource")
    make, write = form
    paths = [tmp_path / f"{i:02d}" for i in range(12)]
    for i, path in enumerate(paths):
        write(path, pa.table({"x": [[i]]}), 1)
    source = make(paths)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 5, hard))
    try:
        assert [int(source.read(i, "x")[0]) for i in range(12)] == list(range(12))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    source.close()


def test_odd_schemas_are_refused(opened, form, tmp_path):
    with pytest.raises(SourceError, match="metadata 'headrace' of the schema cannot be read"):
        opened([{"x": [1]}], {"x": pa.list_(pa.int8())}, metadata={"headrace": '{"specs": {"x": 3}}'})
    make, write = form
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    write(tmp_path / "twice", table, 1)
    with pytest.raises(SourceError, match="two columns have the name 'x'"):
        make(tmp_path / "twice")
    assert opened([{"x": [1]}], {"x": pa.list_(pa.int8())}, metadata={"huggingface": "no JSON"}).read(0, "x") == [1]


def test_without_pyarrow_the_error_says_what_to_install(form, tmp_path, monkeypatch):
    make, write = form
    write(tmp_path / "t", table_of(rows_of()), 6)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="need the package pyarrow") as caught:
        make(tmp_path / "t")
    assert "headrace[arrow]" in str(caught.value)
    with pytest.raises(ConfigError, match="need the package pyarrow"):
        WRITERS["arrow"][0](tmp_path / "u")


@st.composite
def _rectangles(draw):
    """Draw an Arrow array of rows of rectangular lists of some kind, a slice of it, and its rows as Python has them."""
    kinds = {"list": pa.list_, "large": pa.large_list, "view": pa.list_view, "fixed": None}
    axes = draw(st.lists(st.sampled_from(list(kinds)), max_size=3))
    sizes = [draw(st.integers(1, 3)) for _ in axes]
    arrow_type = draw(st.sampled_from([pa.int16(), pa.float64(), pa.bool_()]))
    for kind, size in zip(reversed(axes), reversed(sizes), strict=True):
        arrow_type = pa.list_(arrow_type, size) if kind == "fixed" else kinds[kind](arrow_type)
    with_nulls = bool(axes) and axes[0] != "fixed" and draw(st.booleans())

    def value(shape):
        if not shape:
            return draw(st.booleans()) if "bool" in str(arrow_type) else draw(st.integers(-9, 9))
        return [value(shape[1:]) for _ in range(shape[0])]

    rows = []
    for _ in range(draw(st.integers(0, 6))):
        shape = [size if kind == "fixed" else draw(st.integers(0, 3)) for kind, size in zip(axes, sizes, strict=True)]
        rows.append(None if with_nulls and draw(st.booleans()) else value(shape))
    start = draw(st.integers(0, len(rows)))
    stop = draw(st.integers(start, len(rows)))
    return pa.array(rows, arrow_type).slice(start, stop - start), rows[start:stop]


@given(_rectangles())
@examples(60)
def test_any_slice_of_any_kind_of_lists_is_read_as_it_is(drawn):
    array, rows = drawn
    cells = Cells(array, layout_of(array.type), nulls_are_empty=True, name="x", where="here")
    assert cells.num_rows == len(rows)
    cells.check()
    for row, expected in enumerate(rows):
        assert cells.view(row).tolist() == ([] if expected is None else expected)
        if isinstance(expected, list):
            assert cells.lengths[row] == len(expected)
