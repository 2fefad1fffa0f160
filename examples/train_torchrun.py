"""Train the recogniser in PyTorch on several ranks: killed, it goes on with as many ranks as you start.

Each rank makes the same loader, which finds its rank by itself: the ranks share the batches of an epoch, and all have
the same number of steps. The state of the loader is the same on every rank, so rank 0 saves it for all. See the README
of this folder for the commands.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import headrace as hr
from headrace.adapters.torch import as_tensors

SAVE_STEPS = 4
HIDDEN, SEGMENTS = 64, 6


class WordModel(nn.Module):
    """A convolution over time, the mean of each of six segments of the word, and a layer for each thing to be told."""

    def __init__(self, heads, num_features):
        super().__init__()
        self.convolution = nn.Conv1d(num_features, HIDDEN, kernel_size=5, padding=2)
        self.heads = nn.ModuleDict({key: nn.Linear(SEGMENTS * HIDDEN, dim) for key, dim in heads.items()})

    def forward(self, data, lengths):
        """Return the scores of the classes, `float32[B, C]` by head, of `float32[B, T, D]`; padding does not count."""
        hidden = torch.relu(self.convolution(data.transpose(1, 2))).transpose(1, 2)
        times = (torch.arange(data.shape[1]) + 0.5) / lengths[:, None, None]
        middles = ((torch.arange(SEGMENTS) + 0.5) / SEGMENTS)[:, None]
        weights = (1 - SEGMENTS * (times - middles).abs()).clamp(min=1e-3) * (times < 1)
        means = (weights / weights.sum(dim=2, keepdim=True)) @ hidden
        return {key: head(means.flatten(1)) for key, head in self.heads.items()}


def add_noise(seq, rng):
    """Return a recording at a standard level, in noise that is keyed by seed, epoch and sequence."""
    data = seq["data"]
    level = (data - data.mean()) / 4
    return {**seq, "data": level + 0.6 * rng.standard_normal(data.shape, dtype=np.float32)}


def save_checkpoint(path, model, optimizer, loader):
    """Write a checkpoint under another name, then rename it: whoever dies here leaves the last one whole."""
    temporary = path.with_name(path.name + ".tmp")
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save(parts, temporary)
    os.replace(temporary, path)


def load_checkpoint(path, model, optimizer, loader):
    """Bring all three to where they were saved."""
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])


def write_line(record, batch, loss):
    """Note down what this rank was given in a step, and its loss."""
    line = {"epoch": batch.epoch, "position": batch.position, "step": batch.step, "tags": batch.tags, "loss": loss}
    record.write(json.dumps(line) + "\n")
    record.flush()


def train(options):
    rank = distributed.get_rank()
    torch.manual_seed(1)
    words = hr.HDFDataset(options.hdf, seq_ordering="random")
    heads = {key: words.get_data_dim(key) for key in ("classes", "language")}
    model = DistributedDataParallel(WordModel(heads, num_features=words.get_data_dim("data")))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = hr.DataLoader(
        words,
        batching=hr.Buckets(hr.FrameBudget(options.max_frames), num_buckets=4),
        num_workers=options.num_workers,
        seed=1,
        transform=add_noise,
    )
    record_path = os.devnull if options.record is None else options.record / f"rank-{rank}.jsonl"
    with words, loader, open(record_path, "w") as record:
        if options.checkpoint.exists():
            load_checkpoint(options.checkpoint, model, optimizer, loader)
        for epoch in loader.epochs(last=options.epochs):
            for batch in map(as_tensors, epoch):
                scores = model(batch["data"], batch.lengths["data"])
                losses = [nn.functional.cross_entropy(scores[key], batch[key][:, 0].long()) for key in heads]
                loss = torch.stack(losses).sum()
                optimizer.zero_grad()
                loss.backward()  # DistributedDataParallel averages the gradients over the ranks
                optimizer.step()
                if rank == 0:
                    print(f"epoch {batch.epoch}, step {batch.step}: loss {loss.item():.9f}", flush=True)
                    if (batch.step + 1) % SAVE_STEPS == 0:
                        save_checkpoint(options.checkpoint, model, optimizer, loader)
                write_line(record, batch, loss.item())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("hdf", type=Path, help="features with the classes `classes` and `language`")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--max-frames", type=int, default=1600, help="of a batch, padding included")
    parser.add_argument("--num-workers", type=int, default=2, help="of each rank")
    parser.add_argument("--checkpoint", type=Path, default=Path("train_torchrun.pt"))
    parser.add_argument("--record", type=Path, help="folder for a file by rank of what it was given")
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    train(options)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
