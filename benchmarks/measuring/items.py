"""What is transported: arrays of one size, or dicts of five arrays, filled by a worker and looked at by the consumer.

An item is filled with a number that follows from its index, so that the consumer can tell a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Empty = Callable[[Any, Any], np.ndarray]
KIB, MIB = 1 << 10, 1 << 20
NUM_VALUES = 1 << 16  # indices beyond share their fill value; a float32 holds all of them exactly


@dataclass(frozen=True)
class Kind:
    """One sort of item.

    Attributes:
        name: As on the command line.
        num_bytes: Of an item, on average.
        group: Items in one message, for contenders that send several at a time.
        ahead: How many messages a worker may be ahead: enough to hide waiting, and not more than the caches like.
        groups_ahead: The same for messages of several items.
        is_dict: Whether an item is a dict; else it is one array.
    """

    name: str
    num_bytes: int
    group: int
    ahead: int
    groups_ahead: int
    is_dict: bool = False

    def ahead_of(self, *, groups: bool) -> int:
        """Return how many messages a worker may be ahead."""
        return self.groups_ahead if groups else self.ahead


KINDS = {
    kind.name: kind
    for kind in (
        Kind("1KiB", KIB, 1024, 32, 4),
        Kind("64KiB", 64 * KIB, 16, 32, 8),
        Kind("1MiB", MIB, 1, 16, 16),
        Kind("16MiB", 16 * MIB, 1, 2, 2),
        Kind("dict", 100 * (40 * 4 + 4 + 4 + 1 + 8), 32, 16, 8, is_dict=True),
    )
}


def make_item(kind: Kind, idx: int, empty: Empty = np.empty) -> Any:
    """Make and fill an item; `empty` says where its arrays lie."""
    value = idx % NUM_VALUES
    if not kind.is_dict:
        array = empty(kind.num_bytes // 4, np.float32)
        array.fill(value)
        return array
    frames = 60 + idx % 81
    item: dict[str, Any] = {
        "data": empty((frames, 40), np.float32),
        "classes": empty(frames, np.int32),
        "energy": empty(frames, np.float32),
        "mask": empty(frames, np.uint8),
        "times": empty(frames, np.float64),
    }
    for array in item.values():
        array.fill(value & 0x7F if array.dtype == np.uint8 else value)
    item["tag"] = f"corpus/recording-{idx // 10}/segment-{idx}"
    return item


def make_list(kind: Kind, first: int, empty: Empty = np.empty) -> list[Any]:
    """Make a group of items, each with memory of its own."""
    return [make_item(kind, idx, empty) for idx in range(first, first + kind.group)]


def make_group(kind: Kind, first: int, empty: Empty = np.empty) -> Sequence[Any]:
    """Make a group of items: the rows of one array where that is possible, which is the best case for everybody."""
    if kind.is_dict:
        return make_list(kind, first, empty)
    block = empty((kind.group, kind.num_bytes // 4), np.float32)
    for idx, row in enumerate(block, first):
        row.fill(idx % NUM_VALUES)
    return block


def check_item(kind: Kind, idx: int, item: Any) -> None:
    """Compare all of an item with what it should be."""
    wanted = make_item(kind, idx)
    if not kind.is_dict:
        item, wanted = {"data": item}, {"data": wanted}
    assert list(item) == list(wanted), f"keys {list(item)} instead of {list(wanted)}"
    for key, value in wanted.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(np.asarray(item[key]), value, strict=True, err_msg=f"item {idx}, {key}")
        else:
            assert item[key] == value, f"item {idx}: {key} is {item[key]!r} instead of {value!r}"


def glance(items: Iterable[Any], idx: int, *, is_dict: bool) -> int:
    """Read two elements of each item, as the consumer of the benchmark does; return the index after the last."""
    for item in items:
        array = item["data"] if is_dict else item
        value = idx % NUM_VALUES
        if array.item(0) != value or array.item(-1) != value:
            raise AssertionError(f"item {idx} begins with {array.item(0)} and ends with {array.item(-1)}")
        idx += 1
    return idx
