"""Random batchings, lengths and keys for the laws, and slow versions of what the plans do."""

import numpy as np
from hypothesis import strategies as st

from headrace.batching import BatchOrder, Buckets, Chunks, FixedCount, FrameBudget, LimitLengths, Pack, WindowKey

MAX_LENGTH = 60

lengths = st.lists(st.integers(0, MAX_LENGTH), max_size=80).map(lambda numbers: np.array(numbers, np.int64))
keys = st.builds(WindowKey, st.integers(-5, 5), st.integers(1, 5), st.integers(0, 5))
orders = st.builds(BatchOrder, st.sampled_from(["shuffle", "keep"]), st.integers(1, 9))
_maybe_quadratic = st.none() | st.integers(1, 50)

fixed_counts = st.builds(FixedCount, st.integers(1, 9), st.sampled_from(["keep", "drop"]))


_too_long = st.sampled_from(["alone", "drop", "chunk"])
frame_budgets, _padded = (
    st.builds(
        FrameBudget,
        st.integers(2, 200),
        max_seqs=st.none() | st.integers(1, 9),
        padded=padded,
        too_long=_too_long,
        quadratic_length=_maybe_quadratic,
    )
    for padded in (st.booleans(), st.just(True))
)


_bounds = st.lists(st.integers(0, MAX_LENGTH), max_size=5, unique=True).map(lambda numbers: tuple(sorted(numbers)))


@st.composite
def buckets(draw):
    budget = draw(fixed_counts | _padded)
    kind = draw(st.sampled_from(["quantiles", "bounds", "budget for each"]))
    if kind == "quantiles":
        return Buckets(budget, num_buckets=draw(st.integers(1, 9)))
    bounds = draw(_bounds)
    if kind == "bounds":
        return Buckets(budget, bounds=bounds)
    if isinstance(budget, FixedCount):
        budgets = [FixedCount(draw(st.integers(1, 9)), budget.last) for _ in range(len(bounds) + 1)]
    else:
        too_long = draw(st.sampled_from(["alone", "drop"]))
        budgets = [FrameBudget(draw(st.integers(1, 200)), too_long=too_long) for _ in range(len(bounds) + 1)]
    return Buckets(tuple(budgets), bounds=bounds)


packs = st.builds(
    Pack,
    st.integers(1, 100),
    st.integers(1, 4),
    st.sampled_from(["first_fit", "best_fit"]),
    too_long=_too_long,
)
plain = fixed_counts | frame_budgets | buckets() | packs


@st.composite
def chunks(draw):
    frames = draw(st.integers(1, 30))
    return Chunks(
        draw(plain),
        frames,
        step=draw(st.none() | st.integers(1, frames)),
        min_frames=draw(st.integers(0, 10)),
        context=draw(st.tuples(st.integers(0, 3), st.integers(0, 3))),
    )


limits = st.builds(LimitLengths, plain | chunks(), st.integers(0, 10), st.none() | st.integers(10, MAX_LENGTH))
batchings = plain | chunks() | limits


def frames_of(batch, window_lengths):
    """Return the frames of each member of a batch."""
    return window_lengths[batch.members] if batch.chunk_frames is None else batch.chunk_frames
