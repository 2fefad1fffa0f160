"""Public names of a room that are imported on first use, so that using one does not import all.

A worker process starts in a third of the time: it needs a tenth of what a trainer needs. (PEP 562.)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import NotCarriedOverError

_ON_EACH_HOST = (
    'executor="process" with a rank on each host, or executor="ray" (RayExecutor) for workers on the nodes of a Ray '
    "cluster; on Slurm, `ray symmetric-run` starts one"
)
_BY_EPOCH = "a PostprocessingDataset whose `map_seq_stream` drops sequences by their length and the epoch"
_TOYS = ("DummyDataset", "DummyDatasetMultipleSequenceLength", "GeneratingDataset", "Task12AXDataset", "answers_12ax")
# What Headrace no longer has, for all rooms and configs: name of a class, function or option -> what to use instead.
DEPARTED = {
    "RemoteExecutor": _ON_EACH_HOST,
    "MixedExecutor": _ON_EACH_HOST,
    "SharedService": "workers of each training's own (num_workers=), and a dataset that is converted once for all",
    "RayDataSource": "ParquetSource over what the `write_parquet` of the dataset has written",
    **dict.fromkeys(_TOYS, "a StaticDataset over a list of dicts, or a MapDataset over a class that makes item i"),
    "EpochWiseFilter": _BY_EPOCH,
    "epoch_wise_filter": _BY_EPOCH,
    "CutSource": "LhotseDataLoader with lhotse's samplers, or a map-style dataset over the CutSet with `get_seq_len`",
    "SamplingBytePairEncoding": "BytePairEncoding; to draw parts, read the text as bytes and encode it in a transform, "
    "by the dropout of a BPE model of tokenizers, or by sentencepiece",
    **dict.fromkeys(
        ("NumpyFolderSource", "NumpyFolderWriter", "SafetensorsSource", "SafetensorsWriter"),
        "a map-style dataset over `np.load(path, mmap_mode='r')` (or safetensors), or write HDF5 once by HDFWriter",
    ),
    "JsonlWriter": "HDFWriter, TarWriter or ParquetWriter; or write a line by json.dumps for each sequence",
    "OggZipWriter": "TarWriter or HDFWriter; or RETURNN's tools/bliss-to-ogg-zip.py, or Python's zipfile",
    **dict.fromkeys(
        ("Format", "register_format"),
        "a Source of your own: what takes a source takes an object, and a config its class as 'module:Class'",
    ),
    "FileWriter": "HDFWriter, TarWriter, TokenWriter, ParquetWriter or ArrowWriter",
    "check_format": "headrace.testing.check_source, on a source of what was written",
    "AnythingDataset": "a transform of the dataset beside it that adds the zeros",
    "SingleStreamPipeDataset": "a CachedDataset2 whose `_collect_single_seq` takes sequences from a queue",
    "VariableDataset": "init_dataset(get_dataset(epoch)) in the loop over epochs, with a loader for each; or "
    "CombinedDataset or DistributeFilesDataset, which read other sequences in each epoch",
}


def refuse_departed(name: str, called: str) -> None:
    """Refuse the name of what Headrace no longer has.

    Args:
        name: As a user wrote it.
        called: How the error names it.

    Raises:
        NotCarriedOverError: There was one; the fix names what to use instead.
    """
    if name in DEPARTED:
        raise NotCarriedOverError(f"{called} is no longer offered", fix=f"use {DEPARTED[name]}")


def export_lazily(
    room: str, names_of: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for the `__init__.py` of a room.

    Args:
        room: Its `__name__`.
        names_of: Module of the room -> the names that the room takes from it; a module of another room is named in
            full. For type checkers and the documentation the same imports stand below `if TYPE_CHECKING`, and the
            names in `__all__`.
    """
    module_of = {name: module for module, names in names_of.items() for name in names}

    def get(name: str) -> Any:
        refuse_departed(name, f"{room}.{name}")
        if name not in module_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        module = module_of[name]
        path = module if module.startswith("headrace.") else f"{room}.{module}"
        value = getattr(importlib.import_module(path), name)
        setattr(sys.modules[room], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[room]), *module_of})

    return get, list_names
