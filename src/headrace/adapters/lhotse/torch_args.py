"""Torch's arguments of a `DataLoader`, for a loader whose sampler gives whole batches.

Arguments with a meaning here are translated, those without effect are accepted, and those that the sampler decides are
refused, with the option to use instead.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Mapping
from typing import Any

from headrace.engine import EngineOptions
from headrace.errors import ConfigError, did_you_mean
from headrace.loading.torch_args import engine_options_of

_logger = logging.getLogger("headrace.adapters")
_OF_THE_SAMPLER = {
    "batch_size": "max_duration=, max_cuts= or the like of the sampler; torch, too, takes batch_size=None with it",
    "drop_last": "drop_last= of the sampler",
    "shuffle": "shuffle= of the sampler",
    "batch_sampler": "give it as sampler=",
}
_NO_EFFECT = ("persistent_workers", "pin_memory_device", "in_order")  # workers stay, and batches come in order
_NAMES = (
    *_OF_THE_SAMPLER, *_NO_EFFECT, "pin_memory", "timeout", "collate_fn", "generator", "multiprocessing_context"
)  # fmt: skip


@dataclasses.dataclass
class TorchWords:
    """The options that torch's arguments translate to.

    Attributes:
        seed: Seed of the loader.
        start_method: How workers are started.
        engine_options: With the time limit.
        collate_fn: Applied to `dataset[batch]` in the worker; or None.
    """

    seed: int | None
    start_method: str | None
    engine_options: EngineOptions | None
    collate_fn: Any = None

    def take(self, words: Mapping[str, Any]) -> None:
        """Translate the arguments that the user gave.

        Raises:
            ConfigError: One is unknown, is decided by the sampler, or contradicts another argument.
        """
        for name, value in words.items():
            if name not in _NAMES:
                raise ConfigError(f"LhotseDataLoader has no option {name!r}", fix=did_you_mean(name, _NAMES))
            if name in _OF_THE_SAMPLER and value:
                raise ConfigError(
                    f"{name}={value!r} is decided by the sampler, which gives whole batches", fix=_OF_THE_SAMPLER[name]
                )
        if words.get("pin_memory"):
            _logger.warning("pin_memory=True has no effect: batches lie in memory that the workers share")
        self.collate_fn = words.get("collate_fn")
        if self.collate_fn is not None and not callable(self.collate_fn):
            raise ConfigError(f"collate_fn must be a function, got {self.collate_fn!r}")
        generator, timeout, context = (words.get(name) for name in ("generator", "timeout", "multiprocessing_context"))
        if generator is not None:
            if self.seed != 0:
                raise ConfigError("seed and generator both set the seed", fix="omit generator")
            self.seed = int(generator.initial_seed()) % 2**63
        if timeout:
            if self.engine_options is not None:
                raise ConfigError(
                    "engine_options and timeout both set the time limit",
                    fix="EngineOptions(stall_seconds=...), without timeout",
                )
            self.engine_options = engine_options_of(None, timeout)
        if context is not None:
            if self.start_method is not None:
                raise ConfigError(
                    "start_method and multiprocessing_context both set the start method", fix="give only one of them"
                )
            self.start_method = context if isinstance(context, str) else context.get_start_method()


def checked_dataset(dataset: Any) -> Any:
    """Return a dataset that can be asked for `dataset[batch]`.

    Raises:
        ConfigError: It cannot.
    """
    _refuse_iterable(dataset)
    if isinstance(dataset, type) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"this loader reads dataset[batch], and {dataset if isinstance(dataset, type) else type(dataset)} "
            "has no __getitem__",
            fix="give an object that has one; for an iterable, use headrace.DataLoader",
        )
    return dataset


def _refuse_iterable(dataset: Any) -> None:
    """Refuse iterable datasets of torch: they hold their sampler."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(dataset, getattr(torch_data, "IterableDataset", ())):
        return
    is_wrapper = hasattr(dataset, "sampler") and hasattr(dataset, "dataset")
    raise ConfigError(
        f"{type(dataset).__name__} is iterated over, and this loader asks a dataset for dataset[batch]",
        fix="give what it wraps: LhotseDataLoader(wrapper.dataset, wrapper.sampler); the sampler then runs once, in "
        "the training's own process"
        if is_wrapper
        else "for an iterable, use headrace.DataLoader",
    )
