"""Loaders in Lightning's Trainer: `HeadraceDataModule(train=loader)`, or `trainer.fit(model, LightningLoader(loader))`.

Lightning saves the `state_dict` of the training loader in each checkpoint, and restores it before the first
batch. It has each process ask for as many batches as the first epoch has, so it is given steps (`StepLoader`). It adds
samplers to torch's `DataLoader` only: what a loader has divided among the processes stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from headrace.errors import ConfigError

try:
    from lightning.pytorch import LightningDataModule
except ImportError as error:
    raise ConfigError("headrace.adapters.lightning needs Lightning", fix="pip install 'headrace[lightning]'") from error

from headrace.loading import DataLoader

from .torch import TorchLoader
from .trainers import EvalLoader, StepLoader, TrainerLoader, check_divided, device_for_copies

__all__ = ["HeadraceDataModule", "LightningLoader"]

Given: TypeAlias = DataLoader | TorchLoader | Callable[[], DataLoader | TorchLoader]
"""A loader, or a function that makes one in the process that needs it."""
Several: TypeAlias = Given | Sequence[Given] | Mapping[str, Given]


class LightningLoader(StepLoader):
    """A training loader for Lightning, see `StepLoader`; a `Batch` has tensors that Lightning moves to a device.

    Args:
        loader: See `TrainerLoader`.
        steps_per_epoch: Steps of an epoch of Lightning; None: as many as the first epoch of the loader has.
        device: See `TrainerLoader`.

    Examples:
        >>> import headrace as hr
        >>> with hr.DataLoader([{"data": [0.5, 1.0]}, {"data": [2.0]}], batch_size=1) as loader:
        ...     batches = LightningLoader(loader)  # for trainer.fit(model, batches)
        ...     print(len(batches))
        2
    """

    def __len__(self) -> int:
        """Return the steps of an epoch.

        Raises:
            ConfigError: Of a stream they are not known.
        """
        try:
            return super().__len__()
        except TypeError as error:  # Lightning would ask for one batch ahead, and save a state that is one too far
            raise ConfigError(
                "Lightning has to know how many steps an epoch has, and this loader does not",
                fix="give steps_per_epoch= to LightningLoader (or HeadraceDataModule), or to the loader",
            ) from error

    @property
    def sampler(self) -> LightningLoader:
        """Where Lightning looks for `set_epoch`."""
        return self


class HeadraceDataModule(LightningDataModule):  # type: ignore[misc, unused-ignore]
    """A `LightningDataModule` over loaders: `trainer.fit(model, HeadraceDataModule(train=loader, val=held_out))`.

    A loader may be given, or a function that makes one: it is called once in each process, when Lightning first asks,
    and what it has made is closed when the stage ends. With `strategy="ddp_spawn"` give functions, since a loader does
    not travel to another process.

    Args:
        train: Trained on.
        val: Validated on, its first epoch each time; or a list or dict of several.
        test: Tested on, likewise.
        predict: Predicted for, likewise.
        steps_per_epoch: See `LightningLoader`.
    """

    def __init__(
        self,
        train: Given | None = None,
        val: Several | None = None,
        test: Several | None = None,
        predict: Several | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self._steps_per_epoch = steps_per_epoch
        self._train: LightningLoader | None = None
        self._opened: dict[int, DataLoader | TorchLoader] = {}  # by the identity of the function that has made it
        # Lightning asks for what a data module has methods for, and runs what it has got.
        if train is not None:
            self.train_dataloader = partial(self._training, train)
        for name, given in (("val", val), ("test", test), ("predict", predict)):
            if given is not None:
                setattr(self, f"{name}_dataloader", partial(self._evaluation, given))

    def teardown(self, stage: str) -> None:
        """Close the loaders that functions have made."""
        del stage
        opened, self._opened, self._train = self._opened, {}, None
        for loader in opened.values():
            (loader.loader if isinstance(loader, TorchLoader) else loader).close()

    def _training(self, given: Given) -> LightningLoader:
        """Return the training loader, the same each time."""
        if self._train is None:
            self._train = LightningLoader(self._open(given), self._steps_per_epoch, self._device())
            self._check(self._train)
        return self._train

    def _evaluation(self, given: Any) -> Any:
        """Return the evaluation loaders, in the structure that was given."""
        if isinstance(given, Mapping):
            return {name: self._evaluation(one) for name, one in given.items()}
        if isinstance(given, Sequence):
            return [self._evaluation(one) for one in given]
        loader = EvalLoader(self._open(given), self._device())
        self._check(loader)
        return loader

    def _check(self, loader: TrainerLoader) -> None:
        if self.trainer is not None:
            check_divided(loader, self.trainer.world_size, "Lightning")

    def _open(self, given: Given) -> DataLoader | TorchLoader:
        if isinstance(given, DataLoader | TorchLoader) or not callable(given):
            return given
        if id(given) not in self._opened:
            self._opened[id(given)] = given()
        return self._opened[id(given)]

    def _device(self) -> Any:
        return "cpu" if self.trainer is None else device_for_copies(self.trainer.strategy.root_device)
