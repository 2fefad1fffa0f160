"""Checks the options of a `MetaDataset`: where order and data keys come from, and which have no effect.

`open_parts` opens the sub-datasets that they name: the one that gives the order has the filter and the shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError, did_you_mean

from ...base import Dataset
from ...configs import DatasetConfig
from ...parts import MetaPart, check_no_cycle, open_part

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
        check_no_cycle(self.datasets)
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


def remarks(
    whole: Dataset, options: MetaOptions, given: Mapping[str, Any], default: Dataset, data_dtypes: Mapping[str, str]
) -> list[str]:
    """Return remarks for the user on options that are legal and have no effect.

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


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
        workers = dataset.get_workers()
        if workers is not None and workers.sharding_method == "dedicated":
            raise ConfigError(
                f'the sub-dataset {name!r} has sharding_method="dedicated", which takes no order and tells none',
                fix='use sharding_method="seq_order"',
            )
        _check_keys(name, dataset, keys)
        parts[name] = MetaPart(name, dataset, keys)
    return parts


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
