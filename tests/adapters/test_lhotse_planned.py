"""`PlannedCutSampler`: budgets, equal steps, no cut lost, and positions that any number of ranks goes on from."""

import itertools
import json
import pickle
import random
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lhotse = pytest.importorskip("lhotse")
    from lhotse import CutSet, MonoCut
    from lhotse.dataset.sampling.base import CutSampler

from headrace import LhotseDataLoader
from headrace.adapters.lhotse import PlannedCutSampler
from headrace.errors import ConfigError, ResumeError

pytestmark = pytest.mark.filterwarnings("ignore")  # lhotse's and torch's own


def make_cuts(durations):
    return CutSet.from_cuts(MonoCut(f"cut-{number}", 0.0, duration, 0) for number, duration in enumerate(durations))


def some_cuts(num=200, seed=0):
    return make_cuts(np.random.RandomState(seed).lognormal(1.0, 0.6, num).round(4).tolist())


class Ids:
    def __getitem__(self, batch):
        return list(batch.ids)


class Noisy:
    def __getitem__(self, batch):
        return list(batch.ids), random.random()


def all_ids(batches):
    return sorted(itertools.chain.from_iterable(batches))


def ids_of(sampler):
    return [list(batch.ids) for batch in sampler]


durations = st.lists(st.floats(0.01, 40.0).map(lambda value: round(value, 3)), min_size=1, max_size=60)


@examples(60)
@given(
    durations=durations,
    max_duration=st.floats(5.0, 100.0),
    max_cuts=st.none() | st.integers(1, 9),
    quadratic=st.none() | st.floats(1.0, 50.0),
    world_size=st.integers(1, 4),
    options=st.fixed_dictionaries(
        {"shuffle": st.booleans(), "seed": st.integers(0, 3), "num_buckets": st.integers(1, 9)}
    ),
)
def test_all_cuts_come_within_the_budget_and_ranks_have_equal_steps(
    durations, max_duration, max_cuts, quadratic, world_size, options
):
    def measure(duration):
        return duration if quadratic is None else duration + duration**2 / quadratic

    durations = [one for one in durations if measure(one) <= max_duration] or [0.01]
    cuts = make_cuts(durations)
    found = []
    for rank in range(world_size):
        sampler = PlannedCutSampler(
            cuts,
            max_duration=max_duration,
            max_cuts=max_cuts,
            quadratic_duration=quadratic,
            world_size=world_size,
            rank=rank,
            window_cuts=16,
            **options,
        )
        batches = list(sampler)
        assert len(batches) == len(sampler)
        for batch in batches:
            longest = max(measure(cut.duration) for cut in batch)
            assert len(batch) * longest <= max_duration + 1e-6
            assert max_cuts is None or len(batch) <= max_cuts
        found.append([tuple(batch.ids) for batch in batches])
    assert len({len(batches) for batches in found}) == 1
    in_order = [batch for step in zip(*found, strict=True) for batch in step]
    num_repeated = len(in_order) - len(set(in_order))
    assert num_repeated < world_size
    assert sorted(itertools.chain.from_iterable(set(in_order))) == sorted(cuts.ids)


@examples(40)
@given(
    stops=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=3),
    last=st.integers(1, 4),
    window_cuts=st.integers(3, 80),
    epoch=st.integers(0, 3),
)
def test_any_number_of_ranks_goes_on_and_no_cut_is_lost_or_comes_twice(stops, last, window_cuts, epoch):
    cuts = some_cuts(60)

    def open_sampler(rank, world_size):
        sampler = PlannedCutSampler(
            cuts, max_duration=30.0, rank=rank, world_size=world_size, window_cuts=window_cuts, num_buckets=4
        )
        sampler.set_epoch(epoch)
        return sampler

    expected = ids_of(open_sampler(0, 1))
    found, state = [], None
    for world_size, steps in [*stops, (last, None)]:
        samplers = [open_sampler(rank, world_size) for rank in range(world_size)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(json.loads(json.dumps(state)))
        parts = [[list(batch.ids) for batch in itertools.islice(sampler, steps)] for sampler in samplers]
        found += [batch for step in zip(*parts, strict=True) for batch in step]
        states = [sampler.state_dict() for sampler in samplers]
        assert all(one == states[0] for one in states), "the state is the same on all ranks"
        state = states[0]
    assert found[: len(expected)] == expected
    assert all(batch in expected for batch in found[len(expected) :])
    assert len(found) < len(expected) + max([last, *(world_size for world_size, _ in stops)])


@pytest.mark.long
def test_the_loader_resumes_with_another_number_of_ranks_and_the_same_noise():
    cuts = some_cuts(80)

    def open_loader(rank, world_size, workers=0):
        sampler = PlannedCutSampler(cuts, max_duration=30.0, rank=rank, world_size=world_size, num_buckets=4)
        sampler.set_epoch(2)
        return LhotseDataLoader(Noisy(), sampler, num_workers=workers, seed=5)

    with open_loader(0, 1) as loader:
        expected = list(loader)
    for worlds in ((1, 2), (2, 1), (3, 2), (2, 2)):
        found, state = [], None
        for world_size, steps in zip(worlds, (3, None), strict=True):
            parts = []
            for rank in range(world_size):
                with open_loader(rank, world_size, workers=rank % 2) as loader:
                    if state is not None:
                        loader.load_state_dict(json.loads(json.dumps(state)))
                    parts.append(list(itertools.islice(loader, steps)))
                    last_state = loader.state_dict()
            state = last_state
            found += [batch for step in zip(*parts, strict=True) for batch in step]
        assert found[: len(expected)] == expected


def test_a_resumed_loader_draws_nothing_again():
    drawn = []

    class Watched(PlannedCutSampler):
        def __next__(self):
            drawn.append(self.position)
            return super().__next__()

    cuts = some_cuts(300)
    with LhotseDataLoader(Noisy(), Watched(cuts, max_duration=20.0), num_workers=0) as loader:
        num = len(list(loader))
        batches = list(itertools.islice(loader, num - 2))
        assert len(batches) == num - 2
        state = loader.state_dict()
    drawn.clear()
    with LhotseDataLoader(Noisy(), Watched(cuts, max_duration=20.0), num_workers=0) as loader:
        loader.load_state_dict(state)
        assert len(list(itertools.islice(loader, 10))) == 2
    assert drawn[0] == num - 2
    assert len(drawn) == 3  # two, and the end


def test_it_is_a_sampler_of_lhotse():
    sampler = PlannedCutSampler(some_cuts(), max_duration=30.0)
    assert isinstance(sampler, CutSampler)
    assert sampler.num_cuts == 200
    mapped = PlannedCutSampler(some_cuts(), max_duration=30.0).map(lambda batch: batch.subset(first=1))
    assert [len(batch) for batch in mapped] == [1] * len(sampler)
    long = PlannedCutSampler(some_cuts(), max_duration=30.0).filter(lambda cut: cut.duration > 3)
    assert sorted(cut.id for batch in long for cut in batch) == sorted(
        cut.id for cut in some_cuts() if cut.duration > 3
    )


def test_epochs_differ_and_repeat():
    sampler = PlannedCutSampler(some_cuts(), max_duration=30.0, seed=3)
    first, again = ids_of(sampler), ids_of(sampler)
    sampler.set_epoch(1)
    second = ids_of(sampler)
    assert first == again
    assert second != first
    assert all_ids(second) == all_ids(first)
    assert ids_of(PlannedCutSampler(some_cuts(), max_duration=30.0, seed=4)) != first


def test_there_is_little_padding():
    counts = PlannedCutSampler(some_cuts(5000), max_duration=100.0).count()
    assert counts.seqs == counts.pieces == 5000
    assert 1 - counts.frames / counts.padded_frames < 0.06


def test_a_cut_over_the_budget_comes_alone():
    batches = ids_of(PlannedCutSampler(make_cuts([1.0, 2.0, 50.0, 1.5]), max_duration=10.0))
    assert ["cut-2"] in batches
    assert all_ids(batches) == ["cut-0", "cut-1", "cut-2", "cut-3"]


def test_dropping_the_last_leaves_out_less_than_a_step():
    lengths = []
    for rank in range(3):
        sampler = PlannedCutSampler(some_cuts(), max_duration=30.0, drop_last=True, rank=rank, world_size=3)
        lengths.append(len(ids_of(sampler)))
    whole = len(PlannedCutSampler(some_cuts(), max_duration=30.0))
    assert lengths == [whole // 3] * 3


def test_no_cuts_are_an_empty_epoch():
    assert ids_of(PlannedCutSampler(CutSet.from_cuts([]), max_duration=10.0)) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "the size of a batch is not given"),
        ({"max_duration": 0}, "max_duration must be"),
        ({"max_duration": float("nan")}, "max_duration must be"),
        ({"max_duration": "10"}, "max_duration must be"),
        ({"max_duration": 1, "quadratic_duration": -1}, "quadratic_duration must be"),
        ({"max_cuts": 0}, "max_cuts must be"),
        ({"max_cuts": 1, "seed": "trng"}, "seed must be"),
        ({"max_cuts": 1, "rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"max_cuts": 1, "rank": 0}, "given together"),
        ({"max_cuts": 1, "window_cuts": 0}, "window_cuts must be"),
        ({"max_cuts": 1, "num_buckets": 0}, "num_buckets"),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        PlannedCutSampler(some_cuts(5), **options)


def test_lazy_cuts_are_refused_with_the_way_out(tmp_path):
    some_cuts(5).to_file(tmp_path / "cuts.jsonl")
    with pytest.raises(ConfigError, match="to_eager"):
        PlannedCutSampler(CutSet.from_jsonl_lazy(tmp_path / "cuts.jsonl"), max_cuts=2)


def test_a_budget_that_nothing_fits_into_is_refused():
    sampler = PlannedCutSampler(make_cuts([5.0, 6.0]), max_duration=0.01)
    with pytest.raises(ConfigError, match="smaller than any"):
        ids_of(sampler)


@pytest.mark.parametrize(
    "change",
    [
        {"max_duration": 31.0},
        {"seed": 1},
        {"shuffle": False},
        {"cuts": some_cuts(199)},
        {"drop_last": True},
        {"num_buckets": 3},
    ],
)
def test_a_state_of_another_plan_is_refused(change):
    state = PlannedCutSampler(some_cuts(), max_duration=30.0).state_dict()
    sampler = PlannedCutSampler(**{"cuts": some_cuts(), "max_duration": 30.0, **change})
    with pytest.raises(ResumeError, match="other cuts"):
        sampler.load_state_dict(state)


@pytest.mark.parametrize(
    "damage",
    [
        {"format": "x"},
        {"position": -1},
        {"position": "1"},
        {"window": [0]},
        {"window": None},
        {"window": [1, 5]},
        {"epoch": None},
        {"digest": ""},
    ],
)
def test_a_damaged_state_is_refused(damage):
    sampler = PlannedCutSampler(some_cuts(), max_duration=30.0)
    with pytest.raises(ResumeError):
        sampler.load_state_dict({**sampler.state_dict(), **damage})


def test_the_ranks_are_looked_up_when_an_epoch_begins_and_may_not_change_then(monkeypatch):
    """As where `init_process_group` comes after the sampler was made."""
    cuts = some_cuts()
    sampler = PlannedCutSampler(cuts, max_duration=30.0)
    loader = LhotseDataLoader(Ids(), PlannedCutSampler(cuts, max_duration=30.0), num_workers=0)
    assert (sampler.rank, sampler.world_size) == (0, 1)
    copied = pickle.loads(pickle.dumps(sampler))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    expected = ids_of(PlannedCutSampler(cuts, max_duration=30.0, rank=1, world_size=2))
    assert len(sampler) == len(expected)
    with loader:
        assert loader.state_dict()["world_size"] == 2
        assert list(loader) == expected
        monkeypatch.setenv("WORLD_SIZE", "3")
        with pytest.raises(ConfigError, match=r"started as rank 1 of 2 .*and is rank 1 of 3"):
            iter(loader)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for one in (sampler, copied):
        assert ids_of(one) == expected
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"started as rank 1 of 2 .*and is rank 1 of 3"):
        iter(sampler)


def test_a_worker_process_keeps_the_rank_that_it_was_told(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sampler = PlannedCutSampler(some_cuts(), max_duration=30.0)
    told = pickle.dumps(sampler)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr("os.getpid", lambda: -1)  # what a worker sees
    assert (pickle.loads(told).rank, pickle.loads(told).world_size) == (1, 2)
