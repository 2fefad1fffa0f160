"""What tests with foreign libraries share."""

import gc
import warnings

import pytest


@pytest.fixture(autouse=True)
def _files_that_libraries_leave_open():
    """Collect after each test what a library left open, so that a later test is not blamed for it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
