"""A loader in a training loop with accelerate: `prepare_loader` in place of `accelerator.prepare`.

The loader decides which batches a process gets, so accelerate divides nothing. It is told what it has to know: the
position, for `save_state` and `load_state`, and which batch is the last one of its epoch, so that accumulated gradients
are applied there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.errors import ConfigError

try:
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState
except ImportError as error:
    raise ConfigError(
        "headrace.adapters.accelerate needs accelerate", fix="pip install 'headrace[accelerate]'"
    ) from error

from headrace.loading import DataLoader

from .torch import TorchLoader
from .trainers import EpochLoader, check_divided, device_for_copies

__all__ = ["AccelerateLoader", "prepare_loader", "track_ends"]


class AccelerateLoader(EpochLoader):
    """A loader for accelerate: each iteration is an epoch, and epochs are counted from 0; see `prepare_loader`."""

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch, or of the rest of the one that was loaded."""
        return track_ends(self.run_epoch())


def prepare_loader(accelerator: Accelerator, loader: DataLoader | TorchLoader) -> AccelerateLoader:
    """Return a loader for a training loop with accelerate: tensors on its device, saved and loaded with its state.

    It may be given to `accelerator.prepare`, which leaves it as it is. `accelerator.save_state` saves its position and
    `load_state` restores it: call this in the same order in each run, before `load_state`. `AccelerateLoader.epoch`
    tells where to go on.

    Args:
        accelerator: The `Accelerator`.
        loader: The loader; its ranks are those of the processes that accelerate has started.

    Raises:
        ConfigError: The loader takes it that there are more processes, or fewer.
    """
    prepared = AccelerateLoader(loader, device_for_copies(accelerator.device))
    check_divided(prepared, accelerator.num_processes, "accelerate")
    accelerator.register_for_checkpointing(prepared)
    return prepared


class _LoaderState(DataLoaderStateMixin):  # type: ignore[misc, unused-ignore]
    """What accelerate knows of a loader that is iterated over."""

    def __init__(self) -> None:
        self.gradient_state = GradientState()
        self.reset()


def track_ends(batches: Iterator[tuple[Any, bool]]) -> Iterator[Any]:
    """Yield batches, and tell accelerate which one is the last.

    Args:
        batches: See `EpochLoader.run_epoch`.
    """
    state = _LoaderState()
    state.begin()
    try:
        for batch, is_last in batches:
            state.end_of_dataloader = is_last
            yield batch
    finally:
        state.end()
