"""What a dataset with workers of its own tells a reader that has workers as well: only one of the two should have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.engine import EngineOptions, WorkerInfo

from .base import Dataset


@dataclass(frozen=True)
class OwnWorkers:
    """The workers that a user asked for at a dataset, and what is left of it without them: the same stream.

    Attributes:
        owner: The class that they were asked for at, for messages.
        config: Of what is left: a config, or the dataset itself.
        dataset: Made of it, in this process.
        num_workers: How many.
        executor: "process", "thread" or "inline"; `None`: nobody said.
        worker_init: Called in each.
        engine_options: What to do about errors, deaths and stalls.
        max_bytes: Limit of the shared memory of each.
    """

    owner: str
    config: Any
    dataset: Dataset
    num_workers: int
    executor: str | None = None
    worker_init: Callable[[WorkerInfo], None] | None = None
    engine_options: EngineOptions | None = None
    max_bytes: int | None = None
