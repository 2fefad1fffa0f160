"""Which executors, and which formats, laws are tried on."""

from __future__ import annotations

import pytest
from format_cases import FORMATS, FormatCase

from headrace.engine import Executor
from headrace.engine.remote import LocalLauncher, RemoteExecutor


@pytest.fixture(scope="session", params=["inline", "thread", "process", pytest.param("remote", marks=pytest.mark.long)])
def engine_executors(request: pytest.FixtureRequest) -> str | Executor:
    """Return the name of an executor, or one that is not started, for one engine after the other."""
    return RemoteExecutor(LocalLauncher(), dead_seconds=20.0) if request.param == "remote" else request.param


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.extra] if "pyarrow" in FORMATS[name].needs else [])
        for name in sorted(FORMATS)
    ]
)
def case(request: pytest.FixtureRequest) -> FormatCase:
    """Return each format that can be read here."""
    found = FORMATS[request.param]
    if not found.is_available:
        pytest.skip(f"needs {', '.join(found.needs)}")
    return found
