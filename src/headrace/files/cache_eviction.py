"""What goes first when room is needed: pure decisions over what a survey saw.

The order: what is no copy; then what no process has planned to read, longest unused first; then what is planned,
needed last first (Belady's rule, over the plans of all processes). What anybody uses at the moment never goes: the
caller finds that out by locking it. By age alone only unplanned copies go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .cache_options import FileCacheOptions
from .cache_survey import EntryState

DAY_SECONDS = 24 * 3600.0
# A part that another machine writes to is younger; clocks differ by less. One that is removed too early costs a try.
_FOREIGN_SECONDS = 3600.0
_LEFTOVER_DAYS = 1.0  # a copy that nobody went on with for so long is not resumed


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that may be removed.

    Attributes:
        state: What it is.
        distance: How many files are needed before it, in the plan where that is least; infinite if in no plan.
        is_stale: It is no copy, or another version of its source that was used after it is here too.
    """

    state: EntryState
    distance: float
    is_stale: bool


def order_candidates(states: Iterable[EntryState], distances: Mapping[str, float], now: float) -> list[Candidate]:
    """Return what may be removed, first what should go first.

    Args:
        states: All that is there.
        distances: Source digest -> how many files are needed before it.
        now: Seconds since 1970.
    """
    states = list(states)
    newest: dict[str, float] = {}
    for state in states:
        if state.has_copy:
            newest[state.key.source] = max(newest.get(state.key.source, 0.0), state.last_use)
    candidates = []
    for state in states:
        if state.is_foreign and now - state.last_use < _FOREIGN_SECONDS:
            continue
        is_stale = not state.has_copy or state.last_use < newest[state.key.source]
        candidates.append(Candidate(state, distances.get(state.key.source, math.inf), is_stale))
    return sorted(candidates, key=_rank)


def _rank(candidate: Candidate) -> tuple[bool, float, float]:
    return not candidate.is_stale, -candidate.distance, candidate.state.last_use


def may_go_for(candidate: Candidate, distance: float) -> bool:
    """Whether a candidate may be removed for a file that is needed after `distance` others: never one needed sooner."""
    return not candidate.state.has_copy or candidate.distance > distance


def is_due(candidate: Candidate, options: FileCacheOptions, now: float, *, wants_room: bool) -> bool:
    """Whether a candidate goes without anybody needing its room at once.

    Args:
        candidate: What.
        options: The ages.
        now: Seconds since 1970.
        wants_room: Whether less is free on the disk than is wanted.
    """
    age_days = (now - candidate.state.last_use) / DAY_SECONDS
    if not candidate.state.has_copy:
        return age_days > _LEFTOVER_DAYS
    if not math.isinf(candidate.distance):
        return False
    wanted = options.cleanup_files_wanted_older_than_days
    return age_days > options.cleanup_files_always_older_than_days or (wants_room and age_days > wanted)
