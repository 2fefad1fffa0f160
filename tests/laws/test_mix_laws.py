"""Laws of mixtures: each pass of a sub-dataset is complete before the next one begins, however the stream is cut."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.datasets import init_dataset

ORDERINGS = st.sampled_from(["default", "random", "laplace:2", "sorted_reverse", "permute", "random:seed=3"])
MIXINGS = st.sampled_from(["even", "shuffled"])


@st.composite
def mixtures(draw, max_size=40):
    """Draw (config of a MixDataset, number of sequences of each sub-dataset); values are 1000 * part + corpus index."""
    sizes = draw(st.lists(st.integers(1, max_size), min_size=1, max_size=4))
    parts, weights = {}, {}
    for number, size in enumerate(sizes):
        data = [{"data": np.full((i % 4 + 1, 1), 1000 * number + i, np.float32)} for i in range(size)]
        parts[f"p{number}"] = {
            "class": "StaticDataset",
            "data": data,
            "seq_ordering": draw(ORDERINGS),
            "partition_epoch": draw(st.integers(1, 3)),
        }
        weights[f"p{number}"] = draw(st.integers(1, 6))
    options = {
        "weights": weights,
        "mixing": draw(MIXINGS),
        "per": draw(st.sampled_from(["seq", "frame"])),
        "seqs_per_epoch": draw(st.integers(1, 150) | st.sampled_from(["sum", "first_exhausted", "all_exhausted"])),
        "random_seed_offset": draw(st.integers(0, 3)),
    }
    return {"class": "MixDataset", "datasets": parts, **options}, sizes


def values(dataset, epoch):
    return [int(seq["data"][0, 0]) for seq in dataset.epoch(epoch)]


def assert_whole_passes(stream, sizes):
    for number, size in enumerate(sizes):
        mine = [value - 1000 * number for value in stream if value // 1000 == number]
        for start in range(0, len(mine), size):
            one_pass = mine[start : start + size]
            assert len(set(one_pass)) == len(one_pass)


@given(mixtures(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=60)
def test_no_sequence_comes_again_before_all_of_its_sub_dataset_came(mixture, num_sub_epochs, num_shards, num_epochs):
    config, sizes = mixture
    stream = []
    shards = [
        init_dataset({**config, "partition_epoch": num_sub_epochs, "_num_shards": num_shards, "_shard_index": shard})
        for shard in range(num_shards)
    ]
    for epoch in range(1, num_epochs * num_sub_epochs + 1):
        for dataset in shards:  # shards of a sub-epoch are the pieces of it in a row
            stream += values(dataset, epoch)
    assert_whole_passes(stream, sizes)
    whole = init_dataset(config)
    assert stream == [value for epoch in range(1, num_epochs + 1) for value in values(whole, epoch)]


@given(mixtures(max_size=15), st.integers(1, 5), st.data())
@settings(max_examples=15)
def test_passes_stay_whole_over_a_resume(mixture, batch_size, data):
    config, sizes = mixture

    def open_loader():
        return hr.DataLoader(init_dataset(config), batch_size=batch_size)

    stream, wanted, state = [], 3, None
    while wanted:
        with open_loader() as loader:
            if state is not None:
                loader.load_state_dict(state)
            stop_after = data.draw(st.integers(1, 12))
            for batch in loader:
                stream += [int(seq[0, 0]) for seq in batch["data"]]
                stop_after -= 1
                if not stop_after:
                    break
            state = loader.state_dict()
        wanted -= 1
    assert_whole_passes(stream, sizes)
    whole, epoch = [], 0
    while len(whole) < len(stream):
        epoch += 1
        whole += values(init_dataset(config), epoch)
    assert stream == whole[: len(stream)]


@given(st.integers(8, 30), st.lists(st.integers(1, 4), min_size=2, max_size=3))
@settings(max_examples=20)
def test_a_corpus_that_is_there_twice_has_passes_that_differ(size, weights):
    data = [{"data": np.full((1, 1), i, np.float64)} for i in range(size)]
    twin = {"class": "StaticDataset", "data": data, "seq_ordering": "random", "transform": _noisy}
    names = [f"p{number}" for number in range(len(weights))]
    config = {
        "class": "MixDataset",
        "datasets": dict.fromkeys(names, twin),
        "weights": dict(zip(names, weights, strict=True)),
        "seqs_per_epoch": sum(weights) * size,
    }
    mixed = init_dataset(config)
    mixed.init_seq_order(epoch=1)
    places = mixed.get_current_seq_order().block(0, mixed.num_seqs)
    passes = [[int(place) % size for place in places if place // size == number][:size] for number in range(len(names))]
    assert all(sorted(one) == list(range(size)) for one in passes)
    assert len({tuple(one) for one in passes}) == len(passes)
    noise = [float(seq["data"][0, 0]) for seq in mixed.epoch(1)]
    assert len(set(noise)) == len(noise)


def _noisy(features, rng):
    return {"data": features["data"] + rng.random(1)}
