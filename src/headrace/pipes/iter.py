"""The iterable pipes under their documented class names; importing this registers their functional names."""

from __future__ import annotations

from typing import Any

from .archives import TarArchiveLoader as TarArchiveLoader
from .archives import ZipArchiveLoader as ZipArchiveLoader
from .async_map import BatchAsyncMapper as BatchAsyncMapper
from .base import IterPipe as IterPipe
from .batch import Batcher as Batcher
from .batch import DataChunk as DataChunk
from .batch import UnBatcher as UnBatcher
from .bucket import MaxTokenBucketizer as MaxTokenBucketizer
from .bucket import bucketbatch as BucketBatcher
from .check_hash import HashChecker as HashChecker
from .collate import Collator as Collator
from .collate import default_collate as default_collate
from .concat import Concater as Concater
from .convert import MapToIterConverter as MapToIterConverter
from .counts import Cycler as Cycler
from .counts import Enumerator as Enumerator
from .counts import Header as Header
from .counts import IndexAdder as IndexAdder
from .counts import LengthSetter as LengthSetter
from .counts import Repeater as Repeater
from .decompress import Bz2FileLoader as Bz2FileLoader
from .decompress import CompressionType as CompressionType
from .decompress import Decompressor as Decompressor
from .decompress import XzFileLoader as XzFileLoader
from .decompress import extract as Extractor
from .demux import demux as Demultiplexer
from .demux import round_robin_demux as RoundRobinDemultiplexer
from .departed import refuse_departed
from .disk_cache import OnDiskCacheHolder as OnDiskCacheHolder
from .disk_cache import end_caching as EndOnDiskCacheHolder
from .epochs import set_epoch as set_epoch
from .filter import Filter as Filter
from .flatmap import FlatMapper as FlatMapper
from .flatmap import ShuffledFlatMapper as ShuffledFlatMapper
from .fork import fork as Forker
from .from_dataset import FromDataset as FromDataset
from .fsspec_files import FSSpecFileLister as FSSpecFileLister
from .fsspec_files import FSSpecFileOpener as FSSpecFileOpener
from .fsspec_files import FSSpecSaver as FSSpecSaver
from .fullsync import FullSync as FullSync
from .fullsync import PrefetchTimeoutError as PrefetchTimeoutError
from .groupby import Grouper as Grouper
from .iterable_wrapper import IterableWrapper as IterableWrapper
from .key_zip import IterKeyZipper as IterKeyZipper
from .key_zip import MapKeyZipper as MapKeyZipper
from .lines import LineReader as LineReader
from .lines import ParagraphAggregator as ParagraphAggregator
from .lines import StreamReader as StreamReader
from .list_files import FileLister as FileLister
from .map_batches import BatchMapper as BatchMapper
from .mapper import Mapper as Mapper
from .memory_cache import InMemoryCacheHolder as InMemoryCacheHolder
from .mux import Multiplexer as Multiplexer
from .mux import MultiplexerLongest as MultiplexerLongest
from .online import HttpReader as HttpReader
from .online import HttpReader as OnlineReader
from .online import HuggingFaceHubReader as HuggingFaceHubReader
from .open_files import FileOpener as FileOpener
from .parse import CSVDictParser as CSVDictParser
from .parse import CSVParser as CSVParser
from .parse import JsonParser as JsonParser
from .pin_memory import PinMemory as PinMemory
from .prefetch import Prefetcher as Prefetcher
from .random_split import random_split as RandomSplitter
from .sample_mux import SampleMultiplexer as SampleMultiplexer
from .sampler import Sampler as Sampler
from .save import Saver as Saver
from .shard_expand import ShardExpander as ShardExpander
from .sharding_filter import ShardingFilter as ShardingFilter
from .sharding_filter import ShardingRoundRobinDispatcher as ShardingRoundRobinDispatcher
from .shuffle import InBatchShuffler as InBatchShuffler
from .shuffle import Shuffler as Shuffler
from .streams import StreamWrapper as StreamWrapper
from .table import Dropper as Dropper
from .table import Flattener as Flattener
from .table import Rows2Columnar as Rows2Columnar
from .table import Slicer as Slicer
from .threadpool import ThreadPoolMapper as ThreadPoolMapper
from .unzip import unzip as UnZipper
from .webdataset import WebDataset as WebDataset
from .zip import Zipper as Zipper
from .zip import ZipperLongest as ZipperLongest

IterDataPipe = IterPipe


def __getattr__(name: str) -> Any:
    """Say what to use in place of a class of torchdata that did not come along."""
    refuse_departed(__name__, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BatchAsyncMapper",
    "BatchMapper",
    "Batcher",
    "BucketBatcher",
    "Bz2FileLoader",
    "CSVDictParser",
    "CSVParser",
    "Collator",
    "CompressionType",
    "Concater",
    "Cycler",
    "DataChunk",
    "Decompressor",
    "Demultiplexer",
    "Dropper",
    "EndOnDiskCacheHolder",
    "Enumerator",
    "Extractor",
    "FSSpecFileLister",
    "FSSpecFileOpener",
    "FSSpecSaver",
    "FileLister",
    "FileOpener",
    "Filter",
    "FlatMapper",
    "Flattener",
    "Forker",
    "FromDataset",
    "FullSync",
    "Grouper",
    "HashChecker",
    "Header",
    "HttpReader",
    "HuggingFaceHubReader",
    "InBatchShuffler",
    "InMemoryCacheHolder",
    "IndexAdder",
    "IterDataPipe",
    "IterKeyZipper",
    "IterPipe",
    "IterableWrapper",
    "JsonParser",
    "LengthSetter",
    "LineReader",
    "MapKeyZipper",
    "MapToIterConverter",
    "Mapper",
    "MaxTokenBucketizer",
    "Multiplexer",
    "MultiplexerLongest",
    "OnDiskCacheHolder",
    "OnlineReader",
    "ParagraphAggregator",
    "PinMemory",
    "PrefetchTimeoutError",
    "Prefetcher",
    "RandomSplitter",
    "Repeater",
    "RoundRobinDemultiplexer",
    "Rows2Columnar",
    "SampleMultiplexer",
    "Sampler",
    "Saver",
    "ShardExpander",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "ShuffledFlatMapper",
    "Shuffler",
    "Slicer",
    "StreamReader",
    "StreamWrapper",
    "TarArchiveLoader",
    "ThreadPoolMapper",
    "UnBatcher",
    "UnZipper",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
    "Zipper",
    "ZipperLongest",
    "default_collate",
    "set_epoch",
]
