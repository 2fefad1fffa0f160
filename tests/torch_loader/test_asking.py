"""A sampler that draws while it is asked is asked as torch asks it: what follows a loop that was left is the same."""

from __future__ import annotations

import random
import time

import pytest

torch = pytest.importorskip("torch", reason="headrace.torch is a loader for PyTorch")

from torch.utils import data as torch_data  # noqa: E402

from headrace.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.extra


class Drawing(torch_data.Sampler):
    """Draws each index when it is asked, from a generator that the training uses as well."""

    def __init__(self, fails_at=None):
        self.fails_at = fails_at

    def __len__(self):
        return 64

    def __iter__(self):
        for number in range(64):
            if number == self.fails_at:
                raise OSError("the list of indices is lost")
            yield random.randrange(64)


class DrawnAtOnce(Drawing):
    def __iter__(self):
        return iter([random.randrange(64) for _ in range(64)])


def sampled(generator, **options):
    return torch_data.RandomSampler(range(100), generator=generator, **options)


SAMPLERS = {
    "shuffled": lambda _: {"shuffle": True},
    "shuffled, full batches": lambda _: {"shuffle": True, "drop_last": True},
    "with replacement": lambda generator: {"sampler": sampled(generator, replacement=True)},
    "more than there are": lambda generator: {"sampler": sampled(generator, num_samples=250)},
    "drawing": lambda _: {"sampler": Drawing()},
    "drawn at once": lambda _: {"sampler": DrawnAtOnce()},
    "drawing, further ahead": lambda _: {"sampler": Drawing(), "prefetch_factor": 3},
}


def first_batches(make_loader, sampler, stop_at, pause):
    """Return the first batch of three loops that are left early, and what the training draws after each."""
    generator = torch.Generator().manual_seed(1)
    random.seed(2)
    loader = make_loader(range(100), 4, num_workers=2, generator=generator, **SAMPLERS[sampler](generator))
    found = []
    for _ in range(3):
        for number, batch in enumerate(loader):
            if number == 0:
                found.append(batch.tolist())
            if number == stop_at:
                break
            time.sleep(pause)
        found.append(random.random())
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_after_a_loop_that_was_left_early_the_next_has_torchs_order_however_quick_the_workers_were(sampler):
    expected = first_batches(torch_data.DataLoader, sampler, 2, 0)
    assert first_batches(DataLoader, sampler, 2, 0) == expected
    assert first_batches(DataLoader, sampler, 2, 0.05) == expected


@pytest.mark.sample(3)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_whole_epoch_is_torchs(sampler):
    def batches(make_loader):
        generator = torch.Generator().manual_seed(1)
        random.seed(2)
        loader = make_loader(range(100), 4, num_workers=1, generator=generator, **SAMPLERS[sampler](generator))
        return [batch.tolist() for _ in range(2) for batch in loader]

    assert batches(DataLoader) == batches(torch_data.DataLoader)


def test_an_error_of_the_sampler_comes_after_the_batches_before_it():
    loader = DataLoader(range(100), 4, num_workers=2, sampler=Drawing(fails_at=42))
    found = []
    with pytest.raises(OSError, match="the list of indices is lost"):
        found.extend(len(batch) for batch in loader)
    assert found == [4] * 10


def test_a_sampler_that_draws_nothing_on_the_way_is_asked_for_many_batches_at_once():
    asked = []

    class Counted(Drawing):
        def __iter__(self):
            for number in range(64):
                asked.append(number)
                yield number

    batches = iter(DataLoader(range(64), 1, num_workers=2, sampler=Counted()))
    next(batches)
    assert len(asked) == 64
    assert [batch.item() for batch in batches] == list(range(1, 64))
