"""What the tests of `MetaDataset` share: sequences that say which they are, and datasets of them."""

import gzip
import json

import numpy as np

from headrace.datasets import CachedDataset2, DatasetSeq, FromListDataset

DATA_MAP = {"data": ("features", "data"), "classes": ("alignments", "classes")}


def words(tags, value=0):
    """Make sequences whose arrays say which they are, with a length of their own."""
    numbers = [sum((place + 1) * ord(letter) for place, letter in enumerate(tag)) % 97 for tag in tags]
    return [
        {
            "data": np.full((len(tag) * 7 % 5 + 1, 2), number + value, np.float32),
            "classes": np.full(number % 4, number + value, np.int64),
        }
        for tag, number in zip(tags, numbers, strict=True)
    ]


def in_memory(tags, value=0, **options):
    types = {
        "data": {"shape": (None, 2), "dtype": "float32"},
        "classes": {"dtype": "int64", "sparse": True, "dim": 999},
    }
    seqs = FromListDataset(words(tags, value), "data", data_types=types)
    return {"class": "MapDataset", "map_dataset": seqs, "tags": tags, **options}


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
    seqs = dataset.iterate_epoch() if order else dataset.epoch(epoch)
    return [
        (seq.seq_idx, seq.tag, seq.complete_frac, {key: value.tolist() for key, value in seq.features.items()})
        for seq in seqs
    ]


def tags_of(dataset, epoch=1, **order):
    return [tag for _, tag, *_ in stream(dataset, epoch, **order)]


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
