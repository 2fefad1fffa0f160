"""The loaders for trainers: a stream with interruptions is the stream without, epochs begin at 0, none is cut short."""

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples

torch = pytest.importorskip("torch")

from headrace import Buckets, ConfigError, DataLoader, FixedCount, FrameBudget, HeadraceError, StaticDataset  # noqa: E402
from headrace.adapters.torch import TorchLoader, to_device  # noqa: E402
from headrace.adapters.trainers import EpochLoader, EvalLoader, StepLoader, check_divided  # noqa: E402
from headrace.errors import ResumeError  # noqa: E402

pytestmark = pytest.mark.extra

BATCHINGS = [FixedCount(4), FrameBudget(29), Buckets(FrameBudget(29), num_buckets=3)]


def open_loader(batching=BATCHINGS[1], num_seqs=37, **options):
    seqs = [{"data": np.full((7 * i % 11 + 1, 2), i, np.float32)} for i in range(num_seqs)]
    return DataLoader(StaticDataset(seqs, seq_ordering="random"), batching=batching, **options)


def print_of(batch):
    assert isinstance(batch["data"], torch.Tensor)
    return batch.epoch, batch.position, batch.tags, batch["data"].sum().item()


def whole_stream(batching, num_epochs, **options):
    with open_loader(batching, **options) as loader:
        return [print_of(batch) for epoch in loader.epochs(1, num_epochs) for batch in map(tensors, epoch)]


def tensors(batch):
    return batch.map_arrays(torch.from_numpy)


@examples(20)
@given(
    batching=st.sampled_from(BATCHINGS),
    rank=st.sampled_from([(0, 1), (0, 2), (1, 2)]),
    cuts=st.lists(st.integers(1, 12), max_size=4),
)
def test_an_epoch_loader_that_is_interrupted_gives_what_one_gives_that_is_not(batching, rank, cuts):
    ranks = {"rank": rank[0], "world_size": rank[1]}
    expected = whole_stream(batching, 3, **ranks)
    found, state = [], None
    for cut in [*cuts, None]:
        with open_loader(batching, **ranks) as inner:
            loader = EpochLoader(inner)
            if state is not None:
                loader.load_state_dict(json.loads(state))
            left = len(expected) if cut is None else cut
            for epoch in range(loader.epoch, 3):
                loader.set_epoch(epoch)
                for batch in loader:
                    found.append(print_of(batch))
                    left -= 1
                    if not left:
                        break
                if not left:
                    break
            state = json.dumps(loader.state_dict())
    assert found == expected


@examples(20)
@given(
    batching=st.sampled_from(BATCHINGS),
    rank=st.sampled_from([(0, 1), (0, 2), (1, 2)]),
    steps=st.sampled_from([None, 1, 5, 100]),
    cuts=st.lists(st.integers(1, 12), max_size=4),
)
def test_a_step_loader_that_is_interrupted_gives_what_one_gives_that_is_not(batching, rank, steps, cuts):
    ranks = {"rank": rank[0], "world_size": rank[1]}
    expected = whole_stream(batching, 3, **ranks)
    found, state = [], None
    for cut in [*cuts, None]:
        with open_loader(batching, **ranks) as inner:
            loader = StepLoader(inner, steps)
            if state is not None:
                loader.load_state_dict(json.loads(state))
            left = len(expected) - len(found) if cut is None else min(cut, len(expected) - len(found))
            while left:
                loader.set_epoch(len(found) // len(loader))
                taken = [print_of(batch) for batch in islice(loader, left)]
                assert len(taken) == min(left, len(loader))
                found, left = found + taken, left - len(taken)
            state = json.dumps(loader.state_dict())
    assert found == expected


def test_epochs_are_counted_from_0():
    with open_loader() as inner:
        loader = EpochLoader(inner)
        assert loader.epoch == 0
        loader.set_epoch(0)
        assert {batch.epoch for batch in loader} == {1}
        assert loader.epoch == 1
        loader.set_epoch(4)
        assert {batch.epoch for batch in loader} == {5}
        with pytest.raises(ConfigError, match="set_epoch"):
            loader.set_epoch(-1)


@pytest.mark.parametrize("make", [open_loader, lambda: DataLoader(iter_seqs(), batching=FixedCount(3))])
def test_a_state_after_the_last_batch_of_an_epoch_begins_with_the_next(make):
    with make() as inner:
        loader = EpochLoader(inner)
        marked = [(is_last, loader.position) for _, is_last in loader.run_epoch()]
        assert [is_last for is_last, _ in marked] == [False] * (len(marked) - 1) + [True]
        assert [position.position for _, position in marked[:-1]] == list(range(1, len(marked)))
        last = marked[-1][1]
        assert (last.epoch, last.position) == (2, 0)


class iter_seqs:
    def __iter__(self):
        return ({"data": np.full((2, 1), i, np.float32)} for i in range(10))


def test_an_error_comes_after_the_batch_before_it():
    def fail(seq):
        if seq["data"][0, 0] == 11:
            raise ValueError("a bad sequence")
        return seq

    seqs = [{"data": np.full((2, 1), i, np.float32)} for i in range(20)]
    with DataLoader(StaticDataset(seqs), batching=FixedCount(4), transform=fail) as inner:
        loader, found = EpochLoader(inner), []
        with pytest.raises(ValueError, match="a bad sequence"):
            found.extend(batch.position for batch in loader)
        assert found == [0, 1]
        assert loader.position.position == 2


def test_steps_go_on_behind_the_end_of_an_epoch_and_begin_anew_with_epoch_0():
    with open_loader() as inner:
        loader = StepLoader(inner)
        num_steps = [inner.num_steps(epoch) for epoch in (1, 2, 3)]
        assert len(set(num_steps)) > 1  # or this shows nothing
        assert len(loader) == num_steps[0]
        first = [print_of(batch) for batch in loader]
        loader.set_epoch(1)
        second = [print_of(batch) for batch in loader]
        assert first + second == whole_stream(BATCHINGS[1], 3)[: 2 * len(loader)]
        loader.set_epoch(0)
        assert [print_of(batch) for batch in loader] == first


def test_a_loaded_position_outlasts_the_epoch_that_a_trainer_names():
    expected = whole_stream(BATCHINGS[1], 2)
    with open_loader() as inner:
        loader = StepLoader(inner)
        assert len(list(islice(loader, 3))) == 3
        state = loader.state_dict()
        list(islice(loader, 2))
        loader.load_state_dict(state)  # in mid-iteration
        loader.set_epoch(0)
        assert print_of(next(iter(loader))) == expected[3]


def test_a_stream_has_as_many_steps_as_are_said():
    with DataLoader(iter_seqs(), batching=FixedCount(4)) as inner:
        loader = StepLoader(inner, 5)
        assert [(batch.epoch, batch.position) for batch in loader] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
        with pytest.raises(TypeError, match="steps_per_epoch"):
            len(StepLoader(inner))


@pytest.mark.filterwarnings("ignore")
def test_epochs_without_a_batch_are_no_endless_loop():
    with (
        open_loader(FixedCount(4), num_seqs=5, rank=1, world_size=3) as inner,
        pytest.raises(HeadraceError, match="row"),
    ):
        StepLoader(inner).take()


def test_an_evaluation_sees_the_same_batches_each_time():
    with open_loader() as inner:
        loader = EvalLoader(inner)
        expected = [print_of(batch) for batch in loader]
        assert len(loader) == len(expected)
        next(iter(loader))  # a look at a batch
        assert [print_of(batch) for batch in loader] == expected


def test_an_evaluation_shares_sequences_equally_and_once():
    for world_size in (1, 2, 3):
        steps, tags = set(), []
        for rank in range(world_size):
            with open_loader(FixedCount(4), rank=rank, world_size=world_size) as inner:
                batches = list(EvalLoader(inner))
            steps.add(len(batches))
            tags += [tag for batch in batches for tag in batch.tags]
        assert len(steps) == 1
        assert sorted(tags) == sorted(f"seq-{number}" for number in range(37))


def test_a_view_that_is_there_already_is_read():
    expected = whole_stream(BATCHINGS[1], 1)
    for make in (TorchLoader, lambda inner: to_device(inner, "cpu")):
        with open_loader() as inner:
            assert [print_of(batch) for batch in EpochLoader(make(inner))] == expected


def test_a_loader_of_others_is_refused():
    given = torch.utils.data.DataLoader([1, 2])
    with pytest.raises(ConfigError, match=r"torch\.utils\.data.*DataLoader(.|\n)*batch_size=8"):
        StepLoader(given)


def test_a_state_of_other_data_is_refused():
    with open_loader() as inner:
        state = EpochLoader(inner).state_dict()
    with open_loader(num_seqs=26) as inner, pytest.raises(ResumeError, match="another data"):
        StepLoader(inner).load_state_dict(state)


def test_a_loader_that_is_not_divided_as_the_trainer_is_refused():
    with open_loader(rank=0, world_size=1) as inner:
        with pytest.raises(ConfigError, match=r"Lightning has 2 processes(.|\n)*rank 0 of 1 \(arguments\)"):
            check_divided(StepLoader(inner), 2, "Lightning")
        check_divided(StepLoader(inner), 1, "Lightning")
    sampler = torch.utils.data.DistributedSampler(range(10), num_replicas=2, rank=1)
    with DataLoader(list(range(10)), batch_size=2, sampler=sampler, remainder="keep") as inner:
        loader = StepLoader(inner)
        with pytest.raises(ConfigError, match=r"one state(.|\n)*shards itself"):
            check_divided(loader, 2, "Lightning")


def test_what_torch_maps_over_a_batch_reaches_all_tensors():
    from torch.utils._pytree import tree_leaves, tree_map

    with open_loader(num_seqs=5) as inner:
        batch = next(iter(TorchLoader(inner)))
    assert {id(leaf) for leaf in tree_leaves([batch])} == {id(batch["data"]), id(batch.lengths["data"])}
    found = tree_map(lambda leaf: leaf.double(), {"x": batch})["x"]
    assert found["data"].dtype == found.lengths["data"].dtype == torch.float64
    assert (found.tags, found.position) == (batch.tags, batch.position)


def test_who_asks_a_torch_loader_for_its_dataset_is_told_how_to_resume():
    with open_loader() as inner:
        loader = TorchLoader(inner)
        with pytest.raises(AttributeError, match="HeadraceTrainerMixin"):
            _ = loader.dataset
        assert getattr(loader, "dataset", None) is None
        assert not hasattr(loader, "dataset")
