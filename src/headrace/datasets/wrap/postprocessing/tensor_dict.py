"""Functions that were written for RETURNN: they get its `TensorDict` in place of a dict.

Such a function is known by its annotation (`data: TensorDict`, `Iterator[TensorDict]`) or by coming from RETURNN
itself; one without annotations is wrapped by hand (`TakesTensorDict`).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from headrace.errors import ConfigError


class TakesTensorDict:
    """A function that gets sequences as RETURNN's `TensorDict`. It takes some 50 us a sequence to make one.

    Args:
        function: For `map_seq`, or for `map_seq_stream`.

    Attributes:
        preserves_num_seqs: What the function says.

    Raises:
        ConfigError: RETURNN is not installed.

    Examples:
        >>> from headrace.datasets import TakesTensorDict
        >>> def open_dataset(corpus, map_seq):  # where RETURNN is installed: map_seq gets and returns its TensorDict
        ...     return {"class": "PostprocessingDataset", "dataset": corpus, "map_seq": TakesTensorDict(map_seq)}
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            classes: Any = importlib.import_module("returnn.tensor")
        except ImportError as error:
            raise ConfigError(
                f"{name_of(function)} takes RETURNN's TensorDict, and RETURNN is not installed",
                fix="pip install returnn, or let it take a dict, data key -> array",
            ) from error
        self.function = function
        self.preserves_num_seqs = getattr(function, "preserves_num_seqs", False) is True
        self._classes = classes.Dim, classes.Tensor, classes.TensorDict
        self._templates: dict[tuple[Any, ...], Any] = {}

    def __call__(self, data: Any, **kwargs: Any) -> Any:
        """Return what the function returns."""
        return self.function(self._converted(data), **kwargs)

    def _converted(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            return self._tensor_dict(data)
        return map(self._tensor_dict, data) if isinstance(data, Iterator) else data

    def _tensor_dict(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data  # another function has made one already
        tensors = self._classes[2]()
        for key, value in data.items():
            array = np.asarray(value)
            if array.dtype == np.float64 and not array.ndim:
                array = array.astype(np.float32)  # as it makes complete_frac
            elif isinstance(value, int):
                array = array.astype(np.int32)
            tensors.data[key] = self._tensor(key, array)
        return tensors

    def _tensor(self, key: str, array: Any) -> Any:
        dim, tensor, _ = self._classes
        layout = (key, array.dtype.kind, array.dtype.itemsize * (array.dtype.kind != "U"), array.shape[1:], array.ndim)
        if layout not in self._templates:
            dims = [dim(None, name=f"{key}_frame")] if array.ndim else []
            dims += [dim(size, name=f"{key}_dim{axis}") for axis, size in enumerate(array.shape[1:], 1)]
            dtype = "string" if array.dtype.kind == "U" else array.dtype.name
            self._templates[layout] = tensor(key, dims=dims, dtype=dtype)
        made = self._templates[layout].copy()
        made.raw_tensor = array
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return TakesTensorDict, (self.function,)

    def __repr__(self) -> str:
        return name_of(self.function)


def takes_tensor_dict(function: Any) -> bool:
    """Tell whether a function says that it takes RETURNN's `TensorDict`."""
    if isinstance(function, TakesTensorDict):
        return False
    module = getattr(function, "__module__", None) or ""
    if module.partition(".")[0] == "returnn":
        return True
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    return bool(parameters) and "TensorDict" in str(parameters[0].annotation)


def name_of(function: Any) -> str:
    """Return what a function is called in messages."""
    return str(getattr(function, "__qualname__", None) or repr(function))
