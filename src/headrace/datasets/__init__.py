"""The epoch API: an order joined to a source, under the documented names.

This room decides which sequences an epoch delivers and in which form; it never starts a process, forms a padded batch
for training or talks to a trainer. Read `base.py` first, then `cached.py` (anything with random access) or `cached2.py`
(anything without).
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .anything import AnythingDataset
    from .audio import AudioDataset
    from .base import Dataset
    from .batch_arrays import batch_to_raw_dict, index_shape_for_batches, shapes_for_batches
    from .batches import Batch, BatchReport, BatchSeqCopyPart, BatchSetGenerator
    from .cached import CachedDataset
    from .cached2 import CachedDataset2
    from .combined import CombinedDataset, ConcatDataset
    from .concat_seqs import ConcatSeqsDataset
    from .configs import init_dataset, resolve_callable, resolve_class
    from .distribute_files import DistributeFilesDataset
    from .epoch_wise_filter import EpochWiseFilter
    from .from_source import SourceDataset
    from .generating import (
        DummyDataset,
        DummyDatasetMultipleSequenceLength,
        GeneratingDataset,
        Task12AXDataset,
        answers_12ax,
    )
    from .hdf import HDFDataset
    from .hugging_face import HuggingFaceDataset
    from .lm import LmDataset
    from .mapped import FromListDataset, MapDataset, MapDatasetBase, MapDatasetWrapper, StaticDataset
    from .meta import MetaDataset
    from .mix import MixDataset
    from .multi_epoch import MultiEpochDataset
    from .multi_proc import MultiProcDataset
    from .ogg_zip import OggZipDataset
    from .postprocessing import PostprocessingDataset
    from .postprocessing_functions import LaplaceOrdering, Sequential
    from .postprocessing_returnn import TakesTensorDict
    from .seq import DatasetSeq
    from .stream import SingleStreamPipeDataset
    from .variable import VariableDataset

__all__ = [
    "AnythingDataset",
    "AudioDataset",
    "Batch",
    "BatchReport",
    "BatchSeqCopyPart",
    "BatchSetGenerator",
    "CachedDataset",
    "CachedDataset2",
    "CombinedDataset",
    "ConcatDataset",
    "ConcatSeqsDataset",
    "Dataset",
    "DatasetSeq",
    "DistributeFilesDataset",
    "DummyDataset",
    "DummyDatasetMultipleSequenceLength",
    "EpochWiseFilter",
    "FromListDataset",
    "GeneratingDataset",
    "HDFDataset",
    "HuggingFaceDataset",
    "LaplaceOrdering",
    "LmDataset",
    "MapDataset",
    "MapDatasetBase",
    "MapDatasetWrapper",
    "MetaDataset",
    "MixDataset",
    "MultiEpochDataset",
    "MultiProcDataset",
    "OggZipDataset",
    "PostprocessingDataset",
    "Sequential",
    "SingleStreamPipeDataset",
    "SourceDataset",
    "StaticDataset",
    "TakesTensorDict",
    "Task12AXDataset",
    "VariableDataset",
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
        "anything": ("AnythingDataset",),
        "audio": ("AudioDataset",),
        "base": ("Dataset",),
        "batch_arrays": ("batch_to_raw_dict", "index_shape_for_batches", "shapes_for_batches"),
        "batches": ("Batch", "BatchReport", "BatchSeqCopyPart", "BatchSetGenerator"),
        "cached": ("CachedDataset",),
        "cached2": ("CachedDataset2",),
        "concat_seqs": ("ConcatSeqsDataset",),
        "combined": ("CombinedDataset", "ConcatDataset"),
        "configs": ("init_dataset", "resolve_callable", "resolve_class"),
        "distribute_files": ("DistributeFilesDataset",),
        "epoch_wise_filter": ("EpochWiseFilter",),
        "from_source": ("SourceDataset",),
        "generating": (
            "DummyDataset",
            "DummyDatasetMultipleSequenceLength",
            "GeneratingDataset",
            "Task12AXDataset",
            "answers_12ax",
        ),
        "hdf": ("HDFDataset",),
        "hugging_face": ("HuggingFaceDataset",),
        "lm": ("LmDataset",),
        "mapped": ("FromListDataset", "MapDataset", "MapDatasetBase", "MapDatasetWrapper", "StaticDataset"),
        "meta": ("MetaDataset",),
        "mix": ("MixDataset",),
        "multi_epoch": ("MultiEpochDataset",),
        "multi_proc": ("MultiProcDataset",),
        "ogg_zip": ("OggZipDataset",),
        "postprocessing": ("PostprocessingDataset",),
        "postprocessing_functions": ("LaplaceOrdering", "Sequential"),
        "postprocessing_returnn": ("TakesTensorDict",),
        "seq": ("DatasetSeq",),
        "stream": ("SingleStreamPipeDataset",),
        "variable": ("VariableDataset",),
    },
)
