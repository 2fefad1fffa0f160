"""What `headrace.torch.DataLoader` delivers is what torch's delivers."""

from __future__ import annotations

import collections
import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="headrace.torch is a loader for PyTorch")

import torch_cases as cases  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils import data as torch_data  # noqa: E402

from examples_of_laws import examples  # noqa: E402
from headrace.engine import Engine, Job, WorkerInfo  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402
from headrace.torch.work import MapTask, TorchWork, _collate_in_place  # noqa: E402

pytestmark = pytest.mark.extra


def both(dataset, **options):
    """Return what both loaders give, torch's by one process."""
    theirs = {key: value for key, value in options.items() if key not in ("num_workers", "persistent_workers")}
    torch.manual_seed(5)
    expected = list(torch_data.DataLoader(dataset, **theirs))
    torch.manual_seed(5)
    loader = DataLoader(dataset, **options)
    assert len(loader) == len(expected)
    return list(loader), expected


# --- the face ---


def test_the_signature_is_torchs():
    assert inspect.signature(DataLoader) == inspect.signature(torch_data.DataLoader)
    assert inspect.signature(DataLoader.__init__) == inspect.signature(torch_data.DataLoader.__init__)
    assert issubclass(DataLoader, torch_data.DataLoader)


def test_all_arguments_may_be_positional_and_are_attributes():
    dataset, sampler = cases.Items(int), [3, 1]
    given = (dataset, 2, False, sampler, None, 2, list, False, True, 30, print, "spawn", torch.Generator())
    rest = {"prefetch_factor": 3, "persistent_workers": True, "pin_memory_device": "", "in_order": True}
    ours, theirs = DataLoader(*given, **rest), torch_data.DataLoader(*given, **rest)
    names = [name for name in vars(theirs) if name not in ("batch_sampler", "_iterator")]
    assert {"dataset", "batch_size", "sampler", "collate_fn", "num_workers", "timeout", "generator"} <= set(names)
    for name in names:
        assert getattr(ours, name) is getattr(theirs, name) or getattr(ours, name) == getattr(theirs, name), name
    assert type(ours.batch_sampler) is torch_data.BatchSampler
    assert ours.batch_sampler.sampler is sampler
    assert ours.multiprocessing_context is theirs.multiprocessing_context


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"multiprocessing_context": "spawn"},
        {"nonsense": 1},
    ],
)
def test_wrong_arguments_are_refused_in_torchs_words(wrong):
    texts = []
    for kind in (DataLoader, torch_data.DataLoader):
        with pytest.raises((ValueError, TypeError)) as caught:
            kind([1, 2], **wrong)
        texts.append((type(caught.value), str(caught.value)))
    assert texts[0] == texts[1]


# --- batches ---


@pytest.mark.parametrize("name", cases.COLLATED)
@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}])
def test_batches_are_torchs_in_this_process(name, options):
    cases.assert_same(*both(cases.Items(cases.COLLATED[name]), **options))


def of_all_kinds(i):
    return {name: function(i) for name, function in cases.COLLATED.items()}


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": None}])
def test_batches_of_all_kinds_are_torchs_by_workers(options):
    cases.assert_same(*both(cases.Items(of_all_kinds), num_workers=2, **options))


@pytest.mark.parametrize("name", cases.REFUSED)
def test_what_torch_does_not_collate_is_refused_as_torch_does(name):
    dataset = cases.Items(cases.REFUSED[name], 4)
    caught = []
    for kind in (DataLoader, torch_data.DataLoader):
        with pytest.raises((TypeError, RuntimeError, KeyError)) as error:
            list(kind(dataset, batch_size=2))
        caught.append((type(error.value), str(error.value)))
    assert caught[0] == caught[1]


def test_what_cannot_be_collated_is_refused_by_workers_too():
    for name in ("unequal sizes", "dataclass", "sparse"):
        with pytest.raises((TypeError, RuntimeError)) as theirs:
            torch_data.default_collate([cases.REFUSED[name](0), cases.REFUSED[name](1)])
        with pytest.raises(type(theirs.value)) as ours:
            list(DataLoader(cases.Items(cases.REFUSED[name], 4), batch_size=2, num_workers=1))
        assert str(ours.value) == str(theirs.value)


leaves = st.one_of(
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.booleans(),
    st.sampled_from([torch.float32, torch.int8, torch.bfloat16, torch.bool]).flatmap(
        lambda dtype: st.lists(st.integers(0, 3), max_size=3).map(lambda shape: torch.ones(shape, dtype=dtype))
    ),
    st.lists(st.integers(0, 3), max_size=2).map(lambda shape: np.full(shape, 2.5, np.float32)),
    st.integers(0, 5).map(np.int16),
)
items = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.builds(cases.Point, inner, inner),
    ),
    max_leaves=6,
)


@given(items, st.integers(1, 3))
def test_items_of_any_structure_are_collated_as_by_torch(item, size):
    cases.assert_same(_collate_in_place([item] * size), torch_data.default_collate([item] * size))


@examples(6)
@given(st.lists(items, min_size=1, max_size=5))
def test_items_of_any_structure_come_from_workers_as_from_torch(examples):
    cases.assert_same(*both(cases.Items(examples.__getitem__, len(examples)), batch_size=None, num_workers=1))


class Loose:
    def __init__(self, seqs):
        self.seqs = seqs


def test_a_collate_of_ones_own_may_return_anything():
    for num_workers in (0, 1):
        loader = DataLoader(
            cases.Items(int), batch_size=4, collate_fn=lambda seqs: Loose([torch.tensor(seqs)]), num_workers=num_workers
        )
        assert [batch.seqs[0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_a_type_that_was_added_to_torchs_default_collate_is_known_to_workers(monkeypatch):
    from torch.utils.data._utils.collate import default_collate_fn_map

    def join(batch, *, collate_fn_map=None):
        return [record.x for record in batch]

    monkeypatch.setitem(default_collate_fn_map, cases.Record, join)
    assert list(DataLoader(cases.Items(cases.Record, 4), batch_size=2, num_workers=1)) == [[0, 1], [2, 3]]


def test_datasets_of_torch_and_those_that_give_many_items_at_once():
    tensors = torch_data.TensorDataset(torch.arange(24.0).reshape(12, 2), torch.arange(12))
    subset = torch_data.Subset(tensors, [7, 3, 5, 1])
    joined = torch_data.ConcatDataset([subset, tensors, [(torch.zeros(2), torch.tensor(1))]])
    for dataset in (tensors, subset, cases.ItemsAtOnce(int), np.arange(10.0), [1, 2, 3], range(9)):
        cases.assert_same(*both(dataset, batch_size=3))
    for dataset in (joined, cases.ItemsAtOnce(int)):
        cases.assert_same(*both(dataset, batch_size=3, num_workers=1))


def test_tensors_that_want_a_gradient_come_as_from_torch():
    loader = DataLoader(cases.Items(lambda i: torch.ones(2, requires_grad=True) * i, 4), batch_size=2, num_workers=1)
    assert [batch.tolist() for batch in loader] == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]


def test_batches_may_be_changed_and_kept():
    kept = []
    for (batch,) in DataLoader(torch_data.TensorDataset(torch.zeros(60, 4096)), batch_size=2, num_workers=1):
        batch += len(kept)
        kept.append(batch)
    assert [int(batch.min()) for batch in kept] == [int(batch.max()) for batch in kept] == list(range(30))


# --- orders ---


class Keys(torch_data.Sampler):
    def __iter__(self):
        yield from "cab"

    def __len__(self):
        return 3


@pytest.mark.parametrize("num_workers", [0, 1])
def test_orders_are_those_of_torchs_samplers(num_workers):
    dataset = cases.Items(int, 12)
    weights = [1.0] * 6 + [0.1] * 6
    for options in (
        {"shuffle": True, "batch_size": 5},
        {"sampler": torch_data.WeightedRandomSampler(weights, 20), "batch_size": 6},
        {"sampler": torch_data.RandomSampler(dataset, replacement=True, num_samples=7)},
        {"sampler": torch_data.SubsetRandomSampler([1, 5, 7])},
        {"sampler": [torch.tensor(3), np.int64(2), 1]},
        {"batch_sampler": [[1], [2, 3], (4, 5, 6)]},
        {"batch_sampler": torch_data.BatchSampler(torch_data.RandomSampler(dataset), 5, True)},
        {"sampler": range(11, 0, -3), "batch_size": None},
    ):
        cases.assert_same(*both(dataset, num_workers=num_workers, **options))
    cases.assert_same(*both({"a": 1, "b": 2, "c": 3}, sampler=Keys(), batch_size=2, num_workers=num_workers))


def test_a_generator_says_the_order_and_goes_on_from_epoch_to_epoch():
    loaders = [
        kind(range(20), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))
        for kind in (DataLoader, torch_data.DataLoader)
    ]
    ours, theirs = ([cases.plain(loader) for _ in range(3)] for loader in loaders)
    assert ours == theirs
    assert ours[0] != ours[1]


def test_a_distributed_sampler_is_told_its_epoch_as_ever():
    for rank in range(2):
        seen = []
        for kind in (DataLoader, torch_data.DataLoader):
            sampler = torch_data.DistributedSampler(range(11), num_replicas=2, rank=rank, seed=4)
            loader = kind(range(11), batch_size=2, sampler=sampler)
            epochs = []
            for epoch in (0, 1, 0):
                sampler.set_epoch(epoch)
                epochs.append(cases.plain(loader))
            seen.append(epochs)
        assert seen[0] == seen[1]
        assert seen[0][0] == seen[0][2] != seen[0][1]


def test_a_sampler_may_be_endless_and_is_asked_as_batches_are_wanted():
    asked = []

    class Endless:
        def __iter__(self):
            while True:
                asked.append(1)
                yield len(asked) % 3

    for num_workers in (0, 1):
        asked.clear()
        iterator = iter(DataLoader(range(3), batch_size=2, sampler=Endless(), num_workers=num_workers))
        assert [next(iterator).tolist() for _ in range(3)] == [[1, 2], [0, 1], [2, 0]]
        assert len(asked) == 6 if not num_workers else len(asked) < 1000


# --- iterable-style datasets ---


class Stream(torch_data.IterableDataset):
    def __init__(self, size=20, divided=True):
        self.size, self.divided = size, divided

    def __iter__(self):
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None or not self.divided else (info.id, info.num_workers)
        for i in range(first, self.size + first * 3, step):  # workers end at different times
            yield i, torch.tensor([float(i)])


@pytest.mark.parametrize("options", [{"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_streams_come_as_from_torch_worker_by_worker(options, num_workers):
    ours = list(DataLoader(Stream(), num_workers=num_workers, **options))
    theirs = list(torch_data.DataLoader(Stream(), num_workers=num_workers, **options))
    cases.assert_same(ours, theirs)


def test_a_stream_that_does_not_ask_who_it_is_comes_from_each_worker_as_by_torch():
    loader = DataLoader(Stream(5, divided=False), batch_size=None, num_workers=2)
    assert sorted(i for i, _ in loader) == sorted([*range(5), *range(5)])


def test_the_length_of_a_stream_is_what_it_says_and_torch_warns_if_it_is_longer():
    class Short(Stream):
        def __len__(self):
            return 3

    loader = DataLoader(Short(), batch_size=2)
    with pytest.raises(TypeError):
        len(DataLoader(Stream()))
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="was reported to be"):
        list(loader)


# --- what is asked of the class besides ---


def test_pin_memory_without_an_accelerator_is_said_as_by_torch():
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.warns(UserWarning, match="no accelerator is found"):
        assert len(list(DataLoader(range(4), batch_size=2, pin_memory=True))) == 2


def test_a_worker_makes_what_this_process_makes():
    dataset = cases.Items(lambda i: torch.rand(2) + i)
    work = TorchWork(dataset, False, 2, True, False, torch_data.default_collate, None, 7)
    task = MapTask(7, 3, [1, 2])
    info = WorkerInfo(0, 1, "inline", 1, "caller")
    with Engine(Job(work), num_workers=1) as engine:
        assert torch.equal(next(engine.run([task])).value, work(info)(task))


def test_dicts_with_defaults_keep_their_class():
    dataset = cases.Items(lambda i: collections.defaultdict(int, a=i), 4)
    cases.assert_same(*both(dataset, batch_size=2, num_workers=1))


def test_torchs_data_pipes_are_read():
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(12)).shuffle().sharding_filter()
    for num_workers in (0, 2):
        loader = DataLoader(pipe, batch_size=None, shuffle=True, num_workers=num_workers)
        assert sorted(loader) == list(range(12))
