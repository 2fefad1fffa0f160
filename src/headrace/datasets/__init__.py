"""The epoch API: an order joined to a source, under the documented names.

This room decides which sequences an epoch delivers and in which form; it never starts a process, forms a padded batch
for training or talks to a trainer. Read `base.py` first, then `cached.py` (anything with random access) or `cached2.py`
(anything without).
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .audio import AudioDataset
    from .base import Dataset
    from .batch_arrays import batch_to_raw_dict, index_shape_for_batches, shapes_for_batches
    from .batches import Batch, BatchReport, BatchSeqCopyPart, BatchSetGenerator
    from .cached import CachedDataset
    from .cached2 import CachedDataset2
    from .configs import init_dataset, resolve_callable, resolve_class
    from .distribute_files import DistributeFilesDataset
    from .generating import DummyDataset, GeneratingDataset, Task12AXDataset, answers_12ax
    from .hdf import HDFDataset
    from .mapped import FromListDataset, MapDataset, MapDatasetBase, MapDatasetWrapper, StaticDataset
    from .meta import MetaDataset
    from .multi_proc import MultiProcDataset
    from .seq import DatasetSeq
    from .stream import SingleStreamPipeDataset

__all__ = [
    "AudioDataset",
    "Batch",
    "BatchReport",
    "BatchSeqCopyPart",
    "BatchSetGenerator",
    "CachedDataset",
    "CachedDataset2",
    "Dataset",
    "DatasetSeq",
    "DistributeFilesDataset",
    "DummyDataset",
    "FromListDataset",
    "GeneratingDataset",
    "HDFDataset",
    "MapDataset",
    "MapDatasetBase",
    "MapDatasetWrapper",
    "MetaDataset",
    "MultiProcDataset",
    "SingleStreamPipeDataset",
    "StaticDataset",
    "Task12AXDataset",
    "answers_12ax",
    "batch_to_raw_dict",
    "index_shape_for_batches",
    "init_dataset",
    "resolve_callable",
    "resolve_class",
    "shapes_for_batches",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "audio": ("AudioDataset",),
        "base": ("Dataset",),
        "batch_arrays": ("batch_to_raw_dict", "index_shape_for_batches", "shapes_for_batches"),
        "batches": ("Batch", "BatchReport", "BatchSeqCopyPart", "BatchSetGenerator"),
        "cached": ("CachedDataset",),
        "cached2": ("CachedDataset2",),
        "configs": ("init_dataset", "resolve_callable", "resolve_class"),
        "distribute_files": ("DistributeFilesDataset",),
        "generating": ("DummyDataset", "GeneratingDataset", "Task12AXDataset", "answers_12ax"),
        "hdf": ("HDFDataset",),
        "mapped": ("FromListDataset", "MapDataset", "MapDatasetBase", "MapDatasetWrapper", "StaticDataset"),
        "meta": ("MetaDataset",),
        "multi_proc": ("MultiProcDataset",),
        "seq": ("DatasetSeq",),
        "stream": ("SingleStreamPipeDataset",),
    },
)
