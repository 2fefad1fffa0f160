"""The data keys of a `MetaDataset`: each is one of a sub-dataset, which says what it is like."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError, did_you_mean

from ...base import Dataset
from ...parts import MetaPart
from ..base import OverCorpora


class LaidOutByParts(OverCorpora):
    """Answers about data keys by the sub-datasets that have them.

    Attributes:
        data_map: Data key -> (key of a sub-dataset, its data key); "data" comes first.
    """

    data_map: dict[str, tuple[str, str]]
    _part_of: dict[str, MetaPart]

    def _take_parts(self, data_map: Mapping[str, tuple[str, str]], parts: Mapping[str, MetaPart]) -> None:
        """Say what is known of the data keys: of a sub-dataset that learns it from its first sequence, nothing."""
        keys = sorted(data_map, key=lambda key: (key != "data", key))
        self.data_map = {key: (data_map[key][0], data_map[key][1]) for key in keys}
        self._part_of = {key: parts[name] for key, (name, _) in self.data_map.items()}
        self.num_outputs = {}
        for key in self.get_data_keys():
            part, (_, own) = self._part_of[key], self.data_map[key]
            dataset = part.dataset
            if dataset.num_outputs is not None and own in dataset.num_outputs:
                self.num_outputs[key] = (dataset.get_data_dim(own), dataset.num_outputs[own][1])
            if own in dataset.labels:
                self.labels[key] = dataset.labels[own]
        if "data" in self.num_outputs:
            self.num_inputs = self.num_outputs["data"][0]
        sizes = [part.dataset.shuffle_frames_of_nseqs or 1 for part in parts.values()]
        if max(sizes) > 1:  # a part of an epoch must be read in whole groups
            self.shuffle_frames_of_nseqs = math.lcm(*sizes)

    def _part(self, key: str) -> MetaPart:
        if key not in self._part_of:
            raise ConfigError(
                f"no data key {key!r}", where=f"dataset {self.name!r}", fix=did_you_mean(key, self._part_of)
            )
        return self._part_of[key]

    def _check_key(self, key: str) -> None:
        self._part(key)

    def get_data_keys(self) -> list[str]:
        """Return the data keys, "data" first."""
        return list(self.data_map)

    def get_target_list(self) -> list[str]:
        """Return the data keys without "data"."""
        return [key for key in self.get_data_keys() if key != "data"]

    def get_data_dim(self, key: str) -> int:
        """Return the size of the last axis, or the number of classes of a sparse key."""
        return self._part(key).dataset.get_data_dim(self.data_map[key][1])

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        return self._part(key).dataset.get_data_dtype(self.data_map[key][1])

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        return self._part(key).dataset.is_data_sparse(self.data_map[key][1])

    def get_data_shape(self, key: str) -> list[int | None]:
        """Return the shape of one frame."""
        return self._part(key).dataset.get_data_shape(self.data_map[key][1])


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
