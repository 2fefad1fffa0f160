"""The state of a loader: data, and never a pickled pipe. With it goes on, exactly, who builds the same graph again.

What it holds: the seed, the epoch, how many items were given in it, and where the pipes are, if they can tell.
"""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle

from headrace.errors import ResumeError
from headrace.pipes.graph import list_pipes

from .plain_data import NotPlainError, from_json, to_json

FORMAT = "headrace.DataLoader2/1"
_KEYS = (
    "seed",
    "next_seed",
    "epoch",
    "position",
    "is_in_epoch",
    "graph",
    "reading_service_state",
    "epoch_seeding",
    "pipes",
)
_NOT_OF_RECIPE = ("Prefetcher", "PinMemory")  # they may come and go: the items stay the same
_logger = logging.getLogger("headrace.dataloader2")


@dataclass(frozen=True)
class LoaderState:
    """Where a loader is.

    Attributes:
        seed: From which all epochs follow.
        next_seed: Which takes its place at the next epoch; None: none does.
        epoch: Since the seed was given, from 0.
        position: Items given in this epoch.
        is_in_epoch: Whether it has begun.
        graph: Where the pipes are: what `graph_state` gave; None: they are read again from the start of the epoch.
        service: The state of a reading service that has one of its own.
        epoch_seeding: How seeds of epochs follow from the seed.
        pipes: Of which pipes the graph is made: what `list_recipe` gave.
    """

    seed: int | None
    next_seed: int | None
    epoch: int
    position: int
    is_in_epoch: bool
    graph: Any
    service: bytes | None
    epoch_seeding: str
    pipes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict that `json` can write."""
        graph = self.graph
        if graph is not None:
            try:
                graph = to_json(_opened(graph))
            except NotPlainError as error:
                _logger.warning(
                    "%s is in hand (in a shuffle's buffer, say) and cannot be written as plain data: to resume from "
                    "this state, the epoch is read again from its start up to item %d",
                    error,
                    self.position,
                )
                graph = None
        return {
            "format": FORMAT,
            "seed": self.seed,
            "next_seed": self.next_seed,
            "epoch": self.epoch,
            "position": self.position,
            "is_in_epoch": self.is_in_epoch,
            "graph": graph,
            "reading_service_state": to_json(self.service),
            "epoch_seeding": self.epoch_seeding,
            "pipes": self.pipes,
        }

    @classmethod
    def of_dict(cls, state: Any) -> LoaderState:
        """Read a state.

        Raises:
            ResumeError: It is none of this class's.
        """
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            found = state.get("format", "no format") if isinstance(state, dict) else type(state).__name__
            hint = None
            if isinstance(state, dict) and "serialized_datapipe" in state:
                hint = "it is a state of torchdata's, which holds a pickled pipe: start the epoch anew"
            raise ResumeError(f"this is no state of {FORMAT}: {found}", fix=hint)
        if missing := [key for key in _KEYS if key not in state]:
            raise ResumeError(f"the state lacks {', '.join(missing)}")
        graph = state["graph"]
        return cls(
            state["seed"],
            state["next_seed"],
            state["epoch"],
            state["position"],
            state["is_in_epoch"],
            None if graph is None else _closed(from_json(graph)),
            from_json(state["reading_service_state"]),
            state["epoch_seeding"],
            state["pipes"],
        )

    def check_pipes(self, pipes: list[str]) -> None:
        """Check that a graph is the one that the state is of, as far as the names of its pipes tell.

        Raises:
            ResumeError: It is another.
        """
        if pipes != self.pipes:
            there, here = " > ".join(self.pipes) or "nothing", " > ".join(pipes) or "nothing"
            raise ResumeError(
                f"the state is of another graph: {there}, and this one is {here}",
                fix="build the graph as it was, or start the epoch anew without the state",
            )


def list_recipe(datapipe: Any) -> list[str]:
    """Return the names of the pipes that decide what a graph gives, sources first."""
    names = [] if datapipe is None else [type(pipe).__name__ for pipe in list_pipes(datapipe)]
    return [name for name in names if name not in _NOT_OF_RECIPE]


def _opened(graph: list[list[Any]]) -> list[list[Any]]:
    """Return the state of a graph with the workers' snapshots, which travel as bytes, as what they hold."""
    return [[name, _with_snapshots(state, _open), *rest] for name, state, *rest in graph]


def _closed(graph: list[list[Any]]) -> list[list[Any]]:
    """Undo `_opened`."""
    return [[name, _with_snapshots(state, _close), *rest] for name, state, *rest in graph]


def _with_snapshots(state: Any, change: Any) -> Any:
    if not isinstance(state, dict) or "workers" not in state:
        return state
    workers = [{**worker, "snapshot": change(worker["snapshot"])} for worker in state["workers"]]
    return {**state, "workers": workers}


def _open(snapshot: bytes | None) -> Any:
    return None if snapshot is None else list(pickle.loads(snapshot))  # noqa: S301 - from our own worker


def _close(snapshot: list[Any] | None) -> bytes | None:
    return None if snapshot is None else bytes(cloudpickle.dumps(tuple(snapshot)))
