"""The state of a loader: data, and never a pickled pipe. With the same graph, built again, it resumes exactly.

It holds the seed, the epoch, the number of items given in it, and the positions of the pipes, if they know them.
Invariant: a state is used as it is or refused. Its digest covers all of it, so that a lost bit, or an edited number,
cannot silently lead to other items.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from headrace.datasets.digests import digest_of_state
from headrace.errors import ResumeError
from headrace.pipes.graph import list_pipes
from headrace.pipes.graph.seeds import check_seed

from .plain_data import NotPlainError, from_json, to_json

FORMAT = "headrace.DataLoader2/3"
# Bytes of buffered items in one state: above this an epoch is read again rather than stored.
MAX_GRAPH_BYTES = 256 << 20
_NOT_OF_RECIPE = ("Prefetcher", "PinMemory")  # they may be added or removed: the items stay the same

_logger = logging.getLogger("headrace.dataloader2")

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]  # what seeds can be derived from


class _Bytes(msgspec.Struct, forbid_unknown_fields=True):
    """The form of bytes in `to_json`."""

    text: str = msgspec.field(name="$bytes")


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    """A state as `json` reads it."""

    format: str
    seed: int | None
    next_seed: int | None
    epoch: _Count
    position: _Count
    is_in_epoch: bool
    graph: list[tuple[str, Any, dict[str, Any]]] | None
    reading_service_state: _Bytes | None
    epoch_seeding: Literal["derived", "same"]
    pipes: list[str]
    num_ranks: _Count
    num_workers: _Count
    digest: str


@dataclass(frozen=True)
class GraphState:
    """The position of a loader.

    Attributes:
        seed: The seed of all epochs.
        next_seed: The seed that replaces it at the next epoch; None: none does.
        epoch: Since the seed was given, from 0.
        position: The number of items given in this epoch.
        is_in_epoch: Whether the epoch has begun.
        graph: The positions of the pipes, from `graph_state`; None: they are read again from the start of the epoch.
        reading_service_state: The state of the reading service, if it has one of its own.
        epoch_seeding: How seeds of epochs follow from the seed.
        pipes: The pipes of the graph, from `list_recipe`.
        num_ranks: How many ranks share the items of the epoch.
        num_workers: How many workers each of them has; 0: none.
    """

    seed: int | None
    next_seed: int | None
    epoch: int
    position: int
    is_in_epoch: bool
    graph: Any
    reading_service_state: bytes | None
    epoch_seeding: str
    pipes: list[str]
    num_ranks: int
    num_workers: int

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dict that `json` can write."""
        graph = self.graph
        if graph is not None:
            try:
                graph = to_json(graph, MAX_GRAPH_BYTES, self._warn_of)
            except NotPlainError as error:
                self._warn_of(error)
                graph = None
        saved = vars(self) | {"graph": graph, "reading_service_state": to_json(self.reading_service_state)}
        state = {"format": FORMAT, **saved}
        return {**state, "digest": _digest_of(state)}

    def _warn_of(self, error: NotPlainError) -> None:
        _logger.warning(
            "%s is held in a buffer (a shuffle's, for example) and cannot be written as plain data: to resume from "
            "this state, the epoch is read again from its start up to item %d",
            error,
            self.position,
        )

    @classmethod
    def of_dict(cls, state: Any) -> GraphState:
        """Read a state.

        Raises:
            ResumeError: It is not a state of this class, or was changed since.
        """
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            found = state.get("format", "no format") if isinstance(state, dict) else type(state).__name__
            hint = None
            if isinstance(state, dict) and "serialized_datapipe" in state:
                hint = "it is a state of torchdata's, which holds a pickled pipe: start the epoch anew"
            raise ResumeError(f"this is not a state of format {FORMAT}: {found}", fix=hint)
        saved = _checked(state)
        fields = {field: getattr(saved, field) for field in cls.__dataclass_fields__}
        return cls(
            **fields
            | {"graph": from_json(saved.graph), "reading_service_state": from_json(state["reading_service_state"])}
        )

    def check_pipes(self, pipes: list[str]) -> None:
        """Check that a graph is the one of the state, by the names of its pipes.

        Raises:
            ResumeError: It is another graph.
        """
        if pipes != self.pipes:
            there, here = " > ".join(self.pipes) or "nothing", " > ".join(pipes) or "nothing"
            raise ResumeError(
                f"the state is of another graph: {there}, and this one is {here}",
                fix="build the graph as it was, or begin without the state",
            )


def list_recipe(datapipe: Any) -> list[str]:
    """Return the names of the pipes that decide what a graph gives, sources first."""
    names = [] if datapipe is None else [type(pipe).__name__ for pipe in list_pipes(datapipe)]
    return [name for name in names if name not in _NOT_OF_RECIPE]


def _digest_of(state: dict[str, Any]) -> str:
    """Return the digest of a state without its digest.

    Raises:
        ResumeError: There is something in it that no state holds.
    """
    try:
        return digest_of_state(state, without="digest")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ResumeError(f"the state holds a value that no state can hold: {error}") from error


def _checked(state: dict[str, Any]) -> _Saved:
    try:
        saved = msgspec.convert(state, _Saved)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ResumeError(f"the state is damaged: {error}", fix="resume from an older state") from error
    for seed in (saved.seed, saved.next_seed):
        try:
            check_seed(seed or 0)
        except ValueError as error:
            raise ResumeError(f"the state is damaged: {error}", fix="resume from an older state") from None
    if (digest := _digest_of(state)) != saved.digest:
        raise ResumeError(
            f"the state was changed after it was taken: its digest is {saved.digest}, its content has {digest}",
            fix="resume from an older state, and do not edit states",
        )
    return saved
