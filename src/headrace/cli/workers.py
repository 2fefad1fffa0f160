"""`headrace run --num-workers N`: any dataset through worker processes, and where the time went."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.datasets import Dataset, resolve_class
from headrace.datasets.workers import DatasetWorkers
from headrace.engine import EngineOptions, EngineReport, Skipping
from headrace.errors import ConfigError
from headrace.show.drawing import format_count, format_seconds

DEFAULT_BUFFER_SIZE = 100  # sequences: enough to share the cost of a message, and small beside a batch of long ones
_DEFAULT_MAX_ERRORS = Skipping().budget


class OnError(enum.StrEnum):
    """What to do with a sequence that fails to load: the values of `--on-error`."""

    RAISE = "raise"
    SKIP = "skip"


@dataclass(frozen=True)
class WorkerOptions:
    """Options of the command line about workers; `None` if not given.

    Attributes:
        num_workers: Number of worker processes; 0 loads in this process.
        buffer_size: How many sequences a worker may be ahead.
        on_error: What to do with a sequence that fails.
        quarantine: Where skipped sequences are listed.
        max_errors: How many may be skipped in an epoch.

    Raises:
        ConfigError: An option for skipping without `--on-error skip`.
    """

    num_workers: int | None = None
    buffer_size: int | None = None
    on_error: OnError | None = None
    quarantine: Path | None = None
    max_errors: int | None = None

    def __post_init__(self) -> None:
        for option, value in (("--quarantine", self.quarantine), ("--max-errors", self.max_errors)):
            if value is not None and self.on_error is not OnError.SKIP:
                raise ConfigError(
                    f"{option} applies to skipped sequences, and nothing is skipped", fix="add --on-error skip"
                )

    @property
    def are_given(self) -> bool:
        """Whether any option was given."""
        return self != WorkerOptions()

    def apply_to(self, dataset: Mapping[str, Any] | Dataset) -> Mapping[str, Any] | Dataset:
        """Return the config of a `MultiProcDataset` around a dataset, or its own if it has workers itself.

        Raises:
            ConfigError: The dataset is built already, or the options do not suit it.
        """
        if not self.are_given:
            return dataset
        if isinstance(dataset, Dataset):
            raise ConfigError(
                f"a {type(dataset).__name__} that is built already cannot be given to workers, who build their own",
                fix="let the program define `dataset` as a dict of options, or a function that returns one",
            )
        options = dict(dataset) if _has_workers(dataset) else self._wrap(dataset)
        for name in ("num_workers", "buffer_size"):
            value = getattr(self, name)
            if value is not None:
                options[name] = value
        if self.on_error is not None:
            options["engine_options"] = self._engine_options(options.get("engine_options"))
        return options

    def _wrap(self, dataset: Mapping[str, Any]) -> dict[str, Any]:
        if self.num_workers is None and self.on_error is None:
            raise ConfigError("--buffer-size needs workers, and there are none", fix="add --num-workers N")
        inner = dict(dataset)
        return {
            "class": "MultiProcDataset",
            "dataset": inner,
            "num_workers": 0,  # unless given: skipping alone needs no process
            "buffer_size": DEFAULT_BUFFER_SIZE,
        }

    def _engine_options(self, given: EngineOptions | None) -> EngineOptions | None:
        if self.on_error is OnError.RAISE:
            return None if given is None else dataclasses.replace(given, on_error=EngineOptions().on_error)
        budget = _DEFAULT_MAX_ERRORS if self.max_errors is None else self.max_errors
        return dataclasses.replace(given or EngineOptions(), on_error=Skipping(budget, self.quarantine))


def _has_workers(config: Mapping[str, Any]) -> bool:
    return "class" in config and resolve_class(config["class"]).has_own_workers


def report_to_json(workers: DatasetWorkers, report: EngineReport) -> dict[str, Any]:
    """Return what the workers did and where the time went, in seconds, as plain JSON data."""
    return {
        "num_workers": workers.num_workers,
        "buffer_size": workers.buffer_size,
        "sharding_method": workers.sharding_method,
        "seconds_waiting": round(report.seconds_waited, 6),
        "seconds_loading": round(report.seconds_loaded, 6),
        "seconds_transport": round(report.seconds_transport, 6),
        "seconds_consumer": round(report.seconds_consumer, 6),
        "num_skipped": report.num_skipped,
        "num_restarts": report.num_restarts,
    }


def print_report(output: Console, workers: DatasetWorkers, report: EngineReport, quarantine: Path | None) -> None:
    """Print where the time went, here and in the workers, and what was skipped or restarted."""
    taken, consumer = format_seconds(report.seconds_taken), format_seconds(report.seconds_consumer)
    loading = format_seconds(report.seconds_loaded)
    if workers.num_workers:
        waiting = format_seconds(report.seconds_waited)
        sending = format_seconds(report.seconds_transport - report.seconds_taken)
        output.print(f"  time here: waiting for workers {waiting}, transport {taken}, consumer {consumer}")
        output.print(f"  time in {describe_workers(workers.num_workers)}: loading {loading}, transport {sending}")
    else:
        output.print(f"  time: loading {loading}, consumer {consumer}")
    if report.num_skipped:
        where = "" if quarantine is None else f", listed in {quarantine}"
        output.print(f"  skipped because of errors: {_count(report.num_skipped, 'sequence')}{where}")
    if report.num_restarts:
        output.print(f"  restarted: {_count(report.num_restarts, 'worker')}")


def describe_workers(num_workers: int) -> str:
    """Return `2 workers`."""
    return _count(num_workers, "worker")


def _count(number: int, noun: str) -> str:
    return f"{format_count(number)} {noun}{'' if number == 1 else 's'}"
