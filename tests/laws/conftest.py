"""Which executors, and which formats, laws are tried on."""

from __future__ import annotations

import pytest
from format_cases import FORMATS, FormatCase


@pytest.fixture(scope="session", params=["inline", "thread", "process"])
def engine_executors(request: pytest.FixtureRequest) -> str:
    """Return the name of an executor, for one engine after the other."""
    return request.param


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
