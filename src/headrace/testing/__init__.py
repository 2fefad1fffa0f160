"""Tests that Headrace publishes: what sources and executors of others must pass, from their own tests.

This room decides what a conforming part is, and says how one fails. It never fixes or reads data on its own account,
and nothing in Headrace depends on it. Read `source_checks.py` first.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .executor_checks import check_executor
    from .source_checks import check_source

__all__ = ["check_executor", "check_source"]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "executor_checks": ("check_executor",),
        "source_checks": ("check_source",),
    },
)
