"""`HuggingFaceDataset`: a dataset of Hugging Face's library, under RETURNN's name and options."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import FileCache, open_regular, resolve_inside
from headrace.sources import HuggingFaceSource
from headrace.sources.tables.hugging_face import import_datasets, is_named, load_hugging_face
from headrace.specs import DataSpec

from ..cached import CachedDataset
from ..checks import check_source_options
from ..reading.reader import Features

_SOURCE_OPTIONS = ("nulls", "root", "index")
_FORMAT_OPTIONS = ("dim", "dtype", "feature_dim", "ndim", "shape", "sparse", "sparse_dim", "vocab")


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

    _own_attributes = CachedDataset._own_attributes | {"_texts", "_sorted_by"}
    _texts: _ColumnTexts | None = None
    _sorted_by: NDArray[Any] | None = None
    content_options = ("map_func", "rename_columns", "cast_columns", "data_format", "source_options")

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
        self._nulls = given.get("nulls", "refuse")
        self._by_length_of, self._by_value_of = sorting_seq_len_column_data, sorting_seq_len_column
        self.sorts_by_column = not (sorting_seq_len_column is None and sorting_seq_len_column_data is None)
        if isinstance(dataset_opts, HuggingFaceSource):
            source = dataset_opts
        else:
            dataset = self._load(dataset_opts, use_file_cache=use_file_cache)
            dataset = _changed(dataset, map_func, rename_columns, cast_columns)
            source = _open(dataset, data_format, seq_tag_column, {**given, "_is_named": is_named(dataset_opts)})
        self._text_keys = _text_keys(data_format)
        for column in (sorting_seq_len_column, sorting_seq_len_column_data):
            if column is not None and source.dataset is not None:
                _check_column(column, source.dataset)
        self._set_source(source)

    def get_text_keys(self) -> list[str]:
        """Return the columns of texts that become no arrays."""
        return self._text_keys

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return one data key of one sequence, see `Dataset.get_data`; also a text, as an array `str[]`."""
        if key not in self._text_keys:
            return super().get_data(seq_idx, key)
        return self._text_source()(self._corpus_idx(seq_idx))[key]

    def _text_source(self) -> _ColumnTexts:
        if self._texts is None:
            assert isinstance(self.source, HuggingFaceSource)
            self._texts = _ColumnTexts(self.source, self._text_keys, self._nulls)
        return self._texts

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype of a data key; "string" for a text."""
        return "string" if key in self._text_keys else super().get_data_dtype(key)

    def _load(self, dataset_opts: Any, *, use_file_cache: bool) -> Any:
        datasets = import_datasets()
        if callable(dataset_opts) and not isinstance(dataset_opts, datasets.Dataset):
            dataset_opts = dataset_opts()
        if use_file_cache:
            dataset_opts = _from_cache(dataset_opts, FileCache.get_instance(), f"dataset {self.name!r}")
        return load_hugging_face(dataset_opts)

    def _sort_lengths(self) -> NDArray[Any]:
        """Return `number[N]`: what sequences are sorted by."""
        if not self.sorts_by_column:
            return super()._sort_lengths()
        if self._sorted_by is None:
            assert isinstance(self.source, HuggingFaceSource)
            if not len(self.source):
                self._sorted_by = np.zeros(0, np.int64)
            elif self._by_value_of is not None:
                self._sorted_by = _values_of(self.source.dataset, self._by_value_of)
            else:
                self._sorted_by = self._lengths_of_column(str(self._by_length_of))
        return self._sorted_by

    def _lengths_of_column(self, column: str) -> NDArray[Any]:
        assert isinstance(self.source, HuggingFaceSource)
        dataset = self.source.dataset.select_columns([column])
        is_text = _is_text(dataset, column)
        field = {"field": column, **({"vocab": "bytes"} if is_text else {})}
        source = HuggingFaceSource(dataset, fields={column: field}, index=None)
        if is_text:
            return np.array([len(source.read(i, column).tobytes().decode()) for i in range(len(source))], np.int64)
        if not source.specs[column].has_time:
            raise ConfigError(
                f"the values of the column {column!r} have no length",
                where=f"dataset {self.name!r}",
                fix="give it as sorting_seq_len_column, if it is a number to sort by",
            )
        return source.index.lengths(column)


class _ColumnTexts:
    """Reads columns of texts that become no arrays; opens them when it is first asked."""

    def __init__(self, source: HuggingFaceSource, keys: list[str], nulls: Any) -> None:
        self._source, self._keys, self._nulls = source, keys, nulls
        self._opened: HuggingFaceSource | None = None

    def __call__(self, corpus_idx: int) -> Features:
        """Return the texts of a sequence by column, as arrays `str[]`."""
        if not self._keys:
            return {}
        if self._opened is None:
            fields = {key: {"field": key, "vocab": "bytes"} for key in self._keys}
            columns = self._source.dataset.select_columns(self._keys)
            self._opened = HuggingFaceSource(columns, fields=fields, nulls=self._nulls, index=None)
        opened = self._opened
        return {key: np.array(opened.read(corpus_idx, key).tobytes().decode()) for key in self._keys}


def _open(
    dataset: Any,
    data_format: Mapping[str, Mapping[str, Any]],
    seq_tag_column: str | None,
    source_options: Mapping[str, Any],
) -> HuggingFaceSource:
    """Open the columns of a format, and compare them with it."""
    if not isinstance(data_format, Mapping) or not data_format:
        raise ConfigError(f"data_format is a dict column -> options, not {data_format!r}")
    fields: dict[str, Any] = {}
    for key, options in data_format.items():
        _check_column(key, dataset)
        if not isinstance(options, Mapping):
            raise ConfigError(f"the format of {key!r} is a dict, not {options!r}", where="data_format")
        for name in options:
            if name not in _FORMAT_OPTIONS:
                fix = did_you_mean(str(name), _FORMAT_OPTIONS)
                raise ConfigError(f"unknown option {name!r}", where=f"data_format of {key!r}", fix=fix)
        vocab = options.get("vocab")
        is_text = _is_text(dataset, key)
        if options.get("dtype") == "string" and vocab is None:
            if not is_text:
                raise ConfigError(
                    "the dtype is 'string', and the column holds no texts",
                    where=f"data_format of {key!r}",
                    fix="correct the format, or the column by cast_columns",
                )
            continue
        vocab = "bytes" if vocab is None and is_text else vocab
        fields[key] = {"field": key} if vocab is None else {"field": key, "vocab": vocab}
    if seq_tag_column is not None:
        _check_column(seq_tag_column, dataset)
    source = HuggingFaceSource(
        dataset, fields=fields, tag_field=seq_tag_column, may_be_empty=not fields, **source_options
    )
    source.declare({key: _agreed(source, key, options) for key, options in data_format.items() if key in source.specs})
    return source


def _text_keys(data_format: Any) -> list[str]:
    """Return the keys of a format that are texts as such."""
    return [
        key for key, options in data_format.items() if options.get("dtype") == "string" and options.get("vocab") is None
    ]


def _is_text(dataset: Any, column: str) -> bool:
    return getattr(dataset.features[column], "dtype", None) in ("string", "large_string")


def _check_column(name: str, dataset: Any) -> None:
    if name not in dataset.column_names:
        raise ConfigError(
            f"the dataset has no column {name!r}", fix=did_you_mean(str(name), map(str, dataset.column_names))
        )


def _agreed(source: HuggingFaceSource, key: str, options: Mapping[str, Any]) -> DataSpec:
    """Return the layout of a key as its format says it; what the format leaves open is as it was found.

    Raises:
        ConfigError: They contradict each other.
    """
    spec, where = source.specs[key], f"data_format of {key!r}"

    def differs(name: str, found: Any) -> ConfigError:
        return ConfigError(
            f"{name} is {options[name]!r}, but that of the column is {found!r}",
            where=where,
            fix="correct the format, or the column by cast_columns",
        )

    shape = options.get("shape")
    num_axes = len(shape) if isinstance(shape, list | tuple) else options.get("ndim")
    if source.is_recording(key) and num_axes == 1:
        spec = replace(spec, shape=())
    dtype = options.get("dtype")
    if dtype is not None and str(dtype) != spec.dtype:
        raise differs("dtype", spec.dtype)
    if options.get("ndim") not in (None, spec.ndim):
        raise differs("ndim", spec.ndim)
    if shape is not None:
        found = (*((None,) if spec.has_time else ()), *spec.shape)
        fits = len(shape) == len(found) and all(
            ours == size or (ours is None and axis >= spec.has_time)
            for axis, (ours, size) in enumerate(zip(shape, found, strict=True))
        )
        if not fits:
            raise differs("shape", found)
        spec = replace(spec, shape=tuple(shape[1:] if spec.has_time else shape))
    return _with_dim(spec, options, differs)


def _with_dim(spec: DataSpec, options: Mapping[str, Any], differs: Callable[[str, Any], ConfigError]) -> DataSpec:
    """Return a layout with the number of classes or features that a format says."""
    said = {name: options[name] for name in ("dim", "sparse_dim", "feature_dim") if options.get(name) is not None}
    sparse = options.get("sparse", True if "sparse_dim" in said else None)
    if sparse is not None and sparse != spec.sparse:
        if sparse and np.dtype(spec.dtype).kind not in "iu":
            raise differs("sparse" if "sparse" in options else "sparse_dim", spec.sparse)
        last = spec.shape[-1] if spec.shape else 1
        spec = replace(spec, sparse=bool(sparse), dim=None if sparse else last)
    for name, dim in said.items():
        is_open = spec.dim is None or (not spec.sparse and spec.shape[-1:] == (None,))
        if not is_open and dim != spec.dim:
            raise differs(name, spec.dim)
        spec = replace(spec, dim=int(dim))
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
    for column in rename_columns or {}:
        _check_column(column, dataset)
    if rename_columns:
        dataset = dataset.rename_columns(dict(rename_columns))
    for column, feature in (cast_columns or {}).items():
        _check_column(column, dataset)
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
    """Return the Arrow files that are named, on the local disk."""
    if isinstance(named, str | os.PathLike):
        named = _files_of_folder(os.fspath(named))
    if isinstance(named, list | tuple):
        return [cache.get_file(os.path.abspath(path)) for path in named]
    raise ConfigError(
        f"use_file_cache copies files, and dataset_opts names none: a {type(named).__name__}",
        where=where,
        fix="leave it out, or give a folder or a list of Arrow files",
    )


def _files_of_folder(folder: str) -> list[str]:
    """Return the Arrow files of a folder that `save_to_disk` made, in order."""
    path = os.path.join(folder, "state.json")
    try:
        with open_regular(path) as file:
            names = [str(entry["filename"]) for entry in json.load(file)["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"this is not a folder that save_to_disk made: {error}", where=folder, fix="give its path, one split of it"
        ) from error
    return [str(resolve_inside(folder, name)) for name in names]
