"""Options that are wrong, unknown, or contradict each other are refused when the loader is built."""

import copy
import inspect
import pickle
import re

import numpy as np
import pytest

from headrace import ConfigError, MapDataset, StaticDataset
from headrace.batching import BatchOrder, Buckets, FixedCount, FrameBudget
from headrace.loading import DataLoader

pytestmark = pytest.mark.usefixtures("warm_workers")

WRONG = [
    ({"batching": None}, "the size of a batch is not given"),
    ({"batching": 32}, "must be a policy"),
    ({"num_workers": -1}, "num_workers"),
    ({"num_workers": 1.5}, "num_workers"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**70}, "seed"),
    ({"remainder": "repeat"}, "remainder"),
    ({"rank": 1}, "world_size=None must be given together"),
    ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
    ({"executor": "cluster"}, "no executor 'cluster'"),
    ({"transform": 3}, "transform"),
    ({"collate": "stack"}, "collate"),
    ({"recipe_version": 3}, "recipe_version"),
    ({"window_seqs": 0}, "window_seqs"),
    ({"pad_multiple": 0}, "pad_multiple"),
    ({"batch_order": "shuffle"}, "batch_order"),
    ({"engine_options": {}}, "engine_options"),
    ({"steps_per_epoch": 3}, "for streams"),
    ({"max_bytes": 100, "executor": "thread"}, "max_bytes"),
    ({"collate": list, "pad_multiple": 8}, "pad_multiple have no effect"),
    ({"batching": FrameBudget(10, data_key="dta")}, "'dta'"),
    ({"num_wrokers": 2}, "did you mean 'num_workers'"),
    ({"fields": {}}, "open_source(files, fields=...)"),
    ({"seq_ordering": "random"}, "SourceDataset(files, seq_ordering=...)"),
    ({"batch_size": 4}, "batching and batch_size"),
    ({"batch_sampler": [[1]]}, "batch_sampler and batching both"),
    ({"batching": None, "batch_sampler": [[1]], "batch_size": 3}, "batch_sampler and batch_size both"),
    ({"batching": None, "batch_sampler": [[1]], "shuffle": True}, "batch_sampler and shuffle both"),
    ({"drop_last": True}, "drop_last"),
    ({"shuffle": True, "sampler": [1]}, "shuffle=True and sampler"),
]


@pytest.mark.parametrize(("options", "text"), WRONG)
def test_a_wrong_option_is_refused_before_anything_starts(seqs, options, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        DataLoader(StaticDataset(seqs), **{"batching": FixedCount(4), **options})


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("collate_fn", "collate="),
        ("pin_memory", "to_device"),
        ("pin_memory_device", "to_device"),
        ("persistent_workers", "omit it"),
        ("in_order", "omit it"),
        ("timeout", "stall_seconds"),
        ("worker_init_fn", "worker_init="),
        ("multiprocessing_context", "start_method"),
        ("generator", "seed="),
        ("prefetch_factor", "tickets_per_worker"),
    ],
)
def test_an_option_of_torch_alone_is_refused_with_ours_and_with_the_class_that_has_it(option, instead):
    with pytest.raises(ConfigError, match=f"{option}.*\n.*{instead}.*from headrace.torch import DataLoader"):
        DataLoader([1], batch_size=1, **{option: None})


@pytest.mark.parametrize("carry", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_that_is_carried_elsewhere_says_what_to_do_instead(seqs, carry):
    with (
        DataLoader(StaticDataset(seqs), batch_size=10) as loader,
        pytest.raises(ConfigError, match=r"make one in the other process, and give it the state_dict\(\) of this one"),
    ):
        carry(loader)


@pytest.mark.parametrize("dataset", [3, object(), StaticDataset, iter([1])])
def test_what_cannot_be_loaded_is_refused(dataset):
    with pytest.raises(ConfigError):
        DataLoader(dataset, batch_size=2)


def test_options_of_the_epoch_api_that_would_do_nothing_are_refused(seqs):
    with pytest.raises(ConfigError, match="batching=Chunks"):
        DataLoader(StaticDataset(seqs, chunking=10), batching=FixedCount(2))
    with pytest.raises(ConfigError, match="shuffle_frames_of_nseqs=2"):
        DataLoader(StaticDataset(seqs, shuffle_frames_of_nseqs=2), batching=FixedCount(2))


class NoLengths:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {"data": np.zeros(3, np.float32)}


def test_a_budget_without_lengths_is_refused():
    for batching in (FrameBudget(10), Buckets(FixedCount(2))):
        with pytest.raises(ConfigError, match="needs the lengths"):
            DataLoader(MapDataset(NoLengths()), batching=batching)
    with DataLoader(NoLengths(), batch_size=3) as loader:
        assert [batch["data"].shape for batch in loader] == [(3, 3), (1, 3)]


def test_runs_of_the_order_keep_it_and_buckets_are_shuffled(seqs):
    def places(**options):
        with DataLoader(StaticDataset(seqs), **options) as loader:
            return [int(batch.seq_idx[0]) for batch in loader]

    assert places(batching=FrameBudget(30)) == sorted(places(batching=FrameBudget(30)))
    assert places(batching=FixedCount(2), batch_order=BatchOrder()) != sorted(places(batching=FixedCount(2)))
    assert places(batching=Buckets(FixedCount(2))) != sorted(places(batching=Buckets(FixedCount(2))))


def test_an_empty_dataset_has_no_batches():
    for dataset in (StaticDataset([]), []):
        with DataLoader(dataset, batching=FixedCount(3)) as loader:
            assert list(loader) == []
            assert len(loader) == 0


def test_the_memory_of_workers_is_bounded_by_max_bytes(seqs):
    options = {"max_bytes": 8 << 20, "num_workers": 2}
    with DataLoader(StaticDataset(seqs), batching=FixedCount(4), **options) as loader:
        assert loader._runs.engine._workers.executor._max_bytes == 4 << 20
        assert len(list(loader)) == 10


def test_each_word_of_torch_is_an_argument_that_help_shows():
    words = inspect.signature(DataLoader).parameters
    assert {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"} <= words.keys()
    assert "batch_size: Torch's word" in inspect.getdoc(DataLoader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batch_size_none_delivers_sequences_one_by_one_as_they_are(seqs, num_workers):
    with DataLoader(StaticDataset(seqs), batch_size=None, num_workers=num_workers) as loader:
        assert len(loader) == len(seqs)
        for got, seq in zip(loader, seqs, strict=True):
            assert got.keys() == seq.keys()
            assert all(np.array_equal(got[key], seq[key]) for key in seq)
    with DataLoader([(1, "a"), (2, "b")], batch_size=None, num_workers=num_workers) as loader:
        assert list(loader) == [(1, "a"), (2, "b")]
    with DataLoader([1, 2], batch_size=None, collate=lambda item: item * 10, num_workers=num_workers) as loader:
        assert list(loader) == [10, 20]
    with DataLoader(range(3, 6), batch_size=None, sampler=[2, 0], num_workers=num_workers) as loader:
        assert list(loader) == [5, 3]


def test_batch_size_none_says_nothing_where_something_else_says_what_a_batch_is(seqs):
    for options in ({"batching": FixedCount(4)}, {"batch_sampler": [range(4)]}):
        with DataLoader(StaticDataset(seqs), batch_size=None, **options) as loader:
            assert next(iter(loader)).num_seqs == 4


def test_an_epoch_that_is_counted_from_zero_is_refused_with_what_to_give(seqs):
    with (
        DataLoader(StaticDataset(seqs), batch_size=10) as loader,
        pytest.raises(ConfigError, match=r"numbered from 1, got 0\n  fix: give epoch \+ 1"),
    ):
        loader.set_epoch(0)
