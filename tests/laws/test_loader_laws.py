"""Laws of the loader: the batches are those of the plan, whoever makes them, on any ranks, after any resume."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.batching import BatchOrder, Buckets, Chunks, FixedCount, FrameBudget, LimitLengths, Pack, Steps
from headrace.datasets import StaticDataset
from headrace.loading import DataLoader

pytestmark = pytest.mark.usefixtures("warm_workers")

ORDERINGS = st.sampled_from(["default", "random", "laplace:3", "sorted_reverse", "random_sample", "permute"])
# one is short, because limits that no sequence fits into are refused
LENGTHS = st.lists(st.integers(0, 30), max_size=50).map(lambda lengths: lengths and [*lengths, 2])
MANY_LENGTHS = st.lists(st.integers(1, 30), min_size=100, max_size=200).map(lambda lengths: [*lengths, 2])
BATCHINGS = st.sampled_from(
    [
        FixedCount(3),
        FixedCount(4, last="drop"),
        FrameBudget(40),
        FrameBudget(40, padded=False, max_seqs=3),
        FrameBudget(20, too_long="chunk"),
        Buckets(FrameBudget(50), num_buckets=3),
        Buckets(FixedCount(4), bounds=(5, 10)),
        LimitLengths(FrameBudget(60), min_frames=2, max_frames=25),
        Pack(30, 2),
        Pack(16, 3, strategy="best_fit", too_long="chunk"),
        Chunks(FrameBudget(40), frames=8, step=5, context=(2, 1)),
    ]
)
BATCH_ORDERS = st.sampled_from([None, BatchOrder(), BatchOrder("keep", 3), BatchOrder("shuffle", 2)])
REMAINDERS = st.sampled_from(["drop", "pad", "keep"])
RANKS = st.integers(1, 5)
RECIPES = st.fixed_dictionaries(
    {
        "batching": BATCHINGS,
        "batch_order": BATCH_ORDERS,
        "window_seqs": st.integers(1, 60),
        "seed": st.integers(-3, 3),
    }
)


def corpus(lengths):
    return [
        {"data": np.full((n, 2), i, np.float32), "classes": np.arange(n, dtype=np.int32), "speaker": np.int64(i)}
        for i, n in enumerate(lengths)
    ]


def add_noise(seq, rng):
    return {**seq, "data": seq["data"] + rng.random(seq["data"].shape, dtype=np.float32)}


def dataset(lengths, ordering, **options):
    return StaticDataset(corpus(lengths), seq_ordering=ordering, **options)


def open_loader(data, recipe, rank=0, world_size=1, workers=0, executor="thread", **options):
    return DataLoader(
        data,
        **recipe,
        rank=rank,
        world_size=world_size,
        num_workers=workers,
        executor=executor,
        transform=add_noise,
        **options,
    )


def print_of(batch):
    """Return all that a batch says but for what depends on ranks."""
    arrays = [(key, str(value.dtype), value.shape, value.tobytes()) for key, value in batch.items()]
    lengths = [(key, value.tolist()) for key, value in batch.lengths.items()]
    places = batch.seq_idx.tolist(), batch.corpus_idx.tolist(), batch.tags
    packing = None
    if batch.packing is not None:
        packing = [getattr(batch.packing, name).tolist() for name in ("segment_ids", "positions", "rows", "starts")]
    starts = None if batch.chunk_starts is None else batch.chunk_starts.tolist()
    return batch.epoch, batch.position, arrays, lengths, places, starts, packing


def whole(data, recipe, epoch):
    """Return the batches of an epoch, by one process without workers."""
    with open_loader(data, recipe) as loader:
        loader.set_epoch(epoch)
        return [print_of(batch) for batch in loader]


@given(LENGTHS, ORDERINGS, RECIPES, st.integers(0, 4), st.integers(1, 3))
@examples(60)
def test_neither_threads_nor_their_number_change_a_batch(lengths, ordering, recipe, workers, epoch):
    data = dataset(lengths, ordering)
    with open_loader(data, recipe, workers=workers) as loader:
        loader.set_epoch(epoch)
        assert [print_of(batch) for batch in loader] == whole(data, recipe, epoch)


@given(LENGTHS, ORDERINGS, RECIPES, st.integers(1, 3))
@examples(4)
def test_processes_do_not_change_a_batch(lengths, ordering, recipe, epoch):
    data = dataset(lengths, ordering)
    with open_loader(data, recipe, workers=2, executor="process") as loader:
        loader.set_epoch(epoch)
        assert [print_of(batch) for batch in loader] == whole(data, recipe, epoch)


@given(LENGTHS, st.sampled_from(["default", "random", "laplace:3", "permute"]), RECIPES)
@examples(60)
def test_each_sequence_comes_exactly_once_or_is_counted(lengths, ordering, recipe):
    data = dataset(lengths, ordering)
    with open_loader(data, recipe) as loader:
        counts = loader.count(1)
        found = [
            (corpus_idx, start, length)
            for batch in loader
            for corpus_idx, start, length in zip(
                batch.corpus_idx.tolist(),
                [0] * batch.num_seqs if batch.chunk_starts is None else batch.chunk_starts.tolist(),
                batch.lengths["data"].tolist(),
                strict=True,
            )
        ]
    assert len(found) == len(set(found)) == counts.pieces
    assert counts.frames == sum(length for *_, length in found)
    if counts.chunked == counts.last == 0:
        assert len({corpus_idx for corpus_idx, *_ in found}) == len(lengths) - counts.left_out


@given(LENGTHS, ORDERINGS, RECIPES, RANKS, REMAINDERS, st.integers(1, 2))
@examples(60)
def test_ranks_share_the_batches_by_their_numbers(lengths, ordering, recipe, world_size, remainder, epoch):
    data = dataset(lengths, ordering)
    batches = whole(data, recipe, epoch)
    for rank in range(world_size):
        steps = Steps(len(batches), rank, world_size, 0, remainder)
        with open_loader(data, recipe, rank, world_size, remainder=remainder) as loader:
            loader.set_epoch(epoch)
            assert len(loader) == len(steps)
            found = list(loader)
        assert [print_of(batch) for batch in found] == [batches[steps.batch_at(step)] for step in range(len(steps))]
        assert [batch.step for batch in found] == list(range(len(steps)))
        assert [batch.is_repeat for batch in found] == [steps.is_repeat(step) for step in range(len(steps))]


def take(data, recipe, state, rank, world_size, num_steps, **options):
    """Return the batches of some steps of the loaded epoch, and the state after them."""
    with open_loader(data, recipe, rank, world_size, **options) as loader:
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        found = []
        for batch in loader:
            found.append(print_of(batch))
            if len(found) == num_steps:
                break
        return found, loader.state_dict()


@given(
    LENGTHS,
    ORDERINGS,
    RECIPES,
    st.lists(st.tuples(RANKS, st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=4),
)
@examples(60)
def test_any_chain_of_resumes_with_other_ranks_and_workers_gives_the_same_batches(lengths, ordering, recipe, parts):
    data = dataset(lengths, ordering)
    batches = whole(data, recipe, 1)
    position, state = 0, None
    for world_size, num_steps, workers in parts:
        steps = min(num_steps, (len(batches) - position) // world_size)
        if steps == 0:
            break
        states = []
        for rank in range(world_size):
            found, after = take(data, recipe, state, rank, world_size, steps, workers=workers)
            assert found == batches[position + rank :: world_size][:steps]
            states.append(after)
        assert all(after == states[0] for after in states)
        assert len(json.dumps(states[0])) < 1024
        state = states[0]
        is_over = len(batches) - position - steps * world_size < world_size
        position = len(batches) if is_over else position + steps * world_size
        assert state["epoch"] == 1
        assert state["position"] == position
        if is_over:
            break


@given(
    LENGTHS,
    ORDERINGS,
    RECIPES,
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=2),
)
@examples(3)
def test_a_chain_of_resumes_in_processes_gives_the_same_batches(lengths, ordering, recipe, parts):
    data = dataset(lengths, ordering)
    batches = whole(data, recipe, 1)
    position, state = 0, None
    for world_size, num_steps, workers in parts:
        steps = min(num_steps, (len(batches) - position) // world_size)
        if steps == 0:
            break
        for rank in range(world_size):
            found, after = take(data, recipe, state, rank, world_size, steps, workers=workers, executor="process")
            assert found == batches[position + rank :: world_size][:steps]
        state = after
        position = state["position"]


@pytest.mark.parametrize(("before", "after"), [(8, 6), (1, 3), (5, 1)])
@given(lengths=MANY_LENGTHS, recipe=RECIPES, num_steps=st.integers(1, 2))
@examples(8)
def test_another_number_of_ranks_goes_on_where_the_old_one_stopped(before, after, lengths, recipe, num_steps):
    data = dataset(lengths, "random")
    batches = whole(data, recipe, 1)
    old = [take(data, recipe, None, rank, before, num_steps) for rank in range(before)]
    state = old[0][1]
    seen = [found for rank in old for found in rank[0]]
    for rank in range(after):
        with open_loader(data, recipe, rank, after, remainder="keep") as loader:
            loader.load_state_dict(state)
            seen += [print_of(batch) for batch in loader]
    assert sorted(seen, key=lambda found: found[1]) == batches[: len(seen)]
    assert len(seen) == len(batches) or len(batches) - num_steps * before < before  # the old ranks dropped the rest


@given(LENGTHS, ORDERINGS, RECIPES, st.integers(0, 5))
@examples(30)
def test_after_the_rest_of_a_loaded_epoch_the_next_epochs_come(lengths, ordering, recipe, num_steps):
    data = dataset(lengths, ordering, partition_epoch=2)
    epochs = {epoch: whole(data, recipe, epoch) for epoch in (2, 3, 4)}
    with open_loader(data, recipe) as loader:
        loader.set_epoch(2)
        for number, _ in enumerate(loader, start=1):
            if number == num_steps:
                break
        state = loader.state_dict()
    done = state["position"] if state["epoch"] == 2 else len(epochs[2])
    with open_loader(data, recipe, workers=2) as loader:
        loader.load_state_dict(state)
        for epoch in loader.epochs(first=1, last=4):
            rest = epochs[epoch.epoch][done:] if epoch.epoch == 2 else epochs[epoch.epoch]
            assert [print_of(batch) for batch in epoch] == rest


@given(LENGTHS, RECIPES, st.integers(0, 3))
@examples(20)
def test_leaving_early_changes_nothing_that_comes_later(lengths, recipe, early):
    data = dataset(lengths, "random")
    with open_loader(data, recipe, workers=2) as loader:
        for epoch in loader.epochs(1, 2):
            for _ in zip(range(early), epoch, strict=False):
                pass
            assert [print_of(batch) for batch in epoch] == whole(data, recipe, epoch.epoch)
