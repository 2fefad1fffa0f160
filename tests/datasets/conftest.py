"""What several tests of datasets set up."""

import pytest

from headrace.datasets import checks


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Keep indices and copies of files in a folder of the test, and say again what is said once."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checks, "_remarked", set())
