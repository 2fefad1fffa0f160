"""Asks datasets of classes that were written for RETURNN: tags, lengths and orders, and any sequence, by their epochs.

All code that starts an epoch to answer a question, or to read some sequences, is here. Our own classes answer without.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, SourceError
from headrace.index import CorpusIndex

from .checks import is_of_headrace, takes_argument
from .corpus import Corpus, LengthsOf
from .reading.reader import CountedOrder, Features, GivenOrder, Reader, ReadRequest
from .returnn.walk import check_not_stale
from .seq import DatasetSeq


class ForeignCorpus:
    """What is known of a dataset by its epochs: a copy of it is asked, while it is read.

    Args:
        dataset: A `Dataset`.
        tells_tags: Whether it is of a user-defined class that returns tags and an order, and accepts one.

    Attributes:
        fresh: The epoch that was started to see its order, and `order_version` then.
    """

    def __init__(self, dataset: Any, *, tells_tags: bool) -> None:
        self._dataset = dataset
        self._tells_tags = tells_tags
        self._told_tags: CorpusIndex | None = None  # what it returned
        self._is_found_by_tags = False
        self._answers_alone = False
        self._apart: Any = None  # the copy that is asked, made once
        self._cannot_be_copied = False
        self.fresh: tuple[int | None, int] | None = None

    # --- which object answers ---

    def answer_alone(self) -> None:
        """Let the dataset itself answer questions about epochs, without a copy: only an `EpochReader` reads it.

        Afterwards the current order may be any; such a reader starts its own again.
        """
        self._answers_alone = True

    def _asked_apart(self) -> Any:
        """Return a copy that answers while the dataset is read, made once; `None` if it cannot be copied."""
        if self._answers_alone:
            return self._dataset
        if self._apart is None and not self._cannot_be_copied:
            try:
                apart = copy.copy(self._dataset)
                apart.initialize()
            except Exception:  # noqa: BLE001 - a user's constructor may raise anything
                self._cannot_be_copied = True
            else:
                self._apart = apart
        return self._apart

    def forget_copy(self) -> None:
        """Forget the copy that is asked: it has old options."""
        self._apart, self._cannot_be_copied = None, False

    def close(self) -> None:
        """Forget the tags, and close the copy that is asked."""
        self._told_tags = None
        if self._apart is not None:
            self._apart.close()

    # --- order ---

    def knows_order(self) -> bool:
        """Tell whether `get_current_seq_order` returns the order of an epoch.

        A user-defined method need not work before an epoch was started: then only `NotImplementedError` says no.
        """
        try:
            self._dataset.get_current_seq_order()
        except NotImplementedError:
            return False
        except Exception:
            if int(self._dataset.epoch) or is_of_headrace(type(self._dataset).get_current_seq_order):
                raise
        return True

    def order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        """Start an epoch to see its order, on a copy; on the dataset itself if it cannot be copied.

        See `Dataset.get_epoch_order`.
        """
        asked = self._asked_apart() or self._dataset
        asked.foreign.start_given(epoch, given)
        asked.foreign.fresh = None if given is not None else (epoch, asked.order_version)
        order = asked.get_checked_seq_order()
        draws = order.may_repeat and (counts or asked.get_corpus().draws_by_occurrence)
        return order, asked.count_occurrences() if draws else None

    def has_own_order(self) -> bool:
        """Whether it can be asked for an order of its own."""
        return self._dataset.get_corpus().knows_order() and self._asked_apart() is not None

    def take_fresh(self, epoch: int | None) -> bool:
        """Tell, once, whether an epoch was started just now to see its order, and was not read since."""
        fresh, self.fresh = self.fresh, None
        return fresh is not None and fresh == (epoch, self._dataset.order_version)

    # --- tags and lengths ---

    def digest_of_tags(self) -> str:
        """Return a digest of the class and its tags, as far as it tells them."""
        digest = xxhash.xxh3_128(type(self._dataset).__name__.encode())
        try:
            for tag in self._dataset.get_all_tags():
                digest.update(tag.encode("utf-8", "surrogatepass") + b"\0")
        except NotImplementedError:
            pass
        return digest.hexdigest()

    def with_tags(self, corpus: Corpus, epoch: int | None, kept: Callable[[], NDArray[np.bool_] | None]) -> Corpus:
        """Add what follows from the tags by corpus index that a user-defined class returns, if it returns them.

        Args:
            corpus: What else is known.
            epoch: See `Dataset.get_corpus`.
            kept: See `Corpus`.
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
            sort_lengths=partial(self._sort_lengths, len(told), epoch),
            kept=kept,
        )

    def _told_index(self) -> CorpusIndex | None:
        """Return the result of `get_all_tags` of a user-defined class; called once, until the dataset is closed."""
        dataset = self._dataset
        if not self._tells_tags or not dataset.order_version or not self.knows_order():
            return None  # before `init_seq_order`, such a class need not know anything
        if self._told_tags is None:
            try:
                tags = list(dataset.get_all_tags())
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
        if not self._is_found_by_tags or is_of_headrace(type(self._dataset).get_tag):
            return None
        told = self._told_index()
        return None if told is None else told.tags.take(indices)

    def _sort_lengths(self, num_seqs: int, epoch: int | None) -> NDArray[Any]:
        """Return the sort keys of the sequences, `int[N]`: the lengths of the first data key."""
        dataset = self._dataset
        lengths_of = self.lengths(next(iter(dataset.get_data_keys())), may_cost=True, epoch=epoch)
        if lengths_of is None:
            raise ConfigError(
                f"{type(dataset).__name__} does not tell the lengths of its sequences, by which they are to be sorted",
                where=f"dataset {dataset.name!r}",
                fix="let it define get_seq_length, give seq_order_seq_lens_file, or choose an order without lengths",
            )
        return lengths_of(np.arange(num_seqs))

    def lengths(self, key: str, may_cost: bool, epoch: int | None) -> LengthsOf | None:
        """Return the lengths that `get_seq_length` of a user-defined class gives in an order started for this."""
        apart = self._asked_apart() if may_cost and self._defines_lengths() else None
        if apart is None:
            return None

        def lengths_of(indices: NDArray[np.int64]) -> NDArray[np.int64]:
            apart.foreign.start_order(epoch, indices)
            return np.array([apart.get_seq_length(seq_idx)[key] for seq_idx in range(len(indices))], np.int64)

        return lengths_of

    def _defines_lengths(self) -> bool:
        return not is_of_headrace(type(self._dataset).get_seq_length) and self._dataset.get_corpus().knows_order()

    # --- starting an epoch with sequences that are given ---

    def start_given(self, epoch: int | None, order: GivenOrder | None) -> None:
        """Call `init_seq_order` with the given arguments only: a user-defined class need not have every parameter.

        Raises:
            ConfigError: It lacks one that is needed.
        """
        both: dict[str, Any] = {} if order is None else {"seq_list": order.seq_list, "seq_order": order.seq_order}
        given = {name: value for name, value in both.items() if value is not None}
        try:
            self._dataset.init_seq_order(epoch=epoch, **given)
        except TypeError as error:
            lacking = [name for name in given if not takes_argument(self._dataset.init_seq_order, name)]
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
        if not is_right and told is not None and takes_argument(self._dataset.init_seq_order, "seq_list"):
            by_tags = self._started_with(epoch, GivenOrder(seq_list=told.tags.take(indices)))
            is_right = np.array_equal(by_tags[: len(indices)], indices)
        if not is_right:
            asked = f"init_seq_order(seq_order={_first_of(indices)})"
            raise self._cannot_start(f"{asked} has started the order {_first_of(started)}")

    def _started_with(self, epoch: int | None, given: GivenOrder) -> NDArray[np.int64]:
        """Start an epoch with the given order, and return the order that it has."""
        self.start_given(epoch, given)
        return np.asarray(self._dataset.get_checked_seq_order(2**62))

    def _cannot_start(self, what: str) -> ConfigError:
        return ConfigError(
            what,
            where=f"{type(self._dataset).__name__} {self._dataset.name!r}",
            fix="where init_seq_order is given seq_order (corpus indices) or seq_list (tags), let these be the order "
            "of the epoch, and tell its corpus indices by get_current_seq_order",
        )


def _first_of(indices: NDArray[np.int64]) -> str:
    """Return the first few of an order as a text."""
    texts = [*map(str, indices[:4].tolist()), *(["..."] if len(indices) > 4 else [])]
    return f"[{', '.join(texts)}] of {len(indices)} sequences"


class EpochStream(Iterator[DatasetSeq]):
    """The sequences of the current epoch of a dataset, one after the other, from a position on.

    Args:
        dataset: Not read by others meanwhile.
        position: Position of the first one.

    Attributes:
        position: Position of the sequence that comes next.
    """

    def __init__(self, dataset: Any, position: int = 0) -> None:
        self.position = position
        self._dataset, self._version = dataset, dataset.order_version

    def __next__(self) -> DatasetSeq:
        """Read the next sequence.

        Raises:
            ConfigError: The dataset has ended this epoch, or started another.
        """
        dataset, position = self._dataset, self.position
        check_not_stale(dataset, self._version, "the stream of an epoch", where=f"sequence {position}")
        if not dataset.is_less_than_num_seqs(position):
            raise StopIteration
        dataset.load_seqs(position, position + 1)
        seq: DatasetSeq = dataset.get_seq(position)
        self.position = position + 1
        return seq


class EpochReader(Reader):
    """Reads by the epoch API: the sequences that are wanted become the current order of a dataset.

    If the dataset is moved meanwhile, such as by a question for the order of another epoch, the epoch is started again.

    Args:
        dataset: Its owner is that of this reader.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.gives_own = dataset.gives_own
        self._wanted: ReadRequest | None = None
        self._version: int | None = None
        self._first = 0
        self._tags: Sequence[str] | None = None  # that it must deliver, where that is known and to be checked
        self._num_checked = 0  # of them

    def start(self, wanted: ReadRequest) -> None:
        """Start an epoch with the sequences that are wanted."""
        dataset = self._dataset
        if wanted.first is None:
            dataset.forget_positions()
        self._first = self._num_checked = 0
        self._tags = wanted.tags
        if wanted.is_whole and self._starts_by_itself(wanted):
            self._num_checked = len(wanted.order)  # it was not asked by tags
        elif wanted.tags is not None:
            dataset.foreign.start_given(wanted.epoch, GivenOrder(wanted.tags))
        else:
            self._first = dataset.start_part(wanted)
            self._tags = dataset.foreign.tags_to_check(wanted.indices)
        self._wanted, self._version = wanted, dataset.order_version

    def _starts_by_itself(self, wanted: ReadRequest) -> bool:
        """Start a whole epoch, as a class can that takes no order; tell whether the order is the one that is wanted."""
        dataset = self._dataset
        if not dataset.foreign.take_fresh(wanted.epoch):
            dataset.init_seq_order(epoch=wanted.epoch)
        if not dataset.may_draw_order():
            return True
        started = dataset.get_checked_seq_order()
        return np.array_equal(np.asarray(started), wanted.indices)

    def _position(self) -> int:
        """Return the position of the first one that is wanted."""
        assert self._wanted is not None
        if self._version != self._dataset.order_version:
            self.start(self._wanted)
        return self._first

    def _seq_idx(self, number: int) -> int:
        """Return the position of a sequence, which has the tag that was asked for."""
        first = self._position()
        if self._tags is not None and number >= self._num_checked:
            self._check_tag(first + number, number, self._tags)
            self._num_checked = number + 1
        return first + number

    def _check_tag(self, seq_idx: int, number: int, tags: Sequence[str]) -> None:
        dataset = self._dataset
        found = dataset.get_tag(seq_idx) if dataset.is_less_than_num_seqs(seq_idx) else None
        if found == tags[number]:
            return
        assert self._wanted is not None
        if self._wanted.tags is None:
            raise SourceError(
                f"get_all_tags has the tag {tags[number]!r} at corpus index {self._wanted.order[number]}, and the "
                f"sequence that was read for it has the tag {found!r}",
                where=f"{type(dataset).__name__} {dataset.name!r}, sequence {seq_idx}",
                fix="let get_all_tags return the tags by corpus index, and init_seq_order take seq_order",
            )
        what = f"it was asked for the tag {tags[number]!r}, and "
        what += f"delivers {found!r}" if found is not None else f"ends after {number} of {len(tags)} sequences"
        raise SourceError(
            f"a sub-dataset does not deliver what it is asked for: {what}",
            where=f"{type(dataset).__name__} {dataset.name!r}, sequence {number}",
            fix=f"{type(dataset).__name__} must take init_seq_order(seq_list=...), or be the seq_order_control_dataset",
        )

    def tags(self) -> list[str] | None:
        """Ask the corpus for the tags."""
        assert self._wanted is not None
        if self._wanted.tags is not None:
            return list(self._wanted.tags)
        corpus = self._dataset.get_corpus()
        return corpus.tags_of(self._wanted.indices) if corpus.is_indexed else None

    def read(self, number: int) -> DatasetSeq:
        """Load a sequence, and take it."""
        position = self._position() + number
        self._dataset.load_seqs(position, position + 1)
        seq: DatasetSeq = self._dataset.get_seq(self._seq_idx(number))
        return seq

    def texts(self, number: int) -> Features:
        """Take the texts."""
        dataset, seq_idx = self._dataset, self._seq_idx(number)
        return {key: dataset.get_data(seq_idx, key) for key in dataset.get_text_keys()}

    def known_frames(self, number: int) -> NumbersDict:
        """Ask the dataset, which may have to read the sequence."""
        frames: NumbersDict = self._dataset.get_seq_length(self._seq_idx(number))
        return frames
