"""A small recogniser of spoken words in NumPy, its gradients written out: what the demonstration trains.

A convolution over time, the mean of each of six segments of the word, and a softmax for each thing to be told, trained
by Adam (Kingma and Ba, 2015, arXiv:1412.6980). Invariant: everything that training changes is in `arrays()`, so a model
that took it over by `load()` goes on bit for bit, on the same machine with as many threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

KERNEL_FRAMES, HIDDEN, SEGMENTS = 5, 64, 6
LEARNING_RATE = 3e-3
_MEAN_DECAY, _SQUARE_DECAY, _TINY = 0.9, 0.99, 1e-8
_NUM_STEPS = "num_steps"


class Words(Protocol):
    """What the model needs of a batch: a `headrace.Batch` has it."""

    lengths: dict[str, NDArray[np.int32]]

    def __getitem__(self, key: str) -> Any:
        """Return the array of a data key."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """What the way forward leaves for the way back, for B words of T frames.

    Attributes:
        frames: Each frame with its neighbours, `float32[B * T, KERNEL_FRAMES * D]`.
        hidden: `float32[B, T, HIDDEN]`.
        segments: How much each frame counts in each segment, `float32[B, SEGMENTS, T]`.
        means: Of the segments, `float32[B, SEGMENTS * HIDDEN]`.
        scores: Of all classes of all heads, `float32[B, C]`.
    """

    frames: Floats
    hidden: Floats
    segments: Floats
    means: Floats
    scores: Floats


class WordModel:
    """Tells classes of whole words from their features.

    Args:
        heads: What it tells: data key -> number of classes. A batch has the true class in `batch[key][:, 0]`.
        num_features: Of a frame of "data".
        seed: Of the first parameters.
    """

    def __init__(self, heads: Mapping[str, int], num_features: int, seed: int) -> None:
        self.heads: dict[str, slice] = {}
        start = 0
        for key, num_classes in heads.items():
            self.heads[key] = slice(start, start + num_classes)
            start += num_classes
        fan_in = KERNEL_FRAMES * num_features
        kernel = np.random.default_rng(seed).normal(0, np.sqrt(2 / fan_in), (fan_in, HIDDEN))
        self._parameters = {
            "kernel": kernel.astype(np.float32),
            "kernel_bias": np.zeros(HIDDEN, np.float32),
            "output": np.zeros((SEGMENTS * HIDDEN, start), np.float32),
            "output_bias": np.zeros(start, np.float32),
        }
        self._means = {name: np.zeros_like(array) for name, array in self._parameters.items()}
        self._squares = {name: np.zeros_like(array) for name, array in self._parameters.items()}
        self.num_steps = 0

    @property
    def num_parameters(self) -> int:
        """How many numbers are learnt."""
        return sum(array.size for array in self._parameters.values())

    def train_step(self, batch: Words) -> float:
        """Learn from a batch; return its loss before that, in nats a word."""
        forward = self._forward(batch)
        loss, score_gradient = self._loss(forward.scores, batch)
        self._descend(self._backward(forward, score_gradient))
        return loss

    def predict(self, batch: Words) -> dict[str, NDArray[np.intp]]:
        """Return the likeliest classes, `int[B]` by head."""
        scores = self._forward(batch).scores
        return {key: scores[:, part].argmax(axis=1) for key, part in self.heads.items()}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that training changes, by name; not copied."""
        groups = {"": self._parameters, "mean of ": self._means, "square of ": self._squares}
        arrays: dict[str, NDArray[Any]] = {
            prefix + name: a for prefix, one in groups.items() for name, a in one.items()
        }
        return {**arrays, _NUM_STEPS: np.array(self.num_steps)}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `arrays()` of a model of the same heads and features said."""
        for name, array in self.arrays().items():
            if name != _NUM_STEPS:
                array[...] = arrays[name]
        self.num_steps = int(arrays[_NUM_STEPS])

    def _forward(self, batch: Words) -> _Pass:
        data: Floats = batch["data"]
        num_words, num_frames, num_features = data.shape
        margin = KERNEL_FRAMES // 2
        padded = np.pad(data, ((0, 0), (margin, margin), (0, 0)))
        frames = np.concatenate([padded[:, k : k + num_frames] for k in range(KERNEL_FRAMES)], axis=2)
        frames = frames.reshape(-1, KERNEL_FRAMES * num_features)
        hidden = np.maximum(frames @ self._parameters["kernel"] + self._parameters["kernel_bias"], 0)
        hidden = hidden.reshape(num_words, num_frames, HIDDEN)
        segments = weigh_segments(batch.lengths["data"], num_frames)
        means = (segments @ hidden).reshape(num_words, -1)
        scores = means @ self._parameters["output"] + self._parameters["output_bias"]
        return _Pass(frames, hidden, segments, means, scores)

    def _loss(self, scores: Floats, batch: Words) -> tuple[float, Floats]:
        """Return the cross-entropy, summed over heads, and its gradient by the scores."""
        gradient = np.empty_like(scores)
        loss, rows = 0.0, np.arange(len(scores))
        for key, part in self.heads.items():
            truth = batch[key][:, 0]
            shifted = scores[:, part] - scores[:, part].max(axis=1, keepdims=True)
            log_shares = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            loss -= float(log_shares[rows, truth].mean())
            shares = np.exp(log_shares)
            shares[rows, truth] -= 1
            gradient[:, part] = shares / np.float32(len(scores))
        return loss, gradient

    def _backward(self, forward: _Pass, scores: Floats) -> dict[str, Floats]:
        """Return the gradients by the parameters, from that by the scores."""
        means = (scores @ self._parameters["output"].T).reshape(len(scores), SEGMENTS, HIDDEN)
        hidden = (forward.segments.transpose(0, 2, 1) @ means) * (forward.hidden > 0)
        hidden = hidden.reshape(-1, HIDDEN)
        return {
            "kernel": forward.frames.T @ hidden,
            "kernel_bias": hidden.sum(axis=0),
            "output": forward.means.T @ scores,
            "output_bias": scores.sum(axis=0),
        }

    def _descend(self, gradients: Mapping[str, Floats]) -> None:
        """Make a step of Adam."""
        self.num_steps += 1
        mean_scale = np.float32(1 / (1 - _MEAN_DECAY**self.num_steps))
        square_scale = np.float32(1 / (1 - _SQUARE_DECAY**self.num_steps))
        for name, gradient in gradients.items():
            mean, square = self._means[name], self._squares[name]
            mean += np.float32(1 - _MEAN_DECAY) * (gradient - mean)
            square += np.float32(1 - _SQUARE_DECAY) * (gradient * gradient - square)
            step = (mean * mean_scale) / (np.sqrt(square * square_scale) + np.float32(_TINY))
            self._parameters[name] -= np.float32(LEARNING_RATE) * step


def weigh_segments(lengths: NDArray[np.int32], num_frames: int) -> Floats:
    """Return how much each frame of padded words counts in each segment; padding counts nothing.

    The weights of a segment are a triangle around its middle, as wide as two segments, and sum to 1.

    Args:
        lengths: Frames of each word, `int32[B]`.
        num_frames: T, of the padded words.

    Returns:
        `float32[B, SEGMENTS, T]`.
    """
    frames = np.arange(num_frames)
    times = (frames + 0.5) / np.maximum(lengths, 1)[:, None, None]
    middles = ((np.arange(SEGMENTS) + 0.5) / SEGMENTS)[:, None]
    # never 0, because a word of few frames has none near the middle of some segment
    weights = np.maximum(1 - SEGMENTS * np.abs(times - middles), 1e-3) * (frames < lengths[:, None, None])
    shares: Floats = (weights / np.maximum(weights.sum(axis=2, keepdims=True), 1e-3)).astype(np.float32)
    return shares
