import pytest

from headrace.engine.process import warden_client


@pytest.fixture(scope="module", autouse=True)
def kept_warm():
    """Keep the process that workers come from, so that torch is imported once for the loaders of all tests.

    Workers come from the same process where they inherit the same environment, in which pytest names each test.
    """
    pytest.importorskip("torch")
    from headrace.torch import DataLoader

    environment_of_warden = warden_client.environment_of_warden

    def without_test():
        return {name: text for name, text in environment_of_warden().items() if name != "PYTEST_CURRENT_TEST"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warden_client, "environment_of_warden", without_test)
        with DataLoader([1], num_workers=1) as loader:
            yield loader
