"""The recogniser of the demo: its gradients are right, padding does not count, and what it saves is all there is."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.model import SEGMENTS, WordModel, weigh_segments
from headrace.loading import Batch

HEADS, NUM_FEATURES = {"classes": 4, "language": 3}, 5


def make_batch(lengths: list[int], seed: int = 1, num_frames: int | None = None) -> Batch:
    """Random words, padded to the longest, or to `num_frames`."""
    rng = np.random.default_rng(seed)
    data = np.zeros((len(lengths), num_frames or max(lengths), NUM_FEATURES), np.float32)
    for row, length in enumerate(lengths):
        data[row, :length] = rng.normal(size=(length, NUM_FEATURES))
    arrays = {"data": data}
    arrays |= {key: rng.integers(dim, size=(len(lengths), 1), dtype=np.int32) for key, dim in HEADS.items()}
    places = np.arange(len(lengths))
    tags = [str(place) for place in places]
    return Batch(arrays, {"data": np.array(lengths, np.int32)}, tags, places, places, epoch=1, position=0, step=0)


def train_some(model: WordModel, num_steps: int, seed: int = 1) -> list[float]:
    return [model.train_step(make_batch([3, 9, 5], seed + step)) for step in range(num_steps)]


def test_the_gradients_are_those_of_the_loss() -> None:
    model = WordModel(HEADS, NUM_FEATURES, seed=1)
    train_some(model, 5)  # else half of the gradients are 0
    for name, array in model._parameters.items():
        model._parameters[name] = array.astype(np.float64)
    batch = make_batch([4, 11, 7], seed=9)

    def loss_of(forward: object) -> float:
        return model._loss(forward.scores, batch)[0]  # type: ignore[attr-defined]

    forward = model._forward(batch)
    gradients = model._backward(forward, model._loss(forward.scores, batch)[1])
    dice, small = np.random.default_rng(0), 1e-6
    for name, gradient in gradients.items():
        flat, num_moved = model._parameters[name].reshape(-1), 0
        for place in dice.integers(flat.size, size=40):
            before = flat[place]
            flat[place] = before + small
            above = loss_of(model._forward(batch))
            flat[place] = before - small
            below = loss_of(model._forward(batch))
            flat[place] = before
            slope = (above - below) / (2 * small)
            np.testing.assert_allclose(gradient.reshape(-1)[place], slope, rtol=1e-3, atol=1e-7, err_msg=name)
            num_moved += slope != 0
        assert num_moved, name


@settings(max_examples=30)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any), st.integers(0, 10))
def test_weights_of_a_segment_sum_to_one_and_padding_weighs_nothing(lengths: list[int], num_more: int) -> None:
    num_frames = max(lengths) + num_more
    weights = weigh_segments(np.array(lengths, np.int32), num_frames)
    assert weights.shape == (len(lengths), SEGMENTS, num_frames)
    for row, length in zip(weights, lengths, strict=True):
        assert (row[:, :length] > 0).all()
        assert not row[:, length:].any()
        np.testing.assert_allclose(row.sum(axis=1), 1 if length else 0, rtol=1e-5)


def test_padding_does_not_change_what_is_told() -> None:
    model = WordModel(HEADS, NUM_FEATURES, seed=1)
    train_some(model, 20)
    tight, wide = make_batch([6, 12, 2], seed=5), make_batch([6, 12, 2], seed=5, num_frames=40)
    scores = [model._forward(batch).scores for batch in (tight, wide)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4, atol=1e-5)
    assert set(model.predict(wide)) == set(HEADS)


def test_a_model_that_takes_over_the_arrays_goes_on_bit_for_bit() -> None:
    model, other = WordModel(HEADS, NUM_FEATURES, seed=1), WordModel(HEADS, NUM_FEATURES, seed=2)
    train_some(model, 7)
    saved = {name: array.copy() for name, array in model.arrays().items()}
    expected = train_some(model, 5, seed=50)
    train_some(other, 3)
    other.load(saved)
    assert train_some(other, 5, seed=50) == expected
    assert {name: a.tobytes() for name, a in other.arrays().items()} == {
        name: a.tobytes() for name, a in model.arrays().items()
    }
    assert model.num_parameters == sum(array.size for array in model._parameters.values())


def test_it_learns_a_batch_by_heart() -> None:
    model, batch = WordModel(HEADS, NUM_FEATURES, seed=1), make_batch([8] * 6)
    losses = [model.train_step(batch) for _ in range(100)]
    assert abs(losses[0] - np.log(4) - np.log(3)) < 1e-5  # it knows nothing
    assert losses[-1] < 0.05
    assert all((told == batch[key][:, 0]).all() for key, told in model.predict(batch).items())
