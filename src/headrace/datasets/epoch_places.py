"""Whether the places at which a dataset is read are those of the epoch.

A module of its own, since each worker of a loader needs it, and should not import all datasets for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from .base import Dataset


def forget_places(dataset: Dataset) -> None:
    """Take it that a dataset is read in parts whose places are not those of the epoch.

    Datasets that tell places to functions have an attribute `knows_places`: false, they tell corpus indices instead,
    and not how much of the epoch is done. Those that a dataset is made of are told, too.
    """
    if hasattr(dataset, "knows_places"):
        dataset.knows_places = False
    for part in _parts_of(dataset):
        forget_places(part)


def _parts_of(dataset: Dataset) -> Iterator[Dataset]:
    inner = vars(dataset).get("_inner")  # of a dataset that is made of one; not `inner`, which may make it now
    if isinstance(inner, Dataset):
        yield inner
    for name in ("_parts", "parts"):
        parts = vars(dataset).get(name)
        values = parts.values() if isinstance(parts, dict) else parts if isinstance(parts, list) else ()
        for part in values:
            of_part = getattr(part, "dataset", None)
            if isinstance(of_part, Dataset):
                yield of_part
