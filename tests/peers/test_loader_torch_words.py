"""What torch users type, next to torch's own loader: real datasets, samplers and batch samplers of torch."""

import numpy as np
import pytest

import headrace as hr

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.extra
data = torch.utils.data


class Pairs(data.Dataset):
    """A map-style dataset of torch."""

    def __len__(self):
        return 23

    def __getitem__(self, i):
        return torch.full((3,), float(i)), i


class Stream(data.IterableDataset):
    """An iterable dataset of torch."""

    def __init__(self, num):
        super().__init__()
        self.num = num

    def __iter__(self):
        return ((torch.full((2,), float(i)), i) for i in range(self.num))


def as_lists(loader):
    return [[np.asarray(part).tolist() for part in batch] for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": 4, "shuffle": False},
        {"batch_size": 5, "sampler": range(20, 3, -3)},
        {"batch_sampler": [[1, 5, 2], [22], [0, 0]]},
        {"batch_sampler": data.BatchSampler(data.SequentialSampler(range(23)), 6, False)},
    ],
)
def test_the_batches_are_those_of_torch(options, workers):
    expected = as_lists(data.DataLoader(Pairs(), **options))
    with hr.DataLoader(Pairs(), num_workers=workers, **options) as loader:
        assert len(loader) == len(expected)
        assert as_lists(loader) == expected
        assert as_lists(loader) == expected


def test_each_epoch_of_shuffle_has_every_item_once_in_another_order():
    with hr.DataLoader(Pairs(), batch_size=4, shuffle=True, num_workers=1) as loader:
        epochs = [[i for _, numbers in as_lists(loader) for i in numbers] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(23))] * 2
    assert epochs[0] != epochs[1] != list(range(23))


def test_a_random_sampler_of_torch_is_random_and_its_state_is_not_taken_for_another():
    def make(**options):
        sampler = data.BatchSampler(data.RandomSampler(range(23)), 4, True)
        return hr.DataLoader(Pairs(), batch_sampler=sampler, **options)

    with make(seed_globals=False) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with make(seed_globals=False) as loader, pytest.raises(hr.ResumeError, match="another order"):
        loader.load_state_dict(state)


def test_a_random_sampler_of_torch_that_draws_by_the_seed_of_the_loader_is_resumed():
    def make(seed):
        sampler = data.BatchSampler(data.RandomSampler(range(23)), 4, True)
        return hr.DataLoader(Pairs(), batch_sampler=sampler, seed=seed)

    with make(1) as loader:
        whole = as_lists(loader)
    with make(1) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with make(1) as loader:
        loader.load_state_dict(state)
        assert as_lists(loader) == whole[1:]
    with make(2) as loader, pytest.raises(hr.ResumeError):
        loader.load_state_dict(state)


def test_a_distributed_sampler_in_a_batch_sampler_is_one_level():
    sampler = data.DistributedSampler(range(23), num_replicas=2, rank=1, shuffle=False)
    batches = data.BatchSampler(sampler, 4, False)
    with hr.DataLoader(Pairs(), batch_sampler=batches) as loader:  # it gives all ranks equally many
        assert len(loader) == 3
        assert [i for _, numbers in as_lists(loader) for i in numbers][:3] == [1, 3, 5]
    with hr.DataLoader(Pairs(), batch_size=5, sampler=sampler) as loader:
        assert len(as_lists(loader)) == 3
    with pytest.raises(hr.ConfigError, match="promises equal steps"):
        hr.DataLoader([{"data": np.zeros(i)} for i in range(1, 24)], batching=hr.FrameBudget(30), sampler=sampler)
    with pytest.raises(hr.ConfigError, match="two levels"):
        hr.DataLoader(Pairs(), batch_sampler=batches, rank=1, world_size=2)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_iterable_dataset_of_torch_comes_once_whatever_the_number_of_workers(workers):
    expected = as_lists(data.DataLoader(Stream(11), batch_size=4))
    with hr.DataLoader(Stream(11), batch_size=4, num_workers=workers) as loader:
        assert as_lists(loader) == expected


class Sized(Stream):
    """An iterable dataset that says how long it is."""

    def __len__(self):
        return self.num


def test_an_iterable_dataset_of_torch_with_a_length_is_no_map_style_dataset():
    with hr.DataLoader(Sized(11), batch_size=4, num_workers=1) as loader:
        assert [len(numbers) for _, numbers in loader] == [4, 4, 3]
    with pytest.raises(hr.ConfigError, match="a stream defines its own order"):
        hr.DataLoader(Sized(11), batch_size=4, shuffle=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 4, "batch_sampler": [[1]]}, "batch_sampler and batch_size both"),
        ({"batch_size": 4, "shuffle": True, "sampler": [1]}, "shuffle=True and sampler"),
        ({}, "the size of a batch is not given"),
        ({"batch_size": 0}, "num_seqs"),
        ({"batch_size": 4, "num_worker": 1}, "did you mean 'num_workers'"),
    ],
)
def test_what_contradicts_itself_is_refused(options, text):
    with pytest.raises(hr.ConfigError, match=text):
        hr.DataLoader(Pairs(), **options)
