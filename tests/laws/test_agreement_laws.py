"""Laws of ranks that find out together how many steps they have: equal steps, to the step, from wherever they go on."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace import StaticDataset
from headrace.batching import Buckets, FixedCount, FrameBudget
from headrace.loading import DataLoader
from headrace.loading.steps import Agreement

BATCHINGS = st.sampled_from([FixedCount(3), FrameBudget(20), Buckets(FrameBudget(20), num_buckets=2)])
SHARES = st.lists(st.integers(0, 40), min_size=1, max_size=4)
EVERY = st.integers(1, 9)


class Share:
    """What a rank reads: a part of a stream that nobody else reads."""

    def __init__(self, rank, num):
        self.rank, self.num = rank, num

    def __iter__(self):
        return ({"data": np.full(7 * i % 11 + 1, 1000 * self.rank + i)} for i in range(self.num))


class Meeting:
    """Ranks that are threads and ask each other; one that waits in vain raises."""

    def __init__(self, num_ranks):
        self._flags = [False] * num_ranks
        self._barrier = threading.Barrier(num_ranks, timeout=120)
        self.num_exchanges = [0] * num_ranks

    def agree_of(self, rank):
        def agree(flag):
            self._flags[rank] = flag
            self.num_exchanges[rank] += 1
            self._barrier.wait()
            answer = all(self._flags)
            self._barrier.wait()
            return answer

        return agree


def open_share(rank, num, **options):
    # each rank reads a share of its own, so no loader divides what it reads
    return DataLoader(Share(rank, num), rank=0, world_size=1, window_seqs=7, **options)


def run_ranks(shares, every, num_steps=None, states=None, **options):
    """Return (batches, state) of each rank after some steps, or at the end, and how often each was asked."""
    meeting = Meeting(len(shares))

    def run(rank):
        with open_share(rank, shares[rank], agree=meeting.agree_of(rank), agree_every=every, **options) as loader:
            if states is not None:
                loader.load_state_dict(states[rank])
            found = []
            if num_steps == 0:
                return found, loader.state_dict()
            for batch in loader:
                found.append((batch.step, batch.is_repeat, batch["data"].tobytes()))
                if batch.step + 1 == num_steps:
                    break
            return found, loader.state_dict()

    with ThreadPoolExecutor(len(shares)) as pool:
        return list(pool.map(run, range(len(shares)))), meeting.num_exchanges


def whole_shares(shares, **options):
    found = []
    for rank, num in enumerate(shares):
        with open_share(rank, num, **options) as loader:
            found.append([batch["data"].tobytes() for batch in loader])
    return found


@given(SHARES, EVERY, BATCHINGS, st.sampled_from(["drop", "pad"]), st.sampled_from([0, 1, 2]))
@examples(40)
def test_ranks_have_the_steps_of_the_shortest_or_of_the_longest(shares, every, batching, remainder, workers):
    if remainder == "pad":
        shares = [max(num, 1) for num in shares]
    own = whole_shares(shares, batching=batching)
    num_steps = (min if remainder == "drop" else max)(map(len, own))
    options = {"batching": batching, "remainder": remainder, "num_workers": workers, "executor": "thread"}
    found, num_exchanges = run_ranks(shares, every, **options)
    for batches, (steps, state) in zip(own, found, strict=True):
        assert [step for step, _, _ in steps] == list(range(num_steps))
        assert [data for _, _, data in steps] == [batches[step % len(batches)] for step in range(num_steps)]
        assert [is_repeat for _, is_repeat, _ in steps] == [step >= len(batches) for step in range(num_steps)]
        assert (state["epoch"], state["position"]) == (2, 0)
    assert len(set(num_exchanges)) == 1
    assert num_exchanges[0] <= num_steps // every + 2 + math.ceil(math.log2(every))


@given(SHARES, EVERY, EVERY, BATCHINGS, st.sampled_from(["drop", "pad"]), st.data())
@examples(40)
def test_a_resume_anywhere_gives_the_rest_of_the_steps(shares, every, then_every, batching, remainder, data):
    if remainder == "pad":
        shares = [max(num, 1) for num in shares]
    options = {"batching": batching, "remainder": remainder}
    whole, _ = run_ranks(shares, every, **options)
    num_steps = len(whole[0][0])
    at = data.draw(st.integers(0, num_steps))
    before, _ = run_ranks(shares, every, num_steps=at, **options)
    workers = data.draw(st.sampled_from([0, 2]))
    states = [state for _, state in before]
    after, _ = run_ranks(shares, then_every, states=states, num_workers=workers, executor="thread", **options)
    if at < num_steps or at == 0:
        assert [first + rest for (first, _), (rest, _) in zip(before, after, strict=True)] == [own for own, _ in whole]
    else:  # saved behind the last step: there is nothing left of the epoch
        assert all(not rest for rest, _ in after)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=5), st.integers(1, 100), st.booleans())
def test_blocks_are_halved_until_the_end_is_known_to_the_step(shares, every, may_repeat):
    num_taken, flags = 0, []

    def agree(flag):
        has_block = [num - num_taken >= agreement._block for num in shares]
        flags.append(flag == (has_block[0] != may_repeat))
        return all(has != may_repeat for has in has_block)

    agreement = Agreement(agree, every, may_repeat=may_repeat)
    while agreement.goes_on(min(max(shares[0] - num_taken, 0), every)):
        agreement.take_step()
        num_taken += 1
    assert num_taken == (max if may_repeat else min)(shares)
    assert all(flags)
    assert len(flags) <= num_taken // every + 2 + math.ceil(math.log2(every))


@given(st.integers(2, 40), EVERY, st.sampled_from(["drop", "pad"]), st.sampled_from([7, 64]), st.data())
@examples(30)
def test_the_same_is_true_of_known_orders_that_share_themselves_out(num, every, remainder, window_seqs, data):
    seqs = [{"data": np.full(7 * i % 11 + 1, i)} for i in range(num)]

    def run(states, num_steps):
        meeting = Meeting(2)

        def run_rank(rank):
            dataset = StaticDataset(seqs, _num_shards=2, _shard_index=rank)
            options = {"agree": meeting.agree_of(rank), "agree_every": every, "remainder": remainder}
            with DataLoader(dataset, batching=FrameBudget(20), window_seqs=window_seqs, **options) as loader:
                if states is not None:
                    loader.load_state_dict(states[rank])
                found = []
                for batch in iter(loader):
                    found.append((batch.step, batch.is_repeat, batch["data"].tobytes()))
                    if batch.step + 1 == num_steps:
                        break
                return found, loader.state_dict()

        with ThreadPoolExecutor(2) as pool:
            return zip(*pool.map(run_rank, range(2)), strict=True)

    whole, _ = run(None, None)
    assert len(whole[0]) == len(whole[1]) > 0
    at = data.draw(st.integers(1, len(whole[0])))
    before, states = run(None, at)
    after, _ = run(states, None)
    assert [first + rest for first, rest in zip(before, after, strict=True)] == list(whole)
