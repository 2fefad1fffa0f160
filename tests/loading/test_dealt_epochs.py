"""Evaluations: a loader that deals sequences to the ranks, in place of batches."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Buckets, ConfigError, DataLoader, FixedCount, FrameBudget, ResumeError, StaticDataset
from headrace.batching import Chunks

BATCHINGS = [FixedCount(4), FrameBudget(29), Buckets(FrameBudget(29), num_buckets=3), Chunks(FixedCount(3), 4)]


def open_loader(rank=0, world_size=1, batching=BATCHINGS[0], num_seqs=19, **options):
    seqs = [{"data": np.full(7 * number % 11 + 1, number)} for number in range(num_seqs)]
    dataset = StaticDataset(seqs, seq_ordering="random")
    return DataLoader(dataset, batching=batching, rank=rank, world_size=world_size, **options)


def read_dealt(last_step, world_size, **options):
    """Return the batches of each rank, and what the loaders say of all."""
    ranks, said = [], set()
    for rank in range(world_size):
        with open_loader(rank, world_size, **options) as loader:
            loader.deal(last_step)
            said.add((len(loader), loader.count(1).pieces))
            ranks.append(list(loader))
    (found,) = said
    return ranks, *found


def pieces_of(batch):
    starts = [0] * batch.num_seqs if batch.chunk_starts is None else batch.chunk_starts.tolist()
    return list(zip(batch.tags, starts, strict=True))


@settings(max_examples=30)
@given(
    batching=st.sampled_from(BATCHINGS),
    world_size=st.integers(1, 4),
    num_seqs=st.integers(0, 40),
    remainder=st.sampled_from(["drop", "pad", "keep"]),
)
def test_an_evaluation_on_any_number_of_ranks_is_that_of_one(batching, world_size, num_seqs, remainder):
    options = {"batching": batching, "num_seqs": num_seqs, "remainder": remainder}
    with open_loader(**options) as loader:
        expected = sorted(chain.from_iterable(map(pieces_of, loader)))
    ranks, num_steps, num_pieces = read_dealt("repeat", world_size, **options)
    assert [len(batches) for batches in ranks] == [num_steps] * world_size
    assert num_pieces == len(expected)
    assert all(len({batch.num_seqs for batch in batches}) == 1 for batches in zip(*ranks, strict=True))
    found = [piece for batch in chain(*ranks) if not batch.is_repeat for piece in pieces_of(batch)]
    assert sorted(found) == expected
    assert sum(batch.is_repeat for batch in chain(*ranks)) == -num_pieces % world_size
    repeats = [[batch.is_repeat for batch in batches] for batches in ranks]
    assert not any(is_repeat for flags in repeats for is_repeat in flags[:-1])
    assert repeats == sorted(repeats)  # what a library trims is at the end of what it gathers


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_repeats_ranks_have_as_many_steps(num_workers):
    ranks, num_steps, num_pieces = read_dealt("split", 2, num_workers=num_workers)
    assert (num_steps, num_pieces) == (4, 19)
    assert [[batch.num_seqs for batch in batches] for batches in ranks] == [[4, 4, 1, 1], [4, 3, 1, 1]]
    assert sorted(tag for batch in chain(*ranks) for tag in batch.tags) == sorted(f"seq-{idx}" for idx in range(19))
    assert not any(batch.is_repeat for batch in chain(*ranks))


def test_what_cannot_be_dealt_is_refused_before_the_first_batch():
    stream = iter_seqs()
    with DataLoader(stream, batch_size=4, rank=0, world_size=2) as loader, pytest.raises(ConfigError, match="stream"):
        loader.deal("repeat")
    with (
        DataLoader(list(range(4)), batch_sampler=[[0, 1, 2], [3]], rank=0, world_size=2) as loader,
        pytest.raises(ConfigError, match="batch_sampler"),
    ):
        loader.deal("repeat")
    for rank in range(2):
        with open_loader(rank, 2, FixedCount(1)) as loader:
            loader.deal("split")
            with pytest.raises(ConfigError, match="19 sequences cannot be shared equally among 2 ranks"):
                len(loader)
    with open_loader() as loader, pytest.raises(ConfigError, match="last_step"):
        loader.deal("pad")


class iter_seqs:
    def __iter__(self):
        return ({"data": np.full(2, number)} for number in range(10))


def test_one_rank_evaluates_on_a_stream_as_ever():
    with DataLoader(iter_seqs(), batch_size=4) as loader:
        loader.deal("repeat")
        assert [batch.num_seqs for batch in loader] == [4, 4, 2]


def test_a_loader_says_that_it_deals_sequences():
    with open_loader(1, 2) as loader:
        assert "remainder 'drop'" in loader.explain()
        loader.deal("repeat")
        assert "sequences are dealt" in loader.explain()


def test_a_state_is_that_of_a_loader_that_deals_or_of_one_that_does_not():
    with open_loader(0, 2) as loader, open_loader(0, 2) as dealing, open_loader(0, 2) as other:
        of_batches = loader.state_dict()
        loader.deal("split")
        dealing.deal("split")
        dealing.load_state_dict(loader.state_dict())
        for refusing, state in ((dealing, of_batches), (loader, of_batches), (other, loader.state_dict())):
            with pytest.raises(ResumeError, match="another batching"):
                refusing.load_state_dict(state)
