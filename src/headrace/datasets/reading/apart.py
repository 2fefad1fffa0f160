"""What a dataset is asked about any epoch while its current one is read: a copy answers, made once."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.order import Order

from ..corpus import LengthsOf
from ..epoch import EpochApi
from .partial import PartialEpochs


class AskedApart(PartialEpochs):
    """Answers about tags, lengths and any epoch by the epoch API, as a class of the user's own defines it."""

    _apart: tuple[bool, AskedApart | None] = False, None  # whether it is known who answers, and who

    def _change_recipe(self, **changes: Any) -> None:
        super()._change_recipe(**changes)
        if self._apart[1] is not self:
            self._apart = False, None  # it has the old options

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, see `EpochApi.finish_epoch`."""
        super().finish_epoch(free_resources=free_resources)
        apart = self._apart[1]
        if free_resources and apart is not None and apart is not self:
            apart.close()

    def _digest_of_tags(self) -> str:
        digest = xxhash.xxh3_128(type(self).__name__.encode())
        try:
            for tag in self.get_all_tags():
                digest.update(tag.encode("utf-8", "surrogatepass") + b"\0")
        except NotImplementedError:
            pass
        return digest.hexdigest()

    def _knows_order(self) -> bool:
        try:
            self.get_current_seq_order()
        except NotImplementedError:
            return False
        return True

    def get_epoch_order(self, epoch: int, *, counts: bool = False) -> tuple[Order, NDArray[np.int64] | None]:
        """Return the order of an epoch. The current epoch, which somebody may be reading, stays as it is.

        That takes a copy of this dataset, made once; see `answer_alone`, and one that cannot be copied is started.

        Args:
            epoch: The epoch number.
            counts: Whether the caller draws by how often a sequence came before.

        Returns:
            Corpus indices; and how often each of them came before, `int64[n]`, or `None` if nothing is drawn by it.

        Raises:
            OptionalNotImplementedError: The order is not known.
        """
        asked = self._asked_apart() or self
        asked.init_seq_order(epoch=epoch)
        order, counted = asked.get_checked_seq_order(), asked.get_occurrences()
        if counted is None and counts and order.may_repeat:
            counted = asked.count_occurrences()
        return order, counted

    def _told_lengths(self, key: str, may_cost: bool) -> LengthsOf | None:
        """Return the lengths that `get_seq_length` of a class of the user's own tells, in an order of its own."""
        apart = self._asked_apart() if may_cost and self._defines_lengths() else None
        if apart is None:
            return None
        epoch = self._epoch

        def lengths_of(indices: NDArray[np.int64]) -> NDArray[np.int64]:
            apart.start_order(epoch, indices)
            return np.array([apart.get_seq_length(place)[key] for place in range(len(indices))], np.int64)

        return lengths_of

    def _defines_lengths(self) -> bool:
        """Whether a sub-class says lengths without reading."""
        return type(self).get_seq_length is not EpochApi.get_seq_length and self.get_corpus().knows_order()

    def answer_alone(self) -> None:
        """Take it that nobody reads this dataset: to be asked about epochs it needs no copy of itself, as else it does.

        For one whose `get_current_seq_order` is taken at once; the current order is any, afterwards.
        """
        self._apart = True, self

    def _asked_apart(self) -> AskedApart | None:
        """Return a copy of this dataset, which can be asked while this one is read; `None` if there can be none."""
        is_known, apart = self._apart
        if not is_known:
            try:
                apart = copy.copy(self)
                apart.initialize()
            except Exception:  # noqa: BLE001 - of the user's constructor: anything
                apart = None
            self._apart = True, apart
        return apart
