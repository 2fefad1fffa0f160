"""Answers questions about tags, lengths and orders of a dataset through its epoch API.

So a class that was written for RETURNN answers them, too. Our own classes answer most without starting an epoch.
All code that starts an epoch to answer a question, or to read some sequences, is here and in `by_epoch.py`.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.index import CorpusIndex
from headrace.order import occurrences

from ..checks import is_of_headrace, takes_argument
from ..corpus import Corpus, LengthsOf
from ..epoch import EpochApi
from .batches import BatchApi
from .reader import CountedOrder, GivenOrder, ReadRequest


class ForeignAnswers(BatchApi):
    """Answers questions about tags, lengths and orders through the epoch API; starts an epoch with given sequences."""

    gives_own: ClassVar[bool] = False
    """Whether `get_seq` gives arrays that are the caller's own; else the same ones may come again."""

    _has_user_order: ClassVar[bool] = False  # whether a user-defined class makes the order in its own way
    _has_user_tags: ClassVar[bool] = False  # whether such a class returns tags and an order, and accepts one
    _told_tags: CorpusIndex | None = None  # what it returned
    _is_found_by_tags = False
    _apart: tuple[bool, ForeignAnswers | None] = False, None  # whether it is known who answers, and who

    _fresh: tuple[int | None, int] | None = (
        None  # the epoch that was started to see its order, and `order_version` then
    )

    # --- which object answers ---

    def answer_alone(self) -> None:
        """Let this dataset itself answer questions about epochs, without a copy: only an `EpochReader` reads it.

        Afterwards the current order may be any; such a reader starts its own again.
        """
        self._apart = True, self

    def _asked_apart(self) -> ForeignAnswers | None:
        """Return a copy that answers while this dataset is read, made once; `None` if it cannot be copied."""
        is_known, apart = self._apart
        if not is_known:
            try:
                apart = copy.copy(self)
                apart.initialize()
            except Exception:  # noqa: BLE001 - a user's constructor may raise anything
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
        if free_resources:
            self._told_tags = None
        apart = self._apart[1]
        if free_resources and apart is not None and apart is not self:
            apart.close()

    # --- answers ---

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what is known of the sequences without reading them, see `Dataset.get_corpus`."""
        self._not_offered(f"get_corpus, epoch {epoch}")

    def may_draw_order(self) -> bool:
        """Whether user code determines the order, see `Dataset.may_draw_order`."""
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
        """Tell whether `get_current_seq_order` returns the order of an epoch.

        A user-defined method need not work before an epoch was started: then only `NotImplementedError` says no.
        """
        try:
            self.get_current_seq_order()
        except NotImplementedError:
            return False
        except Exception:
            if self._epoch is not None or is_of_headrace(type(self).get_current_seq_order):
                raise
        return True

    def get_epoch_order(
        self, epoch: int | None, given: GivenOrder | None = None, *, counts: bool = False
    ) -> CountedOrder:
        """Return the order of an epoch. The current epoch, which may be in use, is not changed.

        A user-defined class that makes its order by `init_seq_order` is asked by a copy, see `answer_alone`.

        Args:
            epoch: The epoch number; `None`: of no epoch.
            given: The order to use in place of that of the epoch.
            counts: Whether the caller seeds random draws by how often a sequence came before.

        Returns:
            Corpus indices; and how often each of them came before, `int64[n]`, or `None` if nothing is drawn by it.

        Raises:
            OptionalNotImplementedError: The order is not known.
        """
        ask = self._ask_for_order if self._has_user_order else self._make_order
        return ask(epoch, given, counts=counts)

    def _make_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        """Do what `get_epoch_order` does, where no user-defined class makes the order."""
        return self._ask_for_order(epoch, given, counts=counts)

    def _ask_for_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        """Start an epoch to see its order, on a copy; on this dataset itself if it cannot be copied."""
        asked = self._asked_apart() or self
        asked.start_given(epoch, given)
        asked._fresh = None if given is not None else (epoch, asked.order_version)
        order = asked.get_checked_seq_order()
        draws = order.may_repeat and (counts or asked.get_corpus().draws_by_occurrence)
        return order, asked.count_occurrences() if draws else None

    def take_fresh(self, epoch: int | None) -> bool:
        """Tell, once, whether an epoch was started just now to see its order, and was not read since."""
        fresh, self._fresh = self._fresh, None
        return fresh == (epoch, self.order_version)

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""
        return occurrences(self.get_checked_seq_order())

    def _with_told_tags(self, corpus: Corpus, epoch: int | None) -> Corpus:
        """Add what follows from the tags by corpus index that a user-defined class returns, if it returns them.

        Args:
            corpus: What else is known.
            epoch: See `get_corpus`.
        """
        told = self._told_index()
        if told is None:
            return corpus
        return replace(
            corpus,
            size=lambda: len(told),
            is_indexed=True,
            index=lambda: told,
            tags_of=told.tags.take,
            sort_lengths=partial(self._told_sort_lengths, len(told), epoch),
            kept=lambda: None if self._wanted_tags is None else self._keep_mask(),
        )

    def _told_index(self) -> CorpusIndex | None:
        """Return the result of `get_all_tags` of a user-defined class; called once, until the dataset is closed."""
        if not self._has_user_tags or not self.order_version or not self._knows_order():
            return None  # before `init_seq_order`, such a class need not know anything
        if self._told_tags is None:
            try:
                tags = list(self.get_all_tags())
            except NotImplementedError:
                return None
            self._told_tags = CorpusIndex.from_columns(tags=tags, lengths={})
        return self._told_tags

    def check_tags(self) -> None:
        """From now on, compare `get_all_tags` of a user-defined class with the tag of each sequence that is read.

        For owners that find sequences by tags, and would confuse them if the tags were not in corpus order.
        """
        self._is_found_by_tags = True

    def tags_to_check(self, indices: NDArray[np.int64]) -> list[str] | None:
        """Return the tags that `get_tag` must give for corpus indices, `int64[n]`; `None`: any, see `check_tags`."""
        if not self._is_found_by_tags or is_of_headrace(type(self).get_tag):
            return None
        told = self._told_index()
        return None if told is None else told.tags.take(indices)

    def _told_sort_lengths(self, num_seqs: int, epoch: int | None) -> NDArray[Any]:
        """Return the sort keys of the sequences, `int[N]`: the lengths of the first data key."""
        lengths_of = self._told_lengths(next(iter(self.get_data_keys())), may_cost=True, epoch=epoch)
        if lengths_of is None:
            raise ConfigError(
                f"{type(self).__name__} does not tell the lengths of its sequences, by which they are to be sorted",
                where=f"dataset {self.name!r}",
                fix="let it define get_seq_length, give seq_order_seq_lens_file, or choose an order without lengths",
            )
        return lengths_of(np.arange(num_seqs))

    def _told_lengths(self, key: str, may_cost: bool, epoch: int | None) -> LengthsOf | None:
        """Return the lengths that `get_seq_length` of a user-defined class gives in an order started for this."""
        apart = self._asked_apart() if may_cost and self._defines_lengths() else None
        if apart is None:
            return None

        def lengths_of(indices: NDArray[np.int64]) -> NDArray[np.int64]:
            apart.start_order(epoch, indices)
            return np.array([apart.get_seq_length(seq_idx)[key] for seq_idx in range(len(indices))], np.int64)

        return lengths_of

    def _defines_lengths(self) -> bool:
        """Whether a sub-class gives lengths without reading."""
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
        """Call `init_seq_order` with the given arguments only: a user-defined class need not have every parameter.

        Raises:
            ConfigError: It lacks one that is needed.
        """
        both: dict[str, Any] = {} if order is None else {"seq_list": order.seq_list, "seq_order": order.seq_order}
        given = {name: value for name, value in both.items() if value is not None}
        try:
            self.init_seq_order(epoch=epoch, **given)
        except TypeError as error:
            lacking = [name for name in given if not takes_argument(self.init_seq_order, name)]
            if not lacking:
                raise
            raise self._cannot_start(f"its init_seq_order has no parameter {lacking[0]}") from error

    def start_order(self, epoch: int | None, indices: NDArray[np.int64]) -> None:
        """Start an epoch in the order of these corpus indices, `int64[n]`, and check that it begins with them.

        Raises:
            ConfigError: A user-defined class has started another order, or accepts none.
        """
        started = self._started_with(epoch, GivenOrder(seq_order=indices.tolist()))
        is_right = np.array_equal(started[: len(indices)], indices)
        told = self._told_index()
        if not is_right and told is not None and takes_argument(self.init_seq_order, "seq_list"):
            by_tags = self._started_with(epoch, GivenOrder(seq_list=told.tags.take(indices)))
            is_right = np.array_equal(by_tags[: len(indices)], indices)
        if not is_right:
            asked = f"init_seq_order(seq_order={_first_of(indices)})"
            raise self._cannot_start(f"{asked} has started the order {_first_of(started)}")

    def _started_with(self, epoch: int | None, given: GivenOrder) -> NDArray[np.int64]:
        """Start an epoch with the given order, and return the order that it has."""
        self.start_given(epoch, given)
        return np.asarray(self.get_checked_seq_order(2**62))

    def _cannot_start(self, what: str) -> ConfigError:
        return ConfigError(
            what,
            where=f"{type(self).__name__} {self.name!r}",
            fix="where init_seq_order is given seq_order (corpus indices) or seq_list (tags), let these be the order "
            "of the epoch, and tell its corpus indices by get_current_seq_order",
        )

    def forget_positions(self) -> None:
        """Note that this dataset is started with sequences whose positions are not those of the epoch.

        Datasets that pass positions to functions then pass corpus indices instead, and not how much of the epoch is
        done. Datasets with a reader of their own learn the positions from each request.
        """


def _first_of(indices: NDArray[np.int64]) -> str:
    """Return the first few of an order as a text."""
    texts = [*map(str, indices[:4].tolist()), *(["..."] if len(indices) > 4 else [])]
    return f"[{', '.join(texts)}] of {len(indices)} sequences"
