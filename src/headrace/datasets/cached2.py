"""`CachedDataset2`: the base class for sequences that come one after the other.

A sub-class defines `_collect_single_seq(seq_idx)`; this class keeps a window of loaded sequences and answers everything
else from it. It suits what has no random access: generators, streams, datasets made of other datasets.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from headrace.batching import NumbersDict, apply_window
from headrace.errors import ConfigError, OptionalNotImplementedError
from headrace.specs import DataSpec

from .base import Dataset
from .reading.reader import ReadRequest
from .seq import DatasetSeq


class CachedDataset2(Dataset):
    """Sequences collected in order.

    The contract of a sub-class:

    - define `_collect_single_seq(seq_idx) -> DatasetSeq | None`; `None` means after the end;
    - set `num_inputs` and `num_outputs`, and `labels` where there are some; what is not set is learnt from the first
      sequence. `num_inputs` alone says that there is "data";
    - override `init_seq_order`, call `super().init_seq_order(...)` first, then set `_num_seqs` (and `_num_timesteps`,
      `_estimated_num_seqs`) if they are known.

    Access is monotonic: after `load_seqs(start, ...)`, sequences before `start` are gone, and going back raises
    `ConfigError`. An epoch without sequences is legal, also when their number was not known. (RETURNN raises an
    AssertionError there.)

    Args:
        **kwargs: See `Dataset`.
    """

    supports_window = True
    _of_epoch = Dataset._of_epoch | {"_num_seqs", "_num_timesteps", "_added", "_load_start", "_next_seq_idx"}
    _of_epoch |= {"_reached_end"}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._num_seqs: int | None = None
        self._num_timesteps: NumbersDict | None = None
        self._reset()

    def _begin(self) -> None:
        super()._begin()
        self._num_seqs = self._num_timesteps = None
        self._reset()

    def _reset(self) -> None:
        self._added: OrderedDict[int, DatasetSeq] = OrderedDict()
        self._load_start = 0
        self._next_seq_idx = 0
        self._reached_end = False

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:  # noqa: ARG002 (a contract)
        """Return a sequence of the current epoch, or `None` after the end. Called with rising numbers."""
        raise OptionalNotImplementedError(f"{type(self).__name__} must define _collect_single_seq")

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch: forget what was loaded. Sub-classes that keep an order override it."""
        super().init_seq_order(epoch, seq_list, seq_order)
        self._reset()
        self._num_seqs = None
        self._num_timesteps = None
        return True

    def _take(self, wanted: ReadRequest) -> None:
        """Read this in the current epoch."""
        self._request = wanted
        self._num_seqs = None if self._read.skips_failed else (wanted.first or 0) + len(wanted.order)

    def initialize(self) -> None:
        """Get ready to read. The layout may still be unknown: it is learnt from the first sequence."""
        self.init_seq_order()
        self._complete_outputs()

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, see `Dataset.finish_epoch`."""
        super().finish_epoch(free_resources=free_resources)
        self._reset()
        self._reached_end = True  # nothing is read until the next epoch
        if free_resources:
            self._num_seqs = None

    # --- reading ---

    @property
    def added_data(self) -> list[DatasetSeq]:
        """The loaded sequences, in order."""
        return [self._seq_at(seq_idx) for seq_idx in range(self._load_start, self._next_seq_idx)]

    def _is_loaded(self, seq_idx: int) -> bool:
        return self._load_start <= seq_idx < self._next_seq_idx

    def _seq_at(self, seq_idx: int) -> DatasetSeq:
        """Return a loaded sequence."""
        return self._added[seq_idx]

    def load_seqs(self, start: int, end: int) -> None:
        """Collect sequences up to `end` (exclusive; may exceed the epoch); drop those before `start`.

        Raises:
            ConfigError: `start` lies before an earlier start.
        """
        if start < self._load_start:
            raise ConfigError(
                f"load_seqs({start}, {end}) goes back: sequences before {self._load_start} are gone",
                where=f"dataset {self.name!r}, epoch {int(self.epoch) or None}",
                fix="read in rising order, or start the epoch again with init_seq_order",
            )
        self._load_seqs(start, end)

    def _load_seqs(self, start: int, end: int) -> None:
        """Do what `load_seqs` says, once its arguments are checked; sub-classes may extend it."""
        self._load_start = start
        while self._added and next(iter(self._added)) < start:
            self._added.popitem(last=False)
        self._collect_until(end)

    def _collect_until(self, end: int) -> None:
        """Load sequences up to `end`, as far as there are some."""
        if self._epoch is None and self._num_seqs is None:
            return
        self._next_seq_idx = max(self._next_seq_idx, self._load_start)
        while self._next_seq_idx < end and not self._reached_end:
            if self._num_seqs is not None and self._next_seq_idx >= self._num_seqs:
                return
            if not self._collect_next(end):
                if self._num_seqs is not None and self._next_seq_idx > self._num_seqs:
                    return  # it came to be known now
                self._end_here(self._next_seq_idx)

    def _collect_next(self, end: int) -> bool:
        """Load the next sequence, or several that come before `end`; tell whether there was one."""
        del end
        seq = self._collect_single_seq(self._next_seq_idx)
        if seq is None:
            return False
        self._added[self._next_seq_idx] = self._with_window(seq)
        self._next_seq_idx += 1
        return True

    def _end_here(self, num_seqs: int) -> None:
        if self._num_seqs is not None and self._num_seqs != num_seqs:
            raise ConfigError(
                f"{type(self).__name__} said that an epoch has {self._num_seqs} sequences, it ends after {num_seqs}",
                where=f"dataset {self.name!r}, epoch {int(self.epoch) or None}",
                fix="leave _num_seqs at None if the number is not sure",
            )
        self._reached_end = True
        self._num_seqs = num_seqs

    def _with_window(self, seq: DatasetSeq) -> DatasetSeq:
        """Return the sequence with joined frames: a new one, since the sub-class may keep its own."""
        if self.window == 1 or "data" not in seq.features:
            return seq
        data = seq.features["data"]
        if data.ndim != 2 or data.dtype.kind != "f":
            raise ConfigError(
                f"window={self.window} joins frames that are vectors, got {data.dtype}{list(data.shape)}",
                where=f"dataset {self.name!r}, sequence {seq.seq_tag!r}",
                fix="leave window at 1",
            )
        joined = copy.copy(seq)
        joined.features = {**seq.features, "data": apply_window(data, self.window)}
        return joined

    def _get_seq(self, seq_idx: int) -> DatasetSeq:
        """Return one sequence, collected now if it is ahead."""
        self._require(seq_idx)
        return self._seq_at(seq_idx)

    def _require(self, seq_idx: int) -> None:
        """See to it that a sequence is loaded.

        Raises:
            ConfigError: It was dropped.
            IndexError: There is none.
        """
        if self._is_loaded(seq_idx):
            return
        if seq_idx < self._load_start:
            raise ConfigError(
                f"sequence {seq_idx} is gone: load_seqs({self._load_start}, ...) was called since",
                where=f"dataset {self.name!r}, epoch {int(self.epoch) or None}",
            )
        self._collect_until(seq_idx + 1)
        if not self._is_loaded(seq_idx):
            raise IndexError(f"no sequence {seq_idx} (dataset {self.name!r}, epoch {int(self.epoch) or None})")

    def get_seq(self, seq_idx: int) -> DatasetSeq:
        """Return one sequence with all of its data keys."""
        return self._get_seq(seq_idx)

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return the array of one data key, `dtype[T, ...]`."""
        return self._get_seq(seq_idx).get_data(key)

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames."""
        return self._get_seq(seq_idx).num_frames

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        return self._get_seq(seq_idx).seq_tag

    def is_cached(self, start: int, end: int) -> bool:
        """Return False unless the range is empty: each `load_seqs` goes through, as it also drops earlier sequences."""
        return start == end

    # --- how much there is ---

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch, or of the last one; 0 if there was none."""
        if self._num_seqs is not None:
            return self._num_seqs
        if self._epoch is not None:
            self._not_offered("num_seqs before the end of the epoch")
        return 0

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this position; loads it to find out if the number is unknown."""
        if self._num_seqs is None and seq_idx >= self._next_seq_idx:
            self._collect_until(seq_idx + 1)
        return seq_idx < (self._next_seq_idx if self._num_seqs is None else self._num_seqs)

    def get_num_timesteps(self) -> NumbersDict:
        """Return data key -> number of frames of the current epoch, if the sub-class knows it."""
        if self._num_timesteps is None:
            self._not_offered("get_num_timesteps")
        return self._num_timesteps

    def get_complete_frac(self, sorted_seq_idx: int, *, allow_only_lr_suitable: bool = False) -> float | None:
        """Return how much of the epoch is done: what the sequence itself says, else as in `Dataset`."""
        frac = self._seq_at(sorted_seq_idx).complete_frac if self._is_loaded(sorted_seq_idx) else None
        if frac is not None:
            return frac
        return super().get_complete_frac(sorted_seq_idx, allow_only_lr_suitable=allow_only_lr_suitable)

    # --- layout, learnt from the first sequence where the sub-class did not set it ---

    def _first_seq(self) -> DatasetSeq:
        if not self._is_loaded(self._load_start):
            self._collect_until(self._load_start + 1)
        if not self._is_loaded(self._load_start):
            raise ConfigError(
                "the layout is not known before the first sequence",
                where=f"dataset {self.name!r}, epoch {int(self.epoch) or None}",
                fix="set num_outputs in the constructor, or start an epoch that has sequences",
            )
        return self._seq_at(self._load_start)

    def get_data_keys(self) -> list[str]:
        """Return the data keys, "data" first: of the sequence at hand, else of `num_outputs`, else of the first."""
        layout = None if self._corpus is None else self._corpus.layout()
        if layout is not None:
            return list(layout)
        has_seq = self._is_loaded(self._load_start)
        keys = self._first_seq().features if has_seq or self.num_outputs is None else self.num_outputs
        return sorted(keys, key=lambda key: (key != "data", key))

    def get_target_list(self) -> list[str]:
        """Return the data keys without "data"."""
        return [key for key in self.get_data_keys() if key != "data"]

    def _spec(self, key: str) -> DataSpec:
        return DataSpec.of_array(self._first_seq().get_data(key))

    def _is_declared(self, key: str) -> bool:
        return key in (self.num_outputs or {}) or self._layout_of(key) is not None

    def get_data_dim(self, key: str) -> int:
        """Return the size of the last axis, or the number of classes of a sparse key."""
        return super().get_data_dim(key) if self._is_declared(key) else self._spec(key).num_outputs[0]

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name: of the loaded data, if it is not known and there are some; else as it is declared."""
        is_known = self._layout_of(key) is not None and self._read.knows_dtypes
        if not is_known and (self._is_loaded(self._load_start) or not self._is_declared(key)):
            return self._first_seq().get_data(key).dtype.name
        return super().get_data_dtype(key)

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        return super().is_data_sparse(key) if self._is_declared(key) else self._spec(key).sparse

    def get_data_shape(self, key: str) -> list[int | None]:
        """Return the shape of one frame."""
        return super().get_data_shape(key) if self._is_declared(key) else list(self._spec(key).shape)
