"""Laws over datasets: exactly once, whatever the sub-epochs, shards and cache; one stream, however it is read."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.datasets import StaticDataset

EXHAUSTIVE = st.sampled_from(
    [
        "default",
        "reverse",
        "sorted",
        "sorted_reverse",
        "random",
        "random:2",
        "laplace",
        "laplace:3",
        "laplace:.4",
        "laplace:.4:2",
        "sort_bin_shuffle:3",
        "sort_bin_shuffle_x2:.5",
        "permute",
        "permute:seed=4",
        "random:seed=9",
        "laplace:.3:seed=1",
    ]
)
LENGTHS = st.lists(st.integers(0, 12), max_size=40)


def corpus(lengths):
    return [
        {"data": np.full((n, 1), i, np.float32), "classes": np.full(n, i % 3, np.int32)} for i, n in enumerate(lengths)
    ]


def stream(dataset, epoch):
    return [(seq.tag, seq.corpus_idx, seq["data"].tobytes()) for seq in dataset.epoch(epoch)]


@given(EXHAUSTIVE, LENGTHS, st.integers(1, 5), st.integers(1, 4), st.integers(0, 2), st.integers(0, 5))
def test_each_sequence_comes_exactly_once_over_sub_epochs_and_shards(
    ordering, lengths, parts, shards, full_epoch, offset
):
    delivered, sizes = [], []
    for epoch in range(full_epoch * parts + 1, (full_epoch + 1) * parts + 1):
        for shard in range(shards):
            dataset = StaticDataset(
                corpus(lengths),
                seq_ordering=ordering,
                partition_epoch=parts,
                random_seed_offset=offset,
                _num_shards=shards,
                _shard_index=shard,
            )
            part = stream(dataset, epoch)
            sizes.append(len(part))
            delivered += [corpus_idx for _, corpus_idx, _ in part]
    assert sorted(delivered) == list(range(len(lengths)))
    assert max(sizes) - min(sizes) <= 1


@given(EXHAUSTIVE, LENGTHS, st.sampled_from([0, -1, 1, 300, 1500]), st.integers(1, 3))
def test_the_cache_never_changes_the_stream(ordering, lengths, cache_byte_size, parts):
    options = {"seq_ordering": ordering, "partition_epoch": parts}
    plain, cached = (
        StaticDataset(corpus(lengths), **options),
        StaticDataset(corpus(lengths), cache_byte_size=cache_byte_size, **options),
    )
    for epoch in (1, 2, 1, 4):
        assert stream(cached, epoch) == stream(plain, epoch)


@given(EXHAUSTIVE, LENGTHS, st.integers(1, 6), st.lists(st.integers(1, 12), max_size=5))
def test_an_epoch_does_not_depend_on_which_epochs_came_before(ordering, lengths, epoch, before):
    dataset = StaticDataset(corpus(lengths), seq_ordering=ordering, partition_epoch=2)
    for other in before:
        for _ in zip(range(3), dataset.epoch(other), strict=False):  # read some, leave
            pass
    assert stream(dataset, epoch) == stream(
        StaticDataset(corpus(lengths), seq_ordering=ordering, partition_epoch=2), epoch
    )


@given(LENGTHS, st.integers(1, 4), st.integers(1, 4))
def test_repeating_gives_the_same_order_again(lengths, repeats, epoch):
    once = stream(StaticDataset(corpus(lengths), seq_ordering="random"), epoch)
    assert stream(StaticDataset(corpus(lengths), seq_ordering="random", repeat_epoch=repeats), epoch) == once * repeats


@given(LENGTHS, st.sets(st.integers(0, 39)), st.integers(1, 4), EXHAUSTIVE)
@examples(40)
def test_a_filter_keeps_sub_epochs_even_and_loses_nothing(tmp_path_factory, lengths, kept, parts, ordering):
    path = tmp_path_factory.mktemp("filter") / "tags.txt"
    path.write_text("".join(f"seq-{i}\n" for i in sorted(kept)))
    dataset = StaticDataset(corpus(lengths), seq_ordering=ordering, partition_epoch=parts, seq_list_filter_file=path)
    epochs = [[seq.corpus_idx for seq in dataset.epoch(epoch)] for epoch in range(1, parts + 1)]
    assert sorted(itertools.chain(*epochs)) == [i for i in range(len(lengths)) if i in kept]
    assert max(map(len, epochs)) - min(map(len, epochs)) <= 1


@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 4), st.sampled_from(["random_sample", "random"]))
def test_draws_for_a_sequence_that_comes_again_do_not_depend_on_the_shards(num_seqs, parts, shards, ordering):
    def draw(features, rng):
        return {**features, "data": rng.random(features["data"].shape).astype(np.float32)}

    def whole(num_shards, **options):
        delivered = []
        for shard in range(num_shards):
            dataset = StaticDataset(
                corpus([2] * num_seqs),
                transform=draw,
                seq_ordering=ordering,
                _num_shards=num_shards,
                _shard_index=shard,
                **options,
            )
            delivered += stream(dataset, 2)
        return delivered

    assert whole(shards) == whole(1)
    sub_epoch = whole(shards, partition_epoch=parts)
    assert len({data for _, _, data in sub_epoch}) == len(sub_epoch)
    repeated = whole(shards, repeat_epoch=parts)
    assert sorted(repeated) == sorted(whole(1, repeat_epoch=parts))
    assert len({data for _, _, data in repeated}) == len(repeated)
