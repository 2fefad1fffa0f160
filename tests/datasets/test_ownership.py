"""Whose a dataset is that was given as an object: it is copied, or else has one owner."""

import contextlib
import copy
import os
import pickle

import numpy as np
import pytest

import headrace as hr
from headrace import ConfigError, HDFWriter
from headrace.datasets import (
    CachedDataset,
    CachedDataset2,
    ConcatDataset,
    ConcatSeqsDataset,
    DatasetSeq,
    HDFDataset,
    MapDataset,
    MetaDataset,
    MixDataset,
    MultiEpochDataset,
    PostprocessingDataset,
    SourceDataset,
    StaticDataset,
    init_dataset,
)
from headrace.sources import MemorySource


def corpus(first, num_seqs=6):
    return [{"data": np.full((2, 1), first + i, np.float32)} for i in range(num_seqs)]


def numbers(dataset, epoch=1):
    return [int(seq["data"][0, 0]) for seq in dataset.epoch(epoch)]


class Once(CachedDataset2):
    """Cannot be made again: what it is made of can be read once."""

    num_inputs, num_outputs = 1, {"data": (1, 2)}

    def __init__(self, seqs):
        super().__init__()
        self.seqs = seqs

    def _collect_single_seq(self, seq_idx):
        number = next(self.seqs, None)
        return None if number is None else DatasetSeq(seq_idx, np.full((1, 1), number, np.float32))


class Fragile(Once):
    """Raises when it is made a second time."""

    num_made = 0

    def __init__(self):
        super().__init__(None)
        type(self).num_made += 1
        if self.num_made > 1:
            raise OSError("there is one of them")

    def _collect_single_seq(self, seq_idx):
        self.seqs = iter([10 * int(self.epoch) + seq_idx] if seq_idx < 4 else [])
        return super()._collect_single_seq(seq_idx)


def same(seq):
    return seq


def noisy(features, *, rng):
    return {"data": features["data"] + rng.normal(size=features["data"].shape).astype(np.float32)}


def drawn(first):
    tags = [f"seq-{first + i}" for i in range(6)]
    source = MemorySource(corpus(first), tags=tags)
    return CachedDataset(source=source, transform=noisy, seq_ordering="random", repeat_epoch=2)


def doubled(seq, *, rng, **_):
    return {**seq, "data": 2 * seq["data"] + np.float32(rng.rand())}


def joined_in_pairs(dataset, tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("seq-0;seq-3\nseq-2\nseq-5;seq-5\n")
    return ConcatSeqsDataset(dataset, str(path), repeat_epoch=2)


READ = {
    "source": lambda part, _: part,
    "concat": lambda part, _: ConcatDataset([part, drawn(10), part], seq_ordering="random"),
    "mix": lambda part, _: MixDataset({"a": part, "b": drawn(10)}, weights={"a": 2, "b": 1}),
    "meta": lambda part, _: MetaDataset({"a": part, "b": part}, {"data": ("a", "data"), "same": ("b", "data")}),
    "joined": joined_in_pairs,
    "epochs": lambda part, _: MultiEpochDataset(dataset=part, multi_epoch=2),
    "nested": lambda part, tmp: ConcatDataset([ConcatDataset([joined_in_pairs(part, tmp)])]),
    "mapped": lambda part, _: PostprocessingDataset(dataset=part, map_seq=doubled),
    "mapped epochs": lambda part, _: PostprocessingDataset(
        dataset=MultiEpochDataset(dataset=part, multi_epoch=2), map_seq=doubled
    ),
    "meta of mapped": lambda part, _: MetaDataset(
        {"a": PostprocessingDataset(dataset=part, map_seq=doubled), "b": part},
        {"data": ("a", "data"), "same": ("b", "data")},
        seq_order_control_dataset="b",
    ),
}


def read_by_loader(dataset, others=()):
    """Return what a loader reads, while others go somewhere else."""
    found = []
    with hr.DataLoader(dataset, batch_size=1, window_seqs=1) as loader:
        for number, batch in enumerate(loader):
            found.append({key: batch[key][0].tolist() for key in batch})
            if others:
                others[number % 2].init_seq_order(epoch=2 + number)
                others[number % 2].get_seq(0)
    return found


def arrays_of(dataset):
    return [{key: array.tolist() for key, array in seq.features.items()} for seq in dataset.epoch(1)]


@pytest.mark.parametrize("name", READ)
def test_what_a_loader_reads_does_not_depend_on_where_others_are(name, tmp_path):
    part = drawn(0)
    dataset = READ[name](part, tmp_path)
    dataset.initialize()
    expected = arrays_of(dataset)
    assert read_by_loader(dataset, (dataset, part)) == expected


class Negative:
    def get_seq(self, seq_idx):
        seq = super().get_seq(seq_idx)
        return DatasetSeq(seq_idx, -seq.features["data"], seq_tag=seq.seq_tag)


@pytest.mark.parametrize("base", [ConcatDataset, MetaDataset, MultiEpochDataset])
def test_a_class_of_ones_own_over_one_of_ours_is_read_as_its_epochs_are(base):
    own = type(f"Own{base.__name__}", (Negative, base), {})
    part = drawn(0)
    options = {
        ConcatDataset: {"datasets": [part, drawn(10)]},
        MetaDataset: {"datasets": {"a": part}, "data_map": {"data": ("a", "data")}, "seq_order_control_dataset": "a"},
        MultiEpochDataset: {"dataset": part, "multi_epoch": 2},
    }[base]
    expected = arrays_of(own(**options))
    assert expected == [{"data": (-np.array(seq["data"])).tolist()} for seq in arrays_of(base(**options))]
    assert read_by_loader(own(**options)) == expected


def copies(dataset):
    return copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))


def test_what_is_set_on_an_object_is_set_on_its_copies():
    dataset = StaticDataset(corpus(0))
    dataset.initialize()
    dataset.seq_ordering = "reverse"
    dataset.partition_epoch = 2
    for other in copies(dataset):
        assert numbers(other) == numbers(dataset) == [5, 4, 3]
        assert numbers(ConcatDataset([other])) == [5, 4, 3]
    once = StaticDataset(iter(corpus(0)), target_list=())  # what can be read once is kept for copies
    assert [numbers(other) for other in copies(once)] == [numbers(once)] * 3


@pytest.mark.parametrize(
    ("kind", "options"), [(MultiEpochDataset, {"multi_epoch": 1}), (PostprocessingDataset, {"map_seq": same})]
)
def test_a_dataset_that_cannot_be_copied_has_one_owner(kind, options):
    part = Once(iter(range(5)))
    owner = kind(dataset=part, **options)
    owner.initialize()
    with pytest.raises(ConfigError, match=r"part of two datasets, and it cannot be copied: .* only once"):
        kind(dataset=part, **options)
    assert numbers(owner) == [0, 1, 2, 3, 4]
    del owner
    kind(dataset=part, **options)  # nobody has it any more


@pytest.mark.parametrize(
    ("kind", "options"), [(PostprocessingDataset, {"map_seq": same}), (MultiEpochDataset, {"multi_epoch": 2})]
)
def test_somebody_else_who_positions_a_part_that_cannot_be_copied_is_noticed(kind, options):
    Fragile.num_made = 0
    part = Fragile()
    owner = kind(dataset=part, **options)
    owner.initialize()
    seqs = owner.epoch(1)
    assert next(seqs)["data"][0, 0] == 10
    part.init_seq_order(epoch=3)
    with pytest.raises(ConfigError, match="stale"):
        list(seqs)
    expected = [10, 11, 12, 13] + ([20, 21, 22, 23] if kind is MultiEpochDataset else [])
    assert numbers(owner) == expected


def test_closing_an_object_does_not_close_what_it_was_given_to():
    part = StaticDataset(corpus(0))
    with ConcatDataset([part, part]) as whole:
        whole.initialize()
        seqs = whole.epoch(1)
        next(seqs)
        part.close()
        assert len(list(seqs)) == 11


def num_open(path):
    """Return how often a file is open; what else the process opens and closes meanwhile does not count."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{number}") == str(path)
    return found


def test_a_copy_opens_its_files_when_it_reads_and_closes_only_its_own(tmp_path):
    with HDFWriter(tmp_path / "a.hdf") as writer:
        for number, seq in enumerate(corpus(0)):
            writer.append(f"seq-{number}", seq)
    for dataset in (HDFDataset(tmp_path / "a.hdf"), SourceDataset(tmp_path / "a.hdf")):
        seqs = dataset.epoch(1)
        next(seqs)
        before = num_open(tmp_path / "a.hdf")
        other = copy.copy(dataset)
        assert num_open(tmp_path / "a.hdf") == before
        assert numbers(other) == numbers(copy.copy(other)) == [0, 1, 2, 3, 4, 5]
        assert num_open(tmp_path / "a.hdf") > before
        other.close()
        assert num_open(tmp_path / "a.hdf") == before
        assert [int(seq["data"][0, 0]) for seq in seqs] == [1, 2, 3, 4, 5]
        dataset.close()


def test_to_change_a_copy_changes_nothing_else():
    dataset = StaticDataset(corpus(0), partition_epoch=2)
    dataset.init_seq_order(epoch=1)
    other = copy.copy(dataset)
    other.partition_epoch, other.seq_ordering = 1, "reverse"
    other.labels["data"], other.weights[0] = ["a"], 0.5
    other.set_sharding(2, 1)
    assert numbers(other) == [2, 1, 0]
    assert (dataset.num_seqs, dataset.get_tag(2), numbers(dataset, 2)) == (3, "seq-2", [3, 4, 5])
    assert (dataset.labels, dataset.weights, numbers(copy.copy(dataset))) == ({}, {}, [0, 1, 2])
    whole = init_dataset({"class": "ConcatDataset", "datasets": [{"class": "StaticDataset", "data": corpus(0)}] * 2})
    mine, others = whole.get_corpus().parts, copy.copy(whole).get_corpus().parts
    assert not {id(part) for part in mine} & {id(part) for part in others}
    assert [part.source for part in mine] == [part.source for part in others]  # with the arrays


def test_an_object_is_asked_by_copies_only_for_what_they_read():
    class Seqs(list):
        asked = 0

        def __getitem__(self, i):
            self.asked += 1
            return super().__getitem__(i)

    seqs = Seqs(corpus(0))
    dataset = MapDataset(seqs)
    before = seqs.asked
    other = copy.copy(dataset)
    other.init_seq_order(epoch=1)
    assert seqs.asked == before
    made = []
    of_function = MapDataset(lambda: made.append(Seqs(corpus(0))) or made[-1])
    assert copy.copy(of_function).map_dataset is not of_function.map_dataset
