"""Reads any sequences, or one after another, through the epoch API; so user-defined classes written for it work.

No other reader positions a dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headrace.batching import NumbersDict
from headrace.errors import SourceError

from ..returnn.walk import check_not_stale
from ..seq import DatasetSeq
from .foreign import ForeignAnswers
from .reader import Features, GivenOrder, Reader, ReadRequest


class EpochStream(Iterator[DatasetSeq]):
    """The sequences of the current epoch of a dataset, one after the other, from a position on.

    Args:
        dataset: Not read by others meanwhile.
        position: Position of the first one.

    Attributes:
        position: Position of the sequence that comes next.
    """

    def __init__(self, dataset: ForeignAnswers, position: int = 0) -> None:
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
        seq = dataset.get_seq(position)
        self.position = position + 1
        return seq


class EpochReader(Reader):
    """Reads by the epoch API: the sequences that are wanted become the current order of a dataset.

    If the dataset is moved meanwhile, such as by a question for the order of another epoch, the epoch is started again.

    Args:
        dataset: Its owner is that of this reader.
    """

    def __init__(self, dataset: ForeignAnswers) -> None:
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
            dataset.start_given(wanted.epoch, GivenOrder(wanted.tags))
        else:
            self._first = dataset.start_part(wanted)
            self._tags = dataset.tags_to_check(wanted.indices)
        self._wanted, self._version = wanted, dataset.order_version

    def _starts_by_itself(self, wanted: ReadRequest) -> bool:
        """Start a whole epoch, as a class can that takes no order; tell whether the order is the one that is wanted."""
        dataset = self._dataset
        if not dataset.take_fresh(wanted.epoch):
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
        return self._dataset.get_seq(self._seq_idx(number))

    def texts(self, number: int) -> Features:
        """Take the texts."""
        dataset, seq_idx = self._dataset, self._seq_idx(number)
        return {key: dataset.get_data(seq_idx, key) for key in dataset.get_text_keys()}

    def known_frames(self, number: int) -> NumbersDict:
        """Ask the dataset, which may have to read the sequence."""
        return self._dataset.get_seq_length(self._seq_idx(number))
