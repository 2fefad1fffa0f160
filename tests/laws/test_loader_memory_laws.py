"""Law of the loader's memory: it has a limit in bytes; whoever reaches it waits, or is told, and nothing is lost."""

import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.batching import Buckets, FixedCount, FrameBudget
from headrace.datasets import StaticDataset
from headrace.engine.memory.memfd import PAGE_BYTES
from headrace.errors import CacheError
from headrace.loading import DataLoader

# The sequences are of up to 400 frames of 1 KiB: some fill a small limit alone.
FRAME = (128,)
# One is short, because limits that no sequence fits into are refused.
LENGTHS = st.lists(st.integers(0, 400), max_size=60).map(lambda lengths: [*lengths, 2])
BATCHINGS = st.sampled_from(
    [FixedCount(2), FrameBudget(600), FrameBudget(100), Buckets(FrameBudget(500), num_buckets=3)]
)


def bytes_of_arenas():
    """Return how much memory the arenas hold that this process has open."""
    total = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "headrace-arena" in os.readlink(f"/proc/self/fd/{fd}"):
                total += 512 * os.stat(f"/proc/self/fd/{fd}").st_blocks
        except FileNotFoundError:  # the descriptor that lists them
            continue
    return total


@settings(max_examples=12)
@given(
    lengths=LENGTHS,
    batching=BATCHINGS,
    workers=st.integers(1, 3),
    max_kib=st.integers(64, 4000),
    num_kept=st.integers(0, 2),
)
def test_shared_memory_stays_within_its_limit_and_the_stream_is_the_same(lengths, batching, workers, max_kib, num_kept):
    data = StaticDataset(
        [{"data": np.full((length, *FRAME), number, np.float64)} for number, length in enumerate(lengths)],
        seq_ordering="random",
    )
    with DataLoader(data, batching=batching) as loader:
        wanted = [(batch.tags, batch["data"].sum()) for batch in loader]
        largest = max((batch["data"].nbytes for batch in loader), default=0)
    max_bytes, found, kept, peak, refusal = max_kib << 10, [], [], 0, ""
    with DataLoader(data, batching=batching, num_workers=workers, max_bytes=max_bytes) as loader:
        try:
            for batch in loader:
                peak = max(peak, bytes_of_arenas())
                found.append((batch.tags, batch["data"].sum()))
                kept = [*kept, batch][-num_kept:] if num_kept else []
                del batch
        except CacheError as error:
            refusal = str(error)
        if refusal:
            assert "max_bytes" in refusal
            assert (num_kept + 2) * largest + 64 * PAGE_BYTES > max_bytes // workers  # it really was too little
            assert found == wanted[: len(found)]
        else:
            assert found == wanted
        assert peak <= max_bytes + workers * PAGE_BYTES
        assert peak > 0 or not found or largest < PAGE_BYTES
        kept.clear()
