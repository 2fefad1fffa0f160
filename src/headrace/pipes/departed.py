"""Classes of torchdata that did not come along, and what does their work, for errors that name it."""

from __future__ import annotations

from headrace.errors import NotCarriedOverError

_FSSPEC = "fsspec reads it: {0} with a path such as '{1}'"
_FRAMES = "torcharrow, which it made frames of, is no longer developed: "

# Class -> (functional name, what to use).
DEPARTED = {
    "AISFileLister": ("list_files_by_ais", "the iterable datasets of the package aistore, in an IterableWrapper"),
    "AISFileLoader": ("load_files_by_ais", "the iterable datasets of the package aistore, in an IterableWrapper"),
    "DataFrameMaker": ("dataframe", _FRAMES + ".batch(n).map(pandas.DataFrame), or .rows2columnar()"),
    "GDriveReader": ("read_from_gdrive", "the package gdown to fetch the file once, then .open_files()"),
    "IoPathFileLister": ("list_files_by_iopath", _FSSPEC.format("FSSpecFileLister", "s3://bucket/folder")),
    "IoPathFileOpener": ("open_files_by_iopath", _FSSPEC.format(".open_files_by_fsspec()", "s3://bucket/file")),
    "IoPathSaver": ("save_by_iopath", _FSSPEC.format(".save_by_fsspec()", "s3://bucket/file")),
    "ParquetDataFrameLoader": (
        "load_parquet_as_df",
        _FRAMES + "headrace.ParquetSource reads rows at random, .map(pyarrow.parquet.read_table) whole files",
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


def refuse_departed(module: str, name: str) -> None:
    """Raise the error for a class that did not come along; do nothing for any other name.

    Raises:
        NotCarriedOverError: It is one.
    """
    if name in DEPARTED:
        _, advice = DEPARTED[name]
        raise NotCarriedOverError(f"torchdata's {name} is not part of {module}", fix=f"use {advice}")


def advice_on(function: str) -> str | None:
    """Return what to use in place of a functional name of torchdata that did not come along; None for any other."""
    return _BY_FUNCTION.get(function)
