"""torchdata's check for shuffles after sharding."""

from __future__ import annotations

from typing import Any

from headrace.pipes.graph import list_pipes, sources_of
from headrace.pipes.graph.seeds import is_random_pipe
from headrace.pipes.sharding import is_sharding_pipe


def _check_shuffle_before_sharding(datapipe: Any) -> bool:
    """Tell whether each sharding pipe has a shuffle upstream on every path; True if nothing shards."""
    shuffled: set[int] = set()
    for pipe in list_pipes(datapipe):
        sources = sources_of(pipe)
        is_shuffled = bool(sources) and all(id(source) in shuffled for source in sources)
        if is_sharding_pipe(pipe) and not is_shuffled:
            return False
        if is_shuffled or is_random_pipe(pipe):
            shuffled.add(id(pipe))
    return True
