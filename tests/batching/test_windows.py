import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import NumbersDict, apply_window, parse_context_window, slice_pad_zeros
from headrace.errors import ConfigError


def _parts(pair):
    return tuple((dict(numbers.items()), numbers.broadcast_value) for numbers in pair)


@pytest.mark.parametrize(("total", "left", "right"), [(0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 1, 1), (4, 1, 2), (5, 2, 2)])
def test_a_total_is_split_evenly_and_an_odd_frame_goes_right(total, left, right):
    expected = (({"data": left}, None), ({"data": right}, None))
    assert _parts(parse_context_window(total)) == expected
    assert _parts(parse_context_window({"data": total})) == expected
    assert _parts(parse_context_window(NumbersDict({"data": total}))) == expected


def test_none_is_no_frames_for_any_key():
    assert _parts(parse_context_window(None)) == (({}, 0), ({}, 0))


@pytest.mark.parametrize("pair", [({"data": 2}, {"data": 5}), [NumbersDict({"data": 2}), {"data": 5}], (2, 5)])
def test_a_pair_is_left_and_right_as_it_is(pair):
    assert _parts(parse_context_window(pair)) == (({"data": 2}, None), ({"data": 5}, None))


@pytest.mark.parametrize(
    "value", ["5", 1.5, True, (1,), (1, 2, 3), -1, {"data": -1}, {"data": 1.5}, (1, None), {"data": "x"}]
)
def test_other_context_windows_are_refused(value):
    with pytest.raises(ConfigError):
        parse_context_window(value)


@given(st.dictionaries(st.sampled_from(["data", "classes"]), st.integers(0, 99)))
def test_left_and_right_add_up_to_the_total_minus_the_frame_itself(totals):
    left, right = parse_context_window(totals)
    for key, total in totals.items():
        assert left[key] + right[key] == max(total, 1) - 1
        assert right[key] - left[key] in (0, 1)


@given(st.integers(0, 12), st.integers(-15, 15), st.integers(0, 20))
def test_a_slice_has_the_frames_where_there_are_some_and_zeros_elsewhere(num_frames, start, size):
    array = np.arange(1, 2 * num_frames + 1, dtype=np.float32).reshape(num_frames, 2)
    result = slice_pad_zeros(array, start, start + size)
    assert result.dtype == array.dtype
    assert result.shape == (size, 2)
    for i in range(size):
        expected = array[start + i] if 0 <= start + i < num_frames else np.zeros(2)
        np.testing.assert_array_equal(result[i], expected)


def test_a_slice_that_ends_before_it_starts_is_refused():
    with pytest.raises(ConfigError, match=r"5\.\.3"):
        slice_pad_zeros(np.zeros(9), 5, 3)


@given(st.integers(0, 9), st.sampled_from([(), (1,), (3,), (2, 3)]), st.sampled_from([1, 3, 5, 9]))
def test_a_window_is_that_of_the_obvious_loop(num_frames, frame_shape, window):
    array = np.random.default_rng(num_frames).standard_normal((num_frames, *frame_shape)).astype(np.float32)
    result = apply_window(array, window)
    if window == 1:
        assert result is array
        return
    frames = array if frame_shape else array[:, None]
    zero = np.zeros(frames.shape[1:], np.float32)
    assert result.dtype == np.float32
    assert result.shape == (*frames.shape[:-1], frames.shape[-1] * window)
    for t in range(num_frames):
        near = [frames[s] if 0 <= s < num_frames else zero for s in range(t - window // 2, t + window // 2 + 1)]
        np.testing.assert_array_equal(result[t], np.concatenate(near, axis=-1))


@pytest.mark.parametrize("window", [0, 2, -3])
def test_an_even_or_empty_window_is_refused(window):
    with pytest.raises(ConfigError, match="odd"):
        apply_window(np.zeros((3, 2)), window)


def test_a_window_over_a_scalar_is_refused():
    with pytest.raises(ConfigError, match="no time axis"):
        apply_window(np.zeros(()), 3)
