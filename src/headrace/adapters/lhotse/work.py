"""The work of a worker: `dataset[batch]` for the batches of a sampler, one after another.

A ticket holds one batch, or several small ones. An exception of the dataset is returned as data, so that the other
batches of the ticket arrive, and the training may continue after it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.batching import ReuseCheck
from headrace.dataloader2.transport.item_bytes import estimate_bytes
from headrace.engine import NumberedTags, WorkerInfo, note_item, note_items, note_number, skip_item
from headrace.engine.user.failure import Failure
from headrace.engine.user.ship import unship
from headrace.errors import takes_note
from headrace.rng.process import kept_globals, seed_globals

from .payload import keep_shards_open
from .private import Keyed, NewIds, walk
from .sampler import ids_of

_MAX_NOTE_CHARS = 2000


class Ticket(NamedTuple):
    """The payload of a ticket.

    Attributes:
        epoch: For messages.
        key: Key of the pass: with a batch's number, the seed of the global generators; None: they are not seeded.
        first: Number of the first batch in the pass, on this rank.
        offset: The number of the first batch among those of all ranks, by which its seed is keyed.
        stride: From one batch to the next among those of all ranks.
        contents: The batches, packed for a worker; an int as it is.
    """

    epoch: int
    key: int | None
    first: int
    offset: int
    stride: int
    contents: list[Any]


@dataclass(frozen=True)
class DatasetSetup:
    """Makes the function of a worker: the `setup` of the job.

    Attributes:
        dataset: The user's.
        worker_init_fn: Called with the number of the worker; not where the training itself makes the batches.
        skips: Whether batches that fail are skipped.
        collate_fn: Applied to what the dataset returns.
    """

    dataset: Any
    worker_init_fn: Callable[[int], Any] | None
    skips: bool
    collate_fn: Callable[[Any], Any] | None = None

    def __call__(self, info: WorkerInfo) -> Callable[[Ticket], tuple[Any, ...]]:
        """Set the worker up."""
        is_inline = info.runs_in == "caller"  # the training's own process, not a worker
        if not is_inline:
            _tell_torch(info, self.dataset)
            keep_shards_open()
            if self.worker_init_fn is not None:
                self.worker_init_fn(info.worker_idx)
        return _Work(self.dataset, self.collate_fn, is_inline, self.skips)


class _Work:
    """Makes the batches of a ticket.

    Returns a tuple: the values; the failed ones (index of the value -> a failure as bytes, or None for a skipped one),
    or None; the seconds it took; about how many bytes the last value has.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any] | None, is_inline: bool, skips: bool) -> None:
        self._dataset, self._collate_fn = dataset, collate_fn
        self._is_inline, self._skips = is_inline, skips
        self._keyed: Keyed | None = None
        self._reuse = None if is_inline else ReuseCheck()  # inline, a value is given before the next one is made

    def __call__(self, ticket: Ticket) -> tuple[Any, ...]:
        start = time.perf_counter()
        values: list[Any] = []
        failed: dict[int, bytes | Failure | None] = {}
        key, dataset, collate_fn, is_inline = ticket.key, self._dataset, self._collate_fn, self._is_inline
        go_to, reuse = _note_indices(ticket), self._reuse
        # In the user's process the generators are the user's; in a worker no other code draws from them.
        with self._kept() if is_inline and key is not None else nullcontext():
            for position, content in enumerate(ticket.contents):
                if key is not None:
                    number = ticket.offset + position * ticket.stride
                    seed_globals(key, "lhotse: batch", number=number)
                    self._own_generators().seed(key, number)
                batch: Any = None
                try:
                    if go_to is not None:
                        batch = content
                        go_to(position)
                    else:
                        batch = unship(content) if type(content) is bytes and not is_inline else content
                        _note(batch, ticket.epoch)
                    value = dataset[batch]
                    if collate_fn is not None:
                        value = collate_fn(value)
                    values.append(value if reuse is None else reuse.keep(value))
                except Exception as error:  # noqa: BLE001 - the boundary of user code: it goes on as a Failure
                    values.append(None)
                    failed[position] = self._note_failure(error, batch, ticket, position)
        if reuse is not None:
            reuse.look()
            if not reuse.copies:
                self._reuse = None
        return values, failed or None, time.perf_counter() - start, estimate_bytes(values[-1])

    def _own_generators(self) -> Keyed:
        """Return the dataset's own generators."""
        if self._keyed is None:
            if not self._is_inline:
                NewIds().begin()
            self._keyed = Keyed(walk((self._dataset, self._collate_fn)))
        return self._keyed

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Restore the user's generators at the end."""
        with self._own_generators().kept(), kept_globals(), NewIds():
            yield

    def _note_failure(self, error: Exception, batch: Any, ticket: Ticket, position: int) -> bytes | Failure | None:
        ids = "" if batch is None else f", {_list_text(ids_of(batch))}"
        takes_note(error, f"headrace: batch {ticket.first + position} of epoch {ticket.epoch}{ids}")
        if self._skips:
            skip_item(error)
            return None
        failure = Failure.of(error)
        return failure if self._is_inline else failure.to_bytes()


def _tell_torch(info: WorkerInfo, dataset: Any) -> None:
    """Make `torch.utils.data.get_worker_info` work, if torch is loaded: lhotse and others use it."""
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    if worker is not None:
        worker._worker_info = worker.WorkerInfo(
            id=info.worker_idx, num_workers=info.num_workers, seed=info.seed, dataset=dataset
        )


def _note_indices(ticket: Ticket) -> Callable[[int], None] | None:
    """Tell of batches that are indices, all at once; return what tells which of them is worked on.

    It takes a quarter of the time of `_note`; None: they are not, or are one, and each has to be told of by itself.
    """
    if len(ticket.contents) == 1 or set(map(type, ticket.contents)) != {int}:
        return None
    try:
        return note_items(NumberedTags("{}", ticket.contents), ticket.epoch)
    except OverflowError:  # not of 64 bits
        return None


def _note(batch: Any, epoch: int) -> None:
    """Tell which batch is worked on, by a short name, for the error if the worker dies."""
    if type(batch) is int:
        note_number("{}", batch, epoch)
        return
    ids = [batch] if type(batch) is str else ids_of(batch)
    note_item(ids[0] if len(ids) == 1 else f"{ids[0]} .. {ids[-1]} ({len(ids)})" if ids else "empty batch", epoch)


def _list_text(ids: list[str]) -> str:
    text = ", ".join(ids)
    if len(text) > _MAX_NOTE_CHARS:
        text = text[:_MAX_NOTE_CHARS].rpartition(",")[0] + ", ..."
    return f"{len(ids)} ids: {text}" if len(ids) != 1 else f"id {text}"
