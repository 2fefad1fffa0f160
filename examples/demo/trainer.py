"""The training process: it tells its steps one by one, so that it can be killed at any of them.

Its command line is a `Training` as JSON. It writes an event a line to stdout, and after each step it waits for a byte
on stdin: so whoever started it knows to a step where it is, and it ends by itself when that process is gone. The
training is in `train`; `examples/train_numpy.py` is the same loop without the telling.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.batching import Buckets, FrameBudget
from headrace.errors import HeadraceError
from headrace.files import atomic_write
from headrace.loading import DataLoader

from .model import WordModel

SEED, TEST_SEED = 1, 2
SAVE_STEPS = 4
NOISE = 0.6  # standard deviation, where speech has about 1
_STATE = "loader"  # in a checkpoint, beside the arrays of the model


class Training(msgspec.Struct, frozen=True):
    """What to train, and how.

    Attributes:
        hdf: The corpus: "data", and a class of the whole sequence for each head.
        train_tags: File with the tags to learn from.
        heldout_tags: File with tags that are kept out.
        heads: What is learnt: data key -> number of classes.
        num_features: Of a frame of "data".
        max_frames: Of a batch.
        epochs: The last epoch.
        checkpoint: File to go on from, if it is there, and to write every `SAVE_STEPS` steps.
        num_workers: Of the loader.
        executor: Of the loader.
    """

    hdf: str
    train_tags: str
    heldout_tags: str
    heads: dict[str, int]
    num_features: int
    max_frames: int
    epochs: int
    checkpoint: str
    num_workers: int = 2
    executor: str = "process"


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """A step of the training is done; `step` counts from 0 in each epoch."""

    epoch: int
    step: int
    loss: float


class EpochDone(msgspec.Struct, frozen=True, tag=True):
    """An epoch is done; by head, which share was told rightly.

    Attributes:
        epoch: Which.
        heard: Of the words that it learns from, in noise of another seed.
        heldout: Of the words that were kept out; empty if there are none.
    """

    epoch: int
    heard: dict[str, float]
    heldout: dict[str, float]


class TrainingDone(msgspec.Struct, frozen=True, tag=True):
    """The training is done; the digest covers all that was learnt."""

    num_parameters: int
    digest: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It ended with an error."""

    what: str
    where: str | None = None
    fix: str | None = None


Event = StepDone | EpochDone | TrainingDone | Failed


def train(training: Training, tell: Callable[[Event], None]) -> None:
    """Train from the checkpoint on, or from the start if there is none.

    Args:
        training: What, and how.
        tell: Called with what is done, after each step and epoch and at the end.

    Raises:
        ResumeError: The checkpoint is of another training.
        SourceError: The corpus cannot be read, or the checkpoint not written.
    """
    model = WordModel(training.heads, training.num_features, SEED)
    checkpoint = Path(training.checkpoint)
    with ExitStack() as stack:
        open_on_stack = stack.enter_context
        loader = open_on_stack(_open_loader(training, training.train_tags, SEED, training.num_workers))
        heard = open_on_stack(_open_loader(training, training.train_tags, TEST_SEED))
        heldout = open_on_stack(_open_loader(training, training.heldout_tags, TEST_SEED))
        if checkpoint.exists():
            loader.load_state_dict(load_checkpoint(checkpoint, model))
        for epoch in loader.epochs(last=training.epochs):
            for batch in epoch:
                tell(StepDone(batch.epoch, batch.step, model.train_step(batch)))
                # After it was told and heard: whenever this is killed, a step that nobody heard of is done again.
                if model.num_steps % SAVE_STEPS == 0:
                    save_checkpoint(checkpoint, model, loader.state_dict())
            tell(EpochDone(epoch.epoch, _test(model, heard), _test(model, heldout)))
    tell(TrainingDone(model.num_parameters, _digest(model)))


def add_noise(seq: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> dict[str, Any]:
    """Return a recording at a standard level, in noise that is keyed by seed, epoch and sequence."""
    data = seq["data"]
    level = (data - data.mean()) / 4 if data.size else data
    return {**seq, "data": level + NOISE * rng.standard_normal(data.shape, dtype=np.float32)}


def save_checkpoint(path: Path, model: WordModel, state: Mapping[str, Any]) -> None:
    """Write the model and the state of its loader, whole or not at all."""
    # Through memory: on a full disk, `savez` would hide the error behind one of its own.
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {**model.arrays(), _STATE: np.array(json.dumps(state))}
    np.savez(buffer, **arrays)
    with atomic_write(path) as file:
        file.write(buffer.getbuffer())


def load_checkpoint(path: Path, model: WordModel) -> dict[str, Any]:
    """Bring a model to where it was saved; return the state of the loader."""
    with np.load(path, allow_pickle=False) as arrays:
        model.load(arrays)
        state: dict[str, Any] = json.loads(str(arrays[_STATE]))
    return state


def _open_loader(training: Training, tags: str, seed: int, num_workers: int = 0) -> DataLoader:
    dataset = {
        "class": "HDFDataset",
        "files": [training.hdf],
        "seq_ordering": "random",
        "seq_list_filter_file": tags,
    }
    return DataLoader(
        dataset,
        batching=Buckets(FrameBudget(training.max_frames), num_buckets=4),
        num_workers=num_workers,
        seed=seed,
        rank=0,  # whatever job the demo was started in
        world_size=1,
        transform=add_noise,
        executor=training.executor,
    )


def _test(model: WordModel, loader: DataLoader) -> dict[str, float]:
    """Return by head which share of an epoch is told rightly, of epoch 1 each time; empty if that has no sequence."""
    loader.set_epoch(1)
    is_right: dict[str, list[NDArray[np.bool_]]] = {key: [] for key in model.heads}
    for batch in loader:
        for key, told in model.predict(batch).items():
            is_right[key].append(told == batch[key][:, 0])
    return {key: float(np.concatenate(parts).mean()) for key, parts in is_right.items() if parts}


def _digest(model: WordModel) -> str:
    digest = xxhash.xxh3_128()
    for name, array in sorted(model.arrays().items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def main() -> None:
    """Run as the process that the demo starts: see above."""
    try:
        train(msgspec.json.decode(sys.argv[1], type=Training), _tell)
    except (HeadraceError, OSError) as error:
        _write(Failed(str(getattr(error, "what", error)), getattr(error, "where", None), getattr(error, "fix", None)))
        sys.exit(1)


def _tell(event: Event) -> None:
    """Tell one event, and wait for leave to go on after a step.

    Raises:
        SystemExit: Nobody is there to give it.
    """
    _write(event)
    if isinstance(event, StepDone) and not os.read(sys.stdin.fileno(), 1):
        sys.exit()


def _write(event: Event) -> None:
    # Not through `sys.stdout`, which would try again, and complain, when the interpreter ends.
    line = msgspec.json.encode(event) + b"\n"
    try:
        while line:
            line = line[os.write(sys.stdout.fileno(), line) :]
    except BrokenPipeError:
        sys.exit()
