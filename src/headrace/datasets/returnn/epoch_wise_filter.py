"""Fewer, shorter sequences in some epochs: a curriculum by the mean length."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, did_you_mean
from headrace.order import ArrayOrder, FilteredOrder, Order

_LOGGER = logging.getLogger("headrace.datasets")
_OPTIONS = ("max_mean_len",)
_FORM = 'write {(1, 5): {"max_mean_len": 100}}: the first and the last epoch, None for no end'


class EpochWiseFilter:
    """Keeps the shortest sequences of some epochs, as many as have a mean length up to a limit, and one more.

    The rule is RETURNN's, to the sequence: sequences are sorted by length, then by corpus index; those are kept that
    come before the mean of all so far exceeds the limit, and the one by which it does. They stay in their order. Where
    several ranges hold an epoch, all of them apply, one after the other, the one that begins first first.

    Args:
        epochs_opts: (first epoch, last epoch) -> `{"max_mean_len": x}`; `None` for no first or no last one.

    Raises:
        ConfigError: The option has another form.

    Examples:
        >>> import headrace as hr
        >>> lengths = [9, 1, 2, 30]
        >>> short_first = hr.EpochWiseFilter({(1, 5): {"max_mean_len": 4}})
        >>> [list(short_first.filter(epoch, [3, 2, 1, 0], lengths.__getitem__)) for epoch in (1, 6)]
        [[2, 1, 0], [3, 2, 1, 0]]
        >>> dataset = {"class": "OggZipDataset", "path": "train.zip", "epoch_wise_filter": short_first}
    """

    def __init__(self, epochs_opts: Mapping[tuple[int | None, int | None], Mapping[str, float]]) -> None:
        if not isinstance(epochs_opts, Mapping):
            raise ConfigError(f"an EpochWiseFilter is made of a dict, got {epochs_opts!r}", fix=_FORM)
        limits = [(_check_range(key), _check_options(options)) for key, options in epochs_opts.items()]
        self.limits = sorted(limits, key=lambda item: (item[0][0] or 0, item[0][1] or math.inf))

    @classmethod
    def of(cls, value: Any) -> EpochWiseFilter | None:
        """Return a filter of an option: a filter, a dict, or `None`."""
        return value if value is None or isinstance(value, EpochWiseFilter) else cls(value)

    def limits_of(self, epoch: int) -> list[float]:
        """Return the limits that apply in an epoch."""
        return [
            limit
            for (first, last), limit in self.limits
            if limit is not None and (first is None or first <= epoch) and (last is None or epoch <= last)
        ]

    def filter(
        self, epoch: int, seq_order: Order | Sequence[int], get_seq_len: Callable[[int], float] | NDArray[Any]
    ) -> Order | Sequence[int]:
        """Return the sequences of an order that are kept.

        Args:
            epoch: The epoch number.
            seq_order: Corpus indices.
            get_seq_len: Corpus index -> length, or `int[N]`. Not asked where no limit applies.
        """
        limits = self.limits_of(epoch)
        indices = np.asarray(seq_order, np.int64)
        if not limits or not len(indices):
            return seq_order
        num_before = len(indices)
        for limit in limits:
            if callable(get_seq_len):
                lengths = np.array([get_seq_len(i) for i in indices.tolist()])
            else:
                lengths = np.asarray(get_seq_len)[indices]
            indices = _keep(indices, lengths, limit)
        _LOGGER.info("epoch %d: %d of %d sequences kept, mean length up to %s", epoch, len(indices), num_before, limits)
        if not isinstance(seq_order, Order):
            return indices.tolist()  # type: ignore[no-any-return]
        return FilteredOrder(ArrayOrder(indices), (num_before - len(indices), num_before))

    @classmethod
    def filter_epoch(
        cls,
        opts: Mapping[str, float],
        seq_order: Sequence[int],
        get_seq_len: Callable[[int], float],
        debug_msg_prefix: str = "",
    ) -> list[int]:
        """Return the sequences of an order that are kept by the options of one range of epochs.

        Args:
            opts: `{"max_mean_len": x}`.
            seq_order: Corpus indices.
            get_seq_len: Corpus index -> length.
            debug_msg_prefix: Begins the line in the log.
        """
        limit = _check_options(opts)
        indices = np.asarray(seq_order, np.int64)
        if limit is None or not len(indices):
            return list(seq_order)
        kept = _keep(indices, np.array([get_seq_len(i) for i in indices.tolist()]), limit)
        _LOGGER.info(
            "%s%d of %d sequences kept, mean length up to %s", debug_msg_prefix, len(kept), len(indices), limit
        )
        return [int(index) for index in kept]

    def __repr__(self) -> str:
        return f"EpochWiseFilter({self.limits!r})"


class FilteredOrders:
    """The orders that a filter makes; the last one is kept, since an epoch is both described and read.

    Args:
        epoch_wise_filter: The filter, `None` for none.
    """

    def __init__(self, epoch_wise_filter: EpochWiseFilter | None) -> None:
        self._filter = epoch_wise_filter
        self._last: tuple[int, NDArray[np.int64], NDArray[Any], Order] | None = None

    def of(self, epoch: int, order: Order, get_lengths: Callable[[], NDArray[Any]]) -> Order:
        """Return the filtered order of an epoch.

        Args:
            epoch: The epoch number.
            order: Corpus indices.
            get_lengths: Returns `int[N]`. Not called where no limit applies.
        """
        if self._filter is None or not self._filter.limits_of(epoch):
            return order
        indices, lengths, last = order.block(0, len(order)), get_lengths(), self._last
        if last is None or epoch != last[0] or lengths is not last[2] or not np.array_equal(indices, last[1]):
            kept = self._filter.filter(epoch, order, lengths)
            assert isinstance(kept, Order)
            last = self._last = epoch, indices, lengths, kept
        return last[3]


def _keep(indices: NDArray[np.int64], lengths: NDArray[Any], limit: float) -> NDArray[np.int64]:
    by_length = np.lexsort((indices, lengths))
    means = np.cumsum(lengths[by_length], dtype=np.float64) / np.arange(1, len(indices) + 1)
    low, high = 0, len(means)
    while low < high:  # not `searchsorted`: where several means are the limit, RETURNN's search stops at any of them
        middle = (low + high) // 2
        if means[middle] == limit:
            low = middle
            break
        low, high = (middle + 1, high) if means[middle] < limit else (low, middle)
    kept = indices[by_length[: low + 1]]
    return indices[np.isin(indices, kept)]


def _check_range(key: Any) -> tuple[int | None, int | None]:
    ends = tuple(key) if isinstance(key, tuple | list) else ()
    valid = len(ends) == 2 and all(end is None or (isinstance(end, int) and not isinstance(end, bool)) for end in ends)
    if not valid or (None not in ends and ends[0] > ends[1]):
        raise ConfigError(f"a range of epochs in an EpochWiseFilter is {key!r}", fix=_FORM)
    return ends[0], ends[1]


def _check_options(options: Any) -> float | None:
    if not isinstance(options, Mapping):
        raise ConfigError(f"the options of epochs in an EpochWiseFilter are {options!r}", fix=_FORM)
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError(f"an EpochWiseFilter has no option {name!r}", fix=did_you_mean(str(name), _OPTIONS))
    limit = options.get("max_mean_len")
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float | np.number) or not limit > 0:
        raise ConfigError(f"max_mean_len must be a number above 0, got {limit!r}")
    return float(limit)
