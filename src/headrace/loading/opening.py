"""Opens the `dataset` argument of a loader: a dataset, config, files, a source, list, map-style dataset or stream."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace import sources
from headrace.batching import Batching
from headrace.batching.data_key import data_key_of_item, frames_of
from headrace.datasets import Dataset, init_dataset
from headrace.datasets.checks import remark_once
from headrace.datasets.files.mapped import dataset_over
from headrace.datasets.parts import open_apart
from headrace.errors import ConfigError, HeadraceError, NotCarriedOverError
from headrace.files.lists.patterns import is_pattern
from headrace.files.locations import is_url
from headrace.sources import Source
from headrace.sources.formats import find_format

from .inputs import DatasetSubject, ItemsSubject, Subject
from .options import LoaderOptions
from .sampler import SampledSubject
from .streams.input import DatasetStream, IterableStream
from .torch_args import ForeignOrder

_LOGGER = logging.getLogger("headrace.loading")
_TEXTS = ("string", "large_string")
_NUM_LOOKED_AT = 100  # items of a list that may be names of files; each is a look at the disk
_CONFIG_TEXT = re.compile(r"""\s*(\{\s*['"]|\w+:(?!//))""")  # {"class": ...} or HDFDataset:files=...


def open_subject(dataset: Any, order: ForeignOrder, options: LoaderOptions) -> Subject:
    """Turn the argument `dataset` of a loader into a subject.

    Raises:
        ConfigError: It is nothing that can be loaded, or its order is given twice.
    """
    shuffled = f"permute:seed={options.seed}" if order.shuffle else None
    if not isinstance(dataset, Dataset | Source):
        dataset = sources.open_source(dataset) if _names_files(dataset) else _known_table(dataset, options)
    if isinstance(dataset, Dataset | Mapping | str | Source) or _is_function(dataset):
        own = open_apart(dataset_over(dataset) if isinstance(dataset, Source) else dataset)
        config = own if isinstance(dataset, Dataset | Source) else dataset
        subject = _subject_of(own, config, shuffled, is_own=own is not dataset)
    elif isinstance(dataset, type) or not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")):
        raise ConfigError(
            f"a loader cannot read {dataset if isinstance(dataset, type) else type(dataset)}",
            fix="give a Headrace dataset or its config, a path, an object with __len__ and __getitem__, or an iterable",
        )
    elif not _is_map_style(dataset):
        if not hasattr(dataset, "__iter__"):  # Python would ask for the items 0, 1, 2, ... until an IndexError
            raise ConfigError(
                f"a {type(dataset).__name__} has __getitem__, and no __len__: how many items there are is not known",
                fix="define __len__; or, for a stream, __iter__ in place of __getitem__",
            )
        if isinstance(dataset, Iterator):
            raise ConfigError(
                f"a {type(dataset).__name__} can be iterated over only once, and each epoch iterates over it",
                fix="give an object whose __iter__ starts from the beginning",
            )
        subject = IterableStream(*_open_iterable(dataset, options))
    else:
        subject = _open_items(dataset, shuffled or "default", options)
    if subject.is_stream and (order.shuffle or order.sampler is not None):
        raise ConfigError("a stream defines its own order", where=subject.name, fix="leave shuffle and sampler out")
    if order.sampler is not None:
        subject = SampledSubject(subject, order.sampler, order.draw)
    return subject


def _names_files(dataset: Any) -> bool:
    """Tell whether it is a path, a URL or a pattern; any other text is the config of a dataset."""
    if isinstance(dataset, os.PathLike):
        return True
    if not isinstance(dataset, str) or _CONFIG_TEXT.match(dataset):
        return False
    return is_url(dataset) or is_pattern(dataset, dataset) or os.path.lexists(dataset)


def _known_table(dataset: Any, options: LoaderOptions) -> Any:
    """Return what to read in place of a table of another library; anything else is returned unchanged.

    A `datasets.Dataset` of numbers, recordings or images becomes a source, whose lengths are known. Its rows are left
    as they are for a user's collate function, where a format or a transform makes them, and where all else is texts,
    unless lengths are needed. A `DatasetDict` of one split stands for that split.

    Raises:
        ConfigError: It is several tables, or one whose columns cannot be told apart.
    """
    if _is_of_module(dataset, "pandas", "DataFrame"):
        return _DataFrameRows(dataset)
    if _is_of_module(dataset, "datasets", "DatasetDict", "IterableDatasetDict"):
        if len(dataset) == 1:
            (split,) = dataset.values()
            return _known_table(split, options)
        names = ", ".join(map(repr, dataset))
        raise ConfigError(
            f"a {type(dataset).__name__} has one dataset for each split: {names}",
            fix=f"give one of them: dataset[{next(iter(dataset), 'train')!r}]",
        )
    if _is_of_module(dataset, "ray.data", "Dataset"):
        raise NotCarriedOverError(
            "a dataset of Ray Data is no longer read",
            fix="write it as Parquet (dataset.write_parquet(folder)), and pass ParquetSource(folder)",
        )
    if not _is_of_module(dataset, "datasets", "Dataset"):
        return dataset
    if options.collate is None and (options.batching.needs_lengths or _is_as_stored(dataset)):
        source = sources.HuggingFaceSource(dataset)
        texts = [name for name in source.specs if getattr(dataset.features[name], "dtype", "") in _TEXTS]
        if texts:
            _LOGGER.warning(
                "the texts of %s are read as UTF-8 bytes; for classes of a vocabulary give HuggingFaceSource(dataset, "
                'fields={..., %r: {"field": %r, "vocab": "tokenizer.json"}})',
                ", ".join(map(repr, texts)),
                texts[0],
                texts[0],
            )
        if left := [name for name in dataset.column_names if name not in source.specs]:
            _LOGGER.warning(
                "the columns %s of the dataset become no arrays, and are left out: give collate=, which gets the rows "
                "as they are, or choose columns by select_columns",
                ", ".join(map(repr, left)),
            )
        return source
    _require_torchcodec(dataset, options)
    return dataset


def _open_iterable(dataset: Any, options: LoaderOptions) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return an iterable, and what each of its items is converted by, or None.

    The recordings of a streaming dataset of Hugging Face are decoded as those of any other one are, unless there is a
    format, or a collate function, which gets the rows as the library makes them.
    """
    if not _is_of_module(dataset, "datasets", "IterableDataset"):
        return dataset, None
    if options.collate is None and not dataset._formatting:  # there is no public way to ask for its format
        from headrace.sources.tables.streamed import decode_here  # it imports the library

        return decode_here(dataset)
    _require_torchcodec(dataset, options)
    return dataset, None


def _is_as_stored(dataset: Any) -> bool:
    """Tell whether a `datasets.Dataset` has no format or transform, and numbers only, or any recordings or images."""
    form = dataset.format
    is_formatted = form["type"] is not None or set(form["columns"]) != set(dataset.column_names)
    features = dataset.features.values()
    return not is_formatted and (
        all(map(_is_of_numbers, features)) or any(_is_of_module(one, "datasets", "Audio", "Image") for one in features)
    )


def _require_torchcodec(dataset: Any, options: LoaderOptions) -> None:
    """Refuse rows that the library would decode, and cannot."""
    form = getattr(dataset, "format", None)  # a streaming dataset tells none
    names = [
        name
        for name, feature in (dataset.features or {}).items()
        if _is_of_module(feature, "datasets", "Audio") and feature.decode and (not form or name in form["columns"])
    ]
    if not names or importlib.util.find_spec("torchcodec") is not None or (form and form["type"] == "custom"):
        return
    asked = "collate=" if options.collate is not None else "the format of the dataset"
    raise ConfigError(
        f"rows with recordings ({', '.join(map(repr, names))}) are decoded by the package torchcodec, which is not "
        "installed",
        where="dataset of Hugging Face",
        fix=f"leave out {asked}: then they are decoded by soundfile; or pip install torchcodec; or "
        f"cast_column({names[0]!r}, Audio(decode=False))",
    )


def _is_of_numbers(feature: Any) -> bool:
    while (inner := getattr(feature, "feature", None)) is not None:  # of a list
        feature = inner
    dtype = getattr(feature, "dtype", None)
    return isinstance(dtype, str) and dtype.startswith(("bool", "int", "uint", "float"))


def _is_of_module(value: Any, module: str, *classes: str) -> bool:
    """Tell whether a value is an instance of a class of an optional package."""
    if (package := sys.modules.get(module)) is None:
        return False
    found = [getattr(package, name, None) for name in classes]
    return isinstance(value, tuple(one for one in found if isinstance(one, type)))


class _DataFrameRows:
    """The rows of a pandas `DataFrame`, each a dict by column.

    Args:
        frame: It is not looked at again: columns of numbers are shared with it.

    Raises:
        ConfigError: Two columns have the same name.
    """

    def __init__(self, frame: Any) -> None:
        names = [str(name) for name in frame.columns]
        if twins := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"the DataFrame has several columns {sorted(twins)[0]!r}", fix="rename or drop one")
        self._size = len(frame)
        self._columns = {name: frame.iloc[:, number].to_numpy() for number, name in enumerate(names)}

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {name: values[number] for name, values in self._columns.items()}


def _subject_of(dataset: Dataset, config: Any, shuffled: str | None, *, is_own: bool) -> Subject:
    corpus = dataset.get_corpus()
    if not corpus.knows_order():
        return DatasetStream(dataset, is_own=is_own)
    subject = DatasetSubject(config, corpus, is_own=is_own)
    if shuffled is not None:
        subject.shuffle(shuffled)
    return subject


def _is_function(dataset: Any) -> bool:
    return callable(dataset) and not isinstance(dataset, type) and not hasattr(dataset, "__getitem__")


def _is_map_style(dataset: Any) -> bool:
    """Tell whether it has `__getitem__` and `__len__`; torch's IterableDataset inherits the first, and is none."""
    if _is_of_module(dataset, "torch.utils.data", "IterableDataset"):
        return False
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _open_items(items: Any, seq_ordering: str, options: LoaderOptions) -> Subject:
    """Make a dataset of items that are dicts of numbers; other items, or those for a collate, stay as they are."""
    if type(items) in (list, tuple) and options.collate is None and options.transform is None:
        _tell_of_file_names(items)
    first = items[0] if options.collate is None and len(items) else None
    if isinstance(first, Mapping) and all(np.asarray(value).dtype.kind in "biufc" for value in first.values()):
        made = dataset_over(items, seq_ordering, first)
        return _subject_of(init_dataset(made), made, None, is_own=True)
    if options.batching.needs_lengths and isinstance(items, list | tuple) and items and isinstance(items[0], Mapping):
        return _ListSubject(items, seq_ordering, options.batching)
    return ItemsSubject(items, seq_ordering)


def _tell_of_file_names(items: Sequence[Any]) -> None:
    """Log a hint where all items (the first of many) are names of data files: a list of texts is legal, and is items.

    It is no error: what a program does must not depend on which files are there.
    """
    looked_at = items[:_NUM_LOOKED_AT]
    if not looked_at or not all(isinstance(item, str | os.PathLike) and os.path.isfile(item) for item in looked_at):
        return
    try:
        find_format(looked_at[0])
    except HeadraceError:
        return
    remark_once(
        f"the items of the list are names of data files, such as {os.fspath(looked_at[0])!r}: the names are delivered, "
        "and no file is read. To read them, give DataLoader(open_source(files), ...) or a dataset",
        "DataLoader",
    )


class _ItemsWithLengths:
    """A list of dicts in memory, with their lengths."""

    def __init__(self, items: Sequence[Mapping[str, Any]], data_key: str | None) -> None:
        self._items, self._data_key = items, data_key

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> Mapping[str, Any]:
        return self._items[number]

    def get_seq_len(self, number: int) -> int:
        """Return the frames of the data key that counts."""
        return 1 if self._data_key is None else frames_of(self._items[number][self._data_key])


class _ListSubject(ItemsSubject):
    """A list of dicts that contain texts, or that are for a user's collate function; lengths are known.

    Args:
        items: At least one.
        seq_ordering: The order.
        batching: It may name a data key; the first item says which has a time axis.
    """

    def __init__(self, items: Sequence[Mapping[str, Any]], seq_ordering: str, batching: Batching) -> None:
        data_key = data_key_of_item(batching, items[0], "the first item of the list")
        super().__init__(_ItemsWithLengths(items, data_key), seq_ordering)
        self.name, self.data_key = "list", data_key

    def knows_lengths(self, data_key: str | None) -> bool:
        """Return True for the key that counts."""
        return data_key == self.data_key
