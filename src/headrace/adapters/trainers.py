"""Loaders for trainers: `EpochLoader`, `StepLoader` and `EvalLoader`, tensors on a device, epochs counted from 0.

A trainer's epoch 0 is epoch 1 of a `DataLoader`. Where the script has the loop, an iteration is an epoch
(`EpochLoader`). A trainer with a loop of its own counts steps, and assumes that all epochs have as many as the first;
with a budget of frames they do not. So its steps run through the epochs one after the other (`StepLoader`): nothing
is left out where an epoch is longer, and a position is where the loader is, whatever the trainer counts. An evaluation
sees the same batches each time, and each sequence once, on any number of ranks (`EvalLoader`).

Invariant: `state_dict` is the position after the last batch that the trainer got.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.batching.dealing import LastStep
from headrace.errors import ConfigError, HeadraceError, check_count
from headrace.loading import DataLoader, LoaderPosition

from .ahead import LoaderOver
from .torch import TorchLoader, to_device

if TYPE_CHECKING:
    import torch

_END = object()
_MAX_EMPTY_EPOCHS = 100  # in a row; sub-epochs of a small corpus may be empty


class TrainerLoader(LoaderOver):
    """Base of the loaders for trainers.

    Args:
        loader: The loader to read: its workers, ranks and batching are as you have given them. Or what `to_device` has
            made of it.
        device: Where the tensors are wanted, see `to_device`; the CPU where the trainer moves them.

    Raises:
        ConfigError: It is another loader, or the device cannot be copied to.
    """

    def __init__(self, loader: DataLoader | TorchLoader, device: torch.device | str = "cpu") -> None:
        if not isinstance(loader, DataLoader | TorchLoader):
            raise ConfigError(
                f"{type(self).__name__} reads a headrace.DataLoader, got {type(loader).__module__}."
                f"{type(loader).__name__}",
                fix="make a headrace.DataLoader, which knows torch's words: headrace.DataLoader(dataset, batch_size=8, "
                "shuffle=True)",
            )
        self.over = loader if isinstance(loader, TorchLoader) else to_device(loader, device)
        super().__init__(self.over.loader, type(self).__name__)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration: 0, 1, ...

        Raises:
            ConfigError: It is no number of at least 0.
        """
        self.over.set_epoch(check_count("set_epoch: epoch", epoch, minimum=0) + 1)

    @property
    def position(self) -> LoaderPosition:
        """The position of the trainer. Its epochs are those of the `DataLoader`, from 1."""
        return self.over.position

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0: where a loop over the epochs begins, also after `load_state_dict`."""
        return self.position.epoch - 1

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that the trainer got; see `DataLoader.state_dict`."""
        return self.loader.state_at(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, see `DataLoader.load_state_dict`."""
        self.over.load_state_dict(state)


class EpochLoader(TrainerLoader):
    """A loader of which each iteration is an epoch, for a loop of your own.

    The last batch of an epoch is known when it is given, also of a stream: a state that is saved then begins with the
    next epoch. One batch is asked for ahead for that.

    Args:
        loader: See `TrainerLoader`.
        device: See `TrainerLoader`.
    """

    def __init__(self, loader: DataLoader | TorchLoader, device: torch.device | str = "cpu") -> None:
        super().__init__(loader, device)
        self._position: LoaderPosition | None = None  # of the trainer, while a batch is ahead of it

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch, or of the rest of the one that was loaded."""
        return (batch for batch, _ in self.run_epoch())

    def run_epoch(self) -> Iterator[tuple[Any, bool]]:
        """Return an iterator over the epoch's batches, each with whether it is the last one."""
        batches, error = iter(self.over), None
        batch = next(batches, _END)
        while batch is not _END:
            position, ahead = self.over.position, _END
            try:
                ahead = next(batches, _END)
            except Exception as caught:  # noqa: BLE001 - raised below, after the batch before it
                error = caught
            is_last = ahead is _END and error is None
            self._position = self.over.position if is_last else position
            yield batch, is_last
            if error is not None:
                raise error
            batch = ahead
        self._position = None

    @property
    def position(self) -> LoaderPosition:
        """The position of the trainer. Its epochs are those of the `DataLoader`, from 1."""
        return self.over.position if self._position is None else self._position

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration: 0, 1, ..."""
        super().set_epoch(epoch)
        if not self.loader.is_iterating:
            self._position = None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, see `DataLoader.load_state_dict`."""
        super().load_state_dict(state)
        self._position = None


class StepLoader(TrainerLoader):
    """A loader of which each iteration is as many steps as the others, through the epochs one after the other.

    For trainers that count steps. Where all epochs have equally many steps, as with `FixedCount`, an iteration is an
    epoch. Elsewhere (`FrameBudget`, `Buckets`, ...) the end of an iteration is not quite that of an epoch, and no batch
    is left out for that.

    Args:
        loader: See `TrainerLoader`.
        steps_per_epoch: Steps of an iteration; None: as many as the first epoch has.
        device: See `TrainerLoader`.
    """

    def __init__(
        self,
        loader: DataLoader | TorchLoader,
        steps_per_epoch: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(loader, device)
        if steps_per_epoch is not None:
            check_count("steps_per_epoch", steps_per_epoch, minimum=1)
        self._num_steps = steps_per_epoch
        self._stream: Iterator[Any] | None = None
        self._is_loaded = False  # and no batch was given since

    def __len__(self) -> int:
        """Return the steps of an iteration.

        Raises:
            NoLengthError: Of a stream they are not known: say `steps_per_epoch`.
        """
        return self.loader.num_steps(1) if self._num_steps is None else self._num_steps

    def __iter__(self) -> Iterator[Any]:
        """Return the next steps: from where the last iteration was left, or from the loaded position."""
        for _ in range(len(self)):
            yield self.take()

    def take(self) -> Any:
        """Return the next batch, of the next epoch after the end of one.

        Raises:
            HeadraceError: A hundred epochs in a row have no batch for this rank.
        """
        if self._stream is None:
            self._stream = self._run_on()
        try:
            batch = next(self._stream)
        except BaseException:
            self._stream = None
            raise
        self._is_loaded = False
        return batch

    def _run_on(self) -> Iterator[Any]:
        num_empty = 0
        while num_empty < _MAX_EMPTY_EPOCHS:
            num_empty += 1
            for batch in self.over:
                num_empty = 0
                yield batch
        raise HeadraceError(
            f"{num_empty} epochs in a row have no batch for this rank",
            where=f"epoch {self.position.epoch}",
            fix="see explain() of the loader for what was left out; with few sequences, say batches of fewer",
        )

    def set_epoch(self, epoch: int) -> None:
        """Begin with the first epoch again if a trainer begins with its epoch 0; nothing for other numbers.

        A loaded position stays, until a batch of it was given.

        Raises:
            ConfigError: It is no number of at least 0.
        """
        if check_count("set_epoch: epoch", epoch, minimum=0) == 0 and not self._is_loaded:
            self._stream = None
            super().set_epoch(0)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, see `DataLoader.load_state_dict`, also in the middle of an iteration."""
        self._stream = None
        super().load_state_dict(state)
        self._is_loaded = True


class EvalLoader(EpochLoader):
    """A loader of which each iteration is the first epoch, whatever was evaluated before, for an exact evaluation.

    Sequences are dealt to the ranks, see `DataLoader.deal`: all ranks have equally many steps, and each sequence comes
    once, whatever `remainder` the loader has. Give it a loader that nothing trains on.

    Args:
        loader: See `TrainerLoader`.
        device: See `TrainerLoader`.
        last_step: See `DataLoader.deal`. `"repeat"` is for a trainer that trims repeats.

    Raises:
        ConfigError: The sequences cannot be dealt to several ranks.
    """

    def __init__(
        self, loader: DataLoader | TorchLoader, device: torch.device | str = "cpu", last_step: LastStep = "split"
    ) -> None:
        super().__init__(loader, device)
        self.loader.deal(last_step)

    def __len__(self) -> int:
        """Return the steps of an iteration."""
        return self.loader.num_steps(1)

    def run_epoch(self) -> Iterator[tuple[Any, bool]]:
        """Return an iterator over the batches, each with whether it is the last one."""
        self.set_epoch(0)
        return super().run_epoch()


def device_for_copies(device: torch.device) -> torch.device | str:
    """Return the device that batches are copied to ahead of use; the CPU where the trainer copies them itself."""
    return device if device.type == "cuda" else "cpu"


def has_own_shards(loader: TrainerLoader) -> bool:
    """Tell whether the dataset divides itself among the ranks, so that each rank has a position of its own."""
    return loader.loader.divided_by is not None and loader.loader.ranks.world_size == 1


def check_divided(loader: TrainerLoader, num_processes: int, trainer: str) -> None:
    """Check that the processes of a trainer get different batches, and that one state holds for all, before the first.

    Args:
        loader: The loader of this process.
        num_processes: How many the trainer has.
        trainer: Its name, for messages.

    Raises:
        ConfigError: The loader takes it that there are more processes, or fewer; or each has a state of its own.
    """
    if has_own_shards(loader):
        raise ConfigError(
            f"{trainer} saves one state of the data for all processes, and each has its own here: "
            f"{loader.loader.divided_by}",
            fix="let the loader divide the batches of a dataset that has no shards of its own; or write the loop "
            "yourself, with headrace.adapters.trainers.EpochLoader, and save its state_dict() on each rank",
        )
    found = loader.loader.ranks
    if found.world_size != num_processes and found.source in ("arguments", "single process"):
        raise ConfigError(
            f"{trainer} has {num_processes} processes, and the loader says that this is rank {found.rank} of "
            f"{found.world_size} ({found.source})",
            fix="let the loader find its rank: leave out rank= and world_size=; nobody else divides its batches",
        )
