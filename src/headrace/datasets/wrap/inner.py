"""`InnerDataset`: a position in a corpus around another one, by its order or, without one, as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError

from ..cached2 import CachedDataset2
from ..checks import remark_once
from ..reading.reader import GivenOrder, Reader, ReadRequest
from ..seq import DatasetSeq

_OUTER_OPTIONS = (
    "name",
    "context_window",
    "chunking",
    "min_chunk_size",
    "chunking_variance",
    "estimated_num_seqs",
)  # what does not say an order
_INHERITED = ("random_seed_offset", "_num_shards", "_shard_index")


class InnerDataset(CachedDataset2):
    """A dataset around another one. A sub-class sets its corpus, and says how a stream is read (`_open_stream`)."""

    supports_window = False
    _of_epoch = CachedDataset2._of_epoch | {"_reader", "_seqs"}

    def _reset(self) -> None:
        super()._reset()
        self._reader: Reader | None = None
        self._seqs: Iterator[DatasetSeq] | None = None  # of a stream, from the next one that is asked for on

    @property
    def supports_jumps(self) -> bool:  # type: ignore[override]
        """Whether the sequence at any position is given without reading those before it."""
        return self._read.can_jump

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`."""
        super().init_seq_order(epoch, seq_list, seq_order)
        given = GivenOrder.of(seq_list, seq_order)
        if epoch is None and given is None:
            self._num_seqs = 0
        elif self._read.knows_order():
            self._take(self._plan(epoch, given))
        else:
            self._start_stream(epoch, given)
        return True

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences, under their own positions."""
        if not self._read.knows_order():
            return super().start_part(wanted)
        super().init_seq_order(wanted.epoch)
        self._take(wanted)
        return wanted.first or 0

    def _start_stream(self, epoch: int | None, given: GivenOrder | None) -> None:
        """Begin to read a stream."""
        raise NotImplementedError

    # --- reading ---

    def _open_reader(self) -> Reader:
        """Return the reader of the current order, begun now if it was not yet."""
        if self._reader is None:
            assert self._request is not None
            self._reader = self._read.reader()
            self._reader.start(self._request)
        return self._reader

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        wanted = self._request
        assert wanted is not None
        number = seq_idx - (wanted.first or 0)
        if not 0 <= number < len(wanted.order):
            return None
        seq = self._open_reader().read(number)
        return DatasetSeq.made_of(seq_idx, seq.features, seq.seq_tag, seq.complete_frac, seq.corpus_idx)


def outer_options(options: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the options that the outer dataset itself takes; a window is refused.

    Raises:
        ConfigError: `window` is more than 1.
    """
    if options.get("window", 1) not in (0, 1):
        raise ConfigError(f"{owner} does not support window={options['window']}", fix="give window to the sub-datasets")
    return {name: value for name, value in options.items() if name in _OUTER_OPTIONS}


def inherited_options(options: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the options of a wrapper that are defaults for what it wraps; others are logged, once: they do nothing.

    Args:
        options: Options of the wrapper.
        owner: Its class, and its name.
    """
    for name, value in options.items():
        if name not in (*_OUTER_OPTIONS, *_INHERITED, "window") and value:
            remark = f"{name}={value!r} of {owner} has no effect: the order is that of the dataset inside"
            remark_once(remark)
    return {name: value for name, value in options.items() if name in _INHERITED and value is not None}
