"""The epoch API, by its RETURNN-compatible names.

Life cycle: construct, `initialize`, then for each epoch `init_seq_order(epoch=E)` and, in rising order,
`load_seqs(i, i + 1)`, `get_data(i, key)`; or, in one line, `for seq in dataset.epoch(E)`. The work is left to small
parts: `order` says which sequence comes when, `batching` cuts it into chunks, `returnn` groups these into batches.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, OptionalNotImplementedError
from headrace.order import ArrayOrder, Order, OrderCorpus, OrderReport, RangeOrder, derive_order_seed
from headrace.show.card import Card, Shown

from .checks import check_epoch, check_indices
from .corpus import StoredCounts, as_lengths, first_of_tag, lengths_of_tags, mask_of_tags
from .returnn.declared import DeclaredLayout
from .returnn.options import DatasetOptions
from .returnn.walk import EpochHandle, check_not_stale
from .seq import DatasetSeq

_UNKNOWN_COUNT_SCALE = 100.0  # RETURNN's shape of the pseudo progress when the number of sequences is unknown


class EpochApi(Shown, DatasetOptions, DeclaredLayout):
    """The state of one epoch, and its methods for a reader. A sub-class says where the sequences come from."""

    @property
    def epoch(self) -> EpochHandle:
        """The current epoch number (0: none), and the reader of one: `for seq in dataset.epoch(3)`."""
        return EpochHandle.of(self, self._epoch)

    @epoch.setter
    def epoch(self, number: int | None) -> None:
        self._epoch = check_epoch(number)

    # --- life cycle ---

    def initialize(self) -> None:
        """Get ready to read: check that the layout is known. `init_dataset` calls it.

        Raises:
            ConfigError: `num_outputs` is not set.
        """
        if self.num_outputs is None:
            raise ConfigError(f"{type(self).__name__} did not set num_outputs", where=f"dataset {self.name!r}")
        self.init_seq_order()
        self._complete_outputs()

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch.

        Sub-classes call this first. Without `epoch` the dataset is prepared, but holds no sequences. An explicit
        `seq_list` (tags) or `seq_order` (corpus indices) is the order: no partition, shard or filter applies to it.

        Args:
            epoch: 1, 2, ...; with `partition_epoch > 1` it counts sub-epochs.
            seq_list: Tags, in the order wanted.
            seq_order: Corpus indices, in the order wanted.

        Returns:
            Whether the order may have changed.
        """
        if seq_list is not None and seq_order is not None:
            raise ConfigError("seq_list and seq_order are both given: one of them is the order")
        self._check_shard()
        if self._recipe.num_shards > 1 and not self.supports_sharding():
            raise ConfigError(
                f"{type(self).__name__} does not support sharding (_num_shards={self._recipe.num_shards})",
                where=f"dataset {self.name!r}",
            )
        self._epoch = check_epoch(epoch)
        self.order_version += 1
        self._complete_outputs()
        self._drop_seed = self.get_random_seed_for_epoch(self._epoch)
        self._rnd_seq_drop = None
        return True

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch: reads are invalid until the next `init_seq_order`; `num_seqs` and the like still answer.

        Args:
            free_resources: Also release the order, files and caches; they come back with the next `init_seq_order`.
        """
        self._epoch = None
        self.order_version += 1
        if free_resources:
            self._planner.invalidate()
            self._keep = None

    def close(self) -> None:
        """Release all that is held. The same as `finish_epoch(free_resources=True)`; harmless twice."""
        self.finish_epoch(free_resources=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- order ---

    def get_random_seed_for_epoch(self, epoch: int | None, num_epochs_fixed: int = 1) -> int:
        """Return the seed of an epoch by RETURNN's rule: constant over a full pass."""
        return derive_order_seed(
            check_epoch(epoch) or 1,
            num_epochs=num_epochs_fixed,
            partition_epoch=self.partition_epoch,
            fixed_random_seed=self.fixed_random_seed,
            random_seed_offset=self.random_seed_offset,
        )

    def get_seq_order_for_epoch(
        self, epoch: int | None, num_seqs: int, get_seq_len: Callable[[int], int] | NDArray[Any] | None = None
    ) -> range | NDArray[np.int64]:
        """Return the corpus indices of an epoch, in order: for sub-classes that keep their own corpus.

        A sub-class may override it, to have an order of its own.

        Args:
            epoch: The epoch number; `None` gives an empty order.
            num_seqs: Number of sequences in the corpus.
            get_seq_len: Corpus index -> length, or `int[N]`; only asked by orderings that need lengths.

        Returns:
            A `range`, where the order is one, else `int64[n]`, which is the caller's own.

        Raises:
            ConfigError: The ordering needs lengths and there are none.
        """
        return self._planned_order(epoch, num_seqs, get_seq_len).to_indices()

    def _lazy_order_for_epoch(self, epoch: int | None, num_seqs: int) -> Order:
        """Return what `get_seq_order_for_epoch` does, not held in memory where that is not overridden."""
        if self._plans_order:
            return self._planned_order(epoch, num_seqs, None)
        return self._explicit_order(self.get_seq_order_for_epoch(epoch, num_seqs), num_seqs)

    @property
    def _plans_order(self) -> bool:
        """Whether orders come from the planner: `get_seq_order_for_epoch` is not overridden."""
        return type(self).get_seq_order_for_epoch is EpochApi.get_seq_order_for_epoch

    def _planned_order(self, epoch: int | None, num_seqs: int, get_seq_len: Any) -> Order:
        if epoch is None:
            return RangeOrder(range(0))
        return self._planner.order_for_epoch(epoch, self._order_corpus(int(num_seqs), get_seq_len))

    def _order_corpus(self, num_seqs: int, get_seq_len: Any) -> OrderCorpus:
        """Say what an order may ask of the corpus. A sub-class's corpus may change from epoch to epoch."""
        lengths: Callable[[], NDArray[Any]] | None = None
        if self.seq_order_seq_lens_file is not None:
            lengths = self._lengths_of_file
        elif get_seq_len is not None:
            lengths = lambda: as_lengths(get_seq_len, num_seqs)  # noqa: E731 (a named function would say no more)
        return OrderCorpus(
            num_seqs=num_seqs,
            lengths=lengths,
            keep=self._keep_mask if self._wanted_tags is not None else None,
            first_of_tag=self._first_of_tag if self.unique_seq_tags else None,
            is_fixed=False,
        )

    def get_corpus_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, by corpus index, before any filter."""
        return self.get_all_tags()

    def _keep_mask(self) -> NDArray[np.bool_]:
        """Return `bool[N]`: which sequences the filter keeps."""
        assert self._wanted_tags is not None
        return mask_of_tags(self.get_corpus_tags(), self._wanted_tags, where=str(self.seq_list_filter_file))

    def _lengths_of_file(self) -> NDArray[Any]:
        if self._file_lengths is None:
            assert self.seq_order_seq_lens_file is not None
            self._file_lengths = lengths_of_tags(self.get_corpus_tags(), self.seq_order_seq_lens_file)
        return self._file_lengths

    def _first_of_tag(self) -> NDArray[np.int64]:
        return first_of_tag(self.get_corpus_tags())

    def _order_of_epoch(self, epoch: int) -> Order:
        self._not_offered(f"the order of epoch {epoch}")

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order."""
        self._not_offered("get_current_seq_order")

    def get_checked_seq_order(self, num_seqs: int | None = None) -> Order:
        """Return `get_current_seq_order` as an order, which a user-defined class may give as any list of numbers.

        Args:
            num_seqs: Size of the corpus; `None`: what `get_total_num_seqs` returns, if that is fast.

        Raises:
            ConfigError: It holds something else than corpus indices.
            OptionalNotImplementedError: The order is not known.
        """
        order: Any = self.get_current_seq_order()
        if isinstance(order, Order):
            return order
        num_seqs = self._told_size() if num_seqs is None else num_seqs
        where = f"{type(self).__name__} {self.name!r}"
        return ArrayOrder(
            check_indices(order, 2**62 if num_seqs is None else num_seqs, where, what="get_current_seq_order")
        )

    def _told_size(self) -> int | None:
        try:
            return None if self._wanted_tags is not None else self.get_total_num_seqs(fast=True)
        except (NotImplementedError, TypeError):  # a user-defined class need not have the parameter `fast`
            return None

    @property
    def order_report(self) -> OrderReport | None:
        """What the recipe leaves out or repeats in the full epoch that was last asked for; `None` before the first."""
        return self._planner.report

    def supports_seq_order_sorting(self) -> bool:
        """Whether lengths are known, so that sorting orders work."""
        return self.seq_order_seq_lens_file is not None

    def supports_sharding(self) -> bool:
        """Whether `_num_shards > 1` is legal."""
        return False

    # --- reading ---

    def load_seqs(self, start: int, end: int) -> None:
        """Get sequences start..end (exclusive; may exceed the epoch) ready.

        Sequences before `start` may be gone afterwards.
        """
        raise OptionalNotImplementedError(f"{type(self).__name__} must define load_seqs")

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return the array of one data key, `dtype[T, ...]`."""
        raise OptionalNotImplementedError(f"{type(self).__name__} must define get_data")

    def get_input_data(self, sorted_seq_idx: int) -> NDArray[Any]:
        """Return `get_data` of "data": an older name of RETURNN's."""
        return self.get_data(sorted_seq_idx, "data")

    def get_targets(self, target: str, sorted_seq_idx: int) -> NDArray[Any]:
        """Return `get_data` of a data key: an older name of RETURNN's."""
        return self.get_data(sorted_seq_idx, target)

    def get_data_slice(self, seq_idx: int, key: str, start_frame: int, end_frame: int) -> NDArray[Any]:
        """Return frames start..end (exclusive) of one data key."""
        return self.get_data(seq_idx, key)[start_frame:end_frame]

    def get_seq(self, seq_idx: int) -> DatasetSeq:
        """Return one loaded sequence with all of its data keys."""
        features = {key: self.get_data(seq_idx, key) for key in self.get_data_keys()}
        return DatasetSeq(seq_idx, features, seq_tag=self.get_tag(seq_idx))

    def iterate_epoch(self) -> Iterator[DatasetSeq]:
        """Return an iterator over the sequences of the current epoch; it is stale once another epoch is started."""
        return self._iterate(self.order_version)

    def _iterate(self, version: int) -> Iterator[DatasetSeq]:
        seq_idx = 0
        while True:
            self._check_version(version, seq_idx)
            if not self.is_less_than_num_seqs(seq_idx):
                return
            self.load_seqs(seq_idx, seq_idx + 1)
            yield self.get_seq(seq_idx)
            seq_idx += 1

    def _check_version(self, version: int, seq_idx: int) -> None:
        if self.order_version != version:
            check_not_stale(self, version, "the iterator over an epoch", where=f"sequence {seq_idx}")

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames (scalars count 1)."""
        raise OptionalNotImplementedError(f"{type(self).__name__} must define get_seq_length")

    def get_estimated_seq_length(self, seq_idx: int) -> int:
        """Return one number to sort a sequence by."""
        self._not_offered("get_estimated_seq_length")

    def get_num_timesteps(self) -> int | NumbersDict:
        """Return data key -> number of frames of the current epoch. O(num_seqs) unless a class knows better."""
        total = NumbersDict(0)
        for seq_idx in range(int(self.num_seqs)):
            total += self.get_seq_length(seq_idx)
        return total

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        return f"seq-{seq_idx}"

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus (all sub-epochs and shards), without those that the filter drops."""
        self._not_offered("get_all_tags")

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """Return the number of sequences of the whole corpus, without those that the filter drops.

        Args:
            fast: Raise `OptionalNotImplementedError` rather than do slow work.
        """
        self._not_offered("get_total_num_seqs")

    def have_corpus_seq_idx(self) -> bool:
        """Whether `get_corpus_seq_idx` works."""
        return False

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the corpus index of a sequence of the current order."""
        self._not_offered("get_corpus_seq_idx")

    def have_get_corpus_seq(self) -> bool:
        """Whether `get_corpus_seq` works."""
        return False

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence of the corpus, whatever the current order."""
        self._not_offered("get_corpus_seq")

    def get_times(self, seq_idx: int) -> NDArray[Any]:
        """Return the times of the frames, where a corpus stores them."""
        self._not_offered("get_times")

    @property
    def rnd_seq_drop(self) -> random.Random:
        """The generator of the current epoch, as in RETURNN: for `sample` and for chunks of random size."""
        if self._rnd_seq_drop is None:
            self._rnd_seq_drop = random.Random(self._drop_seed)  # noqa: S311 (not for secrets)
        return self._rnd_seq_drop

    def sample(self, seq_idx: int) -> bool:
        """Draw whether to use a sequence, with probability `weights[seq_idx]`; always, if it has no weight."""
        return seq_idx not in self.weights or self.rnd_seq_drop.random() < self.weights[seq_idx]

    # --- how much there is ---

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch; 0 if none is active.

        Raises:
            OptionalNotImplementedError: The number is unknown.
        """
        self._not_offered("num_seqs")

    def known_num_seqs(self) -> int | None:
        """Return the number of sequences of the current epoch; `None` if it is not known, or infinite."""
        try:
            num_seqs = self.num_seqs
        except NotImplementedError:
            return None
        return None if math.isinf(num_seqs) else int(num_seqs)

    @property
    def estimated_num_seqs(self) -> int | None:
        """`num_seqs` if known, else what the constructor was given, else `None`."""
        try:
            return self.num_seqs
        except NotImplementedError:
            return self._estimated_num_seqs

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this position: the one safe end test. May load."""
        return seq_idx < self.num_seqs

    def have_seqs(self) -> bool:
        """Whether the corpus holds any sequence.

        Raises:
            OptionalNotImplementedError: That cannot be known without an active epoch.
        """
        try:
            return self.get_total_num_seqs() > 0
        except NotImplementedError:
            if self._epoch is None:
                raise
            return self.is_less_than_num_seqs(0)

    def get_complete_frac(self, sorted_seq_idx: int, *, allow_only_lr_suitable: bool = False) -> float | None:
        """Return how much of the epoch is done after a sequence, in (0, 1], never falling.

        Args:
            sorted_seq_idx: Position in the current order.
            allow_only_lr_suitable: Return `None` rather than a guess if the number of sequences is unknown: a share of
                `estimated_num_seqs`, or a pseudo value.
        """
        num_seqs = self.known_num_seqs()
        if num_seqs is None:
            if allow_only_lr_suitable:
                return None
            estimated = self.estimated_num_seqs
            if not estimated or math.isinf(estimated):
                return max(1e-10, 0.99 * (1 - 1 / (math.sqrt(sorted_seq_idx) / _UNKNOWN_COUNT_SCALE + 1)))
            return min(1.0, (sorted_seq_idx + 1) / estimated)
        if not 0 <= sorted_seq_idx < num_seqs:
            raise IndexError(f"sequence {sorted_seq_idx} is outside an epoch of {num_seqs}")
        return min(1.0, (sorted_seq_idx + 1) / num_seqs)

    def stored_counts(self) -> StoredCounts | None:
        """Return how much its files hold, if that is known without reading sequences."""
        return None

    def len_info(self, *, fast: bool = False) -> str:
        """Return one line about the size of the corpus, in RETURNN's words.

        Args:
            fast: Say "unknown" rather than do slow work.
        """
        size, stored = self._told_size(), self.stored_counts()
        frames = "unknown" if stored is None else str(stored.num_frames)
        if stored is None and not fast:
            with contextlib.suppress(NotImplementedError):
                frames = str(self.get_num_timesteps())
        return f"{type(self).__name__}, sequences: {'unknown' if size is None else size}, frames: {frames}"

    def _card(self) -> Card:
        epoch = int(self.epoch)
        divided = f" in {self.partition_epoch} sub-epochs" if self.partition_epoch > 1 else ""
        facts = [
            ("epoch", f"epoch {epoch}" if epoch else "no epoch yet"),
            ("order", f"order {self._seq_ordering}{divided}"),
        ]
        parts = [part._card() for part in vars(self).values() if isinstance(part, EpochApi)]
        title = type(self).__name__ + ("" if self.name.startswith("dataset_id") else f" {self.name!r}")
        return Card(title, facts, parts=parts)

    def _not_offered(self, what: str) -> NoReturn:
        raise OptionalNotImplementedError(
            f"{type(self).__name__} does not offer {what}", where=f"dataset {self.name!r}"
        )

    def _explicit_order(self, seq_order: Sequence[int] | NDArray[Any], num_seqs: int) -> Order:
        """Check an order given by corpus indices."""
        return ArrayOrder(check_indices(seq_order, num_seqs, f"dataset {self.name!r}"))
