import pytest


@pytest.fixture(scope="module", autouse=True)
def kept_warm():
    """Keep the process that workers come from, so that torch is imported once for the loaders of all tests."""
    pytest.importorskip("torch")
    from headrace.torch import DataLoader

    with DataLoader([1], num_workers=1) as loader:
        yield loader
