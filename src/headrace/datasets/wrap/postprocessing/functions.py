"""Functions for `PostprocessingDataset`: the options that name them, what they take and return, two that come with it.

A function gets a sequence as a dict, data key -> array, with the entries "seq_tag", "seq_idx" and "complete_frac", and
as keyword arguments of `epoch`, `seq_idx` and `rng` those that it takes. A function over a stream gets an iterator of
such dicts, and returns one. Functions that were written for RETURNN get its `TensorDict` in place of a dict: such a
function is known by its annotation (`data: TensorDict`, `Iterator[TensorDict]`) or by coming from RETURNN itself; one
without annotations is wrapped by hand (`TakesTensorDict`). What they return is taken from any function.
"""

from __future__ import annotations

import importlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from headrace.errors import ConfigError, TransformError, check_count
from headrace.sources.naming import resolve_named

from ...seq import count_frames

META_KEYS = ("complete_frac", "seq_idx", "seq_tag")
Function = Callable[..., Any]


class LaplaceOrdering:
    """Sorts a stream by length in bins, the first rising, the next falling, and so on: for `map_seq_stream`.

    It is what `seq_ordering="laplace:.n"` is for datasets that know their lengths. Neighbours are of similar length,
    and a bin of sequences is in memory, twice. What each sequence says of the progress of the epoch stays where it was,
    so that it never falls. Orders are those of RETURNN.

    Args:
        num_seqs_per_bin: How many sequences are sorted together.
        length_key: The data key whose first axis is the length.

    Attributes:
        preserves_num_seqs: Always true: as many sequences come out as go in.
    """

    preserves_num_seqs = True

    def __init__(self, num_seqs_per_bin: int, length_key: str = "data") -> None:
        self.num_seqs_per_bin = check_count("num_seqs_per_bin", num_seqs_per_bin, minimum=1)
        self.length_key = length_key

    def __call__(self, iterator: Iterator[Any], **kwargs: Any) -> Iterator[dict[str, Any]]:
        """Yield the sequences of the iterator in another order."""
        del kwargs
        seqs = map(plain_seq, iterator)
        current, is_falling = list(islice(seqs, self.num_seqs_per_bin)), False
        while current:
            fracs = deque(seq.get("complete_frac") for seq in current)
            coming: list[dict[str, Any]] = []
            for seq in sorted(current, key=self._length, reverse=is_falling):
                frac = fracs.popleft()
                yield seq if frac is None else {**seq, "complete_frac": frac}
                coming.extend(islice(seqs, 1))
            current, is_falling = coming, not is_falling

    def _length(self, seq: Mapping[str, Any]) -> int:
        if self.length_key not in seq:
            raise TransformError(
                f"a sequence has no data key {self.length_key!r}, whose length it is to be sorted by",
                where=f"sequence {seq.get('seq_tag')!r}, data keys {sorted(set(seq) - set(META_KEYS))}",
                fix="give LaplaceOrdering the length_key",
            )
        return count_frames(seq[self.length_key])

    def __repr__(self) -> str:
        return f"LaplaceOrdering(num_seqs_per_bin={self.num_seqs_per_bin}, length_key={self.length_key!r})"


class Sequential:
    """Several functions in a row: `Sequential(f, g)` is g of f. All for `map_seq`, or all for `map_seq_stream`.

    Args:
        *functions: In the order in which they are called.

    Attributes:
        preserves_num_seqs: Whether each of them says that it does.

    Examples:
        >>> import headrace as hr
        >>> def double(seq, **kwargs):
        ...     return {**seq, "data": seq["data"] * 2}
        >>> numbers = hr.StaticDataset([{"data": [0, 1]}, {"data": [2]}])
        >>> corpus = hr.PostprocessingDataset(dataset=numbers, map_seq=hr.Sequential(double, double))
        >>> [seq["data"].tolist() for seq in corpus.epoch(1)]
        [[0, 4], [8]]
    """

    def __init__(self, *functions: Function) -> None:
        self.functions = tuple(parse_function("a function of Sequential", function) for function in functions)
        self.preserves_num_seqs = all(getattr(f, "preserves_num_seqs", False) is True for f in self.functions)
        self._names = [names_taken(function) for function in self.functions]

    def __call__(self, data: Any, **kwargs: Any) -> Any:
        """Return what the last function returns."""
        for function, names in zip(self.functions, self._names, strict=True):
            data = function(data, **chosen(kwargs, names))
        return data

    def __repr__(self) -> str:
        return f"Sequential({', '.join(map(repr, self.functions))})"


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
            self._tensor: Any = importlib.import_module("returnn.tensor")
        except ImportError as error:
            raise ConfigError(
                f"{name_of(function)} takes RETURNN's TensorDict, and RETURNN is not installed",
                fix="pip install returnn, or let it take a dict, data key -> array",
            ) from error
        self.function = function
        self.preserves_num_seqs = getattr(function, "preserves_num_seqs", False) is True
        self._templates: dict[tuple[Any, ...], Any] = {}

    def __call__(self, data: Any, **kwargs: Any) -> Any:
        """Return what the function returns."""
        data = map(self._tensor_dict, data) if isinstance(data, Iterator) else self._tensor_dict(data)
        return self.function(data, **kwargs)

    def _tensor_dict(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data  # another function has made one already
        tensors = self._tensor.TensorDict()
        for key, value in data.items():
            array = np.asarray(value)
            if array.dtype == np.float64 and not array.ndim:
                array = array.astype(np.float32)  # as it makes complete_frac
            elif isinstance(value, int):
                array = array.astype(np.int32)
            dtype = "string" if array.dtype.kind == "U" else array.dtype.name
            layout = key, dtype, array.ndim, array.shape[1:]
            if layout not in self._templates:
                sizes = enumerate((None, *array.shape[1:])[: array.ndim])
                dims = [self._tensor.Dim(n, name=f"{key}_dim{axis}" if axis else f"{key}_frame") for axis, n in sizes]
                self._templates[layout] = self._tensor.Tensor(key, dims=dims, dtype=dtype)
            tensors.data[key] = self._templates[layout].copy()
            tensors.data[key].raw_tensor = array
        return tensors

    def __reduce__(self) -> tuple[Any, ...]:
        return TakesTensorDict, (self.function,)

    def __repr__(self) -> str:
        return name_of(self.function)


def parse_function(name: str, value: Any) -> Function:
    """Return the function that an option stands for.

    Args:
        name: Name of the option, for messages.
        value: The function; "package.module:function"; `{"class": "LaplaceOrdering", ...}`; or a list of these, which
            are called in a row. A function for RETURNN gets what it takes, see `takes_tensor_dict`.

    Raises:
        ConfigError: It is none of them.
    """
    if isinstance(value, str):
        value = resolve_named("map_seq", value)
    elif isinstance(value, list | tuple):
        return Sequential(*value)
    elif isinstance(value, Mapping):
        cls, options = value.get("class"), {option: given for option, given in value.items() if option != "class"}
        if cls != "LaplaceOrdering" and not (isinstance(cls, str) and ":" in cls):
            fix = "LaplaceOrdering, or 'package.module:Class' for your own"
            raise ConfigError(f"{name} is a dict of the class {cls!r}", fix=fix)
        value = (LaplaceOrdering if cls == "LaplaceOrdering" else resolve_named("class", cls))(**options)
    if not callable(value):
        raise ConfigError(
            f"{name} must be a function, got {type(value).__name__}",
            fix="give a function, or its name as 'package.module:function'",
        )
    return TakesTensorDict(value) if takes_tensor_dict(value) else value


def names_taken(function: Function) -> frozenset[str] | None:
    """Return the keyword arguments that a function takes; `None` if it takes any. Some built-ins do not say: none."""
    parameters = _parameters(function.function if isinstance(function, TakesTensorDict) else function)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))


def draws(function: Function) -> bool:
    """Tell whether a function takes the keyword argument `rng`."""
    names = names_taken(function)
    return names is None or "rng" in names


def chosen(kwargs: dict[str, Any], names: frozenset[str] | None) -> dict[str, Any]:
    """Return those keyword arguments that a function takes, see `names_taken`."""
    return kwargs if names is None else {name: value for name, value in kwargs.items() if name in names}


def plain_seq(data: Any) -> dict[str, Any]:
    """Return a sequence as a dict: of a dict, or of what has its entries in `data` and their arrays in `raw_tensor`.

    The latter is what functions written for RETURNN return (`TensorDict`).

    Raises:
        TransformError: It is neither.
    """
    if isinstance(data, dict):
        return data
    entries = data if isinstance(data, Mapping) else getattr(data, "data", None)
    if not isinstance(entries, Mapping):
        raise TransformError(
            f"a function that changes sequences returns a dict, data key -> array, got {type(data).__name__}",
            fix="return the dict that it was given, changed; of a stream, yield such dicts",
        )
    return {key: getattr(value, "raw_tensor", value) for key, value in entries.items()}


def takes_tensor_dict(function: Any) -> bool:
    """Tell whether a function says that it takes RETURNN's `TensorDict`."""
    if isinstance(function, TakesTensorDict):
        return False
    is_of_returnn = str(getattr(function, "__module__", "")).partition(".")[0] == "returnn"
    return is_of_returnn or any("TensorDict" in str(parameter.annotation) for parameter in _parameters(function)[:1])


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def name_of(function: Any) -> str:
    """Return what a function is called in messages."""
    return str(getattr(function, "__qualname__", None) or repr(function))
