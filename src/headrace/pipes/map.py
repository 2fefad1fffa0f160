"""The map-style pipes under their documented class names; importing this registers their functional names."""

from __future__ import annotations

from .base import MapPipe as MapPipe
from .convert import IterToMapConverter as IterToMapConverter
from .iterable_wrapper import SequenceWrapper as SequenceWrapper
from .map_ops import MapBatcher as Batcher
from .map_ops import MapConcater as Concater
from .map_ops import MapInMemoryCacheHolder as InMemoryCacheHolder
from .map_ops import MapMapper as Mapper
from .map_ops import MapShuffler as Shuffler
from .map_ops import MapZipper as Zipper
from .map_ops import map_unzip as UnZipper

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
