"""`MixDataset`: shares that hold everywhere, each sub-dataset through whole epochs of its own, any position at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from examples_of_laws import examples
from headrace.datasets import CachedDataset2, DatasetSeq, MixDataset, StaticDataset, init_dataset
from headrace.errors import ConfigError, SourceError


def part(num, first, **options):
    """Make the config of sequences whose values and tags tell them apart; lengths from 1 to 5."""
    data = [{"data": np.full((i % 5 + 1, 2), first + i, np.float32)} for i in range(num)]
    return {"class": "StaticDataset", "data": data, **options}


def mixture(parts, **options):
    return init_dataset({"class": "MixDataset", "datasets": parts, **options})


def values(dataset, epoch):
    return [int(seq["data"][0, 0]) for seq in dataset.epoch(epoch)]


SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True)  # else two have the same tags and lengths
ORDERINGS = st.sampled_from(["default", "random", "laplace:2", "sorted_reverse", "permute"])


@given(SIZES, st.lists(st.integers(1, 5), min_size=4, max_size=4), ORDERINGS, st.integers(1, 3), st.integers(1, 40))
@examples(30)
def test_each_sub_dataset_is_read_in_its_own_epochs_one_after_the_other(sizes, weights, order, parts, per_epoch):
    options = {"seq_ordering": order, "partition_epoch": parts}
    configs = {f"p{number}": part(size, 100 * number, **options) for number, size in enumerate(sizes)}
    mixed = mixture(configs, weights=dict(zip(configs, weights, strict=False)), seqs_per_epoch=per_epoch)
    stream = [value for epoch in (1, 2, 3) for value in values(mixed, epoch)]
    assert len(stream) == 3 * per_epoch
    for number, config in enumerate(configs.values()):
        alone, mine = init_dataset(config), [value for value in stream if value // 100 == number]
        own, epoch = [], 0
        while len(own) < len(mine):
            epoch += 1
            own += values(alone, epoch)
        assert mine == own[: len(mine)]


def test_a_block_of_a_shuffled_mixture_holds_what_it_holds_unshuffled():
    configs = {"a": part(700, 0, seq_ordering="random"), "b": part(300, 1000)}
    options = {"weights": {"a": 3, "b": 1}, "seqs_per_epoch": 4096}
    even, shuffled = mixture(configs, **options), mixture(configs, mixing="shuffled", **options)
    for epoch in (1, 2):
        assert sorted(values(even, epoch)) == sorted(values(shuffled, epoch))
        assert values(even, epoch) != values(shuffled, epoch)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(any), st.integers(1, 200))
@examples(30)
def test_every_piece_of_the_stream_keeps_the_shares(weights, num):
    configs = {f"p{number}": part(3, 100 * number) for number in range(len(weights))}
    mixed = mixture(configs, weights=dict(zip(configs, weights, strict=True)), seqs_per_epoch=num)
    assert list(mixed.shares().values()) == [weight / sum(weights) for weight in weights]
    stream = values(mixed, 1)
    for number, weight in enumerate(weights):
        count = sum(value // 100 == number for value in stream)
        assert abs(count - num * weight / sum(weights)) <= 2


def test_a_shuffled_mixture_depends_on_the_seed_and_not_on_where_epochs_end():
    configs = {"a": part(50, 0), "b": part(20, 100)}
    options = {"weights": {"a": 3, "b": 1}, "mixing": "shuffled"}
    long = mixture(configs, seqs_per_epoch=120, **options)
    short = mixture(configs, seqs_per_epoch=40, **options)
    assert values(long, 1) == [value for epoch in (1, 2, 3) for value in values(short, epoch)]
    other = mixture(configs, seqs_per_epoch=120, random_seed_offset=1, **options)
    assert [value >= 100 for value in values(other, 1)] != [value >= 100 for value in values(long, 1)]


def test_shares_of_frames_hold_over_whole_epochs():
    long = {"class": "StaticDataset", "data": [{"data": np.zeros((30, 1), np.float32)}] * 8}
    short = {"class": "StaticDataset", "data": [{"data": np.ones((n, 1), np.float32)} for n in (1, 2, 3)]}
    mixed = mixture({"long": long, "short": short}, weights={"long": 1, "short": 1}, per="frame", seqs_per_epoch=3200)
    frames = [0, 0]
    for seq in mixed.epoch(1):
        frames[int(seq["data"][0, 0])] += len(seq["data"])
    assert sum(frames) > 10_000
    assert frames[0] == pytest.approx(frames[1], rel=0.01)


@pytest.mark.parametrize(
    ("seqs_per_epoch", "num"), [("sum", 16), ("first_exhausted", 8), ("all_exhausted", 24), (5, 5)]
)
def test_the_size_of_an_epoch(seqs_per_epoch, num):
    configs = {"a": part(12, 0), "b": part(4, 100), "c": part(3, 200)}
    mixed = mixture(configs, weights={"a": 1, "b": 1, "c": 0}, seqs_per_epoch=seqs_per_epoch)
    mixed.init_seq_order(epoch=1)
    assert abs(mixed.num_seqs - num) <= 1
    if seqs_per_epoch == "all_exhausted":
        assert {value for value in values(mixed, 1) if value < 100} == set(range(12))
    assert all(value < 200 for value in values(mixed, 2))
    mixed = mixture({"a": part(9, 0), "b": part(3, 100)})  # without weights: as much of each as there is
    assert mixed.shares() == {"a": 0.75, "b": 0.25}
    assert sorted(values(mixed, 1)) == [*range(9), 100, 101, 102]


def test_a_filter_in_a_sub_dataset_does_not_change_the_shares(tmp_path):
    kept = tmp_path / "kept.txt"
    kept.write_text("seq-1\nseq-3\n")
    mixed = mixture(
        {"a": part(5, 0, seq_list_filter_file=str(kept)), "b": part(5, 100)}, weights={"a": 1, "b": 1}, seqs_per_epoch=6
    )
    assert [value for value in values(mixed, 1) if value < 100] == [1, 3, 1]
    assert [value for value in values(mixed, 1) if value >= 100] == [100, 101, 102]


def test_data_keys_may_differ_by_a_data_map():
    words = {"class": "StaticDataset", "data": [{"data": np.arange(3, dtype=np.int32)}] * 2}
    mixed = mixture(
        {"speech": part(2, 0), "text": words},
        weights={"speech": 1, "text": 1},
        data_map=[["speech", "data", "data"], ["text", "data", "words"]],
    )
    seqs = list(mixed.epoch(1))
    assert [(len(seq["data"]), len(seq["words"])) for seq in seqs] == [(1, 0), (0, 3), (2, 0), (0, 3)]


def _noisy(features, rng):
    return {"data": features["data"] + rng.standard_normal(1).astype(np.float32)}


@pytest.mark.parametrize("num_sub_epochs", [1, 4])
@pytest.mark.parametrize("num_shards", [1, 4])
def test_random_transforms_draw_anew_when_a_sequence_comes_again(num_sub_epochs, num_shards):
    parts = {"a": part(7, 100), "b": part(2, 0, transform=_noisy)}
    options = {"weights": {"a": 1, "b": 1}, "seqs_per_epoch": 16, "partition_epoch": num_sub_epochs}
    drawn = []
    for shard in range(num_shards):
        mixed = mixture(parts, **options, _num_shards=num_shards, _shard_index=shard)
        drawn += [float(seq["data"][0, 0]) for epoch in range(1, num_sub_epochs + 1) for seq in mixed.epoch(epoch)]
    mine = [value for value in drawn if value < 50]
    assert len(set(mine)) == len(mine) == 8


def test_its_order_cannot_be_set_but_its_seed_can():
    corpora = {"a": part(23, 0), "b": part(5, 100)}  # without an order that the seed would be passed on to
    options = {"weights": {"a": 2, "b": 1}, "mixing": "shuffled"}
    mixed = mixture(corpora, **options)
    before = values(mixed, 1)
    mixed.random_seed_offset = 7
    assert before != values(mixed, 1) == values(mixture(corpora, random_seed_offset=7, **options), 1)
    mixed.seq_ordering = "default"
    with pytest.raises(ConfigError, match="its order is that of the mixture"):
        mixed.seq_ordering = "random"
    with pytest.raises(ConfigError, match="of a MixDataset"):  # noqa: SIM117
        with hr.DataLoader(mixture(corpora, **options), batch_size=2, shuffle=True) as loader:
            next(iter(loader))


class Endless(CachedDataset2):
    """A stream."""

    def __init__(self):
        super().__init__()
        self.num_outputs = {"data": (2, 2)}

    def _collect_single_seq(self, seq_idx):
        return DatasetSeq(seq_idx, {"data": np.zeros((1, 2), np.float32)})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weights": {"a": 1, "b": -1}}, "not negative"),
        ({"weights": {"a": 0, "b": 0}}, "all 2 weights are 0"),
        ({"weights": {"a": 1, "b": float("nan")}}, "finite"),
        ({"weights": {"a": 1}}, "no number for the sub-dataset 'b'"),
        ({"weights": {"a": 1, "b": 1, "bb": 1}}, "sub-dataset 'bb'"),
        ({"weights": [1, 2]}, "must be a dict"),
        ({"per": "frames"}, "per='frames'"),
        ({"mixing": "odd"}, "mixing='odd'"),
        ({"seqs_per_epoch": "all"}, "seqs_per_epoch='all'"),
        ({"seqs_per_epoch": 0}, "seqs_per_epoch"),
        ({"seq_ordering": "random"}, "seq_ordering='random' of a MixDataset"),
        ({"data_map": [["a", "data", "data"]]}, "no data key of the sub-dataset 'b'"),
        ({"datasets": {}}, "datasets must be"),
        ({"datasets": {"a": part(2, 0), "b": Endless()}}, "does not know its corpus"),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(ConfigError) as caught:
        MixDataset(**{"datasets": {"a": part(2, 0), "b": part(3, 10)}, **options})
    assert text in str(caught.value)


def test_a_sub_dataset_with_a_weight_needs_sequences():
    empty = StaticDataset([], input_dim=2)
    mixed = mixture({"a": part(2, 0), "b": empty}, weights={"a": 1, "b": 1})
    with pytest.raises(ConfigError, match="'b' has a weight and no sequences"):
        mixed.init_seq_order(epoch=1)
    assert values(mixture({"a": part(2, 0), "b": empty}, weights={"a": 1, "b": 0}), 1) == [0, 1]


def test_an_order_whose_epochs_differ_in_size_is_refused():
    def order(epoch):
        return "default" if epoch == 1 else "default_every_n:4"

    mixed = mixture(
        {"a": part(6, 0, seq_ordering=order), "b": part(3, 10)}, weights={"a": 1, "b": 1}, seqs_per_epoch=10
    )
    mixed.init_seq_order(epoch=1)
    with pytest.raises(SourceError, match="in its epoch 2"):
        mixed.init_seq_order(epoch=2)
