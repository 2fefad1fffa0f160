import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.errors import ConfigError, SourceError
from headrace.order import Laplace, SortBinShuffle, SortBinShuffleX2, Sorted, SortedReverse
from headrace.order import by_length as kernel

_LENGTHS = st.one_of(
    hnp.arrays(np.int32, st.integers(0, 60), elements=st.integers(0, 5)),
    hnp.arrays(np.uint8, st.integers(0, 60)),
    hnp.arrays(np.uint64, st.integers(0, 60), elements=st.integers(0, 2**62)),
    hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(2**62 - 3, 2**62) | st.integers(0, 3)),
    hnp.arrays(np.float64, st.integers(0, 60), elements=st.floats(0, allow_nan=False) | st.sampled_from([0.0, 1.5])),
    hnp.arrays(np.float32, st.integers(0, 60), elements=st.sampled_from([0.0, 0.5, 2.0])),
)


def _slow_laplace(lengths, num_bins, seed):
    """Sort bin by bin with Python's stable sort."""
    perm = np.random.RandomState(seed).permutation(len(lengths)).tolist()
    values = lengths.tolist()
    order = []
    for number in range(num_bins):
        part = perm[number * len(perm) // num_bins : (number + 1) * len(perm) // num_bins]
        order += sorted(part, key=lambda seq: values[seq] if number % 2 == 0 else -values[seq])
    return order


def _slow_sort_bin_shuffle(lengths, num_bins, seed, *, x2):
    rng = np.random.RandomState(seed)
    values = lengths.tolist()
    by_length = sorted(rng.permutation(len(values)).tolist(), key=values.__getitem__)
    order = []
    for number in rng.permutation(num_bins).tolist():
        part = by_length[number * len(values) // num_bins : (number + 1) * len(values) // num_bins]
        if x2:
            rng.shuffle(part)
        order += part
    return order


@pytest.fixture(params=[1, 7, 65_536], ids=lambda size: f"block {size}")
def block_size(request, monkeypatch):
    monkeypatch.setattr(kernel, "_BLOCK", request.param)
    return request.param


@pytest.mark.usefixtures("block_size")
class TestFastEqualsSlow:
    """Blocks of 1 and 7 make small arrays take every path that large ones take."""

    @given(lengths=_LENGTHS, num_bins=st.integers(1, 70), seed=st.integers(0, 3))
    @example(lengths=np.arange(60)[::-1] * 2**56, num_bins=9, seed=0)  # too many bits for some bins, not for others
    def test_laplace_is_a_stable_sort_of_each_bin(self, lengths, num_bins, seed):
        order = Laplace(num_bins=num_bins).plan(len(lengths), seed, lengths)
        assert list(order) == _slow_laplace(lengths, num_bins, seed)

    @given(lengths=_LENGTHS, num_bins=st.integers(1, 70), seed=st.integers(0, 3))
    def test_sort_bin_shuffle_is_a_stable_sort_cut_into_bins(self, lengths, num_bins, seed):
        for policy, x2 in ((SortBinShuffle, False), (SortBinShuffleX2, True)):
            order = policy(num_bins=num_bins).plan(len(lengths), seed, lengths)
            assert list(order) == _slow_sort_bin_shuffle(lengths, num_bins, seed, x2=x2)

    @given(lengths=_LENGTHS)
    def test_sorted_keeps_the_corpus_order_of_ties_in_both_directions(self, lengths):
        values = lengths.tolist()
        assert list(Sorted().plan(len(values), 0, lengths)) == sorted(range(len(values)), key=values.__getitem__)
        expected = sorted(range(len(values)), key=lambda seq: -values[seq])
        assert list(SortedReverse().plan(len(values), 0, lengths)) == expected


@given(num_seqs=st.integers(0, 2**62), num_bins=st.integers(1, 2**31), data=st.data())
def test_bin_bounds_are_exact_for_any_size(num_seqs, num_bins, data):
    num_bins = min(num_bins, data.draw(st.integers(1, 100)) if num_bins > 1000 else num_bins)
    expected = [number * num_seqs // num_bins for number in range(num_bins + 1)]
    assert kernel.bin_bounds(num_seqs, num_bins).tolist() == expected


def test_a_large_corpus_sorts_as_numpy_sorts_it():
    rng = np.random.default_rng(1)
    for high in (2, 3000, 2**31 - 1, 2**45):
        lengths = rng.integers(0, high, size=200_001)
        assert (np.asarray(Sorted().plan(200_001, 0, lengths)) == np.argsort(lengths, kind="stable")).all()
        order = np.asarray(Laplace(num_bins=3).plan(200_001, 5, lengths))
        perm = np.random.RandomState(5).permutation(200_001)
        first, second, third = perm[:66_667], perm[66_667:133_334], perm[133_334:]
        second = second[np.argsort(-lengths[second], kind="stable")]
        first, third = (part[np.argsort(lengths[part], kind="stable")] for part in (first, third))
        assert (order == np.concatenate([first, second, third])).all()


def test_lengths_in_a_mapped_file_are_sorted_and_not_written(tmp_path):
    lengths = np.memmap(tmp_path / "lengths", np.int32, "w+", shape=(100,))
    lengths[:] = np.arange(100)[::-1]
    lengths.flush()
    mapped = np.memmap(tmp_path / "lengths", np.int32, "r", shape=(100,))
    assert list(Sorted().plan(100, 0, mapped)) == list(range(99, -1, -1))


@pytest.mark.parametrize("policy", [Sorted(), SortedReverse(), Laplace(), SortBinShuffle(), SortBinShuffleX2()])
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (np.array([3, -1, 2]), "length -1 is not in 0..2.*\n.*corpus index 1"),
        (np.array([3.0, 1.0, np.nan]), "length nan is not in 0..2.*\n.*corpus index 2"),
        (np.array([3.0, -0.5, np.nan]), "length -0.5 is not in"),
        (np.array([2**62 + 1, 1, 2]), "corpus index 0"),
        (np.array([1, 2]), r"shape \(2,\) for a corpus of 3"),
        (np.array([[1, 2, 3]]), r"shape \(1, 3\) for a corpus of 3"),
        (np.array(["1", "2", "3"]), "got dtype <U1"),
    ],
)
def test_lengths_that_cannot_be_sorted_are_refused(policy, lengths, message):
    with pytest.raises(SourceError, match=message):
        policy.plan(3, 0, lengths)


def test_an_order_by_length_without_lengths_is_refused():
    with pytest.raises(ConfigError, match=r"'laplace:.10' needs the length of each sequence"):
        Laplace(seqs_per_bin=10).plan(3, 0, None)
