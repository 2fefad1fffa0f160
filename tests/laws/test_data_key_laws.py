"""Laws of the data key that budgets count: the one with a time axis, whatever the layout, or an error that says so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import ConfigError, StaticDataset
from headrace.batching import Buckets, Chunks, FixedCount, FrameBudget, LimitLengths, Pack
from headrace.loading import DataLoader

BUDGET, LONGEST = 30, 10
VALUES = {
    "frames": lambda i, length: np.full((length, 2), i, np.float32),
    "tokens": lambda i, length: np.full(length, i, np.int32),
    "label": lambda i, length: np.int64(i),
    "number": lambda i, length: 0.5 + i,
    "text": lambda i, length: f"utterance {i}",
}
TIMED = {"frames", "tokens"}
NAMES = ["a", "b", "c", "d"]


class Stream:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class MapStyle:
    def __init__(self, items, lengths):
        self.items, self.lengths = items, lengths

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]

    def get_seq_len(self, i):
        return self.lengths[i]


FACES = {
    "dataset": lambda items, lengths: StaticDataset([{k: np.asarray(v) for k, v in item.items()} for item in items]),
    "list": lambda items, lengths: items,
    "map-style": MapStyle,
    "stream": lambda items, lengths: Stream(items),
}
BATCHINGS = {
    "budget": lambda key: FrameBudget(BUDGET, padded=False, data_key=key),
    "padded": lambda key: FrameBudget(BUDGET, data_key=key),
    "buckets": lambda key: Buckets(FrameBudget(BUDGET, data_key=key), num_buckets=2),
    "pack": lambda key: Pack(BUDGET, 1, data_key=key),
    "limits": lambda key: LimitLengths(FrameBudget(BUDGET, data_key=key), max_frames=LONGEST),
    "chunks": lambda key: Chunks(FrameBudget(BUDGET, data_key=key), frames=4),
}


def first_batch(data, options):
    with DataLoader(data, **options) as loader:
        return next(iter(loader))


@given(
    st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4),
    st.lists(st.integers(1, LONGEST), min_size=1, max_size=40),
    st.sampled_from(sorted(FACES)),
    st.sampled_from(sorted(BATCHINGS)),
    st.one_of(st.none(), st.integers(0, 3)),
    st.integers(0, 2),
)
@settings(max_examples=250)
def test_a_budget_holds_for_the_key_with_a_time_axis_or_says_that_it_is_not_clear(
    kinds, lengths, face, kind, named, workers
):
    if face == "dataset":
        kinds = [kind if kind != "text" else "label" for kind in kinds]
    layout = dict(zip(NAMES, kinds, strict=False))
    items = [{key: VALUES[kind](i, n) for key, kind in layout.items()} for i, n in enumerate(lengths)]
    timed = [key for key, kind in layout.items() if kind in TIMED]
    wanted = None if named is None else [*layout][named % len(layout)]
    first = wanted or next(iter(layout))
    is_clear = first in timed or (wanted is None and len(timed) == 1)
    batching = BATCHINGS[kind](wanted)
    if face == "map-style" and (wanted is not None or "text" in kinds):
        return  # its method says lengths of no key
    options = {"batching": batching, "num_workers": workers, "executor": "thread"}
    if not is_clear:
        with pytest.raises(ConfigError, match="no time axis") as caught:
            first_batch(FACES[face](items, lengths), options)
        assert all(repr(key) in str(caught.value) for key in [first, *timed])
        return
    with DataLoader(FACES[face](items, lengths), **options) as loader:
        batches = list(loader)
    key = first if first in timed else timed[0]
    sizes = [int(batch.lengths[key].sum()) for batch in batches]
    assert all(batch.num_seqs * LONGEST >= size for batch, size in zip(batches, sizes, strict=True))
    assert max(sizes) <= BUDGET
    if kind != "chunks":
        assert sorted(tag for batch in batches for tag in batch.tags) == sorted(f"seq-{i}" for i in range(len(lengths)))


@given(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4), st.sampled_from(["list", "stream"]))
@settings(max_examples=50)
def test_who_counts_sequences_needs_no_time_axis(kinds, face):
    items = [{key: VALUES[kind](i, 3) for key, kind in zip(NAMES, kinds, strict=False)} for i in range(7)]
    with DataLoader(FACES[face](items, None), batching=FixedCount(3)) as loader:
        assert [batch.num_seqs for batch in loader] == [3, 3, 1]
