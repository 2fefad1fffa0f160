"""What a dataset is asked besides one epoch after the other, answered by the epoch API.

So a class that was written for RETURNN answers, too. Our own classes answer most of it without an epoch being started.
All that starts one to answer a question, or to read some sequences, is here and in `by_epoch.py`.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, ClassVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.order import occurrences

from ..corpus import Corpus, LengthsOf
from ..epoch import EpochApi
from .batches import BatchApi
from .reader import CountedOrder, GivenOrder, ReadRequest


class ForeignAnswers(BatchApi):
    """Answers about tags, lengths and orders by the epoch API, and starts an epoch with sequences that are given."""

    gives_own: ClassVar[bool] = False
    """Whether `get_seq` gives arrays that are the caller's own; else the same ones may come again."""

    _has_user_order: ClassVar[bool] = False  # whether a class of the user's own makes the order in another way
    _apart: tuple[bool, ForeignAnswers | None] = False, None  # whether it is known who is asked, and who

    _fresh: tuple[int | None, int] | None = (
        None  # the epoch that was started to see its order, and `order_version` then
    )

    # --- who is asked ---

    def answer_alone(self) -> None:
        """Take it that only an `EpochReader` reads this dataset: to be asked about epochs it needs no copy of itself.

        The current order is any, afterwards; such a reader starts its own again.
        """
        self._apart = True, self

    def _asked_apart(self) -> ForeignAnswers | None:
        """Return who can be asked while this dataset is read: a copy, made once; `None` if there can be none."""
        is_known, apart = self._apart
        if not is_known:
            try:
                apart = copy.copy(self)
                apart.initialize()
            except Exception:  # noqa: BLE001 - of the user's constructor: anything
                apart = None
            self._apart = True, apart
        return apart

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

    # --- answers ---

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what is known of the sequences without reading them, see `Dataset.get_corpus`."""
        self._not_offered(f"get_corpus, epoch {epoch}")

    def may_draw_order(self) -> bool:
        """Whether code of the user's says the order, see `Dataset.may_draw_order`."""
        return True

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

    def get_epoch_order(
        self, epoch: int | None, given: GivenOrder | None = None, *, counts: bool = False
    ) -> CountedOrder:
        """Return the order of an epoch. The current epoch, which may be being read, stays as it is.

        A class of the user's own that makes its order by `init_seq_order` is asked by a copy, see `answer_alone`.

        Args:
            epoch: The epoch number; `None`: of no epoch.
            given: What is the order in place of that of the epoch.
            counts: Whether the caller draws by how often a sequence came before.

        Returns:
            Corpus indices; and how often each of them came before, `int64[n]`, or `None` if nothing is drawn by it.

        Raises:
            OptionalNotImplementedError: The order is not known.
        """
        ask = self._ask_for_order if self._has_user_order else self._make_order
        return ask(epoch, given, counts=counts)

    def _make_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        """Do what `get_epoch_order` says, where no class of the user's own makes the order."""
        return self._ask_for_order(epoch, given, counts=counts)

    def _ask_for_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        """Start an epoch to see its order; one that cannot be copied is started itself."""
        asked = self._asked_apart() or self
        asked.start_given(epoch, given)
        asked._fresh = None if given is not None else (epoch, asked.order_version)
        order = asked.get_checked_seq_order()
        draws = order.may_repeat and (counts or asked.get_corpus().draws_by_occurrence)
        return order, asked.count_occurrences() if draws else None

    def take_fresh(self, epoch: int | None) -> bool:
        """Tell, once, whether an epoch was started just now to see its order, and nobody has read it since."""
        fresh, self._fresh = self._fresh, None
        return fresh == (epoch, self.order_version)

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""
        return occurrences(self.get_checked_seq_order())

    def _told_lengths(self, key: str, may_cost: bool, epoch: int | None) -> LengthsOf | None:
        """Return the lengths that `get_seq_length` of a class of the user's own tells, in an order of its own."""
        apart = self._asked_apart() if may_cost and self._defines_lengths() else None
        if apart is None:
            return None

        def lengths_of(indices: NDArray[np.int64]) -> NDArray[np.int64]:
            apart.start_order(epoch, indices)
            return np.array([apart.get_seq_length(seq_idx)[key] for seq_idx in range(len(indices))], np.int64)

        return lengths_of

    def _defines_lengths(self) -> bool:
        """Whether a sub-class says lengths without reading."""
        return type(self).get_seq_length is not EpochApi.get_seq_length and self.get_corpus().knows_order()

    # --- starting an epoch with sequences that are given ---

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences.

        Returns:
            The position under which the first one is read here.
        """
        self.start_order(wanted.epoch, wanted.indices)
        return 0

    def start_given(self, epoch: int | None, order: GivenOrder | None) -> None:
        """Call `init_seq_order` with what is given, as a class of the user's own need not have every parameter.

        Raises:
            ConfigError: It lacks one that is needed.
        """
        both: dict[str, Any] = {} if order is None else {"seq_list": order.seq_list, "seq_order": order.seq_order}
        given = {name: value for name, value in both.items() if value is not None}
        try:
            self.init_seq_order(epoch=epoch, **given)
        except TypeError as error:
            parameters = inspect.signature(self.init_seq_order).parameters
            lacking = [name for name in given if name not in parameters]
            if not lacking or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                raise
            raise self._cannot_start(f"its init_seq_order has no parameter {lacking[0]}") from error

    def start_order(self, epoch: int | None, indices: NDArray[np.int64]) -> None:
        """Start an epoch in the order of these corpus indices, `int64[n]`, and check that it begins with them.

        Raises:
            ConfigError: A class of the user's own has started another order, or takes none.
        """
        self.start_given(epoch, GivenOrder(seq_order=indices.tolist()))
        started = np.asarray(self.get_checked_seq_order(2**62))
        if not np.array_equal(started[: len(indices)], indices):
            asked = f"init_seq_order(seq_order={_first_of(indices)})"
            raise self._cannot_start(f"{asked} has started the order {_first_of(started)}")

    def _cannot_start(self, what: str) -> ConfigError:
        return ConfigError(
            what,
            where=f"{type(self).__name__} {self.name!r}",
            fix="where init_seq_order is given seq_order (corpus indices) or seq_list (tags), let these be the order "
            "of the epoch, and tell its corpus indices by get_current_seq_order",
        )

    def forget_positions(self) -> None:
        """Take it that this is started with sequences whose positions are not those of the epoch.

        Datasets that tell positions to functions then tell corpus indices instead, and not how much of the epoch is
        done. Those that are read by a reader of their own hear it with each request.
        """


def _first_of(indices: NDArray[np.int64]) -> str:
    """Return the first few of an order as a text."""
    texts = [*map(str, indices[:4].tolist()), *(["..."] if len(indices) > 4 else [])]
    return f"[{', '.join(texts)}] of {len(indices)} sequences"
