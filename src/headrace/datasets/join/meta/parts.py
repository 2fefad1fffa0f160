"""The sub-datasets of a `MetaDataset`, opened: the one that gives the order has its filter and shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError, did_you_mean

from ...base import Dataset
from ...configs import DatasetConfig
from ...parts import MetaPart, open_part
from ...wrap.multi_proc import MultiProcDataset
from .options import MetaOptions


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
