import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching import BatchTable, num_windows, window_bounds
from headrace.errors import ConfigError


@given(st.lists(st.integers(0, 9), max_size=20))
def test_each_batch_is_found_in_its_window(counts):
    table = BatchTable(np.array(counts, int))
    expected = [(window, number) for window, count in enumerate(counts) for number in range(count)]
    assert table.num_batches == len(expected)
    assert [table.locate(batch) for batch in range(table.num_batches)] == expected
    for batch, (window, number) in enumerate(expected):
        assert table.first_batch(window) + number == batch


@given(st.integers(0, 1000), st.integers(1, 100))
def test_windows_cover_the_epoch_once(num_seqs, window_seqs):
    bounds = [window_bounds(window, num_seqs, window_seqs) for window in range(num_windows(num_seqs, window_seqs))]
    assert [place for first, end in bounds for place in range(first, end)] == list(range(num_seqs))


def test_a_batch_outside_of_the_epoch_is_an_index_error():
    for batch in (-1, 3):
        with pytest.raises(IndexError, match="3 batches"):
            BatchTable(np.array([1, 2])).locate(batch)


@pytest.mark.parametrize("counts", [np.array([1, -1]), np.array([1.0]), np.ones((2, 2), int)])
def test_what_are_no_counts_is_refused(counts):
    with pytest.raises(ConfigError, match="batch table"):
        BatchTable(counts)
