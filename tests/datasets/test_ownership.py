"""Whose a dataset is that was given as an object: it is copied, or else has one owner."""

import contextlib
import copy
import os
import pickle

import numpy as np
import pytest

from headrace import ConfigError, HDFWriter, HeadraceError
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
from headrace.datasets.parts import open_reader
from headrace.datasets.reading.reader import ReadRequest
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


class Fragile(CachedDataset2):
    """Raises when it is made a second time."""

    num_inputs, num_outputs = 1, {"data": (1, 2)}
    num_made = 0

    def __init__(self):
        super().__init__()
        type(self).num_made += 1
        if self.num_made > 1:
            raise OSError("there is one of them")

    def _collect_single_seq(self, seq_idx):
        if seq_idx == 4:
            return None
        return DatasetSeq(seq_idx, np.full((1, 1), 10 * int(self.epoch) + seq_idx, np.float32))


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


@pytest.mark.parametrize("name", READ)
def test_what_a_reader_reads_does_not_depend_on_where_others_are(name, tmp_path):
    part = drawn(0)
    dataset = READ[name](part, tmp_path)
    dataset.initialize()
    order, counted = dataset.get_epoch_order(1)
    expected = [{key: array.tolist() for key, array in seq.features.items()} for seq in dataset.epoch(1)]
    reader = open_reader(dataset)
    for start, stop in [(0, 5), (3, len(order))]:
        some = None if counted is None else counted[start:stop]
        reader.start(ReadRequest.of(1, order.block(start, stop), some))
        for number in range(stop - start):
            others = dataset, part
            others[number % 2].init_seq_order(epoch=2 + number)
            others[number % 2].get_seq(0)
            seq = reader.read(number)
            assert {key: array.tolist() for key, array in seq.features.items()} == expected[start + number]


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
    order, counted = base(**options).get_epoch_order(1)
    expected = [seq.features["data"].tolist() for seq in own(**options).epoch(1)]
    reader = open_reader(own(**options))
    reader.start(ReadRequest.of(1, order.block(0, len(order)), counted))
    assert [reader.read(number).features["data"].tolist() for number in range(len(order))] == expected


def test_what_is_set_on_an_object_is_set_on_its_copies():
    dataset = StaticDataset(corpus(0))
    dataset.initialize()
    dataset.seq_ordering = "reverse"
    dataset.partition_epoch = 2
    for other in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert numbers(other) == numbers(dataset) == [5, 4, 3]
        assert numbers(ConcatDataset([other])) == [5, 4, 3]


def test_a_copy_shares_arrays_and_is_a_copy_of_what_is_inside():
    arrays = corpus(0)
    whole = init_dataset({"class": "ConcatDataset", "datasets": [{"class": "StaticDataset", "data": arrays}] * 2})
    other = copy.copy(whole)
    mine, others = whole.get_parts(), other.get_parts()
    assert not {id(part) for part in mine} & {id(part) for part in others}
    assert [part.source for part in mine] == [part.source for part in others]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda part: MultiEpochDataset(dataset=part, multi_epoch=1),
        lambda part: PostprocessingDataset(dataset=part, map_seq=same),
    ],
)
def test_a_dataset_that_cannot_be_copied_has_one_owner(wrap):
    part = Once(iter(range(5)))
    owner = wrap(part)
    owner.initialize()
    with pytest.raises(ConfigError, match=r"part of two datasets, and it cannot be copied: .* only once"):
        wrap(part)
    assert numbers(owner) == [0, 1, 2, 3, 4]
    del owner
    wrap(part)  # nobody has it any more


def test_somebody_else_who_positions_a_part_that_cannot_be_copied_is_noticed():
    Fragile.num_made = 0
    part = Fragile()
    owner = PostprocessingDataset(dataset=part, map_seq=same)
    owner.initialize()
    seqs = owner.epoch(1)
    assert next(seqs)["data"][0, 0] == 10
    part.init_seq_order(epoch=3)
    with pytest.raises(HeadraceError, match="stale: the dataset has ended its epoch"):
        list(seqs)


def test_several_epochs_of_a_dataset_that_cannot_be_copied_and_is_moved_say_so():
    Fragile.num_made = 0
    part = Fragile()
    owner = MultiEpochDataset(dataset=part, multi_epoch=2)
    owner.initialize()
    seqs = owner.epoch(1)
    assert int(next(seqs)["data"][0, 0]) == 10
    part.init_seq_order(epoch=7)
    with pytest.raises(ConfigError, match="stale"):
        next(seqs)
    assert [int(seq["data"][0, 0]) for seq in owner.epoch(1)] == [10, 11, 12, 13, 20, 21, 22, 23]


def test_one_object_may_be_all_parts_of_a_meta_dataset():
    part = StaticDataset(corpus(0), seq_ordering="random")
    whole = MetaDataset({"x": part, "y": part}, {"data": ("x", "data"), "again": ("y", "data")})
    whole.initialize()
    for seq in whole.epoch(1):
        assert f"seq-{int(seq['data'][0, 0])}" == seq.tag
        np.testing.assert_array_equal(seq["data"], seq["again"])


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


def test_data_that_can_be_read_once_are_kept_for_copies():
    dataset = StaticDataset(iter(corpus(0)), target_list=())
    for other in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert numbers(other) == numbers(dataset)
