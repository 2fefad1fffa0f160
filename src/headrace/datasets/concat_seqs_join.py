"""How several sequences become one: what is done to those that others follow, and what that does to lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, check_count, did_you_mean

Features = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Joining:
    """What is done to each sequence but the last one, in this order.

    Attributes:
        postfixes: Data key -> the label that it must end with, which is taken off.
        multiples: Data key -> m: its last frame is repeated until the number of frames is a multiple of m.
        targets: Data key -> (target key, m): it is cut, or its last frame repeated, until it has m times as many frames
            as the target had.
    """

    postfixes: Mapping[str, Any] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any], data_keys: Sequence[str]) -> Joining:
        """Check the documented options, in this order: each a dict by data key, or `None`.

        Raises:
            ConfigError: One is something else, or names a data key that there is not.
        """
        names, (postfixes, multiples, targets) = list(options), options.values()
        first = _by_key(names[0], postfixes, data_keys)
        second = {
            key: check_count(f"{names[1]}[{key!r}]", m, minimum=1)
            for key, m in _by_key(names[1], multiples, data_keys).items()
        }
        name, third = names[2], {}
        for key, value in _by_key(name, targets, data_keys).items():
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise ConfigError(f"{name}[{key!r}] is {value!r}", fix='write {"data": ("classes", 6)}')
            _check_key(name, value[0], data_keys)
            third[key] = (str(value[0]), check_count(f"{name}[{key!r}]", value[1], minimum=1))
        return cls(first, second, third)

    def lengths(self, lengths_of: Callable[[str], NDArray[Any]], key: str, is_last: NDArray[np.bool_]) -> NDArray[Any]:
        """Return how many frames of a data key each sequence adds, `int64[M]`.

        Args:
            lengths_of: Data key -> frames of each sequence, `int64[M]`.
            key: The data key.
            is_last: Whether no other follows, `bool[M]`.
        """
        whole = lengths_of(key).astype(np.int64)
        between = np.maximum(whole - 1, 0) if key in self.postfixes else whole
        if key in self.multiples:
            between = -(-between // self.multiples[key]) * self.multiples[key]
        if key in self.targets:
            target, multiple = self.targets[key]
            between = lengths_of(target).astype(np.int64) * multiple
        return np.where(is_last, whole, between)

    def join(self, seqs: Sequence[Features], where: Callable[[int], str]) -> Features:
        """Return one sequence made of several.

        Args:
            seqs: Data key -> array of each.
            where: Tells what the n-th is, for messages.

        Raises:
            SourceError: One does not end as it should, or has no axis to be joined along.
        """
        if len(seqs) == 1:
            return seqs[0]
        joined = {}
        for key in seqs[0]:
            arrays = [self._between(key, seq, partial(where, number)) for number, seq in enumerate(seqs[:-1])]
            arrays.append(seqs[-1][key])
            for number, array in enumerate(arrays):
                if array.ndim == 0 or array.shape[1:] != arrays[-1].shape[1:]:
                    raise SourceError(
                        f"{key!r} has the shape {array.shape}, and {arrays[-1].shape} follows: they cannot be joined",
                        where=where(number),
                        fix="leave this data key out of the inner dataset",
                    )
            joined[key] = np.concatenate(arrays)
        return joined

    def _between(self, key: str, seq: Features, where: Callable[[], str]) -> NDArray[Any]:
        """Return the frames of a data key of a sequence that is not the last one."""
        array = seq[key]
        if key in self.postfixes:
            postfix = self.postfixes[key]
            if not array.ndim or not len(array) or not np.all(array[-1] == postfix):
                end = f"ends with {array[-1].tolist()!r}" if array.ndim and len(array) else "is empty"
                raise SourceError(
                    f"{key!r} {end}, and not with the postfix {postfix!r}",
                    where=where(),
                    fix="correct remove_in_between_postfix, or the data",
                )
            array = array[:-1]
        if key in self.multiples and array.ndim:
            array = _padded(array, -(-len(array) // self.multiples[key]) * self.multiples[key], key, where)
        if key in self.targets and array.ndim:
            target, multiple = self.targets[key]
            num_frames = (len(seq[target]) if seq[target].ndim else 1) * multiple
            array = _padded(array[:num_frames], num_frames, key, where)
        return array


def _padded(array: NDArray[Any], num_frames: int, key: str, where: Callable[[], str]) -> NDArray[Any]:
    missing = num_frames - len(array)
    if missing <= 0:
        return array
    if not len(array):
        raise SourceError(f"{key!r} has no frame that could be repeated {num_frames} times", where=where())
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


def _by_key(name: str, value: Any, data_keys: Sequence[str]) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is a dict by data key, got {value!r}")
    for key in value:
        _check_key(name, key, data_keys)
    return dict(value)


def _check_key(name: str, key: Any, data_keys: Sequence[str]) -> None:
    if key not in data_keys:
        raise ConfigError(f"{name} names the data key {key!r}", fix=did_you_mean(str(key), data_keys))
