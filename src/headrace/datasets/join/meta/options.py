"""The options of a `MetaDataset`, checked, its two files, read, and its sub-datasets, opened.

The files say which tags belong together, and lengths by tag and data key. They hold data only: nothing of them is
executed.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import read_tag_list
from headrace.index import CorpusIndex

from ...base import Dataset
from ...configs import DatasetConfig
from ...parts import MetaPart, open_part
from ...wrap.multi_proc import MultiProcDataset

SeqListFile = str | os.PathLike[str] | Mapping[str, "str | os.PathLike[str]"]

_JSON_ENDINGS = (".json", ".json.gz")
_PICKLE_ENDINGS = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz")


def read_seq_lists(seq_list_file: SeqListFile, names: Sequence[str]) -> dict[str, CorpusIndex]:
    """Return the tags of some sub-datasets; what stands at one place in all lists belongs together.

    Args:
        seq_list_file: A text file (a tag a line) or JSON list: the same tags in all sub-datasets; a JSON dict
            sub-dataset -> list; or a mapping sub-dataset -> file. JSON files end in `.json`, all may be packed (`.gz`).
        names: The sub-datasets.

    Raises:
        ConfigError: There is no list for one of them.
        SourceError: A file is missing, truncated, a pickle, or holds something else; or the lists differ in length.
    """
    if isinstance(seq_list_file, Mapping):
        _check_names(seq_list_file, names, "seq_list_file")
        lists = {name: _packed(_read_list(seq_list_file[name])) for name in names}
    else:
        content = _read_lists(seq_list_file)
        if isinstance(content, list):
            return dict.fromkeys(names, _packed(content))
        _check_names(content, names, str(seq_list_file))
        lists = {name: _packed(content[name]) for name in names}
    _check_sizes(lists, seq_list_file)
    return lists


def read_key_lengths(path: str, tags: Sequence[str], data_key: str) -> NDArray[np.int64]:
    """Return the length of one data key for each tag, `int64[N]`, from JSON tag -> data key -> length.

    Raises:
        SourceError: The file is missing, truncated or something else, or has no length for a tag.
    """
    lengths = _read_json(path, dict[str, dict[str, int]], '{"tag": {"data": 123, ...}, ...}')
    column = np.empty(len(tags), dtype=np.int64)
    for i, tag in enumerate(tags):
        length = lengths.get(tag, {}).get(data_key)
        if length is None:
            what = f"no length of {data_key!r} for the tag {tag!r}"
            raise SourceError(what, where=path, fix="give one for each sequence in seq_lens_file")
        column[i] = length
    return column


def _packed(tags: list[str]) -> CorpusIndex:
    return CorpusIndex.from_columns(tags=tags, lengths={})


def _check_names(lists: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    missing = [name for name in names if name not in lists]
    if missing:
        raise ConfigError(
            f"no list of tags for the sub-dataset {missing[0]!r}, only for {sorted(lists)}",
            where=where,
            fix="give one for each sub-dataset that is used; they may be the same file",
        )


def _check_sizes(lists: Mapping[str, CorpusIndex], seq_list_file: SeqListFile) -> None:
    (first, tags), *others = lists.items()
    for name, other in others:
        if len(other) != len(tags):
            raise SourceError(
                f"the lists differ in length: {len(tags)} tags for {first!r}, {len(other)} for {name!r}",
                where=f"seq_list_file={seq_list_file!r}",
                fix="write one tag for each sequence into each list; the n-th ones belong together",
            )


def _read_list(path: str | os.PathLike[str]) -> list[str]:
    content = _read_lists(path)
    if isinstance(content, list):
        return content
    raise SourceError("a dict of lists where the list of one sub-dataset is expected", where=str(path))


def _read_lists(path: str | os.PathLike[str]) -> list[str] | dict[str, list[str]]:
    name = os.fspath(path)
    if name.endswith(_PICKLE_ENDINGS):
        opener = "gzip.open" if name.endswith(".gz") else "open"
        target = name.removesuffix(".gz").rpartition(".")[0] + ".json"
        code = f"import gzip, json, pickle; json.dump(pickle.load({opener}({name!r}, 'rb')), open({target!r}, 'w'))"
        raise SourceError(
            "pickle files are refused: reading one can run any code that it contains",
            where=name,
            fix=f"if you trust the file, convert it once in Python: {code}",
        )
    if name.endswith(_JSON_ENDINGS):
        form = list[str] | dict[str, list[str]]
        content: list[str] | dict[str, list[str]]
        content = _read_json(name, form, '["tag", ...] or {"sub-dataset": ["tag", ...], ...}')
        return content
    return read_tag_list(path)


def _read_json(path: str, form: Any, example: str) -> Any:
    try:
        data = Path(path).read_bytes()
        if path.endswith(".gz"):
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(
            f"the gzip data are truncated or wrong: {error}", where=path, fix="write the file again"
        ) from error
    except OSError as error:
        raise SourceError(f"cannot read the file: {error.strerror}", where=path, fix="check the path") from error
    try:
        return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"this is not what is expected here: {error}", where=path, fix=f"write {example}") from error


# What an order is made of; where another dataset gives it, these say nothing.
_ORDER_OPTIONS = {
    "seq_ordering": "default",
    "partition_epoch": 1,
    "repeat_epoch": 1,
    "fixed_random_seed": None,
    "unique_seq_tags": False,
    "seq_order_seq_lens_file": None,
    "seq_list_filter_file": None,
}


@dataclass(frozen=True)
class MetaOptions:
    """Which sub-datasets there are, and which data key comes from where.

    Attributes:
        datasets: Key -> config.
        data_map: Data key -> (key of a sub-dataset, its data key).
        control: The key of the sub-dataset that gives the order, if one does.

    Raises:
        ConfigError: They do not fit together.
    """

    datasets: Mapping[str, DatasetConfig]
    data_map: Mapping[str, tuple[str, str]]
    control: str | None

    def __post_init__(self) -> None:
        """Check what can be known before a sub-dataset is opened."""
        if not isinstance(self.datasets, Mapping) or not self.datasets:
            raise ConfigError(
                f"datasets must be a dict sub-dataset -> config, got {_brief(self.datasets)}",
                fix='write {"features": {"class": "HDFDataset", ...}, ...}',
            )
        _check_no_cycle(self.datasets, ())
        if not isinstance(self.data_map, Mapping) or not self.data_map:
            raise ConfigError(
                f"data_map must be a dict data key -> (sub-dataset, its data key), got {_brief(self.data_map)}",
                fix='write {"data": ("features", "data"), ...}',
            )
        for key, source in self.data_map.items():
            if (
                isinstance(source, str)
                or not isinstance(source, tuple | list)
                or len(source) != 2
                or not all(isinstance(name, str) for name in source)
            ):
                raise ConfigError(
                    f"data_map[{key!r}] must be (sub-dataset, its data key), got {_brief(source)}",
                    fix=f'write {{{key!r}: ("features", "data"), ...}}',
                )
            self._check_name(source[0], f"data_map[{key!r}] = {tuple(source)}")
        if self.control is not None:
            self._check_name(self.control, f"seq_order_control_dataset={self.control!r}")
        elif "data" not in self.data_map:
            raise ConfigError(
                f"without a seq_order_control_dataset the order is that of 'data', and data_map has only "
                f"{sorted(self.data_map)}",
                fix="give seq_order_control_dataset, or map the data key 'data'",
            )

    def _check_name(self, name: Any, where: str) -> None:
        if name not in self.datasets:
            raise ConfigError(f"there is no sub-dataset {name!r}", where=where, fix=did_you_mean(name, self.datasets))

    @property
    def default(self) -> str:
        """The sub-dataset whose sequences and lengths count: the control dataset, else the one of "data"."""
        return self.control if self.control is not None else self.data_map["data"][0]

    def keys_by_part(self) -> dict[str, dict[str, str]]:
        """Return sub-dataset -> data key of the whole -> its data key, for each sub-dataset that is needed."""
        needed = {name for name, _ in self.data_map.values()} | {self.control}
        keys: dict[str, dict[str, str]] = {name: {} for name in self.datasets if name in needed}
        for key, (name, own) in self.data_map.items():
            keys[name][key] = own
        return keys


def open_parts(options: MetaOptions, whole: Dataset, filter_file: Any) -> dict[str, MetaPart]:
    """Open the sub-datasets that are needed.

    Args:
        options: Which they are.
        whole: Its name, seed offset and shards are defaults: shards only for the control dataset.
        filter_file: The option `seq_list_filter_file` of the control dataset, if it is given for the whole.

    Raises:
        ConfigError: A config is wrong, a data key does not exist, or two levels would shard or filter.
    """
    parts = {}
    for name, keys in options.keys_by_part().items():
        config = options.datasets[name]
        defaults: dict[str, Any] = {"name": f"{whole.name}_{name}", "random_seed_offset": whole.random_seed_offset}
        is_control = name == options.control
        if is_control:
            defaults.update(_num_shards=whole.num_shards, _shard_index=whole.shard_index)
            config = _with_filter(config, filter_file, name)
        dataset = open_part(config, defaults, owner=whole)
        if is_control and whole.num_shards > 1:
            _shard(dataset, whole, name)
        if isinstance(dataset, MultiProcDataset) and dataset.sharding_method == "dedicated":
            raise ConfigError(
                f'the sub-dataset {name!r} has sharding_method="dedicated", which takes no order and tells none',
                fix='use sharding_method="seq_order"',
            )
        _check_keys(name, dataset, keys)
        parts[name] = MetaPart(name, dataset, keys)
    return parts


def check_layout(whole: Dataset, data_dims: Mapping[str, Any], data_dtypes: Mapping[str, str]) -> None:
    """Compare what was declared with what is there.

    Raises:
        ConfigError: A data key does not exist, or has another dim or number of axes.
    """
    outputs = whole.num_outputs or {}
    for option, declared in (("data_dims", data_dims), ("data_dtypes", data_dtypes)):
        for key in declared:
            if key not in whole.get_data_keys():
                raise ConfigError(f"{option} names the data key {key!r}", fix=did_you_mean(key, whole.get_data_keys()))
    for key, dims in data_dims.items():
        wanted = tuple(dims) if isinstance(dims, tuple | list) else (dims,)
        if key in outputs and wanted != outputs[key][: len(wanted)]:
            raise ConfigError(
                f"data_dims says that {key!r} has (dim, ndim) {dims}, it has {outputs[key]}",
                where=f"dataset {whole.name!r}",
                fix="correct data_dims, or leave it out",
            )


def remarks(
    whole: Dataset, options: MetaOptions, given: Mapping[str, Any], default: Dataset, data_dtypes: Mapping[str, str]
) -> list[str]:
    """Return what a user should know of options that are legal, and have no effect.

    Args:
        whole: The dataset that the options are of.
        options: Says where the order comes from.
        given: Its options that are those of every dataset.
        default: The sub-dataset that controls the order, or would if it were told to.
        data_dtypes: What was declared.
    """
    if options.control is not None:
        idle = {name: value for name, value in given.items() if name in _ORDER_OPTIONS and value}
        idle = {name: value for name, value in idle.items() if value != getattr(default, name)}
        owner = "the MetaDataset"
        reason = f"the order is that of its control dataset {options.control!r}"
    else:
        present = {name: getattr(default, name) for name in _ORDER_OPTIONS}
        idle = {name: value for name, value in present.items() if value != _ORDER_OPTIONS[name]}
        owner = f"the sub-dataset {options.default!r}"
        reason = f"the MetaDataset makes its own order; did you mean seq_order_control_dataset={options.default!r}?"
    texts = [f"{name}={value!r} of {owner} has no effect: {reason}" for name, value in idle.items()]
    for key, dtype in data_dtypes.items():
        if key in (whole.num_outputs or {}) and dtype != whole.get_data_dtype(key):
            texts.append(f"data_dtypes says that {key!r} has dtype {dtype}, it has {whole.get_data_dtype(key)}")
    return texts


def _check_no_cycle(config: Any, path: tuple[int, ...]) -> None:
    """Refuse a config that contains itself: opening it would never end."""
    if not isinstance(config, Mapping):
        return
    if id(config) in path:
        raise ConfigError(
            "the config of a sub-dataset contains itself", fix="let each MetaDataset have datasets of its own"
        )
    for value in config.values():
        _check_no_cycle(value, (*path, id(config)))


def _with_filter(config: DatasetConfig, filter_file: Any, name: str) -> DatasetConfig:
    if filter_file is None:
        return config
    if not isinstance(config, Mapping) or config.get("seq_list_filter_file", filter_file) != filter_file:
        raise ConfigError(
            f"seq_list_filter_file={str(filter_file)!r} is meant for the seq_order_control_dataset {name!r}, which has "
            "one of its own, or is not described by a dict",
            fix="give one filter, to the control dataset",
        )
    return {**config, "seq_list_filter_file": filter_file}


def _shard(control: Dataset, whole: Dataset, name: str) -> None:
    """Let the control dataset be the shard that the whole is; two levels must not both shard."""
    if control.num_shards == 1:
        control.set_sharding(whole.num_shards, whole.shard_index)
    wanted, found = (whole.num_shards, whole.shard_index), (control.num_shards, control.shard_index)
    if found != wanted:
        raise ConfigError(
            f"two levels would shard: the MetaDataset is shard {wanted[1]} of {wanted[0]}, its control dataset "
            f"{name!r} shard {found[1]} of {found[0]}",
            fix="give _num_shards and _shard_index to one of them",
        )


def _check_keys(name: str, dataset: Dataset, keys: Mapping[str, str]) -> None:
    known = [] if dataset.num_outputs is None else dataset.get_data_keys()
    if not known:
        return  # learnt from the first sequence; there may be none
    for key, own in keys.items():
        if own not in known:
            raise ConfigError(
                f"the sub-dataset {name!r} has no data key {own!r}",
                where=f"data_map[{key!r}] = {(name, own)}",
                fix=did_you_mean(own, known),
            )


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
