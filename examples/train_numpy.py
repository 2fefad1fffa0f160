"""Train a recogniser of spoken words in NumPy: kill it when you like, start it again, and it goes on as if nothing was.

A checkpoint is three things, taken at the same moment: the model, the optimizer (here both in `model.arrays()`), and
`loader.state_dict()`. The losses after a resume are those of a run that was never killed, bit for bit, also with
another number of workers. See the README of this folder for the commands.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np

import headrace as hr
from demo.model import WordModel  # a convolution, a softmax, and Adam: nothing of it is about loading

SAVE_STEPS = 4


def add_noise(seq, rng):
    """Return a recording at a standard level, in noise. Runs in the workers.

    The generator is keyed by seed, epoch and sequence: the noise is new in each epoch, and the same after a resume.
    """
    data = seq["data"]
    level = (data - data.mean()) / 4
    return {**seq, "data": level + 0.6 * rng.standard_normal(data.shape, dtype=np.float32)}


def save_checkpoint(path, model, loader):
    """Write a checkpoint under another name, then rename it: whoever dies here leaves the last one whole."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        np.savez(file, **model.arrays(), loader=np.array(json.dumps(loader.state_dict())))
    os.replace(temporary, path)


def load_checkpoint(path, model, loader):
    """Bring model and loader to where they were saved."""
    with np.load(path) as saved:
        model.load(saved)
        loader.load_state_dict(json.loads(str(saved["loader"])))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("hdf", type=Path, help="features with the classes `classes` and `language`")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--max-frames", type=int, default=1600, help="of a batch, padding included")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, default=Path("train_numpy.npz"))
    options = parser.parse_args()

    words = hr.HDFDataset(options.hdf, seq_ordering="random")
    heads = {key: words.get_data_dim(key) for key in ("classes", "language")}
    model = WordModel(heads, num_features=words.get_data_dim("data"), seed=1)
    loader = hr.DataLoader(
        words,
        batching=hr.Buckets(hr.FrameBudget(options.max_frames), num_buckets=4),
        num_workers=options.num_workers,
        seed=1,
        transform=add_noise,
    )
    with words, loader:
        if options.checkpoint.exists():
            load_checkpoint(options.checkpoint, model, loader)
        for epoch in loader.epochs(last=options.epochs):  # after a resume, it begins in the middle of the saved epoch
            for batch in epoch:
                loss = model.train_step(batch)
                print(f"epoch {batch.epoch}, step {batch.step}: loss {loss:.9f}", flush=True)
                if model.num_steps % SAVE_STEPS == 0:
                    save_checkpoint(options.checkpoint, model, loader)


if __name__ == "__main__":
    main()
