"""The tests of the adapter for JAX, in a process of their own: a process that has imported JAX should not fork."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax")
def test_the_adapter_for_jax_passes_its_tests() -> None:
    tests = Path(__file__).with_name("test_jax.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, "HEADRACE_TEST_JAX": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
