"""One sub-epoch: what a worker needs to open it, and reading it once it is open."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.engine import note_item

from ..base import Dataset
from ..reading.reader import ReadRequest
from ..wrap.blockwise import FailedSeqs, Parts
from ..wrap.runs import BlockReader, ReadSeqs
from .layout import SubEpochLayout
from .sub_dataset import SubDataset


@dataclass(frozen=True, slots=True)
class SubEpochSpec:
    """What a worker needs to open a sub-epoch.

    Attributes:
        key: Equal for equal sub-epochs of one dataset, and only for these.
        epoch: Its number, as the user counts.
        full_epoch: The epoch number of the sub-dataset.
        files: Its files, as text for messages.
        dataset: What `get_sub_epoch_dataset` returned, checked and completed.
    """

    key: tuple[int, int]
    epoch: int
    full_epoch: int
    files: str
    dataset: SubDataset

    @property
    def where(self) -> str:
        """What an error is about."""
        return f"sub-epoch {self.epoch} (full epoch {self.full_epoch}), files {self.files}"


@dataclass(frozen=True, slots=True)
class SubEpochPlan:
    """What is to be read now and what comes next.

    Attributes:
        specs: The sub-epoch to read, then the coming ones, in order.
        layout: What the sequences must be like, if it is known.
    """

    specs: tuple[SubEpochSpec, ...]
    layout: SubEpochLayout | None


@dataclass(slots=True)
class ReadPart:
    """A part of a sub-epoch, as it comes back from a worker.

    Attributes:
        parts: The sequences, in order, as the parts of a `SeqBlock`.
        num_seqs: How many the sub-epoch has, if its dataset knows.
        is_last: Whether the sub-epoch ends with this part, or before it.
        layout: What the sequences are like, if the plan did not say it.
        failed: The sequences that failed, each with an encoded `Failure`.
        seconds: What it took to read them.
        seq_bytes: How many bytes a sequence has.
        failure: An encoded `Failure`: the sub-epoch cannot be opened, and there are no sequences. It is no error of the
            ticket, because a policy that skips failed items must not skip sequences that were not counted.
    """

    parts: Parts = field(default_factory=lambda: ReadSeqs().parts())
    num_seqs: int | None = None
    is_last: bool = False
    layout: SubEpochLayout | None = None
    failed: FailedSeqs = field(default_factory=list)
    seconds: float = 0.0
    seq_bytes: float = 0.0
    failure: bytes | None = None


class OpenSubEpoch:
    """A sub-epoch whose dataset is open and whose order is known, or else started. Not thread-safe.

    Args:
        spec: What it is.
        dataset: Its dataset; from now on it is used here only.
        held: The cached files that it reads, to be released when it is closed.
    """

    def __init__(self, spec: SubEpochSpec, dataset: Dataset, held: Sequence[str]) -> None:
        self.spec = spec
        self.dataset = dataset
        self.held = held
        self._can_jump = dataset.supports_jumps
        self._position = 0  # the next one that a dataset without jumps gives
        # A sequence has the same draws in whatever sub-epoch and on whatever rank its file comes to be read.
        dataset.seed_by_tag()
        reader = dataset.make_reader()
        self._reader = BlockReader(reader)
        self._whole: ReadRequest | None = None  # where any sequence can be read
        if reader.is_sequential:  # read from its start, by its only owner
            dataset.init_seq_order(epoch=spec.full_epoch)
            self.num_seqs = dataset.known_num_seqs()
        else:
            order, counted = dataset.get_epoch_order(spec.full_epoch)
            self._whole = ReadRequest(spec.full_epoch, order, counted, 0)
            self.num_seqs = None if dataset.skips_failed else len(order)

    def read(self, start: int, stop: int, *, skips: bool) -> tuple[Parts, FailedSeqs, bool]:
        """Read sequences start..stop (exclusive; may exceed the sub-epoch); tell whether it ends there, or before.

        Up to a sequence that fails, or without it; what failed is returned as well.
        """
        if self.num_seqs is not None:
            stop = min(stop, self.num_seqs)
        if self._whole is not None:
            wanted = self._whole.part(start, max(start, stop))
            return *self._reader.read(wanted, self.spec.epoch, skips=skips), stop == self.num_seqs
        seqs = ReadSeqs(skips)
        if start < stop:
            self._go_to(start)
        has_more = True
        while has_more and self._position < stop:
            name = f"(sequence {self._position} of sub-epoch {self.spec.epoch})"
            has_more = seqs.read(self.dataset, self._position, epoch=self.spec.epoch, name=name)
            self._position += has_more
        if seqs.failed and not skips:
            return seqs.parts(), seqs.failed, False
        return seqs.parts(), seqs.failed, not has_more or stop == self.num_seqs

    def _go_to(self, position: int) -> None:
        """Make a position the next one, by reading those before it if there is no other way."""
        if position < self._position:
            self.dataset.init_seq_order(epoch=self.spec.full_epoch)
            self._position = 0
        if self._can_jump:
            self._position = position
        while self._position < position and self.dataset.is_less_than_num_seqs(self._position):
            note_item(f"(passing over sequence {self._position} of sub-epoch {self.spec.epoch})", self.spec.epoch)
            with contextlib.suppress(Exception):  # not wanted any more; its error was reported once
                self.dataset.load_seqs(self._position, self._position + 1)
            self._position += 1
