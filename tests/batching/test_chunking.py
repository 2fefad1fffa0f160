import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import NumbersDict, parse_chunking, plan_chunks, vary_chunking
from headrace.errors import ConfigError


def _chunks(lengths, chunking, min_chunk_size=0, used_data_keys=None):
    plan = plan_chunks(NumbersDict(lengths), parse_chunking(chunking), NumbersDict(min_chunk_size), used_data_keys)
    return [(dict(start.items()), dict(end.items())) for start, end in plan]


def _of_key(plan, data_key="data"):
    return [(start[data_key], end[data_key]) for start, end in plan]


@pytest.mark.parametrize("value", [None, 0, "0", (0, 5), (0, 0), "0:5", {}, {"data": 0}, {"data": 0, "classes": 0}])
def test_forms_that_mean_no_chunking(value):
    assert parse_chunking(value) is None


@pytest.mark.parametrize(
    ("value", "size", "step"),
    [
        (50, 50, 50),
        ("50", 50, 50),
        ("50:25", 50, 25),
        ((50, 25), 50, 25),
        ([50, 25], 50, 25),
        ("50:0", 50, 50),
        ((50, None), 50, 50),
        ((50, 0), 50, 50),
        ((50, 80), 50, 80),
        ({"data": 100, "classes": 50}, {"data": 100, "classes": 50}, {"data": 100, "classes": 50}),
        (({"data": 100}, None), {"data": 100}, {"data": 100}),
        (
            ({"data": 100, "classes": 50}, {"data": 50, "classes": 0}),
            {"data": 100, "classes": 50},
            {"data": 50, "classes": 0},
        ),
        (NumbersDict(8), 8, 8),
    ],
)
def test_the_forms_of_the_chunking_option(value, size, step):
    chunking = parse_chunking(value)
    assert (chunking.size, chunking.step) == (NumbersDict(size), NumbersDict(step))
    assert parse_chunking(chunking) is chunking
    assert pickle.loads(pickle.dumps(chunking)) == chunking


def test_a_function_is_passed_through():
    def my_chunks(**kwargs):
        yield 0, NumbersDict(0), NumbersDict(1)

    assert parse_chunking(my_chunks) is my_chunks


@pytest.mark.parametrize(
    "value",
    [
        "10:5:2",
        "a",
        "",
        "10:",
        1.5,
        (1.5, 1),
        True,
        -1,
        "-1",
        (10, -5),
        "10:-5",
        (10,),
        (1, 2, 3),
        {"data": 10, "classes": 0},
        {"data": 10, "classes": -1},
        {"data": 1.5},
        {"data": "10"},
        ({"data": 10}, {"classes": 5}),
        ({"data": 10}, 5),
        (10, {"data": 5}),
        ({"data": 10}, {"data": 0}),
        ({"data": 10}, {"data": -1}),
        b"10",
        {"data": float("inf")},
        {"data": float("nan")},
    ],
)
def test_other_forms_are_refused_with_the_valid_ones(value):
    with pytest.raises(ConfigError) as caught:
        parse_chunking(value)
    assert caught.value.fix


def test_the_documented_numbers():
    assert _of_key(_chunks({"data": 11}, "10:5")) == [(0, 10), (5, 11), (10, 11)]
    assert _of_key(_chunks({"data": 11}, "10:5", min_chunk_size=1)) == [(0, 10), (5, 11)]


def test_the_first_chunk_is_always_made():
    assert _of_key(_chunks({"data": 11}, "10:5", min_chunk_size=50)) == [(0, 10)]
    assert _of_key(_chunks({"data": 0}, "10:5")) == [(0, 0)]


def test_the_strictest_min_chunk_size_of_any_key_ends_the_chunks_and_a_missing_one_is_zero():
    lengths = {"data": 11, "classes": 11}
    assert len(_chunks(lengths, "10:5", min_chunk_size={"data": 0, "classes": 3})) == 2
    assert len(_chunks(lengths, "10:5", min_chunk_size={"data": 1})) == 2
    assert len(_chunks(lengths, "10:5", min_chunk_size={"other": 3})) == 3


def test_keys_of_another_frame_rate_are_cut_in_step():
    plan = _chunks({"data": 11, "classes": 6}, {"data": 4, "classes": 2})
    assert _of_key(plan) == [(0, 4), (4, 8), (8, 11)]
    assert _of_key(plan, "classes") == [(0, 2), (2, 4), (4, 6)]


@pytest.mark.parametrize("num_frames", [0, 1])
@pytest.mark.parametrize("chunking", ["4:4", {"data": 4, "classes": 2}])
def test_a_key_of_at_most_one_frame_is_repeated_in_full_and_does_not_stop_the_chunking(num_frames, chunking):
    plan = _chunks({"data": 11, "classes": num_frames}, chunking)
    assert _of_key(plan) == [(0, 4), (4, 8), (8, 11)]
    assert _of_key(plan, "classes") == [(0, num_frames)] * 3


@pytest.mark.parametrize("num_frames", [0, 1, 7, 11, 100])
def test_a_key_with_step_zero_is_given_in_full_with_each_chunk(num_frames):
    plan = _chunks({"data": 11, "classes": num_frames}, ({"data": 4, "classes": 6}, {"data": 4, "classes": 0}))
    assert _of_key(plan) == [(0, 4), (4, 8), (8, 11)]
    assert _of_key(plan, "classes") == [(0, num_frames)] * 3


def test_where_data_is_not_cut_the_first_key_that_is_cut_decides():
    chunking = ({"align": 4, "classes": 4, "data": 9}, {"align": 0, "classes": 2, "data": 0})
    plan = _chunks({"align": 30, "classes": 5, "data": 20}, chunking)
    assert _of_key(plan, "classes") == [(0, 4), (2, 5), (4, 5)]
    assert _of_key(plan, "data") == [(0, 20)] * 3
    only_full = ({"classes": 4, "data": 9}, {"classes": 2, "data": 0})
    assert _chunks({"classes": 5, "data": 20}, only_full, used_data_keys=["data"]) == [({"data": 0}, {"data": 20})]


def test_only_used_keys_are_chunked_and_one_that_does_not_exist_is_refused():
    lengths = {"data": 11, "classes": 3}
    assert _chunks(lengths, "10:5", used_data_keys=["classes"]) == [({"classes": 0}, {"classes": 3})]
    with pytest.raises(ConfigError, match="did you mean 'classes'"):
        _chunks(lengths, "10:5", used_data_keys=["clases"])


@pytest.mark.parametrize(
    ("lengths", "chunking"),
    [
        ({"data": 11, "classes": 2}, "4:4"),
        ({"data": 1, "classes": 11}, "4:4"),
        ({"data": 11, "classes": 9}, {"data": 4, "classes": 2}),
    ],
)
def test_keys_that_do_not_fit_together_are_refused_with_both_lengths(lengths, chunking):
    with pytest.raises(ConfigError, match=f"lengths {lengths['data']} and {lengths['classes']}"):
        _chunks(lengths, chunking)


def test_a_key_without_chunk_size_is_refused_with_its_name():
    with pytest.raises(ConfigError, match="no size for the data key 'classes'"):
        _chunks({"data": 11, "classes": 11}, {"data": 10})


@given(st.integers(0, 200), st.integers(1, 50), st.integers(1, 50), st.integers(0, 20))
def test_chunks_are_those_of_the_obvious_loop(length, size, step, min_size):
    expected, start = [], 0
    while not expected or length - start > min_size:
        expected.append((start, min(start + size, length)))
        start += step
    assert _of_key(_chunks({"data": length}, (size, step), min_size)) == expected


@given(st.integers(0, 300), st.integers(1, 60), st.data())
def test_chunks_cover_every_frame_when_no_step_exceeds_the_size_and_no_rest_is_dropped(length, size, data):
    step = data.draw(st.integers(1, size))
    covered = set()
    for start, end in _of_key(_chunks({"data": length, "classes": length}, (size, step))):
        assert end - start <= size
        covered.update(range(start, end))
    assert covered == set(range(length))


@given(
    st.integers(0, 60),
    st.integers(1, 4),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from([0, 1]),
    st.integers(0, 5),
)
def test_keys_that_are_not_cut_change_nothing_for_the_others(length, rate, size_step, short, min_size):
    size, step = size_step
    alone = _chunks({"data": length * rate}, (size * rate, step * rate), min_size)
    sizes = {"data": size * rate, "aligned": size * rate, "short": 1, "full": 3}
    steps = {"data": step * rate, "aligned": step * rate, "short": step * rate, "full": 0}
    lengths = {"data": length * rate, "aligned": length * rate, "short": short, "full": 77}
    joint = _chunks(lengths, (sizes, steps), {"data": min_size, "aligned": min_size, "short": 0})
    if length * rate > 1:
        assert _of_key(joint) == _of_key(joint, "aligned") == _of_key(alone)
    assert set(_of_key(joint, "full")) == {(0, 77)}


def test_variance_shrinks_and_keeps_the_ratio_of_aligned_keys():
    draw = 2 * (1 - 0.9328178779437994)
    varied = vary_chunking(parse_chunking(({"data": 20, "classes": 10}, {"data": 10, "classes": 5})), 0.5, draw)
    assert (varied.size, varied.step) == ({"data": 18, "classes": 9}, {"data": 8, "classes": 4})
    varied = vary_chunking(parse_chunking(({"data": 20, "classes": 7}, {"data": 10, "classes": 10})), 0.5, draw)
    assert (varied.size, varied.step) == ({"data": 18, "classes": 6}, {"data": 9, "classes": 9})
    assert vary_chunking(parse_chunking("20:10"), 0.5, draw) == parse_chunking("18:9")


def test_variance_leaves_a_step_of_zero_alone():
    chunking = parse_chunking(({"data": 20, "classes": 10}, {"data": 10, "classes": 0}))
    assert vary_chunking(chunking, 1.0, 0.99).step["classes"] == 0


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 1000), min_size=1),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_variance_never_grows_a_chunk_and_never_empties_it(sizes, variance, draw):
    chunking = parse_chunking(sizes)
    varied = vary_chunking(chunking, variance, draw)
    assert all(1 <= varied.size[key] <= sizes[key] for key in sizes)
    assert vary_chunking(chunking, 0.0, draw) == chunking
