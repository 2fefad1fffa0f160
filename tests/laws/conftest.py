"""Which executors the laws of the engine are tried on."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", params=["inline", "thread", "process"])
def engine_executors(request: pytest.FixtureRequest) -> str:
    """Return the name of an executor."""
    return request.param
