"""Loaders in transformers' `Trainer`: `HeadraceTrainer(model, args, train_dataset=loader)`.

The Trainer counts steps, and so does the loader that it gets (`StepLoader`). Invariants: it divides nothing among
processes, as the loader has done that; the position of the loader is saved in the `trainer_state.json` of each
checkpoint, beside the step it belongs to, so both are there or none; after a resume no batch that was trained on is
read again, and the step at which the Trainer goes on is compared with that of the loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from headrace.errors import ConfigError, ResumeError

try:
    from torch.utils.data import DataLoader as TorchDataLoader
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_pt_utils import find_batch_size
except ImportError as error:
    raise ConfigError(
        "headrace.adapters.transformers needs transformers with its Trainer", fix="pip install 'headrace[transformers]'"
    ) from error

from headrace.loading import Batch, DataLoader

from .accelerate import AccelerateEvalLoader
from .torch import TorchLoader
from .trainers import StepLoader, check_divided, device_for_copies

_LOADERS = (DataLoader, TorchLoader, TorchDataLoader)  # the last of which `TrainLoader` refuses

__all__ = ["HeadraceCallback", "HeadraceTrainer", "HeadraceTrainerMixin", "TrainLoader"]


class TrainLoader(StepLoader):
    """The training loader for the Trainer: dicts of tensors, see `HeadraceTrainerMixin`.

    Args:
        loader: See `TrainerLoader`.
        device: See `TrainerLoader`.

    Examples:
        >>> import headrace as hr
        >>> with hr.DataLoader([{"data": [0.5, 1.0]}, {"data": [2.0]}], batch_size=2) as loader:
        ...     print(next(iter(TrainLoader(loader)))["data"].shape)
        torch.Size([2, 2])
    """

    # With `dataset` and `batch_sampler`, what accelerate's `skip_first_batches` makes a loader of, to go on at a step.
    sampler = batch_size = prefetch_factor = None
    num_workers = 0
    drop_last = False
    collate_fn = staticmethod(lambda items: items[0])

    def __init__(self, loader: DataLoader | TorchLoader, device: Any = "cpu") -> None:
        super().__init__(loader, device=device)
        self.dataset = _TrainerSteps(self)
        self.batch_sampler = _StepNumbers(self)
        self.step = 0  # batches that were given in this epoch of the Trainer

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of an epoch of the Trainer."""
        self.step = 0
        return (self.take_at(step) for (step,) in self.batch_sampler)

    def take_at(self, step: int) -> Any:
        """Return the batch of a step of the Trainer's epoch.

        Raises:
            ResumeError: The loader is at another step.
        """
        if step != self.step:
            raise ResumeError(
                f"the Trainer goes on at batch {step} of its epoch, and the loader at batch {self.step}: the number of "
                "processes, gradient_accumulation_steps or the batching was another one when the checkpoint was saved",
                where=f"epoch {self.position.epoch}, batch {self.position.position}",
                fix="give what was given then; or TrainingArguments(ignore_data_skip=True): the loader then goes on "
                "with the very next batch, and only the Trainer's count of epochs differs",
            )
        batch = self.take()
        self.step += 1
        return _as_dict(batch)


class _Seqs:
    """What is asked for the number of sequences.

    Args:
        loader: Knows it.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Return the number of sequences of the first epoch, on all ranks."""
        return self._loader.count(1).seqs


class _TrainerSteps(_Seqs):
    """The batches of an epoch by their number, for a loader that begins in the middle.

    Args:
        loader: Gives them, in turn.
    """

    def __init__(self, loader: TrainLoader) -> None:
        super().__init__(loader.loader)
        self._take_at = loader.take_at

    def __getitem__(self, step: int) -> Any:
        return self._take_at(step)


class _StepNumbers:
    """The numbers of the batches of an epoch, each as a list.

    Args:
        loader: Tells how many there are.
    """

    def __init__(self, loader: StepLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        try:
            numbers: Any = range(len(self._loader))
        except TypeError:  # a stream: the Trainer goes by max_steps, and has one epoch
            numbers = count()
        return ([number] for number in numbers)

    def __len__(self) -> int:
        return len(self._loader)


class _EvaluationLoader(AccelerateEvalLoader):
    """What the Trainer evaluates on: dicts of tensors of the first epoch, each time."""

    def __init__(self, loader: DataLoader | TorchLoader, device: Any = "cpu") -> None:
        super().__init__(loader, device)
        self.dataset = _Seqs(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Return the batches."""
        return map(_as_dict, super().__iter__())


def _as_dict(batch: Any) -> Any:
    """Return a batch as a Trainer and its sub-classes expect it: a dict, which they change."""
    return dict(batch) if isinstance(batch, Batch) else batch


class HeadraceCallback(TrainerCallback, ExportableState):  # type: ignore[misc, unused-ignore]
    """Has the position of the training loader saved in each checkpoint, and restores it.

    `HeadraceTrainerMixin` adds it. In a Trainer of your own, whose `get_train_dataloader` returns a `TrainLoader`, add
    it by `callbacks=[HeadraceCallback()]`.

    Examples:
        >>> from transformers import Trainer
        >>> class MyTrainer(Trainer):  # MyTrainer(model, arguments, callbacks=[HeadraceCallback()]).train()
        ...     def get_train_dataloader(self):
        ...         return TrainLoader(self.train_dataset, self.args.device)
    """

    def __init__(self) -> None:
        self._loader: TrainLoader | None = None

    def state(self) -> dict[str, Any]:
        """Return the state to save with a checkpoint."""
        loader = self._loader
        saved = {} if loader is None else {"position": loader.state_dict(), "step": loader.step}
        return {"args": {}, "attributes": {"saved": saved}}

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        """Restore the position, if the Trainer goes on from a checkpoint.

        Raises:
            ResumeError: The checkpoint has none, or it is of other data, see `DataLoader.load_state_dict`.
        """
        del args, control, kwargs
        self._loader = train_dataloader if isinstance(train_dataloader, TrainLoader) else None
        if self._loader is None or not state.global_step:
            return
        found = state.stateful_callbacks.get(type(self).__name__)
        found = found[-1] if isinstance(found, list) and found else found
        saved = found["attributes"]["saved"] if found else None
        if not saved:
            raise ResumeError(
                "the checkpoint has no position of the loader",
                where=f"trainer_state.json of step {state.global_step}",
                fix="resume from a checkpoint that was saved with HeadraceTrainer or HeadraceCallback",
            )
        self._loader.load_state_dict(saved["position"])
        self._loader.step = saved["step"]


class HeadraceTrainerMixin:
    """Lets a `Trainer` train and evaluate on loaders: `class MyTrainer(HeadraceTrainerMixin, Seq2SeqTrainer)`.

    Give a `headrace.DataLoader` as `train_dataset`, and others as `eval_dataset` (or a dict of them by name) and
    to `predict`. Batching, order, workers and ranks are those of the loader: `per_device_train_batch_size`, samplers,
    `data_collator` and the `dataloader_` options have no effect on it. Data keys are the arguments of the model. Other
    datasets are treated as ever.

    `trainer.train(resume_from_checkpoint=True)` goes on with the next batch. The Trainer's epoch has as many steps as
    the first epoch of the loader; see `StepLoader` for what that means where the epochs differ.

    An evaluation deals sequences to the processes, see `DataLoader.deal`: each counts once in loss and metrics.

    Examples:
        >>> from transformers import Seq2SeqTrainer
        >>> class MyTrainer(HeadraceTrainerMixin, Seq2SeqTrainer):
        ...     pass  # MyTrainer(model, arguments, train_dataset=loader).train()
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._train_loader: TrainLoader | None = None
        self._is_exact = False  # while it evaluates on a loader of ours
        super().__init__(*args, **kwargs)
        self.add_callback(HeadraceCallback())  # type: ignore[attr-defined]

    def get_train_dataloader(self) -> Any:
        """Return the training loader."""
        dataset = self.train_dataset  # type: ignore[attr-defined]
        if not isinstance(dataset, _LOADERS):
            return super().get_train_dataloader()  # type: ignore[misc]
        known = self._train_loader
        if known is None or dataset not in (known.loader, known.over):
            self._train_loader = known = TrainLoader(dataset, self._device_for_copies())
        check_divided(known, self.args.world_size, "the Trainer")  # type: ignore[attr-defined]
        return known

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the evaluation loader."""
        found = self.eval_dataset if eval_dataset is None else eval_dataset  # type: ignore[attr-defined]
        if isinstance(found, str):
            found = self.eval_dataset[found]  # type: ignore[attr-defined]
        if not isinstance(found, _LOADERS):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        return self._evaluation_loader(found)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader for `predict`."""
        if not isinstance(test_dataset, _LOADERS):
            return super().get_test_dataloader(test_dataset)  # type: ignore[misc]
        return self._evaluation_loader(test_dataset)

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; of a loader of ours, each sequence counts once, with the mean loss of its batch.

        The Trainer repeats the loss of each batch `per_device_eval_batch_size` times, and `prediction_step` returns it
        once for each sequence of the batch: the former is 1 meanwhile. So is each loss that of one process: what it
        is divided by is not gathered, as a repeat would be part of that.
        """
        if not isinstance(dataloader, _EvaluationLoader):
            return super().evaluation_loop(dataloader, *args, **kwargs)  # type: ignore[misc]
        options: Any = self.args  # type: ignore[attr-defined]
        meanwhile = {"per_device_eval_batch_size": 1, "average_tokens_across_devices": False}
        before = {name: getattr(options, name) for name in meanwhile}
        if self.gather_function == self.accelerator.gather:  # type: ignore[attr-defined, has-type]
            self.gather_function = self.accelerator.gather_for_metrics  # type: ignore[attr-defined]
        self._is_exact = True
        try:
            for name, value in meanwhile.items():
                setattr(options, name, value)
            return super().evaluation_loop(dataloader, *args, **kwargs)  # type: ignore[misc]
        finally:
            for name, value in before.items():
                setattr(options, name, value)
            self._is_exact = False

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Return loss, logits and labels; in an evaluation on a loader of ours, the loss once for each sequence."""
        num_seqs = find_batch_size(inputs) if self._is_exact else None
        loss, logits, labels = super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        return loss if loss is None or num_seqs is None else loss.expand(num_seqs), logits, labels

    def _evaluation_loader(self, loader: DataLoader | TorchLoader) -> _EvaluationLoader:
        found = _EvaluationLoader(loader, self._device_for_copies())
        check_divided(found, self.args.world_size, "the Trainer")  # type: ignore[attr-defined]
        return found

    def _device_for_copies(self) -> Any:
        return device_for_copies(self.args.device)  # type: ignore[attr-defined]


class HeadraceTrainer(HeadraceTrainerMixin, Trainer):  # type: ignore[misc, unused-ignore]
    """transformers' `Trainer` over loaders: see `HeadraceTrainerMixin`."""
