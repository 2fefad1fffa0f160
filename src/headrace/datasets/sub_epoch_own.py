"""Datasets that a user's function hands over as objects: each belongs to one open sub-epoch.

A dataset has one order at a time. One object in the config of several sub-epochs (features of the whole corpus, say,
made once and joined with the words of each sub-epoch), or in several workers that are threads, would get the order of
one while another reads. So the first that opens an object has it, and all others have copies, made as by pickling.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from .base import Dataset

_LOCK = threading.Lock()  # protects the next; held for a look, never while user code runs
# By id: what an object was opened for, which it belongs to for as long as it lives.
_TAKEN: weakref.WeakValueDictionary[int, Dataset] = weakref.WeakValueDictionary()


def own_datasets(config: Any) -> Any:
    """Return a config whose datasets nobody else has: those that somebody has are copied.

    Args:
        config: Of a sub-dataset: dicts, lists and tuples in each other, or a dataset. It is not changed.
    """
    if isinstance(config, Dataset):
        return config if _take(list(_datasets_in(config))) else _copy(config)
    if isinstance(config, dict):
        return {key: own_datasets(value) for key, value in config.items()}
    if type(config) in (list, tuple):
        return type(config)(map(own_datasets, config))
    return config


def _take(datasets: list[Dataset]) -> bool:
    with _LOCK:
        if any(id(dataset) in _TAKEN for dataset in datasets):
            return False
        _TAKEN.update((id(dataset), dataset) for dataset in datasets)
        return True


def _datasets_in(value: Any) -> Iterator[Dataset]:
    """Yield a dataset and those that it was made of."""
    if isinstance(value, Dataset):
        yield value
        value = value._ctor_args
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _datasets_in(part)


def _copy(value: Any) -> Any:
    """Return a copy of a dataset and of those that it was made of; arrays, and all else, are shared with it."""
    if isinstance(value, Dataset):
        if type(value).__reduce__ is not Dataset.__reduce__:
            return copy.deepcopy(value)
        make, arguments = value.__reduce__()
        return make(*_copy(arguments))
    if isinstance(value, dict):
        return {key: _copy(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copy, value))
    return value
