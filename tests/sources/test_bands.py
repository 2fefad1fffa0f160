"""Band sums are the products that they stand for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.features.log_mel import Bands, _mel_filters


@given(
    st.sampled_from([8000, 16000, 44100]),
    st.sampled_from([64, 200, 400, 512, 1102]),
    st.integers(1, 130),
    st.floats(0, 3000),
    st.floats(3001, 4000),
    st.integers(0, 20),
)
@examples(60)
def test_sums_are_the_product_with_the_filters(sample_rate, fft_size, num_mels, low, high, num_frames):
    weights = _mel_filters(sample_rate, fft_size, num_mels, low, high)  # with many bands, some are empty
    power = np.random.RandomState(num_frames).exponential(size=(num_frames, fft_size // 2 + 1))
    found = Bands(weights).sums(power)
    assert found.shape == (num_frames, num_mels)
    np.testing.assert_allclose(found, power @ weights, rtol=1e-12, atol=1e-15)
