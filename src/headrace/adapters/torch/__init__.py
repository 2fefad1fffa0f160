"""Batches for PyTorch: tensors that share the arrays' memory, a torch `IterableDataset`, copies to a GPU ahead of use.

It decides how a batch becomes tensors and when its memory is page-locked. It knows nothing of what is in a batch. Read
`loaders.py` first; its names need PyTorch.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .loaders import Copier, CudaCopier, DeviceLoader, TorchLoader, as_tensors, to_device

__all__ = ["Copier", "CudaCopier", "DeviceLoader", "TorchLoader", "as_tensors", "to_device"]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "loaders": ("Copier", "CudaCopier", "DeviceLoader", "TorchLoader", "as_tensors", "to_device"),
    },
)
