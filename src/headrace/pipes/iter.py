"""The iterable pipes under torchdata's class names; importing this registers their functional names."""

from __future__ import annotations

from typing import Any

from .core.base import IterPipe as IterPipe
from .core.registry import stand_in
from .core.streams import StreamWrapper as StreamWrapper
from .ops.batch import Batcher as Batcher
from .ops.batch import DataChunk as DataChunk
from .ops.batch import Grouper as Grouper
from .ops.batch import UnBatcher as UnBatcher
from .ops.branches.fork import demux as Demultiplexer
from .ops.branches.fork import fork as Forker
from .ops.branches.fork import round_robin_demux as RoundRobinDemultiplexer
from .ops.branches.fork import unzip as UnZipper
from .ops.branches.join import Concater as Concater
from .ops.branches.join import Multiplexer as Multiplexer
from .ops.branches.join import MultiplexerLongest as MultiplexerLongest
from .ops.branches.join import SampleMultiplexer as SampleMultiplexer
from .ops.branches.join import Zipper as Zipper
from .ops.branches.join import ZipperLongest as ZipperLongest
from .ops.branches.key_zip import IterKeyZipper as IterKeyZipper
from .ops.branches.key_zip import MapKeyZipper as MapKeyZipper
from .ops.branches.random_split import random_split as RandomSplitter
from .ops.bucket import MaxTokenBucketizer as MaxTokenBucketizer
from .ops.bucket import bucketbatch as BucketBatcher
from .ops.buffers.disk_cache import OnDiskCacheHolder as OnDiskCacheHolder
from .ops.buffers.disk_cache import end_caching as EndOnDiskCacheHolder
from .ops.buffers.fullsync import FullSync as FullSync
from .ops.buffers.fullsync import PrefetchTimeoutError as PrefetchTimeoutError
from .ops.buffers.memory_cache import InMemoryCacheHolder as InMemoryCacheHolder
from .ops.buffers.prefetch import PinMemory as PinMemory
from .ops.buffers.prefetch import Prefetcher as Prefetcher
from .ops.collate import Collator as Collator
from .ops.collate import default_collate as default_collate
from .ops.columns import Dropper as Dropper
from .ops.columns import Flattener as Flattener
from .ops.columns import Rows2Columnar as Rows2Columnar
from .ops.columns import Slicer as Slicer
from .ops.counts import Cycler as Cycler
from .ops.counts import Enumerator as Enumerator
from .ops.counts import Header as Header
from .ops.counts import IndexAdder as IndexAdder
from .ops.counts import LengthSetter as LengthSetter
from .ops.counts import Repeater as Repeater
from .ops.files.archives import Bz2FileLoader as Bz2FileLoader
from .ops.files.archives import CompressionType as CompressionType
from .ops.files.archives import Decompressor as Decompressor
from .ops.files.archives import TarArchiveLoader as TarArchiveLoader
from .ops.files.archives import XzFileLoader as XzFileLoader
from .ops.files.archives import ZipArchiveLoader as ZipArchiveLoader
from .ops.files.archives import extract as Extractor
from .ops.files.check_hash import HashChecker as HashChecker
from .ops.files.listing import FileLister as FileLister
from .ops.files.listing import ShardExpander as ShardExpander
from .ops.files.local import FileOpener as FileOpener
from .ops.files.local import Saver as Saver
from .ops.files.parse import CSVDictParser as CSVDictParser
from .ops.files.parse import CSVParser as CSVParser
from .ops.files.parse import JsonParser as JsonParser
from .ops.files.parse import LineReader as LineReader
from .ops.files.parse import ParagraphAggregator as ParagraphAggregator
from .ops.files.parse import StreamReader as StreamReader
from .ops.files.remote import FSSpecFileLister as FSSpecFileLister
from .ops.files.remote import FSSpecFileOpener as FSSpecFileOpener
from .ops.files.remote import FSSpecSaver as FSSpecSaver
from .ops.files.remote import HttpReader as HttpReader
from .ops.files.remote import HttpReader as OnlineReader
from .ops.files.remote import HuggingFaceHubReader as HuggingFaceHubReader
from .ops.files.webdataset import WebDataset as WebDataset
from .ops.flatmap import FlatMapper as FlatMapper
from .ops.flatmap import ShuffledFlatMapper as ShuffledFlatMapper
from .ops.map import Filter as Filter
from .ops.map import Mapper as Mapper
from .ops.map import ThreadPoolMapper as ThreadPoolMapper
from .ops.map_batches import BatchAsyncMapper as BatchAsyncMapper
from .ops.map_batches import BatchMapper as BatchMapper
from .ops.map_style import MapToIterConverter as MapToIterConverter
from .ops.sharding_filter import ShardingFilter as ShardingFilter
from .ops.sharding_filter import ShardingRoundRobinDispatcher as ShardingRoundRobinDispatcher
from .ops.shuffle import InBatchShuffler as InBatchShuffler
from .ops.shuffle import Shuffler as Shuffler
from .ops.sources import FromDataset as FromDataset
from .ops.sources import IterableWrapper as IterableWrapper
from .ops.sources import Sampler as Sampler
from .ops.sources import set_epoch as set_epoch

IterDataPipe = IterPipe


def __getattr__(name: str) -> Any:
    """Return a class for one of torchdata that was not ported: its construction raises an error with advice."""
    if (cls := stand_in(__name__, name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return cls


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
