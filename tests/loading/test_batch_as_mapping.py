"""A `Batch` survives what trainers do to a mapping."""

from collections import OrderedDict

import numpy as np
import pytest

from headrace import StaticDataset
from headrace.errors import SourceError
from headrace.loading import Batch, DataLoader


class OnDevice:
    """Stands for a tensor."""

    def __init__(self, where):
        self.where = where

    def to(self, device, non_blocking=False):
        return OnDevice(f"{device} {non_blocking}")

    def pin_memory(self, device=None):
        return OnDevice("pinned")


@pytest.fixture
def batch():
    with DataLoader(
        StaticDataset([{"data": np.ones((3, 2), np.float32)}, {"data": np.zeros((1, 2), np.float32)}]), batch_size=2
    ) as loader:
        return next(iter(loader))


def test_a_batch_is_made_of_a_mapping_as_trainers_do(batch):
    for mapping in ({"data": [1], "more": [2]}, OrderedDict(data=[1], more=[2])):
        made = type(batch)(mapping)
        assert isinstance(made, Batch)
        assert dict(made) == {"data": [1], "more": [2]}
        assert (made.lengths, made.tags, made.epoch, made.position, made.num_seqs) == ({}, [], -1, -1, 0)
        assert "data" in repr(made)
    assert {**batch}.keys() == {"data"}


def test_a_batch_that_was_made_of_a_mapping_shows_no_place_that_nobody_knows(batch):
    assert repr(batch).startswith("<Batch 0 of epoch 1, 2 sequences, data: ")
    made = type(batch)(dict(batch))
    assert repr(made).startswith("<Batch, data: ")
    assert "-1" not in repr(made) + made._repr_html_()


def test_a_batch_is_moved_to_a_device_with_all_that_it_knows(batch):
    moved = batch.map_arrays(lambda array: OnDevice("cpu")).to("cuda:1", non_blocking=True)
    assert moved["data"].where == moved.lengths["data"].where == "cuda:1 True"
    assert (moved.tags, moved.epoch, moved.position) == (batch.tags, batch.epoch, batch.position)
    assert moved.pin_memory("cuda")["data"].where == "pinned"
    assert batch.to("cuda")["data"] is batch["data"]


def test_keys_are_set_and_taken_out_as_of_a_dict(batch):
    batch["data"] = batch["data"] + 1
    batch["mask"] = batch["data"] > 1
    assert batch.pop("mask").dtype == bool
    assert batch.pop("mask", None) is None
    assert list(batch) == ["data"]
    assert batch["data"].max() == 2
    with pytest.raises(SourceError, match="no data key 'dat'"):
        del batch["dat"]
