"""How often a loader reads item 0 of a map-style dataset: a user's item may be expensive."""

import os

import numpy as np
import pytest

import headrace as hr
from headrace import DataLoader

pytestmark = pytest.mark.usefixtures("warm_workers")

ITEMS = {
    "array": lambda x, i: x,
    "tuple": lambda x, i: (x, i),
    "text": lambda x, i: {"data": "text", "number": i},
    "dict": lambda x, i: {"data": x, "number": i},
}


class Items:
    """Writes down who reads item 0."""

    def __init__(self, kind, path):
        self.kind, self.path = kind, path

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i == 0:
            with open(self.path, "a") as file:
                file.write(f"{os.getpid()}\n")
        return ITEMS[self.kind](np.full(3, i, np.float32), i)

    def readers(self):
        """Return whether each reading was by this process, and forget them."""
        if not self.path.exists():
            return []
        found = [int(line) == os.getpid() for line in self.path.read_text().splitlines()]
        self.path.unlink()
        return found


@pytest.mark.sample(3)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ITEMS)
def test_a_loader_reads_item_0_once_before_the_first_batch(tmp_path, kind, num_workers):
    items = Items(kind, tmp_path / "readers")
    with DataLoader(items, batch_size=2, num_workers=num_workers) as loader:
        assert items.readers() == [True]
        assert len(list(loader)) == 3
        assert items.readers() == [num_workers == 0]
        assert len(list(loader)) == 3
        assert items.readers() == [num_workers == 0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_copies_of_a_map_dataset_know_what_it_has_learnt(tmp_path, num_workers):
    items = Items("dict", tmp_path / "readers")
    dataset = hr.MapDataset(items)
    with DataLoader(dataset, batch_size=2, num_workers=num_workers) as loader:
        assert len(list(loader)) == 3
    assert items.readers() == [True, num_workers == 0]


class Changing(Items):
    def __getitem__(self, i):
        item = super().__getitem__(i)
        return {**item, "more": 1} if i == 4 else item


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_item_with_other_keys_is_refused_all_the_same(tmp_path, num_workers):
    with (
        DataLoader(Changing("dict", tmp_path / "readers"), batch_size=2, num_workers=num_workers) as loader,
        pytest.raises(hr.errors.SourceError, match="more"),
    ):
        list(loader)
