"""Workers of datasets: those given to a dataset by the user, and those that gather the index of a source.

Sources know no engine themselves: importing this module offers them worker processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.engine import EngineOptions, Job, WorkerInfo, get_worker_info
from headrace.sources.shared.parts import gathering as gathering
from headrace.sources.shared.parts import offer_workers

if TYPE_CHECKING:
    from headrace.engine import EngineReport, Executor

# A part may take long, and says nothing meanwhile.
_OPTIONS = EngineOptions(tickets_per_worker=2, warn_seconds=0, stall_seconds=0)


@dataclass(frozen=True)
class DatasetWorkers:
    """The workers that a user gave to a dataset, and the dataset that they read.

    Attributes:
        owner: The class of the dataset that they were given to, for messages.
        num_workers: How many; 0 if this process does their work.
        corpus: What they read, in this process; `None` if there is no such thing.
        config: Of what they read: what makes it, or the corpus itself.
        is_same_without: Whether the stream is that of `corpus`: then only one of two readers should have workers.
        num_shards: Into how many shards they divide what they read; 1 if any of them may read any sequence.
        is_inline: Whether the work is done in the thread of the reader.
        executor: "process", "thread" or "inline"; `None`: not given.
        worker_init: Called in each.
        engine_options: What to do about errors, deaths and stalls.
        max_bytes_per_worker: Limit of the shared memory of each.
        buffer_size: How many sequences a worker may be ahead; `None`: not given.
        sharding_method: See `MultiProcDataset`; `None` for other classes.
        report: Where the time went so far, and what was skipped; `None` before they were started.
    """

    owner: str
    num_workers: int
    corpus: Any = None
    config: Any = None
    is_same_without: bool = False
    num_shards: int = 1
    is_inline: bool = False
    executor: str | Executor | None = None
    worker_init: Callable[[WorkerInfo], None] | None = None
    engine_options: EngineOptions | None = None
    max_bytes_per_worker: int | None = None
    buffer_size: int | None = None
    sharding_method: str | None = None
    report: EngineReport | None = None


def _part_work(function: Callable[[Any], Any], info: WorkerInfo) -> Callable[[Any], bytes]:
    """Return the function of parts, in a worker. The consumer keeps results: as bytes they hold no shared memory."""
    del info  # any worker does any part
    return lambda part: pickle.dumps(function(part), pickle.HIGHEST_PROTOCOL)


def map_in_workers(function: Callable[[Any], Any], parts: Sequence[Any], num_workers: int) -> Iterator[Any]:
    """Yield `function(part)` of each part, in order, computed by `num_workers` processes; in a worker, by itself."""
    if get_worker_info() is not None:
        yield from map(function, parts)
        return
    from headrace.engine import Engine  # what a worker imports has no need of it

    with Engine(Job(partial(_part_work, function)), num_workers=num_workers, options=_OPTIONS) as engine:
        for delivered in engine.run(parts):
            yield pickle.loads(delivered.value)  # noqa: S301 (of a Headrace worker)


offer_workers(map_in_workers)
