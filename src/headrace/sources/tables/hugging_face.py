"""`HuggingFaceSource`: rows of a dataset of Hugging Face's library as sequences, with random access.

The library keeps rows in Arrow tables, in memory or mapped from files, and a selection or shuffle as a list of row
numbers besides. Both are used as they are: rows are views of the tables, and the library's own way to rows, through
Python objects, is not taken. What is delivered is what is stored: `set_transform` and formats belong to that other way.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.locations import is_url
from headrace.index import CorpusIndex
from headrace.specs import DataSpec

from ..audio.codec import RecordingCodec
from ..shared.paths import IndexOption, PathLike
from .fields import choose_options
from .files import ArrowFile, TableFile, Tables
from .gather import gather_tables
from .schema import import_arrow
from .source import TableSource

_INDEX_KIND = "hugging-face/3"


def import_datasets() -> ModuleType:
    """Return Hugging Face's library.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        module = importlib.import_module("datasets")
        importlib.import_module("datasets.arrow_dataset")  # a folder of the first name may be anybody's
    except ImportError as error:
        raise ConfigError(
            f"a dataset of Hugging Face needs the package datasets: {error}", fix="pip install 'headrace[hf]'"
        ) from error
    return module


def load_hugging_face(dataset: Any) -> Any:
    """Return a `datasets.Dataset` for what names one.

    Args:
        dataset: One; a folder that `save_to_disk` made; a list of Arrow files; a dict of arguments for
            `datasets.load_dataset`; or a function that returns one of these.

    Raises:
        ConfigError: It is none of these, or has several splits, or cannot be indexed.
        SourceError: It cannot be loaded.
    """
    datasets = import_datasets()
    if callable(dataset) and not isinstance(dataset, datasets.Dataset):
        dataset = dataset()
    where = f"a {type(dataset).__name__}"
    names_one = isinstance(dataset, str | os.PathLike | list | tuple | Mapping)
    if names_one and not isinstance(dataset, datasets.DatasetDict):
        where = str(dataset)
        dataset = _load(datasets, dataset, where)
    if isinstance(dataset, Mapping) and len(dataset) == 1:
        (dataset,) = dataset.values()
    if isinstance(dataset, datasets.Dataset) and dataset.format["type"] != "custom":
        return dataset
    raise ConfigError(
        "this is not a dataset of Hugging Face that has random access to rows as they are stored",
        where=where,
        fix='give a folder, files, a dict, or a datasets.Dataset: one split (dataset["train"]), loaded without '
        "streaming=True, without a transform (reset_format; pass the function as transform= to the loader); "
        "a streaming dataset is given to headrace.DataLoader as it is",
    )


def is_named(dataset: Any) -> bool:
    """Tell whether a dataset is only named, by what a config may have: everything but the dataset itself."""
    return not isinstance(dataset, import_datasets().Dataset)


def _load(datasets: ModuleType, named: Any, where: str) -> Any:
    pa = import_arrow()
    try:
        if isinstance(named, Mapping):
            if named.get("path") == "pandas" or named.get("trust_remote_code"):
                what = 'a dataset is not loaded by programs of a file (path="pandas"), or of a repository'
                raise ConfigError(what, where=where, fix="convert the data to Parquet; or pass the dataset itself")
            return datasets.load_dataset(**named)
        if isinstance(named, str | os.PathLike):
            return datasets.load_from_disk(_absolute(named))
        if not named:
            raise ConfigError("the list of Arrow files is empty", fix="name at least one")
        return datasets.concatenate_datasets([datasets.Dataset.from_file(_absolute(path)) for path in named])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, pa.ArrowException) as error:
        if isinstance(error, ConfigError):
            raise
        raise SourceError(
            f"the dataset cannot be loaded: {type(error).__name__}: {error}",
            where=where,
            fix="check the path; is a file of the folder damaged? save the dataset again",
        ) from error


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return a path that is the same in another folder; a URL as it is."""
    name = os.fspath(path)
    return name if is_url(name) else os.path.abspath(name)


class HuggingFaceSource(TableSource):
    """Random access to the rows of a `datasets.Dataset`. Needs `headrace[hf]`.

    Columns become data keys as `ParquetSource` describes; class labels, the shapes of `Array2D` ... `Array5D`, and the
    sample rate of `Audio` are taken from the features of the dataset. Selections, shuffles, filters, renamed columns
    and the like are kept. `Audio` is decoded by soundfile, `Image` by Pillow. Where a row has only a path, as those of
    `imagefolder` and `cast_column` have, `root` must hold it. Without one, absolute paths of a dataset that is given
    as an object are read: it was made or loaded by the caller, and the library itself would open them. Those of a
    dataset that is loaded here, from a folder or files, are refused.

    Args:
        dataset: A dataset; or what `load_hugging_face` makes one of: a folder, Arrow files, or a dict.
        fields: See `ParquetSource`.
        tag_field: Column with the tags, texts or whole numbers; "seq-0", "seq-1", ... if `None`.
        nulls: See `ParquetSource`.
        root: See `ParquetSource`; "/" for files anywhere on this machine.
        audio_root: Another name of `root`.
        may_be_empty: Whether there may be no data keys at all; else that is taken for a mistake.
        index: `"auto"` keeps the index in the cache folder if it is expensive to gather (audio, vocabularies) and the
            dataset is one of files, without a selection; `None` always gathers it; a path opens one that was saved.

    Raises:
        ConfigError: An option is wrong, or a package is missing.
        SourceError: The dataset cannot be loaded, or a row becomes no array.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        fields: Mapping[str, Any] | None = None,
        tag_field: str | None = None,
        nulls: Literal["refuse", "empty"] = "refuse",
        root: PathLike | None = None,
        audio_root: PathLike | None = None,
        may_be_empty: bool = False,
        index: IndexOption = "auto",
        _is_named: bool | None = None,
    ) -> None:
        if _is_named is None:
            _is_named = is_named(dataset)
        self.dataset = load_hugging_face(dataset)
        tables = _DatasetTables(self.dataset)
        options = choose_options(
            tables.schema(0),
            tables.name(0),
            fields=fields,
            tag_field=tag_field,
            nulls=nulls,
            root=root,
            audio_root=audio_root,
            may_be_absolute=not _is_named,
            may_be_empty=may_be_empty,
        )
        indices = self.dataset._indices  # of the rows of its table; not public, and the public ways copy all rows
        rows = None if indices is None else indices.table.column(0).to_numpy().astype(np.int64)
        files = [str(entry["filename"]) for entry in self.dataset.cache_files]
        is_dear = rows is None and files and not all(field.is_plain for field in options.fields)
        if index == "auto" and not is_dear:
            index = None
        # The fingerprint tells datasets of the same files apart: a slice of them, say.
        kind = f"{_INDEX_KIND} {self.dataset._fingerprint} {options.identity_text}"
        self._declared: dict[str, DataSpec] = {}
        gather = functools.partial(gather_tables, tables, options, rows)
        self._open(options, files, gather, index=index, kind=kind)

    def _open_tables(self) -> Tables:
        return _DatasetTables(self.dataset)

    def _prepare(self) -> None:
        super()._prepare()
        self.declare(self._declared)

    def is_recording(self, data_key: str) -> bool:
        """Tell whether a data key is samples of audio."""
        codec = self._fields[data_key].codec
        return isinstance(codec, RecordingCodec) and codec.features is None

    def declare(self, specs: Mapping[str, DataSpec]) -> None:
        """Take layouts that say more than what was found: free axes, numbers of classes; samples without second axis.

        Args:
            specs: Data key -> layout. That it fits what is stored is for the caller to know.
        """
        self._declared = {**self._declared, **specs}
        self.specs = {**self.specs, **specs}
        for key, spec in specs.items():
            if self._fields[key].is_plain:
                self._fields[key].codec.settle(spec, self.labels.get(key))

    def _view(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        array = super()._view(corpus_idx, data_key)
        return array[:, 0] if array.ndim > self.specs[data_key].ndim else array

    def __getstate__(self) -> tuple[Any, CorpusIndex]:
        # Without rows nothing is read, and the library cannot pickle all datasets without rows.
        return (self.dataset if len(self) else None, self._options, self._declared), self._index

    def __setstate__(self, state: tuple[Any, CorpusIndex]) -> None:
        (self.dataset, options, self._declared), index = state
        self._attach(options, index)


class _DatasetTables(Tables):
    """The table of a dataset, all of its rows."""

    are_shared = False

    def __init__(self, dataset: Any) -> None:
        super().__init__(ArrowFile, ())
        self.num_tables, self._dataset = 1, dataset

    def name(self, table_idx: int) -> str:  # noqa: ARG002
        """Return what messages call the dataset."""
        dataset = self._dataset
        about = "" if dataset is None else f", {len(dataset)} rows, fingerprint {dataset._fingerprint}"
        return f"dataset of Hugging Face{about}"

    def _handle(self, table_idx: int) -> Any:
        if table_idx not in self._handles:
            self._handles[table_idx] = _DatasetTable(self._dataset)
        return self._handles[table_idx]

    def check_size(self, table_idx: int) -> None:
        """Do nothing: the library maps the files itself."""


class _DatasetTable(TableFile):
    """What `ArrowFile` is of a file; a piece is a record batch, which is a view."""

    def __init__(self, dataset: Any) -> None:
        self._batches = dataset.data.table.to_batches()
        features = json.dumps({"info": {"features": dataset.features.to_dict()}})  # as they are now
        self.schema = dataset.data.table.schema.with_metadata({b"huggingface": features.encode()})
        self.num_pieces = len(self._batches)

    def num_rows(self, piece: int) -> int:
        return int(self._batches[piece].num_rows)

    def column(self, piece: int, name: str) -> Any:
        return self._batches[piece].column(name)

    def holds(self, array: Any) -> bool:  # noqa: ARG002
        return True
