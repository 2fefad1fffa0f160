"""The functional names: `pipe.map(f)` is `Mapper(pipe, f)`.

Also the names of torchdata that were not ported: using one raises an error that says what to use instead. As in
torchdata, where a package that a pipe needs may be missing, the class can be imported, and its construction raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.errors import ConfigError, NotCarriedOverError

from .torch_classes import find_torch_function, is_torch_pipe, lend_function, register_with_torch

_FSSPEC = "{0} with a path such as '{1}', which fsspec reads"
_FRAMES = " (torcharrow, whose frames it made, is no longer developed)"

# Class -> (functional name, what to use).
DEPARTED = {
    "AISFileLister": ("list_files_by_ais", "the iterable datasets of the package aistore, in an IterableWrapper"),
    "AISFileLoader": ("load_files_by_ais", "the iterable datasets of the package aistore, in an IterableWrapper"),
    "DataFrameMaker": ("dataframe", ".batch(n).map(pandas.DataFrame), or .rows2columnar()" + _FRAMES),
    "GDriveReader": ("read_from_gdrive", "the package gdown to fetch the file once, then .open_files()"),
    "IoPathFileLister": ("list_files_by_iopath", _FSSPEC.format("FSSpecFileLister", "s3://bucket/folder")),
    "IoPathFileOpener": ("open_files_by_iopath", _FSSPEC.format(".open_files_by_fsspec()", "s3://bucket/file")),
    "IoPathSaver": ("save_by_iopath", _FSSPEC.format(".save_by_fsspec()", "s3://bucket/file")),
    "ParquetDataFrameLoader": (
        "load_parquet_as_df",
        "headrace.ParquetSource for rows in any order, .map(pyarrow.parquet.read_table) for whole files" + _FRAMES,
    ),
    "RarArchiveLoader": ("load_from_rar", "zip or tar archives, or the package rarfile in a function for .flatmap()"),
    "RoutedDecoder": (
        "routed_decode",
        ".map() with a decoder of your own; torch has deprecated its own since 1.12",
    ),
    "S3FileLister": ("list_files_by_s3", _FSSPEC.format("FSSpecFileLister", "s3://bucket/folder")),
    "S3FileLoader": ("load_files_by_s3", _FSSPEC.format(".open_files_by_fsspec('rb')", "s3://bucket/file")),
    "TFRecordLoader": (
        "load_from_tfrecord",
        "the package tfrecord in a function for .flatmap(), or tar shards: .load_from_tar().webdataset()",
    ),
}
_BY_FUNCTION = dict(DEPARTED.values())


@functools.cache
def stand_in(module: str, name: str) -> type | None:
    """Return a class for a torchdata class that was not ported, whose construction raises; None for any other name."""
    if name not in DEPARTED:
        return None
    _, advice = DEPARTED[name]

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise NotCarriedOverError(f"torchdata's {name} is not part of {module}", fix=f"use {advice}")

    return type(name, (), {"__new__": refuse, "__module__": module, "__doc__": f"Not ported: use {advice}."})


def advice_on(function: str) -> str | None:
    """Return what to use instead of a functional name of torchdata that was not ported; None for any other."""
    return _BY_FUNCTION.get(function)


PipeClass = TypeVar("PipeClass", bound=type)

_FUNCTIONS: dict[type, dict[str, Callable[..., Any]]] = {}


def functional_pipe(name: str) -> Callable[[PipeClass], PipeClass]:
    """Register a functional name for a pipe class, on pipes of its kind (iterable or map-style).

    A class derived from torch's pipes is registered with torch, and the name works on Headrace's pipes too.

    Args:
        name: The method name: `name="map"` makes `pipe.map(...)` work.

    Raises:
        ConfigError: The name is taken, or no identifier.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.pipes import IterPipe, functional_pipe
        >>> @functional_pipe("doubled")
        ... class Doubler(IterPipe):
        ...     def __init__(self, source):
        ...         self.source = source
        ...
        ...     def __iter__(self):
        ...         for item in self.source:
        ...             yield item * 2
        >>> list(IterableWrapper([1, 2]).doubled())
        [2, 4]
    """

    def register(cls: PipeClass) -> PipeClass:
        if is_torch_pipe(cls):
            register_with_torch(name, cls)
            return cls
        register_function(_kind_of(cls), name, cls)
        return cls

    return register


def register_function(kind: type, name: str, function: Callable[..., Any]) -> None:
    """Make `pipe.name(...)` call `function(pipe, ...)` for all pipes of a kind, torch's included if torch is loaded.

    A class may be registered again under its name, as by a notebook cell that is run twice.

    Args:
        kind: `IterPipe` or `MapPipe`, or a class of your own, to have the name on its pipes only.
        name: The method name.
        function: The function to call.

    Raises:
        ConfigError: The name is taken, or no identifier.
    """
    if not name.isidentifier() or name.startswith("_"):
        raise ConfigError(f"{name!r} is not a valid name for a function of pipes")
    known = _FUNCTIONS.get(kind, {}).get(name)
    if hasattr(kind, name) or (known is not None and _origin(known) != _origin(function)):
        raise ConfigError(f"pipes have a function {name!r} already", fix="give it another name")
    _FUNCTIONS.setdefault(kind, {})[name] = function
    lend_function(kind, name, function)


def find_function(cls: type, name: str) -> Callable[..., Any] | None:
    """Return the function of a functional name on pipes of a class, also if only torch's pipes have that name."""
    for kind in cls.__mro__:
        if function := _FUNCTIONS.get(kind, {}).get(name):
            return function
    return next((found for kind in cls.__mro__ if (found := find_torch_function(kind, name))), None)


def list_functions(cls: type) -> dict[str, Callable[..., Any]]:
    """Return all functional names of pipes of a class."""
    found: dict[str, Callable[..., Any]] = {}
    for kind in reversed(cls.__mro__):
        found |= _FUNCTIONS.get(kind, {})
    return found


def _kind_of(cls: type) -> type:
    for kind in reversed(cls.__mro__):
        if kind.__name__ in ("IterPipe", "MapPipe"):
            return kind
    raise ConfigError(f"{cls.__name__} is not a pipe", fix="make it a subclass of headrace.pipes.IterPipe or MapPipe")


def _origin(function: Any) -> tuple[str | None, str | None]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", None)
