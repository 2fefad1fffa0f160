"""Each adapter of a trainer says which package is missing, and how to get it."""

import importlib
import sys

import pytest

from headrace import ConfigError

NEEDED = {
    "transformers": "transformers",
    "lightning": "lightning.pytorch",
    "accelerate": "accelerate",
    "torchtitan": "torchtitan.components.dataloader",
    "ray_train": "ray.train",
}


@pytest.mark.parametrize("adapter", NEEDED)
def test_a_missing_package_is_named(adapter, monkeypatch):
    monkeypatch.delitem(sys.modules, f"headrace.adapters.{adapter}", raising=False)
    monkeypatch.setitem(sys.modules, NEEDED[adapter], None)
    extra = adapter.partition("_")[0]
    with pytest.raises(
        ConfigError, match=rf"headrace\.adapters\.{adapter} needs (.|\n)*pip install 'headrace\[{extra}"
    ):
        importlib.import_module(f"headrace.adapters.{adapter}")
