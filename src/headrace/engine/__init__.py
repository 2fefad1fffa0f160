"""The engine: moves results of functions from workers to one consumer, in ticket order, whatever becomes of workers.

This room decides who does which ticket, when its result is handed over, and what follows a death, a stall or an error.
It never knows what a dataset, a sequence or a batch is. Read `events.py` first, then `supervisor.py`, which decides
everything, and `engine.py`, which does it.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .engine import Engine
    from .events import Beat, Event, Exited, Ready, Result, SetupFailed
    from .executor import Executor, make_executor, may_be_elsewhere, where_runs
    from .memory.slot import empty, is_in_place
    from .options import EngineOptions, Raising, Restarting, Skipping
    from .ray.executor import RayExecutor
    from .report import EngineReport, WorkerReport
    from .run import Delivered, Run
    from .user.failure import Failure
    from .user.job import Job, Mode
    from .user.worker_info import (
        CurrentItem,
        NumberedTags,
        WorkerInfo,
        get_worker_info,
        note_each,
        note_item,
        note_items,
        note_number,
        note_together,
        skip_item,
        worker_scope,
    )
    from .worker import Worker

__all__ = [
    "Beat",
    "CurrentItem",
    "Delivered",
    "Engine",
    "EngineOptions",
    "EngineReport",
    "Event",
    "Executor",
    "Exited",
    "Failure",
    "Job",
    "Mode",
    "NumberedTags",
    "Raising",
    "RayExecutor",
    "Ready",
    "Restarting",
    "Result",
    "Run",
    "SetupFailed",
    "Skipping",
    "Worker",
    "WorkerInfo",
    "WorkerReport",
    "empty",
    "get_worker_info",
    "is_in_place",
    "make_executor",
    "may_be_elsewhere",
    "note_each",
    "note_item",
    "note_items",
    "note_number",
    "note_together",
    "skip_item",
    "where_runs",
    "worker_scope",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "engine": ("Engine",),
        "events": ("Beat", "Event", "Exited", "Ready", "Result", "SetupFailed"),
        "executor": ("Executor", "make_executor", "may_be_elsewhere", "where_runs"),
        "user.failure": ("Failure",),
        "memory.slot": ("empty", "is_in_place"),
        "user.job": ("Job", "Mode"),
        "options": ("EngineOptions", "Raising", "Restarting", "Skipping"),
        "ray.executor": ("RayExecutor",),
        "report": ("EngineReport", "WorkerReport"),
        "run": ("Delivered", "Run"),
        "user.worker_info": (
            "CurrentItem",
            "NumberedTags",
            "WorkerInfo",
            "get_worker_info",
            "note_each",
            "note_item",
            "note_items",
            "note_number",
            "note_together",
            "skip_item",
            "worker_scope",
        ),
        "worker": ("Worker",),
    },
)
