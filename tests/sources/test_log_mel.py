import cmath
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import ConfigError, SourceError
from headrace.sources import LogMel


def _slow_log_mel(front_end, samples):
    """The definition, one number at a time."""
    window, step = front_end.window_samples, front_end.step_samples
    fft_size = 2 ** math.ceil(math.log2(window))
    signal = [x - front_end.preemphasis * (samples[i - 1] if i else 0.0) for i, x in enumerate(samples)]
    to_mel = lambda hz: 2595.0 * math.log10(1.0 + hz / 700.0)  # noqa: E731
    top_hz = front_end.max_hz or front_end.sample_rate / 2
    low, high = to_mel(front_end.min_hz), to_mel(top_hz)
    spacing = (high - low) / (front_end.num_mels + 1)
    starts, covered = [], 0
    while covered < len(signal):
        starts.append(len(starts) * step)
        covered = starts[-1] + window
    rows = []
    for start in starts:
        frame = [signal[i] if i < len(signal) else 0.0 for i in range(start, start + window)]
        frame = [x * (0.5 - 0.5 * math.cos(2 * math.pi * i / window)) for i, x in enumerate(frame)]
        energies = [0.0] * front_end.num_mels
        for k in range(fft_size // 2 + 1):
            power = abs(sum(x * cmath.exp(-2j * math.pi * k * i / fft_size) for i, x in enumerate(frame))) ** 2
            mel = to_mel(k * front_end.sample_rate / fft_size)
            for band in range(front_end.num_mels):
                left = low + band * spacing
                energies[band] += power * max(0.0, min((mel - left) / spacing, (left + 2 * spacing - mel) / spacing))
        rows.append([math.log(max(energy, front_end.floor)) for energy in energies])
    return np.array(rows).reshape(len(rows), front_end.num_mels)


@pytest.mark.parametrize(
    "front_end",
    [
        LogMel(1000, num_mels=5, window_seconds=0.032, step_seconds=0.010),
        LogMel(1000, num_mels=4, window_seconds=0.025, step_seconds=0.025, min_hz=50, max_hz=400, preemphasis=0.97),
        LogMel(1000, num_mels=3, window_seconds=0.020, step_seconds=0.020, floor=1e-3),
    ],
)
@pytest.mark.parametrize("num_samples", [1, 24, 25, 26, 95, 123])
def test_features_are_those_of_the_definition_computed_one_number_at_a_time(front_end, num_samples):
    samples = np.random.default_rng(num_samples).uniform(-1, 1, num_samples).astype(np.float32)
    features = front_end(samples)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, _slow_log_mel(front_end, samples.tolist()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hz", [150, 300, 440, 1000, 1900, 3000, 3700])
def test_a_pure_tone_is_loudest_in_the_band_whose_centre_is_nearest(hz):
    front_end = LogMel(8000, num_mels=30)
    tone = np.sin(2 * np.pi * hz * np.arange(4000) / 8000).astype(np.float32)
    to_mel = lambda x: 2595.0 * np.log10(1.0 + x / 700.0)  # noqa: E731
    centres = np.linspace(to_mel(20), to_mel(4000), 32)[1:-1]
    nearest = int(np.argmin(np.abs(centres - to_mel(hz))))
    peaks = front_end(tone)[2:-4].argmax(axis=1)
    assert set(peaks.tolist()) <= {nearest - 1, nearest, nearest + 1}
    assert np.median(peaks) == nearest


def test_twice_the_amplitude_is_log_four_louder():
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 4000).astype(np.float32)
    difference = LogMel(8000)(samples * 2) - LogMel(8000)(samples)
    np.testing.assert_allclose(difference, math.log(4), atol=1e-5)


def test_silence_is_the_logarithm_of_the_floor():
    np.testing.assert_allclose(LogMel(8000, floor=1e-5)(np.zeros(900, np.float32)), math.log(1e-5), rtol=1e-6)


def test_no_samples_are_no_frames():
    assert LogMel(8000)(np.zeros(0, np.float32)).shape == (0, 40)


@given(st.integers(0, 5000), st.integers(1, 60), st.integers(8, 60))
def test_every_sample_is_in_a_frame_and_no_frame_is_without_samples(num_samples, step, window):
    step = min(step, window)
    front_end = LogMel(1000, num_mels=1, window_seconds=window / 1000, step_seconds=step / 1000, min_hz=0)
    num_frames = front_end.num_frames(num_samples)
    end = (num_frames - 1) * step + window if num_frames else 0
    assert end >= num_samples
    if num_frames > 1:
        assert end - step < num_samples
    assert (num_frames > 0) == (num_samples > 0)


@examples(20)
@given(st.integers(0, 3000))
def test_the_number_of_frames_is_the_closed_form(num_samples):
    front_end = LogMel(8000, num_mels=8)
    assert front_end(np.zeros(num_samples, np.float32)).shape == (front_end.num_frames(num_samples), 8)


def test_long_recordings_are_the_same_as_their_parts():
    front_end = LogMel(1000, num_mels=5, window_seconds=0.032, step_seconds=0.010)
    samples = np.random.default_rng(1).uniform(-1, 1, 45_000).astype(np.float32)
    features = front_end(samples)
    for first in (0, 2040, 2048, 4095):
        part = front_end(samples[first * 10 : first * 10 + 132])
        np.testing.assert_allclose(features[first : first + 11], part, rtol=1e-5, atol=1e-5)


def test_equal_calls_are_equal_to_the_bit_and_it_pickles():
    front_end = LogMel(8000, num_mels=20)
    samples = np.random.default_rng(2).uniform(-1, 1, 3000).astype(np.float32)
    before = samples.copy()
    copy = pickle.loads(pickle.dumps(front_end))
    assert copy == front_end
    np.testing.assert_array_equal(front_end(samples), copy(samples))
    np.testing.assert_array_equal(samples, before)


@pytest.mark.parametrize(
    "options",
    [
        {"sample_rate": 8000.5},
        {"num_mels": 0},
        {"num_mels": True},
        {"step_seconds": None},
        {"window_seconds": 0},
        {"step_seconds": 0},
        {"step_seconds": 0.026},
        {"min_hz": -1},
        {"max_hz": 4001},
        {"min_hz": 300, "max_hz": 300},
        {"preemphasis": 1.5},
        {"floor": 0},
    ],
)
def test_options_that_make_no_features_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options)) if "max_hz" not in options else "max_hz|bands"):
        LogMel(**{"sample_rate": 8000, **options})


def test_too_many_bands_for_the_window_are_refused_with_the_way_out():
    with pytest.raises(ConfigError, match="fewer num_mels"):
        LogMel(8000, num_mels=200)


@pytest.mark.parametrize("samples", [np.zeros((5, 1), np.float32), np.zeros(5, np.int16)])
def test_samples_of_another_form_are_refused(samples):
    with pytest.raises(SourceError, match="float"):
        LogMel(8000)(samples)
