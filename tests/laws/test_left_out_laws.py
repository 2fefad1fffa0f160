"""Laws of what is left out: what all ranks deliver and what is counted are all that there is, and it is said."""

import copy
import logging
import random
import tempfile

import numpy as np
import pytest
from dataset_recipes import RECIPES, Draw, entry_of, nodes
from hypothesis import example, given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace import EngineOptions, StaticDataset
from headrace.batching import Buckets, FixedCount, FrameBudget, LimitLengths, Pack
from headrace.datasets import init_dataset
from headrace.engine import Skipping
from headrace.loading import DataLoader

BATCHINGS = st.sampled_from(
    [
        FixedCount(3),
        FixedCount(4, last="drop"),
        FrameBudget(12, too_long="drop"),
        FrameBudget(9),
        Buckets(FrameBudget(30, too_long="drop"), num_buckets=2),
        LimitLengths(FrameBudget(25), min_frames=3, max_frames=12),
        LimitLengths(FixedCount(2, last="drop"), min_frames=2),
        Pack(14, 2, too_long="drop"),
        Pack(20, 1),
    ]
)
LENGTHS = st.lists(st.integers(1, 20), max_size=50).map(lambda lengths: lengths and [*lengths, 3])


NUM_BATCHES = []  # of the ranks that were read


class Stream:
    def __init__(self, seqs):
        self.seqs = seqs

    def __iter__(self):
        return iter(self.seqs)


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture(scope="module")
def heard():
    handler, logger = Heard(), logging.getLogger("headrace.loading")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def read(data, rank, world_size, options):
    """Return the sequences of a rank, and what was counted after two epochs."""
    with DataLoader(data, rank=rank, world_size=world_size, **options) as loader:
        repeats = [list(loader), list(loader)]
        found = [batch for batch in repeats[1] if not batch.is_repeat]
        tags = [tag for batch in found for tag in batch.tags]
        text = loader.explain()
        NUM_BATCHES.append(len(repeats[1]))
        counts = loader._runs.progress()[1].counts if isinstance(data, Stream) else loader.count(2)
        return tags, counts, text


@given(
    LENGTHS,
    BATCHINGS,
    st.sampled_from(["dataset", "stream"]),
    st.integers(1, 4),
    st.sampled_from(["drop", "pad", "keep"]),
    st.integers(1, 30),
    st.integers(0, 2),
)
@examples(120)
def test_what_is_delivered_and_what_is_counted_are_all(
    heard, lengths, batching, face, world_size, remainder, window_seqs, workers
):
    seqs = [{"data": np.zeros((n, 1), np.float32)} for n in lengths]
    data = StaticDataset(seqs, seq_ordering="default") if face == "dataset" else Stream(seqs)
    options = {"batching": batching, "remainder": remainder, "window_seqs": window_seqs, "num_workers": workers}
    options["executor"] = "thread"
    heard.texts.clear()
    ranks = [read(data, rank, world_size, options) for rank in range(world_size)]
    delivered = [tag for tags, *_ in ranks for tag in tags]
    _, counts, text = ranks[0]
    assert counts.seqs == len(lengths)
    if counts.chunked:  # by Pack: the pieces of a sequence have one tag
        assert len(delivered) + counts.remainder == counts.pieces
    else:
        assert len(delivered) + counts.left_out == len(lengths)
        assert len(set(delivered)) == len(delivered)
    assert ("left out" in text) == (counts.left_out > 0)
    assert ("over the budget" in text) == (counts.alone > 0)
    lines = [line for line in heard.texts if "logged once" in line]
    assert bool(lines) == bool(counts.left_out or counts.alone or counts.chunked)
    for reason in ("too long", "too short", "in a last batch", "too few for all", "over the budget"):
        assert sum(reason in line for line in lines) <= world_size  # a rank without a batch of a window plans it not
    no_batch = [line for line in heard.texts if "has no batch" in line or " has no sequences" in line]
    assert len(no_batch) == sum(not num_batches for num_batches in NUM_BATCHES[-world_size:])


@given(LENGTHS, st.sampled_from([FixedCount(3), FrameBudget(20)]), st.integers(0, 2), st.sets(st.integers(0, 50)))
@examples(40)
def test_sequences_that_fail_and_are_skipped_are_counted_too(lengths, batching, workers, failing):
    seqs = [{"data": np.full((n, 1), i, np.float32)} for i, n in enumerate(lengths)]

    def fail(seq):
        if int(seq["data"][0, 0]) in failing:
            raise ZeroDivisionError
        return seq

    data, options = StaticDataset(seqs), {"batching": batching, "num_workers": workers, "executor": "thread"}
    with DataLoader(data, **options) as loader:
        num_failing = [sum(i in failing for i in batch.corpus_idx.tolist()) for batch in loader]
        sizes = [len(loader._runs.plan_of(1).task(number)[1]) for number in range(len(num_failing))]
    skipping = EngineOptions(on_error=Skipping(budget=100))
    with DataLoader(data, **options, transform=fail, engine_options=skipping) as loader:
        tags = [tag for batch in loader for tag in batch.tags]
        num_skipped = loader.report.num_skipped
    assert sorted(tags) == sorted(f"seq-{i}" for i in range(len(lengths)) if i not in failing)
    # a batch of which nothing is left is skipped as one
    assert num_skipped == sum(1 if num == size else num for num, size in zip(num_failing, sizes, strict=True) if num)


def some_filtered(config, draw):
    """Return a config in which some of the datasets that hold sequences themselves keep some of their tags only."""
    config = copy.deepcopy(config)
    for node in nodes(config):
        if "seq_ordering" in node and (entry_of(node).is_leaf or node["class"] == "ConcatSeqsDataset"):
            if not isinstance(node["class"], str) or node["class"] == "DistributeFilesDataset":
                continue  # one that says all of its tags, and one that knows no sequences
            with init_dataset(node) as dataset:
                tags = dataset.get_all_tags()
            if draw.rng.random() < 0.5:
                kept = [tag for tag in tags if draw.rng.random() < 0.6] or tags[:1]
                node["seq_list_filter_file"] = draw.path("\n".join(kept))
    return config


def size_of(dataset):
    try:
        return dataset.get_total_num_seqs(fast=True)  # no file is read to count what is left out of others
    except (NotImplementedError, TypeError):
        return None


@example("CombinedDataset", 8, 2)  # a filter in a part of a user-defined part
@given(st.sampled_from(sorted(RECIPES)), st.integers(0, 2**32), st.integers(0, 3))
@examples(150)
def test_each_dataset_counts_what_tag_filters_leave_out_of_its_corpus(name, seed, depth):
    with tempfile.TemporaryDirectory() as folder:
        draw = Draw(random.Random(seed), folder, depth)
        config = draw.config(name)
        with init_dataset(config) as whole, init_dataset(some_filtered(config, draw)) as part:
            assert whole.get_corpus().num_filtered() is None
            num_all, num_kept, found = size_of(whole), size_of(part), part.get_corpus().num_filtered()
            if num_all is None:
                assert found is None or 0 <= found[0] <= found[1]
            elif found is None:
                assert num_kept == num_all
            else:
                assert found == (num_all - num_kept, num_all)
