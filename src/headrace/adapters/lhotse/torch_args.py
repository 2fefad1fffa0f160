"""What a loader whose sampler gives whole batches refuses of torch's `DataLoader`, with what to use instead."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from headrace.errors import ConfigError, did_you_mean

_OF_THE_SAMPLER = "that option of the sampler, which gives whole batches"
_INSTEAD = {
    "batch_size": "max_duration=, max_cuts= or the like of the sampler, which gives whole batches",
    "drop_last": _OF_THE_SAMPLER,
    "shuffle": _OF_THE_SAMPLER,
    "batch_sampler": "sampler=",
    "collate_fn": "the dataset: its `__getitem__` returns the finished batch",
    "timeout": "engine_options=EngineOptions(stall_seconds=...)",
    "generator": "seed=",
    "multiprocessing_context": "start_method=",
    "persistent_workers": "nothing: workers always stay over passes",
    "in_order": "nothing: batches always come in the sampler's order",
    "pin_memory": "tensor.pin_memory() in the loop: batches lie in memory that workers share",
    "pin_memory_device": "tensor.pin_memory() in the loop",
}


def refuse_options(given: Iterable[str], valid: Iterable[str]) -> None:
    """Refuse options that the loader does not have.

    Raises:
        ConfigError: There is one.
    """
    for name in given:
        fix = f"use {_INSTEAD[name]}" if name in _INSTEAD else did_you_mean(name, valid)
        raise ConfigError(f"LhotseDataLoader has no option {name!r}", fix=fix)


def checked_dataset(dataset: Any) -> Any:
    """Return a dataset that can be asked for `dataset[batch]`.

    Raises:
        ConfigError: It cannot, or it is an iterable dataset of torch, which holds its sampler.
    """
    torch_data: Any = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(dataset, torch_data.IterableDataset):
        raise ConfigError(
            f"{type(dataset).__name__} is iterated over, and this loader asks a dataset for dataset[batch]",
            fix="give what it wraps: LhotseDataLoader(wrapper.dataset, wrapper.sampler); for other iterables, use "
            "headrace.DataLoader",
        )
    if isinstance(dataset, type) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"this loader reads dataset[batch], and {dataset if isinstance(dataset, type) else type(dataset)} "
            "has no __getitem__",
            fix="give an object that has one; for an iterable, use headrace.DataLoader",
        )
    return dataset
