"""The epoch API: an order joined to a source, under the RETURNN-compatible names.

This room decides which sequences an epoch delivers and in which form; it never starts a process, forms a padded batch
for training or talks to a trainer. Read `base.py` (the epoch API) first, then `cached.py` (anything with
random access) or `cached2.py` (anything without), and `reading/reader.py` (how workers, and datasets made of others,
read).
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .base import Dataset
    from .cached import CachedDataset
    from .cached2 import CachedDataset2
    from .configs import init_dataset, resolve_callable, resolve_class
    from .distribute.dataset import DistributeFilesDataset
    from .files.audio import AudioDataset
    from .files.hdf import HDFDataset
    from .files.hugging_face import HuggingFaceDataset
    from .files.lm import LmDataset
    from .files.mapped import FromListDataset, MapDataset, MapDatasetBase, MapDatasetWrapper, StaticDataset
    from .files.ogg_zip import OggZipDataset
    from .files.source import SourceDataset
    from .join.combined import CombinedDataset, ConcatDataset
    from .join.meta import MetaDataset
    from .join.mix import MixDataset
    from .parts import open_part
    from .returnn.batch import batch_to_raw_dict, index_shape_for_batches, shapes_for_batches
    from .returnn.batch_generator import Batch, BatchReport, BatchSeqCopyPart, BatchSetGenerator
    from .seq import DatasetSeq
    from .workers import gathering
    from .wrap.concat_seqs import ConcatSeqsDataset
    from .wrap.multi_epoch import MultiEpochDataset
    from .wrap.multi_proc import MultiProcDataset
    from .wrap.postprocessing.dataset import PostprocessingDataset
    from .wrap.postprocessing.functions import LaplaceOrdering, Sequential, TakesTensorDict

__all__ = [
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
    "FromListDataset",
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
    "SourceDataset",
    "StaticDataset",
    "TakesTensorDict",
    "batch_to_raw_dict",
    "gathering",
    "index_shape_for_batches",
    "init_dataset",
    "open_part",
    "resolve_callable",
    "resolve_class",
    "shapes_for_batches",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "files.audio": ("AudioDataset",),
        "base": ("Dataset",),
        "returnn.batch": ("batch_to_raw_dict", "index_shape_for_batches", "shapes_for_batches"),
        "returnn.batch_generator": ("Batch", "BatchReport", "BatchSeqCopyPart", "BatchSetGenerator"),
        "cached": ("CachedDataset",),
        "cached2": ("CachedDataset2",),
        "wrap.concat_seqs": ("ConcatSeqsDataset",),
        "join.combined": ("CombinedDataset", "ConcatDataset"),
        "configs": ("init_dataset", "resolve_callable", "resolve_class"),
        "distribute.dataset": ("DistributeFilesDataset",),
        "files.source": ("SourceDataset",),
        "workers": ("gathering",),
        "files.hdf": ("HDFDataset",),
        "files.hugging_face": ("HuggingFaceDataset",),
        "files.lm": ("LmDataset",),
        "files.mapped": ("FromListDataset", "MapDataset", "MapDatasetBase", "MapDatasetWrapper", "StaticDataset"),
        "join.meta": ("MetaDataset",),
        "join.mix": ("MixDataset",),
        "wrap.multi_epoch": ("MultiEpochDataset",),
        "wrap.multi_proc": ("MultiProcDataset",),
        "files.ogg_zip": ("OggZipDataset",),
        "parts": ("open_part",),
        "wrap.postprocessing.dataset": ("PostprocessingDataset",),
        "wrap.postprocessing.functions": ("LaplaceOrdering", "Sequential", "TakesTensorDict"),
        "seq": ("DatasetSeq",),
    },
)
