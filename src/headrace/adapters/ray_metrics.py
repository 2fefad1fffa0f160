"""Reports statistics of a loader as metrics on Ray's dashboard."""

from __future__ import annotations

import importlib
import threading
import weakref
from types import ModuleType
from typing import Any, Self

from headrace.engine import EngineReport
from headrace.errors import ConfigError
from headrace.loading.loader import DataLoader

_COUNTERS = {
    "headrace_batches": "Batches, or sequences without batching, that were handed to the consumer",
    "headrace_bytes": "Bytes of results of workers, in shared memory or over the network",
    "headrace_restarts": "Workers that were started again after their death",
}
_GAUGES = {
    "headrace_waiting_share": "Share of the time since the last report in which the consumer waited for a batch",
    "headrace_workers": "Workers of the loader",
}


def _import_metrics() -> ModuleType:
    try:
        return importlib.import_module("ray.util.metrics")
    except ImportError as error:
        raise ConfigError(
            "metrics on Ray's dashboard need the package ray", fix="pip install 'headrace[ray]'"
        ) from error


class RayMetrics:
    """Reports a loader to Ray's metrics every `interval_seconds`; a context manager.

    A thread of its own looks at the `report` of the loader, so the consumer pays nothing. The process has to be
    connected to a cluster: a driver, or a training function of Ray Train. It ends with the loader, too.

    Args:
        loader: The loader to report.
        name: Tag "loader" of all metrics, to tell several loaders apart; they also have the rank as the tag "rank".
        interval_seconds: How often, at least 1.

    Raises:
        ConfigError: Ray is not installed, or the interval is shorter.
    """

    def __init__(self, loader: DataLoader, *, name: str = "train", interval_seconds: float = 5.0) -> None:
        if not interval_seconds >= 1:
            raise ConfigError(f"interval_seconds is {interval_seconds}", fix="give 1 or more")
        metrics = _import_metrics()
        self._tags = {"loader": name}
        keys = ("loader", "rank")
        self._counters = {key: metrics.Counter(key, text, tag_keys=keys) for key, text in _COUNTERS.items()}
        self._gauges = {key: metrics.Gauge(key, text, tag_keys=keys) for key, text in _GAUGES.items()}
        self._loader = weakref.ref(loader)
        self._told = dict.fromkeys(_COUNTERS, 0)
        self._seconds = (0.0, 0.0)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(
            target=self._report_for_ever, args=(interval_seconds,), name="headrace-ray-metrics", daemon=True
        )
        self._thread.start()

    def _report_for_ever(self, interval_seconds: float) -> None:
        while not self._has_ended.wait(interval_seconds):
            if not self._tell():
                return

    def _tell(self) -> bool:
        """Report what is new; return whether the loader is still there."""
        loader = self._loader()
        if loader is None:
            return False
        tags = {**self._tags, "rank": str(loader.ranks.rank)}
        report = loader.report
        for key, total in _totals(report).items():
            if total > self._told[key]:  # Ray counts no zeros
                self._counters[key].inc(total - self._told[key], tags)
                self._told[key] = total
        waited, used = report.seconds_waited, report.seconds_taken + report.seconds_consumer
        new_waited, new_used = waited - self._seconds[0], used - self._seconds[1]
        self._seconds = waited, used
        if new_waited + new_used > 0:
            self._gauges["headrace_waiting_share"].set(new_waited / (new_waited + new_used), tags)
        self._gauges["headrace_workers"].set(len(report.workers), tags)
        return True

    def close(self) -> None:
        """Report what is new, and end; harmless twice."""
        if not self._has_ended.is_set():
            self._has_ended.set()
            self._thread.join()
            self._tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _totals(report: EngineReport) -> dict[str, Any]:
    return {
        "headrace_batches": report.num_delivered,
        "headrace_bytes": sum(worker.num_bytes for worker in report.workers),
        "headrace_restarts": report.num_restarts,
    }
