"""A loader in the training function of Ray Train's `TorchTrainer`: `prepare_loader`.

The loader finds which worker of how many this is, so Ray Train divides nothing. Its `state_dict` is the same in every
worker, and goes into the checkpoint that is reported: a group of workers that is started again, with as many workers or
with fewer, goes on with the next batch.
"""

from __future__ import annotations

from headrace.errors import ConfigError

try:
    import ray.train
    import ray.train.torch
except ImportError as error:
    raise ConfigError("headrace.adapters.ray_train needs Ray Train", fix="pip install 'headrace[ray,torch]'") from error

from headrace.loading import DataLoader

from .torch import TorchLoader
from .trainers import EpochLoader, check_divided, device_for_copies

__all__ = ["prepare_loader"]


def prepare_loader(loader: DataLoader | TorchLoader) -> EpochLoader:
    """Return a loader for the training function of a `TorchTrainer`: tensors on the device of this worker.

    Each iteration is an epoch, and epochs are counted from 0; `EpochLoader.epoch` tells where to go on. It takes the
    place of `ray.train.torch.prepare_data_loader`, which knows torch's `DataLoader` only.

    Args:
        loader: The loader, made in the training function.

    Raises:
        ConfigError: This is no worker of Ray Train, or the loader takes it that there are more workers, or fewer.
    """
    try:
        num_workers = ray.train.get_context().get_world_size()
    except RuntimeError as error:
        raise ConfigError(
            "prepare_loader is called in a worker of Ray Train only",
            fix="call it in the function that you give to TorchTrainer",
        ) from error
    prepared = EpochLoader(loader, device_for_copies(ray.train.torch.get_device()))
    check_divided(prepared, num_workers, "Ray Train")
    return prepared
