"""Streams: datasets without a known order, iterables, and sub-epochs of files."""

import os

import numpy as np
import pytest
from sub_epoch_files import open_files

from headrace import ConfigError, HDFDataset, HeadraceError, MultiProcDataset, ResumeError
from headrace.batching import Buckets, Chunks, FixedCount, FrameBudget, Pack
from headrace.datasets import CachedDataset2, DatasetSeq
from headrace.loading import DataLoader

pytestmark = pytest.mark.usefixtures("warm_workers")


class Endless(CachedDataset2):
    """Sequences one after the other, whose number nobody knows; counts what it was asked for."""

    def __init__(self, num=60, **kwargs):
        super().__init__(**kwargs)
        self.num_inputs, self.num_outputs = 2, {"data": (2, 2)}
        self.num, self.num_read = num, 0

    def get_target_list(self):
        return []

    def _collect_single_seq(self, seq_idx):
        if seq_idx >= self.num:
            return None
        self.num_read += 1
        length = seq_idx * 7 % 11 + 1
        return DatasetSeq(seq_idx, np.full((length, 2), seq_idx + 100 * int(self.epoch), np.float32))


class Jumping(Endless):
    supports_jumps = True

    def _load_seqs(self, start, end):
        super()._load_seqs(start, end)


def print_of(batch):
    return batch.epoch, batch.position, batch.tags, batch.seq_idx.tolist(), batch["data"].tobytes()


@pytest.mark.parametrize(
    "batching",
    [FixedCount(4), FrameBudget(30), Buckets(FrameBudget(40), num_buckets=3), Pack(20, 2), Chunks(FixedCount(3), 4)],
)
def test_a_stream_is_delivered_once_and_can_be_resumed_anywhere(batching):
    options = {
        "batching": batching,
        "window_seqs": 16,
        "transform": lambda seq, rng: {"data": seq["data"] + rng.random()},
    }
    with DataLoader(Endless(), **options) as loader:
        batches = [print_of(batch) for batch in loader]
        later = [print_of(batch) for batch in loader]
    if not isinstance(batching, Chunks):
        assert sorted(i for batch in batches for i in batch[3]) == list(range(60))
    for num_steps in range(0, len(batches) + 1, 3):
        with DataLoader(Endless(), **options) as loader:
            for _ in zip(range(num_steps), loader, strict=False):
                pass
            state = loader.state_dict()
        with DataLoader(Endless(), **options) as loader:
            loader.load_state_dict(state)
            rest = [[print_of(batch) for batch in epoch] for epoch in loader.epochs(1, 2)]
        assert rest[-2:] == [batches[num_steps:], later]


def test_ranks_share_a_stream_that_each_of_them_reads():
    with DataLoader(Endless(), batching=FrameBudget(30), window_seqs=16) as loader:
        batches = [print_of(batch) for batch in loader]
    num_steps = len(batches) // 3
    for rank in range(3):
        with DataLoader(Endless(), batching=FrameBudget(30), window_seqs=16, rank=rank, world_size=3) as loader:
            assert [print_of(batch) for batch in loader] == batches[rank::3][:num_steps]


def test_the_length_of_a_stream_is_what_steps_per_epoch_says():
    with DataLoader(Endless(), batching=FixedCount(4)) as loader:
        with pytest.raises(TypeError, match="give steps_per_epoch="):
            len(loader)
        assert loader
        assert len(list(loader)) == 15
    with DataLoader(Endless(), batching=FixedCount(4), steps_per_epoch=6) as loader:
        assert len(loader) == 6
        assert [[batch.position for batch in epoch] for epoch in loader.epochs(1, 2)] == [list(range(6))] * 2
    with (
        DataLoader(Endless(), batching=FixedCount(4), steps_per_epoch=16) as loader,
        pytest.raises(HeadraceError, match="ended after 15 of steps_per_epoch=16"),
    ):
        list(loader)


def test_a_resume_of_steps_per_epoch_gives_the_steps_that_are_left():
    with DataLoader(Endless(), batching=FixedCount(4), steps_per_epoch=6) as loader:
        for _ in zip(range(4), loader, strict=False):
            pass
        state = loader.state_dict()
    with DataLoader(Endless(), batching=FixedCount(4), steps_per_epoch=6) as loader:
        loader.load_state_dict(state)
        assert [batch.position for batch in loader] == [4, 5]


def test_no_more_than_a_few_windows_are_read_ahead():
    dataset = Endless()
    with DataLoader(dataset, batching=FixedCount(4), window_seqs=8) as loader:
        iterator = iter(loader)
        next(iterator)
        assert dataset.num_read <= 16
        iterator.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shuffle": True}, "its own order"),
        ({"remainder": "keep", "steps_per_epoch": 3, "rank": 0, "world_size": 2}, "promises equal"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        DataLoader(Endless(), batching=FixedCount(4), **options)


class Items:
    """An iterable without a length."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def test_any_iterable_is_a_stream():
    with DataLoader(Items([{"data": [1.0] * n} for n in (3, 1, 2)]), batching=FrameBudget(6)) as loader:
        assert [batch.lengths["data"].tolist() for batch in loader] == [[3, 1], [2]]
    with DataLoader(Items([(i, str(i)) for i in range(5)]), batch_size=2) as loader:
        assert [words for _, words in loader] == [["0", "1"], ["2", "3"], ["4"]]
    with DataLoader(Items(range(5)), batch_size=2, collate=sum) as loader:
        assert list(loader) == [1, 5, 4]
        for total in loader:
            assert total == 1
            break
        state = loader.state_dict()
    with DataLoader(Items(range(5)), batch_size=2, collate=sum) as loader:
        loader.load_state_dict(state)
        assert list(loader) == [5, 4]


def test_a_data_key_that_items_do_not_have_is_named():
    items = Items([{"data": [1.0], "target": [2.0]}])
    with (
        DataLoader(items, batching=FrameBudget(6, data_key="targets")) as loader,
        pytest.raises(ConfigError, match="did you mean 'target'"),
    ):
        list(loader)


def test_an_iterator_is_refused_because_it_gives_its_items_once():
    with pytest.raises(ConfigError, match="once"):
        DataLoader(iter([1, 2]), batch_size=2)


@pytest.mark.parametrize("own_worker", [False, True])
def test_files_are_loaded_and_resumed_inside_a_sub_epoch(files, own_worker):
    options = {"batching": Buckets(FrameBudget(20), num_buckets=3), "window_seqs": 8}
    with open_files(files) as dataset, DataLoader(dataset, **options) as loader:
        epochs = [[print_of(batch) for batch in epoch] for epoch in loader.epochs(1, 2)]
    tags = [tag for epoch in epochs for batch in epoch for tag in batch[2]]
    assert len(tags) == len(set(tags)) == 60
    for num_steps in (0, 1, 5, len(epochs[1])):
        with open_files(files) as dataset, DataLoader(dataset, **options) as loader:
            loader.set_epoch(2)
            for _ in zip(range(num_steps), loader, strict=False):
                pass
            state = loader.state_dict()
        with open_files(files, use_worker_proc=own_worker) as dataset, DataLoader(dataset, **options) as loader:
            loader.load_state_dict(state)
            assert [print_of(batch) for batch in next(loader.epochs())] == epochs[1][num_steps:]


def test_files_shared_by_ranks_are_not_divided_again(files):
    shared = {"distrib_shard_files": True, "rank": 1, "world_size": 2}
    with open_files(files, **shared) as dataset:
        with pytest.raises(ConfigError, match=r"two levels.*distrib_shard_files"):
            DataLoader(dataset, batching=FixedCount(4), rank=1, world_size=2)
        with pytest.raises(ConfigError, match="steps_per_epoch="):
            DataLoader(dataset, batching=FixedCount(4))
        with DataLoader(dataset, batching=FixedCount(4), steps_per_epoch=3) as loader:
            assert [batch.position for batch in loader] == [0, 1, 2]


def test_a_state_of_other_files_is_refused(files):
    with open_files(files) as dataset, DataLoader(dataset, batching=FixedCount(4)) as loader:
        state = loader.state_dict()
    with (
        open_files(files[:5]) as dataset,
        DataLoader(dataset, batching=FixedCount(4)) as loader,
        pytest.raises(ResumeError, match="another data"),
    ):
        loader.load_state_dict(state)


def test_files_that_were_moved_are_the_same_data(files, tmp_path):
    with open_files(files) as dataset, DataLoader(dataset, batching=FixedCount(4)) as loader:
        state = loader.state_dict()
    moved = []
    (tmp_path / "elsewhere").mkdir()
    for path in files:
        moved.append(str(tmp_path / "elsewhere" / path.rpartition("/")[2]))
        os.rename(path, moved[-1])
    with open_files(moved) as dataset, DataLoader(dataset, batching=FixedCount(4)) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).position == 0


def test_ranks_that_share_files_cannot_be_others_after_a_resume(files):
    def open_rank(world_size):
        shared = {"distrib_shard_files": True, "rank": 0, "world_size": world_size}
        return open_files(files, **shared)

    options = {"batching": FixedCount(4), "steps_per_epoch": 2}
    with open_rank(3) as dataset, DataLoader(dataset, **options) as loader:
        state = loader.state_dict()
    with open_rank(3) as dataset, DataLoader(dataset, **options) as loader:
        loader.load_state_dict(state)
    with (
        open_rank(2) as dataset,
        DataLoader(dataset, **options) as loader,
        pytest.raises(ResumeError, match=r"number of ranks.*among 3.*among 2 here"),
    ):
        loader.load_state_dict(state)


def test_a_state_of_shared_files_is_refused_where_they_are_not_shared(files):
    shared = {"distrib_shard_files": True, "rank": 0, "world_size": 2}
    options = {"batching": FixedCount(4), "steps_per_epoch": 2}
    with open_files(files, **shared) as dataset, DataLoader(dataset, **options) as loader:
        state = loader.state_dict()
    with (
        open_files(files) as dataset,
        DataLoader(dataset, **options) as loader,
        pytest.raises(ResumeError, match=r"number of ranks.*among 2.*among 1 here"),
    ):
        loader.load_state_dict(state)


def test_dedicated_workers_are_a_stream_whose_order_depends_on_their_number(files):
    config = {"class": "HDFDataset", "files": files, "seq_ordering": "random"}

    def open_workers(num_workers):
        return MultiProcDataset(config, num_workers, 8, "dedicated", executor="thread")

    with open_workers(2) as dataset, DataLoader(dataset, batching=FixedCount(4), window_seqs=8) as loader:
        tags = [batch.tags for batch in loader]
        loader.set_epoch(1)
        for _ in zip(range(3), loader, strict=False):
            pass
        state = loader.state_dict()
    assert len({tag for batch in tags for tag in batch}) == 60
    with open_workers(2) as dataset, DataLoader(dataset, batching=FixedCount(4), window_seqs=8) as loader:
        loader.load_state_dict(state)
        assert [batch.tags for batch in loader] == tags[3:]
    with (
        open_workers(3) as dataset,
        DataLoader(dataset, batching=FixedCount(4), window_seqs=8) as loader,
        pytest.raises(ResumeError, match="another order"),
    ):
        loader.load_state_dict(state)


def test_another_reader_of_the_same_dataset_does_not_matter(files):
    with open_files(files) as dataset, DataLoader(dataset, batching=FixedCount(1), window_seqs=4) as loader:
        tags = [seq.tag for seq in dataset.epoch(1)]
        iterator = iter(loader)
        seen = next(iterator).tags
        dataset.init_seq_order(epoch=2)
        assert seen + [tag for batch in iterator for tag in batch.tags] == tags


class FromIterator(CachedDataset2):
    """Cannot be made again: what it was made of can be read once."""

    num_inputs, num_outputs = 1, {"data": (1, 2)}

    def __init__(self, seqs):
        super().__init__()
        self.seqs = seqs

    def _collect_single_seq(self, seq_idx):
        number = next(self.seqs, None)
        return None if number is None else DatasetSeq(seq_idx, np.full((1, 1), number, np.float32))


def test_another_reader_of_a_dataset_that_cannot_be_copied_is_noticed():
    dataset = FromIterator(iter(range(40)))
    with DataLoader(dataset, batching=FixedCount(1), window_seqs=4) as loader:
        iterator = iter(loader)
        next(iterator)
        dataset.init_seq_order(epoch=2)
        with pytest.raises(HeadraceError, match="use a second dataset object"):
            list(iterator)


def test_a_dataset_that_cannot_be_copied_is_not_read_by_threads():
    options = {"num_workers": 1, "executor": "thread"}
    with (
        DataLoader(FromIterator(iter(range(4))), batching=FixedCount(1), **options) as loader,
        pytest.raises(ConfigError, match="can be iterated over only once"),
    ):
        list(loader)


def test_a_known_order_is_never_read_as_a_stream(files):
    with HDFDataset(files=files) as dataset, DataLoader(dataset, batching=FixedCount(7)) as loader:
        assert len(loader) == 9
