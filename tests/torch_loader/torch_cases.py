"""Datasets of all kinds that torch collates, and a comparison of what loaders give."""

import collections
import dataclasses
import enum

import numpy as np
import torch

Point = collections.namedtuple("Point", "x y")


class Items(torch.utils.data.Dataset):
    """A map-style dataset over a function of the index."""

    def __init__(self, function, size=11):
        self.function, self.size = function, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.function(index)


class ItemsAtOnce(Items):
    def __getitems__(self, indices):
        return [(torch.tensor(index), len(indices)) for index in indices]


class Bag(dict):
    """A mapping of a class of its own."""


@dataclasses.dataclass
class Record:
    x: int


class Kind(enum.Enum):
    A = 1


COLLATED = {
    "tensors and labels": lambda i: (torch.full((2, 3), float(i)), torch.tensor(i)),
    "arrays and numbers": lambda i: (np.full((3,), i, np.float32), i, i / 2, i % 2 == 0),
    "array scalars": lambda i: [np.float32(i), np.int16(i), np.bool_(i % 2), np.float64(i)],
    "arrays of no axes": lambda i: np.array(i, np.int32),
    "texts": lambda i: (f"text {i}", b"bytes %d" % i),
    "nested": lambda i: {"a": [torch.tensor([i]), {"b": np.arange(2) + i}], "c": (i, (i, "x"))},
    "named tuples": lambda i: Point(torch.tensor(i), Point(i, [float(i)])),
    "mappings": lambda i: collections.OrderedDict(z=i, a=torch.ones(2) * i),
    "mapping of a class": lambda i: Bag(a=i),
    "small dtypes": lambda i: (
        torch.ones(2, dtype=torch.bfloat16) * i,
        torch.ones(2, dtype=torch.float16),
        torch.tensor([i % 2 == 0]),
        np.uint8(i),
        torch.zeros(0),
        torch.zeros(3, 0),
    ),
    "complex": lambda i: torch.complex(torch.tensor(float(i)), torch.tensor(1.0)),
    "large": lambda i: torch.full((64, 64), i, dtype=torch.int32),
    "strided": lambda i: torch.arange(12).reshape(3, 4).t()[::2] + i,
    "mixed dtypes": lambda i: torch.tensor(i) if i % 2 else torch.tensor(float(i)),
}

REFUSED = {
    "dataclass": lambda i: Record(i),
    "enum": lambda i: Kind.A,
    "nothing": lambda i: None,
    "objects": lambda i: np.array([object()]),
    "array of texts": lambda i: np.array(["x"]),
    "unequal sizes": lambda i: torch.zeros(i + 1),
    "unequal arrays": lambda i: np.zeros(i + 1),
    "unequal lists": lambda i: [i] * (i + 1),
    "missing keys": lambda i: {str(i): i},
    "sparse": lambda i: torch.eye(2).to_sparse(),
}


def assert_same(ours, theirs):
    """Both are of the same structure, types, dtypes and values."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert torch.equal(ours, theirs)
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


def plain(batches):
    """Return batches as lists of numbers, for comparisons of orders."""
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]
