import pickle

import pytest

from headrace.errors import ConfigError
from headrace.order import (
    Default,
    EveryN,
    Laplace,
    OrderRecipe,
    Permute,
    Random,
    RandomSample,
    Reverse,
    SortBinShuffle,
    SortBinShuffleX2,
    Sorted,
    SortedReverse,
    parse_seq_ordering,
)

_VALID = {
    "default": Default(),
    "default_every_n:5": EveryN(5),
    "reverse": Reverse(),
    "sorted": Sorted(),
    "sorted_reverse": SortedReverse(),
    "random": Random(),
    "random:3": Random(num_epochs=3),
    "random:seed=42": Random(seed=42),
    "random:3:seed=0": Random(num_epochs=3, seed=0),
    "random:seed=9223372036854775807": Random(seed=2**63 - 1),
    "random_sample": RandomSample(),
    "random_sample:2": RandomSample(num_epochs=2),
    "permute": Permute(),
    "permute:2:seed=1": Permute(num_epochs=2, seed=1),
    "laplace": Laplace(),
    "laplace:3": Laplace(num_bins=3),
    "laplace:.1000": Laplace(seqs_per_bin=1000),
    "laplace:2:3": Laplace(num_epochs=3),
    "laplace:.10:5": Laplace(seqs_per_bin=10, num_epochs=5),
    "laplace:.1000:seed=42": Laplace(seqs_per_bin=1000, seed=42),
    "laplace:.1000:3:seed=42": Laplace(seqs_per_bin=1000, num_epochs=3, seed=42),
    "laplace:seed=42": Laplace(seed=42),
    "sort_bin_shuffle": SortBinShuffle(),
    "sort_bin_shuffle:.10": SortBinShuffle(seqs_per_bin=10),
    "sort_bin_shuffle_x2:3:2:seed=1": SortBinShuffleX2(num_bins=3, num_epochs=2, seed=1),
}


@pytest.mark.parametrize("text", _VALID)
def test_a_string_parses_to_its_policy_and_back(text):
    policy = parse_seq_ordering(text)
    assert policy == _VALID[text]
    assert str(policy) == text
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(_VALID[text])


def test_strings_with_the_same_meaning_parse_to_equal_policies():
    assert parse_seq_ordering("random:0") == parse_seq_ordering("random:1") == parse_seq_ordering("random")
    assert parse_seq_ordering("laplace:2") == parse_seq_ordering("laplace")
    assert parse_seq_ordering("laplace:2:0") == parse_seq_ordering("laplace")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " default",
        "Default",
        "default:",
        "default:1",
        "default:seed=1",
        "sorted:seed=1",
        "reverse:2",
        "default_every_n",
        "default_every_n:",
        "default_every_n:-1",
        "default_every_n:2:3",
        "default_every_n:2:seed=1",
        "random:",
        "random:-1",
        "random:+1",
        "random:1_000",
        "random: 1",
        "random:1.5",
        "random:\u0663",
        "random:2:3",
        "random:seed",
        "random:seed=",
        "random:seed=-1",
        "random:seed=x",
        "random:seed=9223372036854775808",
        "random:seed=1:3",
        "random:seed=1:seed=1",
        "laplace:.",
        "laplace:.-1",
        "laplace:-1",
        "laplace::2",
        "laplace:2:",
        "laplace:2:3:4",
        "laplace:99999999999",
        "laplace:2:seed=4:5",
        "sort_bin_shuffle_x3",
    ],
)
def test_any_other_string_is_refused_with_all_valid_forms(text):
    with pytest.raises(ConfigError, match="invalid seq_ordering") as caught:
        parse_seq_ordering(text)
    message = str(caught.value)
    assert repr(text) in message
    assert "laplace[:B or :.k][:n][:seed=K]" in message
    assert "default_every_n:K" in message


def test_the_nearest_name_is_offered():
    with pytest.raises(ConfigError, match="did you mean 'laplace'"):
        parse_seq_ordering("laplase:.1000")


@pytest.mark.parametrize(
    "build",
    [
        lambda: EveryN(0),
        lambda: EveryN(2.0),
        lambda: Random(num_epochs=-1),
        lambda: Random(seed=-1),
        lambda: Random(seed=2**63),
        lambda: Random(seed="1"),
        lambda: Laplace(num_bins=0),
        lambda: Laplace(seqs_per_bin=0),
        lambda: Laplace(num_bins=2, seqs_per_bin=2),
        lambda: Laplace(num_bins=2.5),
    ],
)
def test_a_policy_refuses_wrong_fields_when_it_is_built(build):
    with pytest.raises(ConfigError):
        build()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seq_ordering": None}, "must be a string, a policy or a function"),
        ({"seq_ordering": 3}, "must be a string, a policy or a function"),
        ({"seq_ordering": Laplace}, "the class Laplace"),
        ({"partition_epoch": -1}, "partition_epoch must be at least 0"),
        ({"partition_epoch": 2.0}, "partition_epoch must be an integer"),
        ({"repeat_epoch": -2}, "repeat_epoch must be at least 0"),
        ({"partition_epoch": 2, "repeat_epoch": 2}, "exclude each other"),
        ({"num_shards": 0}, "num_shards"),
        ({"num_shards": 2, "shard_index": 2}, "shard_index must be in 0..1, got 2"),
        ({"num_shards": 2, "shard_index": -1}, "shard_index"),
        ({"fixed_random_seed": -1}, "fixed_random_seed"),
        ({"fixed_random_seed": 2**32}, "fixed_random_seed"),
        ({"random_seed_offset": 0.5}, "random_seed_offset"),
    ],
)
def test_a_recipe_refuses_wrong_options_when_it_is_built(options, message):
    with pytest.raises(ConfigError, match=message):
        OrderRecipe(**options)


def test_none_and_zero_mean_their_defaults():
    recipe = OrderRecipe(partition_epoch=0, repeat_epoch=None, random_seed_offset=None)
    assert recipe == OrderRecipe()
    assert OrderRecipe(partition_epoch=None, repeat_epoch=3).num_repeats == 3
