"""What a loader was given can be read from it, as from torch's."""

import numpy as np
import pytest

import headrace as hr


def double(seq):
    return {key: value * 2 for key, value in seq.items()}


def test_a_loader_by_count_has_what_that_of_torch_has():
    items = [1, 2, 3, 4, 5]
    with hr.DataLoader(items, batch_size=2, drop_last=True, num_workers=1, executor="thread", seed=7) as loader:
        assert loader.dataset is items
        assert len(loader.dataset) == 5
        assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.seed) == (2, True, 1, 7)
        assert loader.batching == hr.FixedCount(2, last="drop")
        assert (loader.collate, loader.transform, loader.sampler, loader.batch_sampler) == (None,) * 4
        loader.resize(2)
        assert loader.num_workers == 2


def test_the_second_positional_argument_is_the_batch_size_as_in_torch():
    assert [batch.tolist() for batch in hr.DataLoader([1, 2, 3, 4, 5], 4)] == [[1, 2, 3, 4], [5]]


def test_batches_by_length_have_no_size():
    seqs = [{"data": np.zeros(frames, np.float32)} for frames in (3, 5)]
    with hr.DataLoader(seqs, batching=hr.FrameBudget(8), transform=double) as loader:
        assert (loader.batch_size, loader.drop_last, loader.num_workers) == (None, False, 0)
        assert loader.batching == hr.FrameBudget(8)
        assert loader.transform is double


def test_samplers_and_collate_are_those_that_were_given():
    sampler, batches = [2, 0], [[0, 1], [2]]
    with hr.DataLoader([1, 2, 3], batch_size=2, sampler=sampler, collate=sum) as loader:
        assert loader.sampler is sampler
        assert (loader.batch_sampler, loader.batch_size, loader.collate) == (None, 2, sum)
    with hr.DataLoader([1, 2, 3], batch_sampler=batches) as loader:
        assert loader.batch_sampler is batches
        assert (loader.sampler, loader.batch_size) == (None, None)


def test_sequences_without_batches_have_no_size():
    with hr.DataLoader([1, 2, 3], batch_size=None) as loader:
        assert (loader.batch_size, loader.collate) == (None, None)
    with hr.DataLoader([1, 2, 3], batch_size=None, collate=str) as loader:
        assert loader.collate is str


def test_what_was_given_cannot_be_set():
    with hr.DataLoader([1], batch_size=1) as loader, pytest.raises(AttributeError):
        loader.batch_size = 2
