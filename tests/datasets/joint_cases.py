"""What the tests of datasets made of several share: sequences that say which they are, and streams of them."""

import numpy as np

from headrace.datasets import CachedDataset2, DatasetSeq, FromListDataset

TYPES = {
    "data": {"shape": (None, 2), "dtype": "float32"},
    "classes": {"dtype": "int32", "sparse": True, "dim": 999},
}


def part(name, num_seqs, keys=("data", "classes"), **options):
    """Return the config of a part whose sequences have tags and arrays of their own."""
    seqs = [{key: value for key, value in seq_of(name, number).items() if key in keys} for number in range(num_seqs)]
    types = {key: TYPES[key] for key in keys}
    mapped = FromListDataset(seqs, keys[0], data_types=types)
    return {"class": "MapDataset", "map_dataset": mapped, "tags": [f"{name}{i}" for i in range(num_seqs)], **options}


def seq_of(name, number):
    first = ord(name) % 10 * 100 + number
    return {
        "data": np.full((number * 7 % 5 + 1, 2), first, np.float32),
        "classes": np.full(number * 3 % 4, first, np.int32),
    }


def add_noise(features, rng):
    return {**features, "data": features["data"] + rng.random(features["data"].shape, dtype=np.float32)}


def rows(dataset, epoch, **order):
    """Return all that an epoch delivers."""
    if order:
        dataset.init_seq_order(epoch, **order)
        seqs = dataset.iterate_epoch()
    else:
        seqs = dataset.epoch(epoch)
    return [row(seq) for seq in seqs]


def row(seq):
    return seq.tag, seq.corpus_idx, {key: value.tolist() for key, value in seq.features.items()}


def tags(dataset, epoch):
    return [seq.tag for seq in dataset.epoch(epoch)]


class Stream(CachedDataset2):
    """A part that tells neither its number of sequences nor its order."""

    def __init__(self, name, num_seqs, **options):
        super().__init__(name=name, **options)
        self.num_inputs, self.num_outputs = 2, {"data": (2, 2), "classes": (999, 1)}
        self.first_letter, self.total = name[-1], num_seqs

    def _collect_single_seq(self, seq_idx):
        if seq_idx >= self.total:
            return None
        tag = f"{self.first_letter}{seq_idx}"
        return DatasetSeq(seq_idx, seq_of(self.first_letter, seq_idx), seq_tag=tag)


def stream(name, num_seqs):
    return {"class": Stream, "name": name, "num_seqs": num_seqs}


def prints(loader, epoch=None):
    """Return all that the batches of a loader say, but for what depends on ranks."""
    if epoch is not None:
        loader.set_epoch(epoch)
    return [print_of(batch) for batch in loader]


def print_of(batch):
    arrays = {key: (value.shape, value.tobytes()) for key, value in batch.items()}
    return batch.tags, batch.seq_idx.tolist(), arrays
