"""Orders that must never change: those of RETURNN, and our own `permute`."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.order import OrderCorpus, OrderPlanner, OrderRecipe, Permutation

_FOLDER = Path(__file__).parent
_CASES = json.loads((_FOLDER / "seq_orders.json").read_text())["cases"]
_PERMUTE = json.loads((_FOLDER / "permute_orders.json").read_text())


def _order_of(key: str) -> list[int]:
    mode, _, options = key.partition("|")
    values = {name: int(value) for name, value in (option.split("=") for option in options.split(",") if option)}
    num_seqs = values.pop("num", 30)
    epoch = values.pop("epoch", 1)
    names = {
        "P": "partition_epoch",
        "S": "num_shards",
        "s": "shard_index",
        "off": "random_seed_offset",
        "fixed": "fixed_random_seed",
    }
    recipe = OrderRecipe(mode, **{names[name]: value for name, value in values.items()})
    corpus = OrderCorpus(num_seqs, lengths=lambda: np.arange(num_seqs) ** 2 % 17)
    return list(OrderPlanner(recipe).order_for_epoch(epoch, corpus))


def test_the_golden_file_is_complete():
    assert len(_CASES) == 292
    assert sum(isinstance(value, str) for value in _CASES.values()) == 11


@pytest.mark.parametrize("key", [key for key, value in _CASES.items() if not isinstance(value, str)])
def test_an_order_is_the_documented_one(key):
    assert _order_of(key) == _CASES[key]


@pytest.mark.parametrize(
    "key", [key for key, value in _CASES.items() if isinstance(value, str) and key != "default|num=0"]
)
def test_a_string_that_the_documented_system_fails_on_is_refused_with_the_valid_forms(key):
    with pytest.raises(ConfigError, match="invalid seq_ordering") as caught:
        _order_of(key)
    assert "valid forms: default" in str(caught.value)


def test_an_empty_corpus_gives_an_empty_order_where_the_documented_system_fails():
    assert _CASES["default|num=0"].startswith("!")
    assert _order_of("default|num=0") == []


@pytest.mark.parametrize("case", _PERMUTE["permutations"], ids=lambda case: f"{case['size']}-{case['seed']}")
def test_a_permutation_has_its_golden_values(case):
    permutation = Permutation(case["size"], case["seed"])
    assert permutation.at(np.array(case["positions"], np.int64)).tolist() == case["values"]


@pytest.mark.parametrize("case", _PERMUTE["digests"], ids=lambda case: f"{case['size']}-{case['seed']}")
def test_a_whole_permutation_has_its_golden_digest(case):
    values = Permutation(case["size"], case["seed"]).at(np.arange(case["size"], dtype=np.int64))
    assert hashlib.sha256(values.astype("<i8").tobytes()).hexdigest() == case["sha256"]


@pytest.mark.parametrize("case", _PERMUTE["orders"], ids=lambda case: case["seq_ordering"])
def test_an_order_with_a_spelt_out_seed_or_of_our_own_has_its_golden_values(case):
    recipe = OrderRecipe(case["seq_ordering"], random_seed_offset=case["random_seed_offset"])
    corpus = OrderCorpus(20, lengths=lambda: np.arange(20) ** 2 % 17)
    assert list(OrderPlanner(recipe).order_for_epoch(case["epoch"], corpus)) == case["order"]
