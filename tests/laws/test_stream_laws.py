"""Laws of streams: whoever reads them, on any ranks, after any resume, the batches are the same."""

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.batching import Buckets, Chunks, FixedCount, FrameBudget, LimitLengths, Pack
from headrace.loading import DataLoader
from headrace.loading.streams.input import StreamSubject

pytestmark = pytest.mark.usefixtures("warm_workers")

LENGTHS = st.lists(st.integers(0, 20), max_size=40)
BATCHINGS = st.sampled_from(
    [
        FixedCount(3),
        FixedCount(4, last="drop"),
        FrameBudget(40),
        FrameBudget(15, too_long="drop"),
        Buckets(FrameBudget(50), num_buckets=3),
        Pack(30, 2),
        Chunks(FrameBudget(40), frames=8, step=5, context=(2, 1)),
    ]
)
WINDOWS = st.one_of(st.none(), st.integers(1, 30))  # None: blocks of 4, see below
RECIPES = st.fixed_dictionaries({"batching": BATCHINGS, "window_seqs": WINDOWS, "seed": st.integers(0, 3)})
WORKERS = st.integers(0, 4)
RANKS = st.integers(1, 5)
REMAINDERS = st.sampled_from(["drop", "pad", "keep"])


@pytest.fixture(autouse=True, scope="module")
def _small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamSubject, "window_seqs", 4)
        yield


class Stream:
    """Its sequences depend on the epoch, and it remembers where it is, as file readers do."""

    def __init__(self, lengths):
        self.lengths, self.epoch, self.place = lengths, 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.place = 0
        return self.read()

    def read(self):
        while self.place < len(self.lengths):
            self.place += 1
            value = 1000 * self.epoch + self.place
            length = self.lengths[self.place - 1]
            yield {"data": np.full((length, 2), value, np.float32), "number": np.int64(value)}


def add_noise(seq, rng):
    return {**seq, "data": seq["data"] + rng.random(seq["data"].shape, dtype=np.float32)}


def open_loader(lengths, recipe, rank=0, world_size=1, workers=0, executor="thread", **options):
    options = {"num_workers": workers, "executor": executor, "transform": add_noise, **options}
    return DataLoader(Stream(lengths), **recipe, rank=rank, world_size=world_size, **options)


def print_of(batch):
    arrays = [(key, str(value.dtype), value.shape, value.tobytes()) for key, value in batch.items()]
    return batch.epoch, batch.position, arrays, batch.tags, batch.seq_idx.tolist()


def whole(lengths, recipe, epoch=1):
    with open_loader(lengths, recipe) as loader:
        loader.set_epoch(epoch)
        return [print_of(batch) for batch in loader]


@given(LENGTHS, RECIPES, WORKERS, st.integers(1, 3))
@examples(40)
def test_neither_threads_nor_their_number_change_a_batch_of_a_stream(lengths, recipe, workers, epoch):
    with open_loader(lengths, recipe, workers=workers) as loader:
        for number in (epoch, epoch + 1):
            loader.set_epoch(number)
            assert [print_of(batch) for batch in loader] == whole(lengths, recipe, number)


@given(LENGTHS, RECIPES, st.integers(1, 3))
@examples(4)
def test_processes_do_not_change_a_batch_of_a_stream(lengths, recipe, workers):
    with open_loader(lengths, recipe, workers=workers, executor="process") as loader:
        assert [print_of(batch) for batch in loader] == whole(lengths, recipe)
        assert [print_of(batch) for batch in loader] == whole(lengths, recipe, 2)


@given(LENGTHS, RECIPES, RANKS, REMAINDERS, WORKERS)
@examples(40)
def test_ranks_share_the_batches_of_a_stream_by_their_numbers(lengths, recipe, world_size, remainder, workers):
    batches = whole(lengths, recipe)
    for rank in range(world_size):
        with open_loader(lengths, recipe, rank, world_size, workers, remainder=remainder) as loader:
            found = [(print_of(batch), batch.is_repeat) for batch in loader]
        num_whole, num_left = divmod(len(batches), world_size)
        is_there = {"drop": False, "pad": num_left > 0, "keep": rank < num_left}[remainder]
        numbers = [rank + step * world_size for step in range(num_whole + is_there)]
        assert found == [(batches[number % len(batches)], number >= len(batches)) for number in numbers]


@given(LENGTHS, RECIPES, st.lists(st.tuples(RANKS, st.integers(1, 6), WORKERS), min_size=1, max_size=3))
@examples(40)
def test_any_chain_of_resumes_of_a_stream_gives_the_same_batches(lengths, recipe, parts):
    batches, position, state = whole(lengths, recipe), 0, None
    for world_size, num_steps, workers in parts:
        steps = min(num_steps, (len(batches) - position) // world_size)
        if steps == 0:
            break
        states = []
        for rank in range(world_size):
            with open_loader(lengths, recipe, rank, world_size, workers) as loader:
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                found = [print_of(batch) for _, batch in zip(range(steps), loader, strict=False)]
                states.append(loader.state_dict())
            assert found == batches[position + rank :: world_size][:steps]
        assert all(after == states[0] for after in states)
        state = states[0]
        position = state["position"]


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=30),
    RECIPES,
    RANKS,
    st.integers(1, 12),
    WORKERS,
    st.integers(0, 9),
)
@examples(40)
def test_padded_steps_per_epoch_are_that_many_on_every_rank_from_any_step_on(
    lengths, recipe, world_size, num_steps, workers, num_done
):
    batches, done = whole(lengths, recipe), min(num_done, num_steps)
    assume(batches)
    options = {"remainder": "pad", "steps_per_epoch": num_steps}
    for rank in range(world_size):
        numbers = [rank + step * world_size for step in range(num_steps)]
        expected = [(batches[number % len(batches)], number >= len(batches)) for number in numbers]
        with open_loader(lengths, recipe, rank, world_size, **options) as loader:
            for _ in zip(range(done), loader, strict=False):
                pass
            state = loader.state_dict()
        with open_loader(lengths, recipe, rank, world_size, workers, **options) as loader:
            assert len(loader) == num_steps
            loader.load_state_dict(state)
            rest = [(print_of(batch), batch.is_repeat) for batch in next(loader.epochs())]
        assert rest == expected[done:]


class Counted(Stream):
    """Notes how often each of its sequences was read."""

    def __init__(self, lengths, counts):
        super().__init__(lengths)
        self.counts = counts  # shared by copies of this, which threads read

    def read(self):
        for place, seq in enumerate(super().read()):
            self.counts[place] += 1
            yield seq


@given(LENGTHS, RECIPES, WORKERS, st.integers(0, 12), st.booleans())
@examples(40)
def test_a_stream_is_read_once_in_an_epoch_and_as_far_again_as_a_resume_goes(
    lengths, recipe, workers, num_done, is_plain
):
    counts = [0] * len(lengths)
    options = {**recipe, "num_workers": workers, "executor": "thread", "transform": None if is_plain else add_noise}
    with DataLoader(Counted(lengths, counts), **options) as loader:
        batches = [print_of(batch) for batch in loader]
    assert counts == [1] * len(lengths)
    with DataLoader(Counted(lengths, [0] * len(lengths)), **options) as loader:
        for _ in zip(range(num_done), loader, strict=False):
            pass
        state = loader.state_dict()
    counts[:] = [0] * len(lengths)
    with DataLoader(Counted(lengths, counts), **options) as loader:
        loader.load_state_dict(state)
        rest = [print_of(batch) for batch in next(loader.epochs())]
    if state["epoch"] == 1:
        assert rest == batches[num_done:]
    assert counts == [1] * len(lengths)


@given(
    st.lists(st.integers(1, 20), min_size=30, max_size=150),
    st.integers(20, 400),
    st.sampled_from(["plain", "filtered", "cut"]),
    WORKERS,
)
@examples(40)
def test_windows_of_a_stream_fill_batches_of_any_budget(lengths, budget, kind, workers):
    batching = FrameBudget(budget, padded=False)
    longest = {"plain": 20, "filtered": 4, "cut": 3}[kind]
    if kind == "filtered":
        batching = LimitLengths(batching, max_frames=4)
    elif kind == "cut":
        batching = Chunks(batching, frames=3)
    with open_loader(lengths, {"batching": batching}, workers=workers) as loader:
        found = [batch.num_frames for batch in loader]
    num_short = sum(num_frames <= budget - longest for num_frames in found)  # one more would have fit
    assert num_short <= len(found) // 8 + 1


@given(st.integers(1, 400), st.integers(1, 30), st.integers(1, 60))
@examples(40)
def test_a_window_that_somebody_asks_for_is_never_another_one(num_seqs, window_seqs, budget):
    with open_loader([1] * num_seqs, {"batching": FrameBudget(budget), "window_seqs": window_seqs}) as loader:
        found = [batch.seq_idx.tolist() for batch in loader]
    expected = [
        list(range(first, min(first + budget, start + window_seqs, num_seqs)))
        for start in range(0, num_seqs, window_seqs)
        for first in range(start, min(start + window_seqs, num_seqs), budget)
    ]
    assert found == expected
