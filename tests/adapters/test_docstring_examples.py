"""The examples in the docstrings of adapters, where their packages are installed: `make examples` runs none of them."""

import doctest
import importlib

import pytest

PACKAGES = {
    "accelerate": "accelerate",
    "jax": "jax",
    "lightning": "lightning",
    "torch.loaders": "torch",
    "torch_ranks": "torch",
    "torchtitan": "torchtitan",
    "transformers": "transformers",
}


@pytest.mark.long
@pytest.mark.parametrize("adapter", PACKAGES)
def test_examples_of_adapters_do_what_they_show(adapter):
    pytest.importorskip(PACKAGES[adapter])
    found = doctest.testmod(importlib.import_module(f"headrace.adapters.{adapter}"))
    assert found.attempted
    assert not found.failed
