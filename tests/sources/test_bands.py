"""Band sums and cosine transforms are the products that they stand for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.features.bands import Bands, cosine_transform
from headrace.features.extracted import _slaney_filters
from headrace.features.log_mel import _mel_filters


@given(
    st.sampled_from([_mel_filters, _slaney_filters]),
    st.sampled_from([8000, 16000, 44100]),
    st.sampled_from([64, 200, 400, 512, 1102]),
    st.integers(1, 130),
    st.floats(0, 3000),
    st.floats(3001, 4000),
    st.integers(0, 20),
)
@settings(max_examples=60)
def test_sums_are_the_product_with_the_filters(make, sample_rate, fft_size, num_mels, low, high, num_frames):
    weights = make(sample_rate, fft_size, num_mels, low, high)  # with many bands, some are empty
    power = np.random.RandomState(num_frames).exponential(size=(num_frames, fft_size // 2 + 1))
    found = Bands(weights).sums(power)
    assert found.shape == (num_frames, num_mels)
    np.testing.assert_allclose(found, power @ weights, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("size", [1, 2, 3, 40, 127, 128])
def test_the_transform_is_the_product_with_cosines(size):
    values = np.random.RandomState(size).normal(size=(7, size))
    for number in {1, (size + 1) // 2, size}:
        rows = np.cos(np.pi / size * (np.arange(size)[:, None] + 0.5) * np.arange(number)) * np.sqrt(2.0 / size)
        rows[:, 0] = np.sqrt(1.0 / size)
        np.testing.assert_allclose(cosine_transform(values, number), values @ rows, atol=1e-12)
