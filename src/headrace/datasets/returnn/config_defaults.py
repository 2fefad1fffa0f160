"""Dataset options that RETURNN takes from the settings of a whole config, under the names of its functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError

# Settings at the top of a RETURNN config that are options of the dataset `train` -> the option, and its types.
SETTINGS_OF_RETURNN: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "window": ("window", (int,)),
    "context_window": ("context_window", (int, dict, tuple, list)),
    "chunking": ("chunking", (int, str, dict, tuple, list)),
    "batching": ("seq_ordering", (str,)),
    "shuffle_frames_of_nseqs": ("shuffle_frames_of_nseqs", (int,)),
    "min_chunk_size": ("min_chunk_size", (int, dict)),
    "chunking_variance": ("chunking_variance", (int, float)),
}
_NO_TEXTS = ("", "0", "no", "off", "false", "none")


def fill_from_config(config: Any, kwargs: dict[str, Any]) -> None:
    """Set options of a dataset that are not given, or are `None`, by the settings of a config.

    Args:
        config: A mapping, or RETURNN's `Config`.
        kwargs: Changed in place. What is `None` and has no setting is taken out.
    """
    for setting, (option, types) in SETTINGS_OF_RETURNN.items():
        value = _setting(config, setting)
        if kwargs.get(option) is None:
            kwargs.pop(option, None)
            if isinstance(value, str) and str not in types:  # of an old config, which is all texts
                value = (float if float in types else int)(value)
            if value is not None and value != 0:
                kwargs[option] = value
    kwargs.setdefault("chunking_variance", 0.0)


def eval_defaults(config: Any) -> dict[str, Any]:
    """Return the options that data for evaluation have by default: sorted, and not cut unless the config says so."""
    chunking = "0"
    if _setting(config, "on_size_limit") == "chunk":
        chunking = _setting(config, "batch_size") or "0"
    elif str(_setting(config, "chunking")) == "1":
        chunking = "1"
    elif str(_setting(config, "chunk_eval") or "").lower() not in _NO_TEXTS:
        chunking = _setting(config, "chunking") or "0"
    return {"chunking": chunking, "seq_ordering": "sorted", "shuffle_frames_of_nseqs": 0}


def train_defaults(config: Any) -> dict[str, Any]:
    """Return the options that training data have by default: a shard, if `torch_distributed` asks for shards.

    Raises:
        ConfigError: It asks for something else, or the ranks are not known.
    """
    given = _setting(config, "torch_distributed")
    distribution = "random_seed_offset"
    if given is not None:
        distribution = given.get("dataset_distribution", distribution) if isinstance(given, Mapping) else given
    if distribution == "random_seed_offset":
        return {}
    if distribution != "shard":
        raise ConfigError(
            f"torch_distributed has dataset_distribution {distribution!r}", fix='give "shard" or "random_seed_offset"'
        )
    from headrace.ranks import find_ranks  # here: every worker imports this file, and needs no ranks

    ranks = find_ranks()
    return {"_num_shards": ranks.world_size, "_shard_index": ranks.rank}


def _setting(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else config.opt_typed_value(name, None)
