"""What the tests of `MetaDataset` share: sequences that say which they are, and datasets of them."""

import gzip
import json

import numpy as np

from headrace.datasets import CachedDataset2, DatasetSeq, FromListDataset, init_dataset
from headrace.sources import HDFWriter, MemorySource

DATA_MAP = {"data": ("features", "data"), "classes": ("alignments", "classes")}


def words(tags, value=0):
    """Make sequences whose arrays say which they are, with a length of their own."""
    return [
        {
            "data": np.full((len(tag) * 7 % 5 + 1, 2), hash_of(tag) + value, np.float32),
            "classes": np.full(hash_of(tag) % 4, hash_of(tag) + value, np.int64),
        }
        for tag in tags
    ]


def hash_of(tag):
    return sum((place + 1) * ord(letter) for place, letter in enumerate(tag)) % 97


def in_memory(tags, value=0, **options):
    types = {
        "data": {"shape": (None, 2), "dtype": "float32"},
        "classes": {"dtype": "int64", "sparse": True, "dim": 999},
    }
    seqs = FromListDataset(words(tags, value), "data", data_types=types)
    return {"class": "MapDataset", "map_dataset": seqs, "tags": tags, **options}


def write_hdf(path, tags, value=0):
    with HDFWriter(path, labels={"classes": [str(number) for number in range(999)]}) as writer:
        for tag, seq in zip(tags, words(tags, value), strict=True):
            writer.append(tag, seq)
    return str(path)


def meta_config(features, alignments, control="alignments", **options):
    return {
        "class": "MetaDataset",
        "datasets": {"features": features, "alignments": alignments},
        "data_map": DATA_MAP,
        "seq_order_control_dataset": control,
        **options,
    }


def stream(dataset, epoch, **order):
    if order:
        dataset.init_seq_order(epoch, **order)
        seqs = dataset.iterate_epoch()
    else:
        seqs = dataset.epoch(epoch)
    return [
        (seq.seq_idx, seq.tag, seq.complete_frac, {key: value.tolist() for key, value in seq.features.items()})
        for seq in seqs
    ]


def joined(control, others, data_map, epoch):
    """Return what is expected: the order of the control dataset alone, the rest found by a dict of tags."""
    alone = init_dataset(control)
    found = {name: {seq.tag: seq.features for seq in init_dataset(config).epoch(1)} for name, config in others.items()}
    return [
        (
            seq.seq_idx,
            seq.tag,
            seq.complete_frac,
            {
                key: (seq.features if name == "control" else found[name][seq.tag])[own].tolist()
                for key, (name, own) in data_map.items()
            },
        )
        for seq in alone.epoch(epoch)
    ]


class Streamed(CachedDataset2):
    """A stream that takes tags, and knows no corpus indices."""

    def __init__(self, tags, **options):
        super().__init__(**options)
        self.num_outputs = {"data": (2, 2), "classes": (97, 1)}
        self.corpus_tags = list(tags)

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        self.current = list(self.corpus_tags if seq_list is None else seq_list) if epoch is not None else []
        return True

    def _collect_single_seq(self, seq_idx):
        if seq_idx >= len(self.current):
            return None
        tag = self.current[seq_idx]
        return DatasetSeq(seq_idx, words([tag], 50)[0], seq_tag=tag)


class StreamedAndKnown(Streamed):
    """The same, and tells its tags and its order."""

    def get_all_tags(self):
        return self.corpus_tags

    def get_current_seq_order(self):
        return [self.corpus_tags.index(tag) for tag in self.current]


class Counting(MemorySource):
    """Counts what is read of it."""

    def __init__(self, tags):
        super().__init__(words(tags), tags=tags)
        self.reads = []

    def read(self, corpus_idx, data_key):
        self.reads.append((corpus_idx, data_key))
        return super().read(corpus_idx, data_key)


def lists_in(form, folder, lists):
    """Write lists of tags in one of the forms of `seq_list_file`."""
    if form == "json":
        (folder / "lists.json").write_text(json.dumps(lists))
        return folder / "lists.json"
    if form == "json.gz":
        (folder / "lists.json.gz").write_bytes(gzip.compress(json.dumps(lists).encode()))
        return str(folder / "lists.json.gz")
    for name, tags in lists.items():
        (folder / f"{name}.txt").write_text("\n".join(tags))
    return {name: str(folder / f"{name}.txt") for name in lists}
