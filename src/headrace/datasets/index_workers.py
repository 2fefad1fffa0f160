"""Worker processes for sources that gather an index, which know no engine themselves: imported, it offers them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine import EngineOptions, Job, WorkerInfo, get_worker_info
from headrace.sources.shared.parts import gathering as gathering
from headrace.sources.shared.parts import offer_workers

# A part may take long, and says nothing meanwhile.
_OPTIONS = EngineOptions(tickets_per_worker=2, warn_seconds=0, stall_seconds=0)


@dataclass(frozen=True)
class _PartWork:
    """Returns the function of parts, in a worker. The consumer keeps results: as bytes they hold no shared memory."""

    function: Callable[[Any], Any]

    def __call__(self, info: WorkerInfo) -> Callable[[Any], bytes]:
        del info  # any worker does any part
        return lambda part: pickle.dumps(self.function(part), pickle.HIGHEST_PROTOCOL)


def map_in_workers(function: Callable[[Any], Any], parts: Sequence[Any], num_workers: int) -> Iterator[Any]:
    """Yield what a function makes of each part, in order, by so many processes; a worker does it all by itself."""
    if get_worker_info() is not None:
        yield from map(function, parts)
        return
    from headrace.engine import Engine  # what a worker imports has no need of it

    with Engine(Job(_PartWork(function)), num_workers=num_workers, options=_OPTIONS) as engine:
        for delivered in engine.run(parts):
            yield pickle.loads(delivered.value)  # noqa: S301 (of a Headrace worker)


offer_workers(map_in_workers)
