"""A loader in a loop with accelerate: `prepare_loader` (or `prepare_eval_loader`) in place of `accelerator.prepare`.

The loader decides which batches a process gets, so accelerate divides nothing. It gets what it needs to know: the
position, for `save_state` and `load_state`, and which batch is the last one of its epoch, so that accumulated gradients
are applied there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import ConfigError, ResumeError

try:
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderDispatcher, DataLoaderStateMixin
    from accelerate.state import GradientState
    from accelerate.utils import gather_object
    from torch.utils.data import IterableDataset
except ImportError as error:
    raise ConfigError(
        "headrace.adapters.accelerate needs accelerate", fix="pip install 'headrace[accelerate]'"
    ) from error

from headrace.loading import DataLoader
from headrace.torch import DataLoader as DropInLoader

from .torch import TorchLoader
from .trainers import EpochLoader, EvalLoader, check_divided, device_for_copies

__all__ = ["AccelerateEvalLoader", "AccelerateLoader", "prepare_eval_loader", "prepare_loader", "track_ends"]

# Of torch's loader, besides the dataset and what decides the batches.
_ARGUMENTS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


class AccelerateLoader(EpochLoader):
    """A loader for accelerate: each iteration is an epoch, and epochs are counted from 0; see `prepare_loader`.

    Examples:
        >>> import headrace as hr
        >>> def train(accelerator, corpus):
        ...     with hr.DataLoader(corpus, batching=hr.FrameBudget(8_000)) as loader:
        ...         batches = prepare_loader(accelerator, loader)  # an AccelerateLoader
        ...         for epoch in range(batches.epoch, 10):
        ...             for batch in batches:
        ...                 pass
    """

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch, or of the rest of the one that was loaded."""
        return track_ends(self.run_epoch())


class AccelerateEvalLoader(EvalLoader):
    """The held-out data in a loop with accelerate, the first epoch each time; see `prepare_eval_loader`.

    Args:
        loader: See `TrainerLoader`.
        device: See `TrainerLoader`.

    Examples:
        >>> import headrace as hr
        >>> with hr.DataLoader([{"data": [0.5, 1.0]}, {"data": [2.0]}], batch_size=2) as loader:
        ...     batches = AccelerateEvalLoader(loader)
        ...     print(len(batches), [batch.num_seqs for batch in batches])
        1 [2]
    """

    def __init__(self, loader: DataLoader | TorchLoader, device: Any = "cpu") -> None:
        super().__init__(loader, device, last_step="repeat")

    def __iter__(self) -> Iterator[Any]:
        """Return the batches; accelerate gets to know how many sequences of the last step are no repeats."""
        world_size = self.loader.ranks.world_size
        return track_ends(self.run_epoch(), self.loader.count(1).pieces % world_size if world_size > 1 else 0)


def prepare_eval_loader(accelerator: Accelerator, loader: DataLoader | TorchLoader) -> AccelerateEvalLoader:
    """Return a loader for an evaluation with accelerate: `gather_for_metrics` returns each sequence once.

    Each iteration is the first epoch of the loader. In a step all processes have equally many sequences, of their own
    lengths: `accelerator.pad_across_processes` makes arrays over time equally long. Nothing of it is saved.

    Args:
        accelerator: The `Accelerator`.
        loader: The loader; its ranks are those of the processes that accelerate has started. Its `remainder` has no
            effect.

    Raises:
        ConfigError: The loader takes it that there are more processes, or fewer; or its sequences cannot be dealt to
            several, see `DataLoader.deal`.

    Examples:
        >>> def evaluate(accelerator, model, held_out):  # held_out: a headrace.DataLoader
        ...     scores = []
        ...     for batch in prepare_eval_loader(accelerator, held_out):
        ...         scores += accelerator.gather_for_metrics(model(batch["data"])).tolist()
        ...     return scores  # one for each sequence
    """
    prepared = AccelerateEvalLoader(loader, device_for_copies(accelerator.device))
    check_divided(prepared, accelerator.num_processes, "accelerate")
    return prepared


def prepare_loader(accelerator: Accelerator, loader: DataLoader | TorchLoader | DropInLoader[Any]) -> Any:
    """Return a loader for a training loop with accelerate: tensors on its device, saved and loaded with its state.

    `accelerator.save_state` saves its position and `load_state` restores it: call this in the same order in each run,
    before `load_state`.

    Args:
        accelerator: The `Accelerator`.
        loader: The loader; its ranks are those of the processes that accelerate has started. Or a
            `headrace.torch.DataLoader`, which accelerate divides among the processes.

    Returns:
        An `AccelerateLoader`, whose `epoch` tells where to go on; `accelerator.prepare` leaves it as it is. Of a
        `headrace.torch.DataLoader`, what `accelerator.prepare` returns for one of torch's, with Headrace's workers.

    Raises:
        ConfigError: The loader takes it that there are more processes, or fewer; or accelerate is to read batches in
            one process for all.
    """
    if isinstance(loader, DropInLoader):
        return _prepare_drop_in(accelerator, loader)
    prepared = AccelerateLoader(loader, device_for_copies(accelerator.device))
    check_divided(prepared, accelerator.num_processes, "accelerate")
    accelerator.register_for_checkpointing(prepared)
    return prepared


def _prepare_drop_in(accelerator: Accelerator, loader: DropInLoader[Any]) -> Any:
    """Have accelerate divide a loader as it divides torch's, and give what it has made our workers and position."""
    prepared = accelerator.prepare_data_loader(loader)
    if isinstance(prepared, DataLoaderDispatcher):
        raise ConfigError(
            "accelerate would read all batches in one process, and send them to the others",
            where="dispatch_batches, which it takes for an IterableDataset unless it is told otherwise",
            fix="Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))",
        )
    of_torch = prepared.base_dataloader
    arguments = {name: getattr(of_torch, name) for name in _ARGUMENTS}
    if isinstance(of_torch.dataset, IterableDataset):
        arguments |= {"batch_size": of_torch.batch_size, "drop_last": of_torch.drop_last}
    elif of_torch.batch_sampler is None:
        arguments |= {"batch_size": None, "sampler": of_torch.sampler}
    else:
        arguments["batch_sampler"] = of_torch.batch_sampler
    prepared.base_dataloader = DropInLoader(of_torch.dataset, **arguments)
    prepared.base_dataloader.engine_options = loader.engine_options
    accelerator.register_for_checkpointing(_StatesOfRanks(accelerator, prepared))
    return prepared


class _StatesOfRanks:
    """The positions of a loader on all ranks, each of which has a sampler of its own; accelerate saves one for all.

    Args:
        accelerator: Knows the ranks.
        loader: That of this rank.
    """

    def __init__(self, accelerator: Accelerator, loader: Any) -> None:
        self._accelerator, self._loader = accelerator, loader

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks: on each rank at once, as accelerate does."""
        return {"ranks": gather_object([self._loader.state_dict()])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of this rank.

        Raises:
            ResumeError: There were more ranks, or fewer.
        """
        states, num_ranks = state["ranks"], self._accelerator.num_processes
        if len(states) != num_ranks:
            raise ResumeError(
                f"the state of a headrace.torch.DataLoader was saved by {len(states)} processes, and there are "
                f"{num_ranks}",
                fix="resume with as many; or train on a headrace.DataLoader, which resumes on any number",
            )
        self._loader.load_state_dict(states[self._accelerator.process_index])


class _LoaderState(DataLoaderStateMixin):  # type: ignore[misc, unused-ignore]
    """What accelerate knows of a loader that is iterated over."""

    def __init__(self) -> None:
        self.gradient_state = GradientState()
        self.reset()


def track_ends(batches: Iterator[tuple[Any, bool]], remainder: int = -1) -> Iterator[Any]:
    """Yield batches, and tell accelerate which one is the last.

    Args:
        batches: See `EpochLoader.run_epoch`.
        remainder: To how many sequences, of all processes, `gather_for_metrics` trims the last batch; 0: to all that
            there are, -1: it is not known.

    Examples:
        >>> [batch for batch in track_ends(iter([("first", False), ("last", True)]))]
        ['first', 'last']
    """
    state = _LoaderState()
    state.begin()
    state.remainder = remainder
    try:
        for batch, is_last in batches:
            state.end_of_dataloader = is_last
            yield batch
    finally:
        state.end()
