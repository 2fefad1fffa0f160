"""Headrace brings sequence data to a training run.

The stream of sequences is a pure function of (data, recipe, seed, epoch). The names below are imported when first used,
so that `import headrace` is quick and needs no optional package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .exports import export_lazily
from .version import __version__

if TYPE_CHECKING:
    from .adapters.lhotse.loader import LhotseDataLoader as LhotseDataLoader
    from .batching import Buckets as Buckets
    from .batching import FixedCount as FixedCount
    from .batching import FrameBudget as FrameBudget
    from .batching import NumbersDict as NumbersDict
    from .batching import Pack as Pack
    from .dataloader2 import DataLoader2 as DataLoader2
    from .dataloader2 import DistributedReadingService as DistributedReadingService
    from .dataloader2 import InProcessReadingService as InProcessReadingService
    from .dataloader2 import MultiProcessingReadingService as MultiProcessingReadingService
    from .dataloader2 import SequentialReadingService as SequentialReadingService
    from .datasets import AudioDataset as AudioDataset
    from .datasets import CachedDataset as CachedDataset
    from .datasets import CachedDataset2 as CachedDataset2
    from .datasets import CombinedDataset as CombinedDataset
    from .datasets import ConcatDataset as ConcatDataset
    from .datasets import ConcatSeqsDataset as ConcatSeqsDataset
    from .datasets import Dataset as Dataset
    from .datasets import DatasetSeq as DatasetSeq
    from .datasets import DistributeFilesDataset as DistributeFilesDataset
    from .datasets import FromListDataset as FromListDataset
    from .datasets import HDFDataset as HDFDataset
    from .datasets import HuggingFaceDataset as HuggingFaceDataset
    from .datasets import LaplaceOrdering as LaplaceOrdering
    from .datasets import LmDataset as LmDataset
    from .datasets import MapDataset as MapDataset
    from .datasets import MapDatasetBase as MapDatasetBase
    from .datasets import MapDatasetWrapper as MapDatasetWrapper
    from .datasets import MetaDataset as MetaDataset
    from .datasets import MixDataset as MixDataset
    from .datasets import MultiEpochDataset as MultiEpochDataset
    from .datasets import MultiProcDataset as MultiProcDataset
    from .datasets import OggZipDataset as OggZipDataset
    from .datasets import PostprocessingDataset as PostprocessingDataset
    from .datasets import Sequential as Sequential
    from .datasets import SourceDataset as SourceDataset
    from .datasets import StaticDataset as StaticDataset
    from .datasets import init_dataset as init_dataset
    from .engine import EngineOptions as EngineOptions
    from .engine import RayExecutor as RayExecutor
    from .engine import get_worker_info as get_worker_info
    from .errors import CacheError as CacheError
    from .errors import ConfigError as ConfigError
    from .errors import HeadraceError as HeadraceError
    from .errors import InternalError as InternalError
    from .errors import OptionalNotImplementedError as OptionalNotImplementedError
    from .errors import ResumeError as ResumeError
    from .errors import SourceError as SourceError
    from .errors import StalledError as StalledError
    from .errors import TransformError as TransformError
    from .errors import WorkerDiedError as WorkerDiedError
    from .files.cache.cache import FileCache as FileCache
    from .files.cache.entry import CachedFile as CachedFile
    from .index import CorpusIndex as CorpusIndex
    from .loading import Batch as Batch
    from .loading import DataLoader as DataLoader
    from .ranks import Ranks as Ranks
    from .ranks import find_ranks as find_ranks
    from .rng import derive_rng as derive_rng
    from .rng import derive_seed as derive_seed
    from .show.iteration import progress as progress
    from .show.plot import plot as plot
    from .sources import ArrowSource as ArrowSource
    from .sources import ArrowWriter as ArrowWriter
    from .sources import AudioFolderSource as AudioFolderSource
    from .sources import AudioSource as AudioSource
    from .sources import AudioTableSource as AudioTableSource
    from .sources import CsvSource as CsvSource
    from .sources import HDFSource as HDFSource
    from .sources import HDFWriter as HDFWriter
    from .sources import HuggingFaceSource as HuggingFaceSource
    from .sources import ImageFolderSource as ImageFolderSource
    from .sources import JsonlSource as JsonlSource
    from .sources import LogMel as LogMel
    from .sources import MapSource as MapSource
    from .sources import MemorySource as MemorySource
    from .sources import OggZipSource as OggZipSource
    from .sources import ParquetSource as ParquetSource
    from .sources import ParquetWriter as ParquetWriter
    from .sources import Source as Source
    from .sources import TarSource as TarSource
    from .sources import TarWriter as TarWriter
    from .sources import TextSource as TextSource
    from .sources import TokenSource as TokenSource
    from .sources import TokenWriter as TokenWriter
    from .sources import Vocabulary as Vocabulary
    from .sources import Writer as Writer
    from .sources import init_source as init_source
    from .sources import init_vocabulary as init_vocabulary
    from .sources import open_source as open_source
    from .specs import DataSpec as DataSpec
    from .vocabularies import WithEnds as WithEnds
    from .vocabularies import next_token_fields as next_token_fields

_ROOM_OF = {
    "adapters.lhotse": ("LhotseDataLoader",),
    "batching": ("Buckets", "FixedCount", "FrameBudget", "NumbersDict", "Pack"),
    "dataloader2": (
        "DataLoader2",
        "DistributedReadingService",
        "InProcessReadingService",
        "MultiProcessingReadingService",
        "SequentialReadingService",
    ),
    "datasets": (
        "AudioDataset",
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
        "init_dataset",
    ),
    "engine": ("EngineOptions", "RayExecutor", "get_worker_info"),
    "errors": (
        "CacheError",
        "ConfigError",
        "HeadraceError",
        "InternalError",
        "OptionalNotImplementedError",
        "ResumeError",
        "SourceError",
        "StalledError",
        "TransformError",
        "WorkerDiedError",
    ),
    "files": ("CachedFile", "FileCache"),
    "index": ("CorpusIndex",),
    "loading": ("Batch", "DataLoader"),
    "ranks": ("Ranks", "find_ranks"),
    "rng": ("derive_rng", "derive_seed"),
    "show.iteration": ("progress",),
    "show.plot": ("plot",),
    "sources": (
        "ArrowSource",
        "ArrowWriter",
        "AudioFolderSource",
        "AudioSource",
        "AudioTableSource",
        "CsvSource",
        "HDFSource",
        "HDFWriter",
        "HuggingFaceSource",
        "ImageFolderSource",
        "JsonlSource",
        "LogMel",
        "MapSource",
        "MemorySource",
        "OggZipSource",
        "ParquetSource",
        "ParquetWriter",
        "Source",
        "TarSource",
        "TarWriter",
        "TextSource",
        "TokenSource",
        "TokenWriter",
        "Vocabulary",
        "Writer",
        "init_source",
        "init_vocabulary",
        "open_source",
    ),
    "specs": ("DataSpec",),
    "vocabularies": ("WithEnds", "next_token_fields"),
}
_get_name, __dir__ = export_lazily(__name__, _ROOM_OF)

__all__ = ["__version__", *sorted(name for names in _ROOM_OF.values() for name in names)]


def __getattr__(name: str) -> Any:
    """Import a public name from its room, or a room itself, when it is first used."""
    if name in _ROOM_OF or name in ("adapters", "files", "order", "pipes", "testing"):
        return importlib.import_module(f"headrace.{name}")  # which sets the attribute, too
    return _get_name(name)
