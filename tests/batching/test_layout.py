import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import LayoutOptions, cut_seq, pad_batch
from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

dtypes = st.sampled_from(["float32", "float16", "int32", "uint8", "int64", "bool", "complex64"])


@st.composite
def sequences(draw):
    """Arrays [T, ...] of one dtype and of the same inner axes."""
    dtype, inner = draw(dtypes), tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    return [rng.integers(0, 2, (length, *inner)).astype(dtype) for length in lengths]


@given(sequences(), st.integers(1, 8))
def test_each_sequence_is_at_the_start_of_its_row_and_the_rest_is_padding(arrays, multiple_of):
    batch = pad_batch(
        [{"data": array} for array in arrays], LayoutOptions(pad_values={"data": 1}, multiple_of=multiple_of)
    )
    padded, lengths = batch.arrays["data"], batch.lengths["data"]
    assert padded.dtype == arrays[0].dtype
    assert lengths.dtype == np.int32
    assert lengths.tolist() == [len(array) for array in arrays]
    assert padded.shape[1] % multiple_of == 0
    assert 0 <= padded.shape[1] - lengths.max() < multiple_of
    for row, array in zip(padded, arrays, strict=True):
        np.testing.assert_array_equal(row[: len(array)], array)
        assert (row[len(array) :] == 1).all()


def _dirty_memory(calls):
    """An allocator of used memory, as an arena is one."""

    def allocate(key, shape, dtype):
        calls.append((key, shape, dtype))
        return np.frombuffer(bytearray(b"\xff" * (int(np.prod(shape)) * dtype.itemsize)), dtype).reshape(shape)

    return allocate


@given(sequences())
def test_output_that_was_allocated_elsewhere_is_filled_in_place(arrays):
    seqs = [{"data": array, "speaker": np.int32(7)} for array in arrays]
    calls = []
    batch = pad_batch(seqs, allocate=_dirty_memory(calls))
    expected = pad_batch(seqs)
    assert [key for key, _, _ in calls] == ["data", "speaker"]
    for key in ("data", "speaker"):
        assert batch.arrays[key].base is not None
        np.testing.assert_array_equal(batch.arrays[key], expected.arrays[key])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda key, shape, dtype: np.empty((1, *shape[1:]), dtype),
        lambda key, shape, dtype: np.empty(shape, "float64"),
        lambda key, shape, dtype: np.broadcast_to(np.zeros((), dtype), shape),
    ],
)
def test_output_of_another_kind_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"'data' must be a writable float32 of shape \(2, 4, 3\)"):
        pad_batch([{"data": np.zeros((4, 3), "float32")}, {"data": np.zeros((2, 3), "float32")}], allocate=wrong)


def test_what_has_no_time_axis_is_stacked():
    specs = {"embedding": DataSpec("float32", (3,), has_time=False)}
    seqs = [
        {"embedding": np.full(3, number, "float32"), "label": number, "rate": np.float32(number)} for number in range(4)
    ]
    batch = pad_batch(seqs, LayoutOptions(specs))
    assert batch.arrays["embedding"].shape == (4, 3)
    assert batch.arrays["label"].tolist() == [0, 1, 2, 3]
    assert batch.arrays["rate"].dtype == np.float32
    assert batch.lengths == {}


NUMBERS = st.sampled_from(
    [3, -1, 2**40, 2**63, 2**70, 2.5, True, 1j, np.float32(3), np.int8(-2), np.uint64(2**63), np.bool_(1), np.int64(7)]
)


@given(st.lists(NUMBERS, min_size=1, max_size=4) | NUMBERS.flatmap(lambda one: st.lists(st.just(one), min_size=2)))
def test_numbers_are_a_column_of_the_dtype_that_each_of_them_has(numbers):
    arrays = [np.asarray(number) for number in numbers]
    if len({array.dtype for array in arrays}) > 1:
        with pytest.raises(SourceError, match="another dtype"):
            pad_batch([{"data": number} for number in numbers])
        return
    batch = pad_batch([{"data": number} for number in numbers])
    if arrays[0].dtype.hasobject:  # an integer of more than 64 bits
        assert batch.arrays["data"] == numbers
    else:
        np.testing.assert_array_equal(batch.arrays["data"], np.stack(arrays), strict=True)
    assert batch.lengths == {}


@given(sequences(), st.sampled_from("CF"), st.booleans())
def test_arrays_of_one_shape_are_laid_out_as_those_of_several(arrays, order, has_time):
    first = np.asarray(arrays[0], order=order)
    options = LayoutOptions({"data": DataSpec(first.dtype.name, first.shape[has_time:], has_time=has_time)})
    batch = pad_batch([{"data": first}, {"data": first[::-1][::-1]}, {"data": first.copy()}], options)
    np.testing.assert_array_equal(batch.arrays["data"], np.stack([first] * 3), strict=True)
    assert [*batch.lengths.get("data", [])] == [len(first)] * 3 * has_time


@pytest.mark.parametrize("wrap", [str, np.str_, np.array, lambda text: np.array(text, object)])
def test_texts_are_a_list(wrap):
    texts = ["a", "", "longer", "ü"]
    batch = pad_batch([{"orth": wrap(text)} for text in texts])
    assert batch.arrays["orth"] == texts
    assert all(isinstance(text, str) for text in batch.arrays["orth"])
    assert batch.lengths == {}


def test_bytes_and_lists_of_texts_stay_as_they_are():
    words = [np.array(["one", "two"]), np.array(["three"])]
    batch = pad_batch([{"raw": b"ab\0", "words": words[0]}, {"raw": b"", "words": words[1]}])
    assert batch.arrays["raw"] == [b"ab\0", b""]  # NumPy would lose the last byte
    assert batch.arrays["words"][1].tolist() == ["three"]
    assert batch.lengths == {}


def test_no_sequences_make_no_arrays():
    assert pad_batch([]).arrays == {}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.zeros((4, 40), "f4"), np.zeros((3, 80), "f4"), r"another shape.*\(40,\) and \(80,\)"),
        (np.zeros((4, 40), "f4"), np.zeros(3, "f4"), "another number of axes.*2 and 1"),
        (np.zeros((4, 40), "f4"), np.zeros((3, 40), "f8"), "another dtype.*float32 and float64"),
        (np.zeros(4, "f4"), np.float32(3), "another number of axes"),
        (np.zeros(4, "f4"), np.array(3, "f4"), "another number of axes"),
        (np.zeros(4, "f4"), "text", "another dtype"),
        ([[1], [1, 2]], [[1]], "not an array"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_key_and_the_tags(first, second, message):
    with pytest.raises(SourceError, match=f"'data'.*{message}|{message}") as error:
        pad_batch([{"data": first}, {"data": second}], tags=["corpus/17", "corpus/18"])
    assert "'data'" in str(error.value)
    if "axes" in message or "dtype" in message or "shape" in message:
        assert error.value.where == "'corpus/17' and 'corpus/18'"


def test_other_keys_in_one_sequence_are_refused():
    with pytest.raises(SourceError, match="'classes' is not in all") as error:
        pad_batch([{"data": np.zeros(2)}, {"data": np.zeros(2)}, {"data": np.zeros(2), "classes": np.zeros(1)}])
    assert "sequence 2" in error.value.where


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("uint8", -1), ("int32", 2**31), ("int32", 0.5), ("float16", 1e9), ("int32", float("nan")), ("int32", "x"),
     ("float32", [1, 2]), ("bool", 2)],
)  # fmt: skip
def test_a_pad_value_that_its_key_cannot_hold_is_refused(dtype, value):
    with pytest.raises(ConfigError, match="does not fit into"):
        pad_batch([{"data": np.zeros(2, dtype)}], LayoutOptions(pad_values={"data": value}))


@pytest.mark.parametrize(
    ("dtype", "value"), [("int32", -100), ("float16", 0.1), ("float32", float("-inf")), ("float32", float("nan"))]
)
def test_a_pad_value_may_be_anything_that_its_key_holds(dtype, value):
    batch = pad_batch(
        [{"data": np.zeros(1, dtype)}, {"data": np.zeros(2, dtype)}], LayoutOptions(pad_values={"data": value})
    )
    np.testing.assert_array_equal(batch.arrays["data"][0, 1], np.array(value, dtype))


def test_a_pad_value_for_no_key_is_refused():
    with pytest.raises(ConfigError, match="'date'") as error:
        pad_batch([{"data": np.zeros(2)}], LayoutOptions(pad_values={"date": 1}))
    assert "did you mean 'data'" in error.value.fix


def test_a_multiple_must_be_positive():
    with pytest.raises(ConfigError, match="multiple_of"):
        LayoutOptions(multiple_of=0)


def test_a_chunk_has_its_frames_of_all_keys_of_that_length():
    seq = {
        "data": np.arange(20).reshape(10, 2),
        "align": np.arange(10),
        "speaker": np.int32(3),
        "orth": "ab",
        "id": np.array([5]),
    }
    chunk = cut_seq(seq, 4, 3, "data")
    np.testing.assert_array_equal(chunk["data"], seq["data"][4:7])
    np.testing.assert_array_equal(chunk["align"], [4, 5, 6])
    assert chunk["data"].base is not None  # a view
    assert (chunk["speaker"], chunk["orth"], chunk["id"].tolist()) == (3, "ab", [5])


def test_context_outside_of_a_sequence_is_zeros():
    chunk = cut_seq({"data": np.arange(1, 5)}, -2, 8, "data")
    assert chunk["data"].tolist() == [0, 0, 1, 2, 3, 4, 0, 0]
    chunk = cut_seq({"data": np.array([5]), "align": np.array([6])}, -1, 3, "data")
    assert (chunk["data"].tolist(), chunk["align"].tolist()) == ([0, 5, 0], [0, 6, 0])


def test_a_key_of_another_length_is_refused_unless_it_is_to_be_whole():
    seq = {"data": np.zeros(10), "classes": np.arange(3)}
    with pytest.raises(ConfigError, match="'classes' has 3 frames and 'data' has 10") as error:
        cut_seq(seq, 0, 5, "data")
    assert "whole_keys" in error.value.fix
    assert cut_seq(seq, 0, 5, "data", whole_keys=("classes",))["classes"].tolist() == [0, 1, 2]


def test_a_reference_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="no data key 'date'"):
        cut_seq({"data": np.zeros(3)}, 0, 1, "date")
    with pytest.raises(ConfigError, match="'speaker' has no time axis"):
        cut_seq({"speaker": 3}, 0, 1, "speaker")
