"""`HuggingFaceDataset`: a dataset of Hugging Face's library, under RETURNN's name and options."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import FileCache, open_regular, resolve_inside
from headrace.sources import HuggingFaceSource
from headrace.sources.tables.hugging_face import import_datasets, is_named, load_hugging_face
from headrace.specs import DataSpec

from ..cached import CachedDataset, SourceCorpus
from ..checks import check_source_options
from ..digests import digest_array
from ..reading.reader import Features

_SOURCE_OPTIONS = ("nulls", "root", "index")
_FORMAT_OPTIONS = ("dim", "dtype", "feature_dim", "ndim", "shape", "sparse", "sparse_dim", "vocab")
_FIX_FORMAT = "correct the format, or the column by cast_columns"


class HuggingFaceDataset(CachedDataset):
    """Rows of a dataset of Hugging Face's library, by RETURNN's options. Needs `headrace[hf]`.

    A data key has the name of its column. What a column becomes is described at `HuggingFaceSource`; `data_format`
    must agree with it.

    Args:
        dataset_opts: A folder that `save_to_disk` made, a list of Arrow files, a dict of arguments for
            `datasets.load_dataset`, a `datasets.Dataset` or a `HuggingFaceSource`; or a function that returns one of
            these.
        use_file_cache: Whether to copy the files of a folder or list to the local disk first, see `FileCache`.
        map_func: Called with the `datasets.Dataset` that was loaded; returns the one to use.
        rename_columns: Old name -> new name.
        cast_columns: Column -> feature of the library, or a dict that describes one, such as
            `{"_type": "Value", "dtype": "int32"}`.
        data_format: Column -> what must be known of its arrays, a dict with any of "dtype", "shape" (`None` for axes
            that differ, first of all time), "ndim", "dim", "sparse", "sparse_dim"; for texts with "vocab": a
            vocabulary, or a dict of one, see `parse_field`; "bytes" for UTF-8. Only these columns are read. A column of
            texts with the dtype "string" and no vocabulary is no part of batches: `get_data` returns the text as an
            array of one string, and the functions of a `PostprocessingDataset` get it, to make arrays of it.
        seq_tag_column: Column with the tags; "seq-0", "seq-1", ... if `None`.
        sorting_seq_len_column_data: Column whose length sequences are sorted by; characters of texts.
        sorting_seq_len_column: Column of numbers that sequences are sorted by, such as durations. Without either, it
            is the length of the first data key.
        source_options: More options of `HuggingFaceSource`: "nulls", "root", "index".
        **kwargs: See `CachedDataset` and `Dataset`.

    Raises:
        ConfigError: An option is wrong, or the data are not of the given format.
        SourceError: The dataset cannot be loaded, or a row becomes no array.
    """

    _content_options = ("map_func", "rename_columns", "cast_columns", "data_format", "source_options")

    def __init__(
        self,
        dataset_opts: Any,
        *,
        use_file_cache: bool = False,
        map_func: Callable[[Any], Any] | None = None,
        rename_columns: Mapping[str, str] | None = None,
        cast_columns: Mapping[str, Any] | None = None,
        data_format: Mapping[str, Mapping[str, Any]],
        seq_tag_column: str | None = "id",
        sorting_seq_len_column_data: str | None = None,
        sorting_seq_len_column: str | None = None,
        source_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if sorting_seq_len_column is not None and sorting_seq_len_column_data is not None:
            raise ConfigError(
                "sorting_seq_len_column and sorting_seq_len_column_data both say what to sort by",
                where=f"dataset {self.name!r}",
                fix="leave one of them out",
            )
        given = check_source_options(source_options, _SOURCE_OPTIONS, "HuggingFaceSource", f"dataset {self.name!r}")
        columns = [name for name in (sorting_seq_len_column, sorting_seq_len_column_data) if name is not None]
        if isinstance(dataset_opts, HuggingFaceSource):
            source = dataset_opts
        else:
            named = dataset_opts
            if callable(named) and is_named(named):
                named = named()
            if use_file_cache:
                named = _from_cache(named, FileCache.get_instance(), f"dataset {self.name!r}")
            dataset = _changed(load_hugging_face(named), map_func, rename_columns, cast_columns)
            source = _open(dataset, data_format, seq_tag_column, {**given, "_is_named": is_named(dataset_opts)})
        if source.dataset is not None:
            _check_columns(columns, source.dataset)
        self._set_source(source, HuggingFaceCorpus)
        corpus = self._read
        assert isinstance(corpus, HuggingFaceCorpus)
        corpus.nulls = given.get("nulls", "refuse")
        corpus.text_keys = [key for key, options in data_format.items() if _is_text_as_such(options)]
        corpus.by_length_of, corpus.by_value_of = sorting_seq_len_column_data, sorting_seq_len_column


class HuggingFaceCorpus(SourceCorpus):
    """The rows of a dataset of the `datasets` library.

    Attributes:
        nulls: See `HuggingFaceSource`.
        by_length_of: The column whose lengths are sorted by.
        by_value_of: The column whose values are.
    """

    nulls: Any = "refuse"
    by_length_of: str | None = None
    by_value_of: str | None = None

    def texts(self, corpus_idx: int) -> Features:
        """Return the texts of a sequence, as arrays `str[]`; their columns are opened when they are first asked for."""
        return {key: np.array(_text(self._texts, corpus_idx, key)) for key in self.text_keys}

    @cached_property
    def _texts(self) -> HuggingFaceSource:
        assert isinstance(self.source, HuggingFaceSource)
        return _columns(self.source.dataset, self.text_keys, self.nulls)

    def sort_lengths(self, epoch: int | None = None) -> NDArray[Any]:
        """Return `number[N]`: what sequences are sorted by."""
        return self._sorted_by if self.by_length_of or self.by_value_of else super().sort_lengths(epoch)

    def order_texts(self, epoch: int) -> list[str]:
        """Return also what is sorted by, where it is a column."""
        texts = super().order_texts(epoch)
        has_column = self.by_length_of or self.by_value_of
        return [*texts, f"sorted by {digest_array(np.asarray(self._sorted_by))}"] if has_column else texts

    @cached_property
    def _sorted_by(self) -> NDArray[Any]:
        assert isinstance(self.source, HuggingFaceSource)
        if not len(self.source):
            return np.zeros(0, np.int64)
        dataset, column = self.source.dataset, str(self.by_length_of)
        if self.by_value_of is not None:
            return _values_of(dataset, self.by_value_of)
        opened = _columns(dataset, [column], self.nulls)
        if _is_text(dataset, column):
            return np.array([len(_text(opened, i, column)) for i in range(len(opened))], np.int64)
        if not opened.specs[column].has_time:
            raise ConfigError(
                f"the values of the column {column!r} have no length",
                where=f"dataset {self.name!r}",
                fix="give it as sorting_seq_len_column, if it is a number to sort by",
            )
        return opened.index.lengths(column)


def _columns(dataset: Any, names: Sequence[str], nulls: Any) -> HuggingFaceSource:
    """Open some columns, texts as their bytes."""
    fields = {name: _field(dataset, name, None) for name in names}
    return HuggingFaceSource(dataset.select_columns(list(names)), fields=fields, nulls=nulls, index=None)


def _field(dataset: Any, column: str, vocab: Any) -> dict[str, Any]:
    if vocab is None and _is_text(dataset, column):
        vocab = "bytes"
    return {"field": column} if vocab is None else {"field": column, "vocab": vocab}


def _text(source: HuggingFaceSource, corpus_idx: int, column: str) -> str:
    return source.read(corpus_idx, column).tobytes().decode()


def _open(
    dataset: Any,
    data_format: Mapping[str, Mapping[str, Any]],
    seq_tag_column: str | None,
    source_options: Mapping[str, Any],
) -> HuggingFaceSource:
    """Open the columns of a format, and compare them with it."""
    if not isinstance(data_format, Mapping) or not data_format:
        raise ConfigError(f"data_format is a dict column -> options, not {data_format!r}")
    _check_columns([*data_format, *([] if seq_tag_column is None else [seq_tag_column])], dataset)
    fields: dict[str, Any] = {}
    for key, options in data_format.items():
        if not isinstance(options, Mapping):
            raise ConfigError(f"the format of {key!r} is a dict, not {options!r}", where="data_format")
        where = f"data_format of {key!r}"
        for name in options:
            if name not in _FORMAT_OPTIONS:
                raise ConfigError(f"unknown option {name!r}", where=where, fix=did_you_mean(str(name), _FORMAT_OPTIONS))
        if not _is_text_as_such(options):
            fields[key] = _field(dataset, key, options.get("vocab"))
        elif not _is_text(dataset, key):
            raise ConfigError("the dtype is 'string', and the column holds no texts", where=where, fix=_FIX_FORMAT)
    source = HuggingFaceSource(
        dataset, fields=fields, tag_field=seq_tag_column, may_be_empty=not fields, **source_options
    )
    source.declare({key: _agreed(source, key, data_format[key]) for key in source.specs})
    return source


def _is_text_as_such(options: Mapping[str, Any]) -> bool:
    return options.get("dtype") == "string" and options.get("vocab") is None


def _is_text(dataset: Any, column: str) -> bool:
    return getattr(dataset.features[column], "dtype", None) in ("string", "large_string")


def _check_columns(names: Iterable[str], dataset: Any) -> None:
    for name in names:
        if name not in dataset.column_names:
            fix = did_you_mean(str(name), map(str, dataset.column_names))
            raise ConfigError(f"the dataset has no column {name!r}", fix=fix)


def _agreed(source: HuggingFaceSource, key: str, options: Mapping[str, Any]) -> DataSpec:
    """Return the layout of a key as its format says it; what the format leaves open is as it was found.

    Raises:
        ConfigError: They contradict each other.
    """
    spec, given = source.specs[key], {name: value for name, value in options.items() if value is not None}

    def check(name: str, found: Any, fits: bool) -> None:
        if not fits:
            raise ConfigError(
                f"{name} is {given[name]!r}, but that of the column is {found!r}",
                where=f"data_format of {key!r}",
                fix=_FIX_FORMAT,
            )

    shape = given.get("shape")
    num_axes = len(shape) if isinstance(shape, list | tuple) else given.get("ndim")
    if source.is_recording(key) and num_axes == 1:
        spec = replace(spec, shape=())
    check("dtype", spec.dtype, str(given.get("dtype", spec.dtype)) == spec.dtype)
    check("ndim", spec.ndim, given.get("ndim", spec.ndim) == spec.ndim)
    if shape is not None:
        found = (*((None,) if spec.has_time else ()), *spec.shape)
        fits = len(shape) == len(found) and all(ours in (None, size) for ours, size in zip(shape, found, strict=True))
        check("shape", found, fits)
        spec = replace(spec, shape=tuple(shape[1:] if spec.has_time else shape))
    sparse = given.get("sparse", True if "sparse_dim" in given else spec.sparse)
    if sparse != spec.sparse:
        name = "sparse" if "sparse" in given else "sparse_dim"
        check(name, spec.sparse, not sparse or np.dtype(spec.dtype).kind in "iu")
        spec = replace(spec, sparse=bool(sparse), dim=None if sparse else spec.shape[-1] if spec.shape else 1)
    for name in ("dim", "sparse_dim", "feature_dim"):
        if name in given:
            is_open = spec.dim is None or (not spec.sparse and spec.shape[-1:] == (None,))
            check(name, spec.dim, is_open or given[name] == spec.dim)
            spec = replace(spec, dim=int(given[name]))
    return spec


def _changed(
    dataset: Any,
    map_func: Callable[[Any], Any] | None,
    rename_columns: Mapping[str, str] | None,
    cast_columns: Mapping[str, Any] | None,
) -> Any:
    """Return the dataset that the user makes of the one that was loaded."""
    if map_func is not None:
        dataset = load_hugging_face(map_func(dataset))
    if rename_columns:
        _check_columns(rename_columns, dataset)
        dataset = dataset.rename_columns(dict(rename_columns))
    for column, feature in (cast_columns or {}).items():
        _check_columns([column], dataset)
        if isinstance(feature, Mapping):
            feature = import_datasets().Features.from_dict({column: dict(feature)})[column]
        dataset = dataset.cast_column(column, feature)
    return dataset


def _values_of(dataset: Any, column: str) -> NDArray[Any]:
    """Return a column of numbers, `number[N]`."""
    values = np.asarray(dataset.select_columns([column]).with_format("numpy")[:][column])
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not (values >= 0).all():
        raise ConfigError(
            f"sequences are sorted by numbers of at least 0, and the column {column!r} has others",
            fix="for the length of its values, give it as sorting_seq_len_column_data",
        )
    return values


def _from_cache(named: Any, cache: FileCache, where: str) -> list[str]:
    """Return the Arrow files that are named, or those of a folder that `save_to_disk` made, on the local disk."""
    if isinstance(named, str | os.PathLike):
        folder = os.fspath(named)
        try:
            with open_regular(os.path.join(folder, "state.json")) as file:
                names = [str(entry["filename"]) for entry in json.load(file)["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = f"this is not a folder that save_to_disk made: {error}"
            raise SourceError(what, where=folder, fix="give its path, one split of it") from error
        named = [str(resolve_inside(folder, name)) for name in names]
    if not isinstance(named, list | tuple):
        raise ConfigError(
            f"use_file_cache copies files, and dataset_opts names none: a {type(named).__name__}",
            where=where,
            fix="leave it out, or give a folder or a list of Arrow files",
        )
    return [cache.get_file(os.path.abspath(path)) for path in named]
