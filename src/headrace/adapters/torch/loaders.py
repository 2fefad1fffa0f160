"""Batches as torch tensors, a loader where torch expects one, and copies to a GPU ahead of the training.

Tensors on the CPU share the memory of the arrays of the batch, which is not reused while any of them lives; only
classes and tokens are copied, to int64. Invariants: memory that a copy reads from is held until the event after the
copy has happened (`ahead.py`), and memory that a copy wrote to is recorded for the stream that reads it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

from headrace.engine.memory.lease import MemoryWatcher
from headrace.errors import ConfigError, HeadraceError
from headrace.loading import Batch, DataLoader

from ..ahead import Event, LoaderOver, RunAhead, Sent, map_leaves, numeric_array
from .pinning import PinnedMemory

try:
    import torch
    from torch.utils._pytree import register_pytree_node
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ConfigError("headrace.adapters.torch needs PyTorch", fix="pip install 'headrace[torch]'") from error


_CLASS_DTYPES = {
    getattr(torch, name) for name in ("int32", "uint16", "uint32") if hasattr(torch, name)
}  # in which sources keep classes and tokens


def as_tensors(value: Any) -> Any:
    """Return a batch with tensors instead of arrays, sharing their memory.

    The arrays, the lengths and the packing of a `Batch` become tensors; so do arrays in dicts, lists and tuples, as a
    custom `collate` returns. Arrays of a `Batch` that are int32, uint16 or uint32, as classes and tokens are, become
    int64, which torch's losses, embeddings and indices take; these are copied. Lengths and packing stay int32. Arrays
    of a dtype that torch does not have are left as they are.

    Examples:
        >>> import headrace as hr
        >>> with hr.DataLoader([{"data": [0.5, 1.0], "label": 3}], batch_size=1) as loader:
        ...     batch = as_tensors(next(iter(loader)))
        >>> batch["label"]
        tensor([3])
    """
    return _with_int64(_with_tensors(value))


def _with_tensors(value: Any) -> Any:
    return map_leaves(value, _as_tensor)


def _with_int64(value: Any) -> Any:
    """Return a batch whose classes and tokens are int64; anything but a `Batch` as it is."""
    if isinstance(value, Batch):
        for key, tensor in value.arrays.items():
            if isinstance(tensor, torch.Tensor) and tensor.dtype in _CLASS_DTYPES:
                value.arrays[key] = tensor.long()
    return value


def _as_tensor(leaf: Any) -> Any:
    array = numeric_array(leaf)
    if array is None:
        return leaf
    if not array.flags.writeable:
        array = array.copy()  # torch has no read-only tensors
    try:
        return torch.from_numpy(array)
    except TypeError:  # such as float128
        return array


def _flatten(batch: Batch) -> tuple[list[Any], Batch]:
    leaves: list[Any] = []
    batch.map_arrays(leaves.append)
    return leaves, batch.map_arrays(lambda _: None)


def _unflatten(leaves: Any, batch: Batch) -> Batch:
    remaining = iter(leaves)
    return batch.map_arrays(lambda _: next(remaining))


# What torch and those who build on it map over all tensors of a batch (to another dtype, to a device) reaches them all.
register_pytree_node(Batch, _flatten, _unflatten, serialized_type_name="headrace.Batch")


class TorchLoader(LoaderOver, IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """A loader of tensors in the form that torch expects: iterable, with a length, `state_dict` and `load_state_dict`.

    It is a `torch.utils.data.IterableDataset`, and has the protocol of torchdata's `StatefulDataLoader`. The workers
    are those of the Headrace loader: if you must wrap it in torch's own `DataLoader`, give that `batch_size=None,
    num_workers=0, collate_fn=lambda batch: batch` (torch's collate would turn a `Batch` into a plain dict).

    Args:
        loader: The loader to read.

    Examples:
        >>> import headrace as hr
        >>> with hr.DataLoader([{"data": [0.5, 1.0]}, {"data": [2.0]}], batch_size=2) as loader:
        ...     for batch in TorchLoader(loader):
        ...         print(batch["data"].sum().item(), batch.lengths["data"])
        3.5 tensor([2, 1], dtype=torch.int32)
    """

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader, "a TorchLoader")

    @property
    def dataset(self) -> NoReturn:
        """Raise an error: code that asks for the dataset would restart it with its own loader, as resuming Trainers do.

        Raises:
            AttributeError: Always; it says what to use.
        """
        raise _NoDatasetError(
            "a TorchLoader has no dataset that another loader could read: it knows itself where to go on",
            fix="save and load a state of it (state_dict, load_state_dict). In transformers' Trainer, "
            "headrace.adapters.transformers.HeadraceTrainerMixin does so: class Mine(HeadraceTrainerMixin, Trainer)",
        )

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch.

        Raises:
            HeadraceError: In a worker of torch's `DataLoader`, each of which would read all batches.
            ConfigError: accelerate divides the batches among the ranks once more.
        """
        return map(_with_int64, self._shared())

    def _shared(self) -> Iterator[Any]:
        """Return the batches of the next epoch as tensors over the same memory, of the same dtypes."""
        _refuse_accelerate(self)
        if get_worker_info() is not None:
            raise HeadraceError(
                "a loader is read in a worker of torch's DataLoader: each of its workers would read all batches",
                fix="give torch's DataLoader num_workers=0, and set num_workers of headrace.DataLoader instead",
            )
        return map(_with_tensors, iter(self.loader))


def _refuse_accelerate(loader: TorchLoader) -> None:
    """Raise an error if accelerate divides batches that are already divided: a rank would get a share of its share.

    accelerate has each data loader that it prepared register itself before it iterates; it prepares torch's only, and
    not Headrace's `DataLoader` or a `TorchLoader`.
    """
    state: Any = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    divided_by = loader.loader.divided_by
    if divided_by is None or not getattr(state, "_shared_state", None):
        return
    prepared = getattr(state(), "active_dataloader", None)
    dataset: Any = getattr(prepared, "dataset", None)
    if dataset is loader and hasattr(prepared, "split_batches"):
        how = "dispatches each batch in parts (dispatch_batches)"
    elif getattr(dataset, "dataset", None) is loader and getattr(dataset, "num_processes", 1) > 1:
        how = f"gives each of {dataset.num_processes} processes some of the batches"
    else:
        return
    raise ConfigError(
        f"two levels would divide the data: the loader ({divided_by}), and accelerate, which {how}",
        where=type(prepared).__name__,
        fix="do not pass the loader to accelerator.prepare, because each process has its own batches already; or let "
        "accelerate alone divide them: headrace.DataLoader(..., rank=0, world_size=1)",
    )


class _NoDatasetError(ConfigError, AttributeError):
    """Said where there is no `dataset`; an `AttributeError`, so that `hasattr` and `getattr` with a default work."""

    __str__ = ConfigError.__str__


class Copier(Protocol):
    """Copies tensors to a device for a `DeviceLoader`.

    Attributes:
        memory: Prepares the shared memory that tensors are copied from; None if that is not needed.

    Examples:
        >>> import headrace as hr
        >>> class Meta:  # shapes without data
        ...     memory = None
        ...
        ...     def copy(self, tensor):
        ...         return tensor.to("meta"), tensor
        ...
        ...     def record(self):
        ...         return torch.Event("cpu")
        ...
        ...     def hand_over(self, event, tensors):
        ...         pass
        >>> with hr.DataLoader([{"data": [0.5, 1.0]}], batch_size=1) as loader:
        ...     print([batch["data"].device for batch in DeviceLoader(loader, Meta())])
        [device(type='meta')]
    """

    memory: MemoryWatcher | None

    def copy(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Start to copy a tensor; return the new one, and the object that must live until the copy is done."""

    def record(self) -> Event:
        """Return an event after all copies that were started."""

    def hand_over(self, event: Event, tensors: list[torch.Tensor]) -> None:
        """Make later work of the consumer on the copies wait for the event, without waiting here."""


class CudaCopier:
    """Copies on a CUDA stream of its own, from page-locked memory, so that copies and computation overlap.

    Tensors in the shared memory of a worker are copied from there, since that memory is page-locked when it is first
    used. All others, or all if the system refuses to lock it, are first copied into page-locked memory of torch's.

    Args:
        device: A CUDA device.
        in_place: Whether to page-lock the workers' memory.

    Examples:
        >>> import headrace as hr
        >>> def copies(loader):  # of torch's memory only, where the workers' must not be page-locked
        ...     return DeviceLoader(loader, CudaCopier(torch.device("cuda"), in_place=False))
    """

    def __init__(self, device: torch.device, in_place: bool = True) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pinned = PinnedMemory(_CudaHost(device, self._stream))
        self.memory: MemoryWatcher | None = self._pinned if in_place else None

    def copy(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Start a copy."""
        is_pinned = tensor.is_contiguous() and self._pinned.covers(tensor.data_ptr(), tensor.nbytes)
        source = tensor if is_pinned else tensor.pin_memory()
        with torch.cuda.stream(self._stream):
            return source.to(self._device, non_blocking=True), source

    def record(self) -> Event:
        """Record an event."""
        return self._stream.record_event()  # type: ignore[no-any-return, unused-ignore]

    def hand_over(self, event: Event, tensors: list[torch.Tensor]) -> None:
        """Let the consumer's stream wait, and torch's allocator know that this stream uses the memory."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)


class _CudaHost:
    """Page-locks memory with CUDA for `PinnedMemory`; all copies from that memory are on its stream."""

    _PORTABLE = 1  # cudaHostRegisterPortable: locked for all devices

    def __init__(self, device: torch.device, stream: Any) -> None:
        self._device = device
        self._stream = stream

    def register(self, address: int, num_bytes: int) -> None:
        """Lock pages."""
        with torch.cuda.device(self._device):
            self._check(torch.cuda.cudart().cudaHostRegister(address, num_bytes, self._PORTABLE))

    def unregister(self, address: int) -> None:
        """Unlock them."""
        with torch.cuda.device(self._device):
            self._check(torch.cuda.cudart().cudaHostUnregister(address))

    def wait(self) -> None:
        """Wait for the copies."""
        self._stream.synchronize()

    def _check(self, code: Any) -> None:
        if int(code) == 0:
            return
        # CUDA keeps the error and would report it at the next kernel launch, so launch one here.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)
        raise RuntimeError(f"CUDA runtime error {int(code)}")


class _CopySender:
    """Sends batches of tensors, leaf by leaf."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier

    def send(self, batch: Any) -> Sent:
        """Start to copy all tensors of a batch."""
        tensors: list[torch.Tensor] = []
        sources: list[Any] = []

        def copy(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            copied, source = self._copier.copy(leaf)
            tensors.append(copied)
            sources.append(source)
            return copied

        value = map_leaves(batch, copy)
        return Sent(value, tensors, sources, self._copier.record())

    def hand_over(self, sent: Sent) -> None:
        """Hand over its tensors."""
        self._copier.hand_over(sent.event, sent.parts)


class DeviceLoader(TorchLoader):
    """Batches on a device, copied while the consumer works on earlier ones.

    Args:
        loader: The loader to read.
        copier: Copier of the device; None delivers tensors on the CPU, views of the workers' memory.
        depth: How many batches are on the device ahead of the consumer.

    Examples:
        >>> import headrace as hr
        >>> with hr.DataLoader([{"data": [0.5, 1.0]}], batch_size=1) as loader:
        ...     batches = DeviceLoader(loader, None)  # views of memory, on the CPU
        ...     print(len(batches), batches.state_dict() == loader.state_dict())
        1 True
    """

    def __init__(self, loader: DataLoader, copier: Copier | None, depth: int = 2) -> None:
        super().__init__(loader)
        self._copier = copier
        self._tracker = self._ahead = RunAhead(loader, depth, "to_device")

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch."""
        if self._copier is None:
            return super().__iter__()
        self.loader.watch_memory(self._copier.memory)
        # int32 crosses to the device, from the memory that is page-locked, and becomes int64 there
        return map(_with_int64, self._ahead.run(self._shared, _CopySender(self._copier)))


def to_device(loader: DataLoader, device: torch.device | str, depth: int = 2) -> DeviceLoader:
    """Return the loader with its batches on a device.

    On a GPU they are copied on a stream of their own, `depth` batches ahead of the consumer, straight from the workers'
    memory, which is page-locked for that until the loader is closed or iterated over in another way. On the CPU they
    are views of the workers' memory, and nothing is copied.

    Objects that a `collate` made, other than dicts, lists, tuples and `Batch`, stay on the CPU as they are. Do not copy
    their tensors to a GPU with `non_blocking=True`: they may be in page-locked memory, and such a copy may still run
    when the batch is released and a worker writes there.

    Args:
        loader: The loader to read.
        device: Such as "cuda", "cuda:1" or "cpu".
        depth: How many batches are on the device before they are requested; each takes memory there.

    Raises:
        ConfigError: The device cannot be copied to.

    Examples:
        >>> import headrace as hr
        >>> with hr.DataLoader([{"data": [0.5, 1.0]}], batch_size=1) as loader:
        ...     for batch in to_device(loader, "cpu"):  # or "cuda"
        ...         print(batch["data"].device)
        cpu
    """
    device = torch.device(device)
    if device.type == "cpu":
        return DeviceLoader(loader, None, depth)
    if device.type != "cuda" or not torch.cuda.is_available():
        raise ConfigError(
            f"batches cannot be copied to the device {str(device)!r}", fix='use "cpu", or a CUDA device that is there'
        )
    return DeviceLoader(loader, CudaCopier(device), depth)
