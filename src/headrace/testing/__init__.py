"""Tests that Headrace publishes: what sources, formats and executors of others must pass, from their own tests.

This room decides what a conforming part is, and says how one fails. It never fixes or reads data on its own account,
and nothing in Headrace depends on it. Read `source_checks.py` first.
"""

from .executor_checks import check_executor
from .format_checks import check_format
from .source_checks import check_source

__all__ = ["check_executor", "check_format", "check_source"]
