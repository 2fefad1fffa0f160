"""The work of a worker: `dataset[batch]` for a batch of a sampler.

An exception of the dataset is returned as data, so that the training may continue after it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.engine import WorkerInfo, note_item, note_number, skip_item
from headrace.engine.user.failure import Failure
from headrace.engine.user.ship import unship
from headrace.errors import takes_note
from headrace.rng.process import kept_globals, seed_globals

from .sampler import ids_of

SKIPPED = "skipped"  # in place of a failure
_MAX_NOTE_CHARS = 2000


class Ticket(NamedTuple):
    """The payload of a ticket.

    Attributes:
        epoch: For messages.
        key: Key of the pass: with `key_number`, the seed of the global generators; None: they are not seeded.
        number: Number of the batch in the pass, on this rank.
        key_number: Its number among those of all ranks.
        content: The batch, packed for a worker; an int as it is.
    """

    epoch: int
    key: int | None
    number: int
    key_number: int
    content: Any


@dataclass(frozen=True)
class DatasetSetup:
    """Makes the function of a worker: the `setup` of the job.

    Attributes:
        dataset: The user's.
        worker_init_fn: Called with the number of the worker; not where the training itself makes the batches.
        skips: Whether batches that fail are skipped.
    """

    dataset: Any
    worker_init_fn: Callable[[int], Any] | None
    skips: bool

    def __call__(self, info: WorkerInfo) -> Callable[[Ticket], tuple[Any, Any]]:
        """Set the worker up."""
        is_inline = info.runs_in == "caller"  # the training's own process, not a worker
        if not is_inline:
            _tell_torch(info, self.dataset)
            if self.worker_init_fn is not None:
                self.worker_init_fn(info.worker_idx)
        return _Work(self.dataset, is_inline, self.skips)


class _Work:
    """Makes a batch.

    Returns its value and None; or None and the failure, as bytes for another process, or `SKIPPED`.
    """

    def __init__(self, dataset: Any, is_inline: bool, skips: bool) -> None:
        self._dataset, self._is_inline, self._skips = dataset, is_inline, skips

    def __call__(self, ticket: Ticket) -> tuple[Any, Any]:
        key, content, is_inline = ticket.key, ticket.content, self._is_inline
        batch: Any = None
        # In the user's process the generators are the user's; in a worker no other code draws from them.
        with kept_globals() if is_inline and key is not None else nullcontext():
            if key is not None:
                seed_globals(key, "lhotse: batch", number=ticket.key_number)
            try:
                batch = unship(content) if type(content) is bytes and not is_inline else content
                _note(batch, ticket.epoch)
                return self._dataset[batch], None
            except Exception as error:  # noqa: BLE001 - the boundary of user code: it goes on as a Failure
                return None, self._note_failure(error, batch, ticket)

    def _note_failure(self, error: Exception, batch: Any, ticket: Ticket) -> bytes | Failure | str:
        ids = "" if batch is None else f", {_list_text(ids_of(batch))}"
        takes_note(error, f"headrace: batch {ticket.number} of epoch {ticket.epoch}{ids}")
        if self._skips:
            skip_item(error)
            return SKIPPED
        failure = Failure.of(error)
        return failure if self._is_inline else failure.to_bytes()


def _tell_torch(info: WorkerInfo, dataset: Any) -> None:
    """Make `torch.utils.data.get_worker_info` work, if torch is loaded: lhotse and others use it."""
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    if worker is not None:
        worker._worker_info = worker.WorkerInfo(
            id=info.worker_idx, num_workers=info.num_workers, seed=info.seed, dataset=dataset
        )


def _note(batch: Any, epoch: int) -> None:
    """Tell which batch is worked on, by a short name, for the error if the worker dies."""
    if type(batch) is int:
        note_number("{}", batch, epoch)
        return
    ids = ids_of(batch)
    note_item(ids[0] if len(ids) == 1 else f"{ids[0]} .. {ids[-1]} ({len(ids)})" if ids else "empty batch", epoch)


def _list_text(ids: list[str]) -> str:
    text = ", ".join(ids)
    if len(text) > _MAX_NOTE_CHARS:
        text = text[:_MAX_NOTE_CHARS].rpartition(",")[0] + ", ..."
    return f"{len(ids)} ids: {text}" if len(ids) != 1 else f"id {text}"
