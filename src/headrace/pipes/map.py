"""The map-style pipes under torchdata's class names; importing this registers their functional names."""

from __future__ import annotations

from .core.base import MapPipe as MapPipe
from .ops.map_style import IterToMapConverter as IterToMapConverter
from .ops.map_style import MapBatcher as Batcher
from .ops.map_style import MapConcater as Concater
from .ops.map_style import MapInMemoryCacheHolder as InMemoryCacheHolder
from .ops.map_style import MapMapper as Mapper
from .ops.map_style import MapShuffler as Shuffler
from .ops.map_style import MapZipper as Zipper
from .ops.map_style import map_unzip as UnZipper
from .ops.sources import SequenceWrapper as SequenceWrapper

MapDataPipe = MapPipe

__all__ = [
    "Batcher",
    "Concater",
    "InMemoryCacheHolder",
    "IterToMapConverter",
    "MapDataPipe",
    "MapPipe",
    "Mapper",
    "SequenceWrapper",
    "Shuffler",
    "UnZipper",
    "Zipper",
]
