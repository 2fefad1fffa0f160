import numpy as np
import pytest

from headrace.errors import ConfigError, SourceError
from headrace.sources import MemorySource
from headrace.specs import DataSpec
from headrace.testing import check_source


def _seq(num_frames, dim=3):
    return {
        "data": np.arange(num_frames * dim, dtype=np.float32).reshape(num_frames, dim),
        "classes": np.arange(num_frames, dtype=np.int32) % 4,
        "speaker": np.array(num_frames),
    }


def test_it_keeps_the_contract_of_a_source():
    check_source(MemorySource([_seq(n) for n in (5, 1, 0, 9)], tags=["a", "b", "a", "d"]))


def test_negative_integers_are_legal_where_nobody_gave_a_number_of_classes():
    seqs = [
        {"data": np.array([5, -32768, 9], np.int16), "classes": np.array([3, 1, -1])},
        {"data": np.array([7], np.int16), "classes": np.array([2])},
    ]
    for specs in (None, {"data": {"sparse": True, "dtype": "int16"}, "classes": {"sparse": True, "dtype": "int64"}}):
        source = MemorySource(seqs, specs=specs)
        assert source.specs == {
            "data": DataSpec("int16", sparse=True, dim=None),
            "classes": DataSpec("int64", sparse=True, dim=None),
        }
        np.testing.assert_array_equal(source.read(0, "data"), seqs[0]["data"])
        check_source(source)


@pytest.mark.parametrize(
    "options",
    [{"dims": {"data": 9}}, {"labels": {"data": list("abcdefghi")}}, {"specs": {"data": {"sparse_dim": 9}}}],
)
def test_a_number_of_classes_that_is_given_is_believed_whatever_the_values(options):
    source = MemorySource([{"data": np.array([3, -1], np.int32)}, {"data": np.array([11], np.int32)}], **options)
    assert (source.specs["data"].sparse, source.specs["data"].dim) == (True, 9)
    assert [source.read(i, "data").tolist() for i in (0, 1)] == [[3, -1], [11]]


def test_lists_and_numbers_take_the_dtype_of_the_specs_and_other_keys_are_left_out():
    specs = {"data": {"shape": (None, 2)}, "classes": {"sparse": True, "dim": 9, "dtype": "uint8"}}
    source = MemorySource([{"data": [[1, 2.5]], "classes": [8, 0], "other": "x"}], specs=specs)
    np.testing.assert_array_equal(source.read(0, "data"), np.array([[1, 2.5]], np.float32))
    assert source.read(0, "classes").dtype == np.uint8
    assert list(source.specs) == ["data", "classes"]


def test_a_dict_of_columns_is_refused_with_what_to_give():
    with pytest.raises(ConfigError, match=r"dict of columns.*\n.*MemorySource\n.*range"):
        MemorySource({"data": [np.zeros((2, 3))]})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"tags": ["a"]}, ConfigError, "1 tags for 2"),
        ({"labels": {"words": ["a"]}}, ConfigError, "unknown data key 'words'"),
        ({"dims": {"clases": 9}}, ConfigError, "did you mean 'classes'"),
        ({"dims": {"data": 5}}, ConfigError, "its dim is 3, not 5"),
        ({"dims": {"classes": 5}, "labels": {"classes": list("abcd")}}, ConfigError, "dim 5, but 4 labels"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        MemorySource([_seq(5), _seq(2)], **options)


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ({"data": np.zeros((2, 3), np.float32)}, "data keys"),
        ({**_seq(2), "more": np.zeros(2)}, "data keys"),
        ({**_seq(2), "data": np.zeros((2, 3))}, "dtype is float64, not float32"),
        ({**_seq(2), "data": np.zeros((2, 4), np.float32)}, r"\(4,\), not \(3,\)"),
        ({**_seq(2), "data": np.zeros(2, np.float32)}, "1 axes"),
        ({**_seq(2), "data": "text"}, "not an array of numbers"),
        ({**_seq(2), "data": [[1.0], [2.0, 3.0]]}, "list is no array"),
        ({**_seq(2), "classes": [0, 2**40]}, "does not fit into int32"),
        ({**_seq(2), "classes": [0.5, 1.5]}, "do not fit into int32"),
        ({**_seq(2), "classes": [[1], [2]]}, "2 axes"),
        ([1, 2], "not list"),
    ],
)
def test_a_sequence_of_another_layout_is_refused_with_both_values_and_its_tag(second, text):
    with pytest.raises(SourceError, match=text) as caught:
        MemorySource([_seq(5), second], tags=["one", "two"])
    assert "two" in str(caught.value) or "classes" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ({}, DataSpec("float32", dim=1)),
        ({"dim": 40}, DataSpec("float32", (40,), dim=40)),
        ({"shape": (None, None, 3), "dtype": "float16"}, DataSpec("float16", (None, 3), dim=3)),
        ({"shape": [None, None], "dim": 8}, DataSpec("float32", (None,), dim=8)),
        ({"shape": (7,)}, DataSpec("float32", (7,), dim=7, has_time=False)),
        ({"sparse": True, "dim": 9}, DataSpec("int32", sparse=True, dim=9)),
        ({"sparse_dim": 9, "dtype": "int64"}, DataSpec("int64", sparse=True, dim=9)),
        ({"sparse_dim": 9, "shape": ()}, DataSpec("int32", sparse=True, dim=9, has_time=False)),
        (DataSpec("int8", (2,)), DataSpec("int8", (2,))),
    ],
)
def test_data_types_are_read_as_documented(options, spec):
    assert MemorySource([], specs={"data": options}).specs["data"] == spec


@pytest.mark.parametrize(
    "options",
    [
        {"shap": (None,)},
        {"shape": 40},
        {"shape": (None, -1)},
        {"dim": -1},
        {"dim": 40, "shape": (None, 39)},
        {"sparse": 1},
        {"sparse": True, "dtype": "float32"},
        {"dtype": "flot32"},
        (40, 2),
    ],
)
def test_other_data_types_are_refused(options):
    with pytest.raises(ConfigError):
        MemorySource([], specs={"data": options})
