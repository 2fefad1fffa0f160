"""The position of an iteration over a graph, as data.

Invariants: a restored graph gives the items that the original would have given next. A pipe is under way, or it was
read to its end by a reader that is under way (and will not read it again), or neither: then it begins at its start when
it is read.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, TypeAlias

from headrace.errors import ResumeError

from ..core.base import (
    IterPipe,
    MapPipe,
    decides_when_to_begin,
    forget_position,
    is_iter_pipe,
    is_started_by,
    mark_restored,
    restored_with,
    stop,
)
from ..core.draws import restore_draws, state_of_draws
from ..core.walk import list_pipes, sources_of

GraphState: TypeAlias = list[list[Any]]
"""For each iterable pipe, sources first: `[class name, position, generators]`. The position is what `state()` returned,
"ended", or `None`. The generators are those of a pipe that is not under way: for its next iteration, or for the one in
which a map-style pipe loaded its items. States may hold items (a shuffle's buffer): any Python objects."""

_ENDED = "ended"


def graph_state(pipe: Any) -> GraphState | None:
    """Return the position of the iteration over a graph; `None` if one of its pipes has no state.

    Call it between items, from the thread that iterates. Threads that read ahead are paused meanwhile.

    Args:
        pipe: The end of the graph.
    """
    everything = list_pipes(pipe)
    pipes = [each for each in everything if is_iter_pipe(each)]
    if not all(isinstance(each, IterPipe) for each in pipes):
        return None
    loaded: dict[int, dict[str, Any]] = {}
    for each in everything:
        if isinstance(each, MapPipe):
            loaded |= each.draws_when_loaded()
    states: GraphState = []
    with ExitStack() as held:
        for each in reversed(pipes):
            held.enter_context(type(each).hold(each))  # of the class: an attribute of a user's may have the name
        ended = _ended(pipes)
        for each in pipes:
            if each.is_under_way:
                state = type(each).state(each)
                if state is None:
                    return None
                states.append([type(each).__name__, state, {}])
            else:
                generators = loaded.get(id(each)) or state_of_draws(each)
                states.append([type(each).__name__, _ENDED if id(each) in ended else None, generators])
    return states


def restore_graph(pipe: Any, state: GraphState) -> None:
    """Restore a graph from the state of another like it: its next iteration begins there. A current one is ended.

    Args:
        pipe: The end of a graph that was built in the same way.
        state: What `graph_state` returned for the other graph.

    Raises:
        ResumeError: The state is of a graph with other pipes, or a pipe cannot use its part of the state. The next
            iteration then begins at the start, as if nothing had been restored.
    """
    everything = list_pipes(pipe)
    pipes = [each for each in everything if is_iter_pipe(each)]
    have = [type(each).__name__ for each in pipes]
    saved = [entry[0] for entry in state]
    if have != saved or not all(isinstance(each, IterPipe) for each in pipes):
        raise ResumeError(
            f"the state is of another graph: {' -> '.join(saved)}, and this one is {' -> '.join(have)}",
            fix="build the pipes as they were when the state was taken, or start a new epoch",
        )
    for each in reversed(pipes):
        stop(each)
    before = [state_of_draws(each) for each in pipes]
    restored = _Restored({id(each) for each, entry in zip(pipes, state, strict=True) if entry[1] == _ENDED})
    for each, (name, position, generators) in zip(pipes, state, strict=True):
        try:
            _restore_pipe(each, position, generators, restored)
        except Exception as error:  # each pipe knows its own state, and users write pipes
            for begun, generators_before in zip(pipes, before, strict=True):
                forget_position(begun)
                restore_draws(begun, generators_before)
            raise ResumeError(f"the state of {name} cannot be used: {type(error).__name__}: {error}") from error
    for each in everything:
        if isinstance(each, MapPipe):
            each.forget_other_draws()


def _restore_pipe(pipe: IterPipe[Any], position: Any, generators: dict[str, Any], restored: _Restored) -> None:
    restore_draws(pipe, generators)
    is_under_way = position is not None and position != _ENDED
    if is_under_way:
        type(pipe).restore(pipe, position)
    mark_restored(pipe, restored, is_under_way=is_under_way)


class _Restored:
    """See `base.Restored`."""

    def __init__(self, ended: set[int]) -> None:
        self.ended = ended

    def take_end(self, source: IterPipe[Any]) -> bool:
        if id(source) not in self.ended:
            return False
        self.ended.discard(id(source))
        return True

    def forget(self, pipe: IterPipe[Any]) -> None:
        waiting: list[Any] = [pipe]
        while waiting:
            each = waiting.pop()
            if isinstance(each, IterPipe):
                if restored_with(each) is None:
                    continue
                mark_restored(each, None, is_under_way=False)
                self.ended.discard(id(each))
            waiting += [source for source in sources_of(each) if not decides_when_to_begin(source)]


def _ended(pipes: list[Any]) -> set[int]:
    """Return, by `id`, the pipes that a reader that is under way has read to their end, or given up.

    Pipes that ended before the reader began belong to an earlier iteration, and will be read from their start.
    """
    ended: set[int] = set()
    for reader in reversed(pipes):
        if not reader.is_under_way and id(reader) not in ended:
            continue
        for source in sources_of(reader):
            if not isinstance(source, IterPipe) or source.is_under_way:
                continue
            restored = restored_with(source)
            if is_started_by(source, reader) or (restored is not None and id(source) in restored.ended):
                ended.add(id(source))
    return ended
