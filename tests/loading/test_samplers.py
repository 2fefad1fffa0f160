"""Samplers of the user's, that say the order or the batches: shared out to ranks, and resumed exactly."""

import json

import numpy as np
import pytest

from headrace import ConfigError, ResumeError, StaticDataset
from headrace.loading import DataLoader


class BySize:
    """Batches of like size, in another order each epoch."""

    def __init__(self, num=40, shift=0):
        self.num, self.shift, self.epoch, self.num_asked = num, shift, 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 12

    def __iter__(self):
        self.num_asked += 1
        rng = np.random.default_rng([self.epoch, self.shift])
        order, cuts = rng.permutation(self.num), np.sort(rng.choice(np.arange(1, self.num), 11, replace=False))
        yield from (part.tolist() for part in np.split(order, cuts))


def expected_of(epoch, **options):
    sampler = BySize(**options)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize(("workers", "executor"), [(0, "process"), (2, "thread"), (2, "process")])
def test_a_batch_sampler_says_the_batches_of_each_epoch(seqs, workers, executor):
    sampler = BySize()
    with DataLoader(StaticDataset(seqs), batch_sampler=sampler, num_workers=workers, executor=executor) as loader:
        assert len(loader) == 12
        for epoch in loader.epochs(1, 2):
            found = list(epoch)
            assert [batch.corpus_idx.tolist() for batch in found] == expected_of(epoch.epoch)
            assert all(
                batch["data"][i, 0, 0] == corpus_idx
                for batch in found
                for i, corpus_idx in enumerate(batch.corpus_idx.tolist())
            )
        counts = loader.count(2)
    assert counts.seqs == counts.pieces == 40
    assert 0 < counts.padding_share < 1
    assert sampler.num_asked == 2


def test_items_that_are_no_dicts_have_samplers_too():
    with DataLoader(list(range(40)), batch_sampler=BySize(), collate=list, num_workers=1) as loader:
        assert list(loader) == expected_of(1)


def test_ranks_share_the_batches_of_a_batch_sampler(seqs):
    for rank in range(5):
        ranks = {"rank": rank, "world_size": 5, "remainder": "pad"}
        with DataLoader(StaticDataset(seqs), batch_sampler=BySize(), **ranks) as loader:
            assert len(loader) == 3
            found = [batch.corpus_idx.tolist() for batch in loader]
        assert found == [expected_of(1)[number % 12] for number in range(rank, 15, 5)]


def test_it_is_resumed_at_any_batch_with_any_number_of_ranks(seqs):
    for num_steps in (1, 5, 11, 12):
        with DataLoader(StaticDataset(seqs), batch_sampler=BySize()) as loader:
            for _ in zip(range(num_steps), loader, strict=False):
                pass
            state = json.loads(json.dumps(loader.state_dict()))
        found = []
        for rank in (0, 1):
            ranks = {"rank": rank, "world_size": 2, "remainder": "keep"}
            with DataLoader(StaticDataset(seqs), batch_sampler=BySize(), **ranks) as loader:
                loader.load_state_dict(state)
                found += [(batch.position, batch.corpus_idx.tolist()) for batch in next(loader.epochs())]
        assert sorted(found) == list(enumerate(expected_of(1)))[num_steps:]
    with (
        DataLoader(StaticDataset(seqs), batch_sampler=BySize(shift=1)) as loader,
        pytest.raises(ResumeError, match="another order"),
    ):
        loader.load_state_dict(state)


def test_other_batches_of_the_same_order_are_another_order(seqs):
    batches = [[0, 1], [2, 3, 4]]
    with DataLoader(StaticDataset(seqs), batch_sampler=batches) as loader:
        state = loader.state_dict()
    with (
        DataLoader(StaticDataset(seqs), batch_sampler=[[0, 1, 2], [3, 4]]) as loader,
        pytest.raises(ResumeError, match="another order"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("batches", "text"),
    [([[0], []], "batch 1 of the batch_sampler is empty"), ([0, 1], "batch 0 is 0"), ([["a"]], "batch 0 is")],
)
def test_what_are_no_batches_of_indices_is_refused(seqs, batches, text):
    with DataLoader(StaticDataset(seqs), batch_sampler=batches) as loader, pytest.raises(ConfigError, match=text):
        next(iter(loader))


def test_a_sampler_without_batches_is_an_empty_epoch(seqs):
    with DataLoader(StaticDataset(seqs), batch_sampler=[]) as loader:
        assert list(loader) == []
        assert len(loader) == 0


def test_a_sampler_in_a_batch_sampler_that_shares_out_is_one_level(seqs):
    class Shared:
        num_replicas, rank, epoch = 2, 1, 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter(range(self.epoch, 40, 2))

    class Pairs:
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            indices = list(self.sampler)
            return iter([indices[i : i + 2] for i in range(0, len(indices), 2)])

    with pytest.raises(ConfigError, match=r"two levels.*num_replicas=2 of Shared"):
        DataLoader(StaticDataset(seqs), batch_sampler=Pairs(Shared()), rank=1, world_size=2)
    with DataLoader(StaticDataset(seqs), batch_sampler=Pairs(Shared()), remainder="keep") as loader:
        assert next(iter(loader)).corpus_idx.tolist() == [1, 3]


def test_repeated_indices_get_noise_of_their_own(seqs):
    def noise(seq, rng):
        return {"data": seq["data"] + rng.random()}

    with DataLoader(StaticDataset(seqs), batch_sampler=[[3, 3], [3]], transform=noise) as loader:
        found = [value for batch in loader for value in batch["data"][:, 0, 0].tolist()]
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 2, "sampler": iter([1, 2])}, "can be iterated over only once"),
        ({"batch_sampler": iter([[1, 2]])}, "can be iterated over only once"),
    ],
)
def test_a_sampler_that_would_be_empty_in_the_second_epoch_is_refused(seqs, options, text):
    with pytest.raises(ConfigError, match=text):
        DataLoader(StaticDataset(seqs), **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 2, "sampler": [1.5, 2]}, "a sampler must yield indices"),
        ({"batch_size": 2, "sampler": ["a"]}, "a sampler must yield indices"),
        ({"batch_size": 2, "sampler": [[1, 2]]}, "batch_sampler="),
        ({"batch_sampler": [[1.5]]}, "lists of indices"),
        ({"batch_size": 2, "sampler": [3, 40]}, "index 40, and there are 40 sequences"),
        ({"batch_size": 2, "sampler": [-1, 2]}, "index -1, and there are 40 sequences"),
        ({"batch_sampler": [[1], [2, 99]]}, "index 99, and there are 40 sequences"),
    ],
)
def test_what_is_no_index_of_a_sequence_is_refused(seqs, options, text):
    with DataLoader(StaticDataset(seqs), **options) as loader, pytest.raises(ConfigError, match=text):
        list(iter(loader))
