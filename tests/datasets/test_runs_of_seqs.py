"""Runs of sequences: how an order is cut into them, how many are under way, and that an error or a death concerns its
own sequence.
"""

import json
import os
import threading
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.datasets import DistributeFilesDataset, MultiProcDataset, StaticDataset, init_dataset
from headrace.datasets.distribute.stream import ranges
from headrace.datasets.wrap.ahead import MIN_RUNS, RunsAhead
from headrace.datasets.wrap.runs import MAX_RUN_BYTES, RunLimits, sizes_of
from headrace.engine import EngineOptions, Restarting, Skipping
from headrace.engine.group_size import GROUP_SECONDS, GroupSize
from headrace.errors import WorkerDiedError
from headrace.order import ArrayOrder

pytestmark = pytest.mark.usefixtures("warm_workers")

NUM_SEQS, CULPRIT = 600, 350


def dataset_of(lengths, **options):
    data = [{"data": np.zeros((n, 3), np.float32), "classes": np.zeros(n, np.int16)} for n in lengths]
    return StaticDataset(data, **options)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    num_seqs=st.integers(1, 9),
    max_bytes=st.integers(1, 400),
    group=st.integers(1, 4),
    num_workers=st.integers(1, 3),
    first=st.integers(0, 3),
)
def test_runs_follow_one_another_and_keep_their_limits(lengths, num_seqs, max_bytes, group, num_workers, first):
    limits = RunLimits(num_seqs * group, max_bytes, group, sizes_of(dataset_of(lengths).get_corpus()))
    order = ArrayOrder(np.random.default_rng(0).permutation(len(lengths)))
    first = min(first * group, len(lengths) // group * group)
    place = first
    for num_runs, (start, indices) in enumerate(limits.cut(order, first, num_workers)):
        assert start == place
        assert len(indices)
        assert indices.tolist() == list(order)[start : start + len(indices)]
        place += len(indices)
        assert len(indices) % group == 0 or place == len(lengths)
        assert len(indices) <= min(limits.num_seqs, group * 2 ** (num_runs // num_workers))
        assert sum(lengths[i] * 14 for i in indices) <= max_bytes or len(indices) <= group
    assert place == len(lengths)


@pytest.mark.parametrize(
    ("num_frames", "buffer_size", "max_bytes", "num_seqs", "num_in_shards"),
    [
        (10, 1, None, 1, 1),
        (10, 16, None, 8, 8),
        (10, 10**6, None, 1024, 1024),
        (30_000, 10**6, None, 1024, 2),
        (10**6, 100, None, 50, 1),
        (100, 100, 112_000, 50, 10),
        (100, 100, 1, 50, 1),
    ],
)
def test_a_run_is_half_of_the_buffer_but_not_too_large(num_frames, buffer_size, max_bytes, num_seqs, num_in_shards):
    dataset = dataset_of([num_frames] * 3)
    limits = RunLimits.of(dataset.get_corpus(), buffer_size, max_bytes)
    assert (limits.num_seqs, limits.group) == (num_seqs, 1)
    assert (limits.sizes is None) == (num_seqs * num_frames * 14 <= limits.max_bytes)
    assert limits.max_bytes == min(MAX_RUN_BYTES, max((max_bytes or 10**9) // 8, 1))
    assert RunLimits.of(dataset.get_corpus(), buffer_size, max_bytes, are_shards=True).num_seqs == num_in_shards
    together = RunLimits.of(
        dataset_of([num_frames] * 9, shuffle_frames_of_nseqs=4).get_corpus(), buffer_size, max_bytes
    )
    assert (together.num_seqs, together.group) == (-(-num_seqs // 4) * 4, 4)


class Items:
    """One of them fails; each tenth of those that `fails` == "some" describes; each notes that it was begun."""

    begun: list[threading.Event] = []  # noqa: RUF012 (new in each test)

    def __init__(self, fails):
        self.fails = fails

    def __len__(self):
        return NUM_SEQS

    def __getitem__(self, i):
        if i < len(Items.begun):
            Items.begun[i].set()
        if (i == CULPRIT and self.fails == "raise") or (i % 10 == 7 and self.fails == "some"):
            raise ZeroDivisionError(f"item {i}")
        if i == CULPRIT and self.fails == "die":
            os._exit(3)
        return {"data": np.full((i % 3 + 1, 1), i, np.float32)}


def wrapped(fails):
    return {"class": "MapDatasetWrapper", "map_dataset": Items(fails)}


def multi_proc(fails, _path, sharding_method="seq_order", **options):
    options = {"num_workers": 2, "buffer_size": 100, "sharding_method": sharding_method, **options}
    return MultiProcDataset(wrapped(fails), **options)


def dedicated(fails, path, **options):
    return multi_proc(fails, path, "dedicated", **options)


def distributed(fails, path, **options):
    (path / "a.txt").write_text("x")
    options = {"num_workers": 2, "partition_epoch": 1, **options}
    return DistributeFilesDataset(
        files=[str(path / "a.txt")], get_sub_epoch_dataset=lambda _: wrapped(fails), **options
    )


def read_until_it_fails(dataset, kind):
    """Return the numbers that came, and the error."""
    dataset.initialize()
    dataset.init_seq_order(epoch=1)
    got = []

    def read_on():
        while dataset.is_less_than_num_seqs(len(got)):
            dataset.load_seqs(len(got), len(got) + 1)
            got.append(int(dataset.get_data(len(got), "data")[0, 0]))

    with pytest.raises(kind) as caught:
        read_on()
    return got, caught.value


@pytest.mark.sample(3)
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("make", [multi_proc, distributed])
def test_all_before_a_sequence_that_fails_are_delivered_and_those_behind_it_can_be(make, num_workers, tmp_path):
    with make("raise", tmp_path, num_workers=num_workers) as dataset:
        got, error = read_until_it_fails(dataset, ZeroDivisionError)
        assert got == list(range(CULPRIT))
        assert f"seq-{CULPRIT}" in "".join(error.__notes__)
        with pytest.raises(ZeroDivisionError):  # whoever goes on meets it again
            dataset.load_seqs(CULPRIT, CULPRIT + 1)
        for seq_idx in range(CULPRIT + 1, NUM_SEQS):
            dataset.load_seqs(seq_idx, seq_idx + 1)
            assert dataset.get_data(seq_idx, "data")[0, 0] == seq_idx


def test_dedicated_workers_deliver_all_before_a_sequence_that_fails(tmp_path):
    with dedicated("raise", tmp_path, num_workers=1) as dataset:
        assert read_until_it_fails(dataset, ZeroDivisionError)[0] == list(range(CULPRIT))


@pytest.mark.sample(2)
@pytest.mark.parametrize("make", [multi_proc, distributed])
@pytest.mark.parametrize("budget", [0, 1])
def test_all_before_a_sequence_that_kills_its_workers_are_delivered_and_it_is_named(make, budget, tmp_path):
    options = EngineOptions(on_death=Restarting(budget))
    with make("die", tmp_path, engine_options=options) as dataset:
        got, error = read_until_it_fails(dataset, WorkerDiedError)
        assert got == list(range(CULPRIT))
        assert f"seq-{CULPRIT}'" in str(error)


def test_a_part_of_another_dataset_fails_at_the_sequence_that_failed(tmp_path):
    part = {"class": "MultiProcDataset", "num_workers": 2, "buffer_size": 100, "dataset": wrapped("raise")}
    config = {
        "class": "MetaDataset",
        "datasets": {"a": part},
        "data_map": {"data": ("a", "data")},
        "seq_order_control_dataset": "a",
    }
    with init_dataset(config) as dataset:
        seqs = dataset.epoch(1)
        assert [int(next(seqs)["data"][0, 0]) for _ in range(CULPRIT)] == list(range(CULPRIT))
        with pytest.raises(ZeroDivisionError):
            next(seqs)
        dataset.init_seq_order(epoch=1)
        dataset.load_seqs(CULPRIT - 1, CULPRIT)
        dataset.load_seqs(CULPRIT + 1, CULPRIT + 2)
        assert dataset.get_data(CULPRIT + 1, "data")[0, 0] == CULPRIT + 1


@pytest.mark.sample(3)
@pytest.mark.parametrize(("executor", "num_workers"), [("process", 2), ("thread", 3), ("process", 0)])
@pytest.mark.parametrize("make", [multi_proc, distributed, dedicated])
def test_failed_sequences_are_skipped_and_written_down_and_a_used_up_budget_withholds_no_good_one(
    make, executor, num_workers, tmp_path
):
    quarantine = tmp_path / "left_out"
    options = {"engine_options": EngineOptions(on_error=Skipping(budget=20, quarantine=quarantine))}
    bad = list(range(7, NUM_SEQS, 10))
    with make("some", tmp_path, executor=executor, num_workers=num_workers, **options) as dataset:
        got, error = read_until_it_fails(dataset, ZeroDivisionError)
        written = [json.loads(line) for line in quarantine.read_text().splitlines()]
        assert {(line["epoch"], line["tag"]) for line in written} <= {(1, f"seq-{i}") for i in bad}
        assert len({line["tag"] for line in written}) == len(written) == dataset.engine_report.num_skipped == 20
        if make is dedicated and num_workers > 1:
            assert len(got) == len(set(got))
            assert not set(got) & set(bad)
            assert len(got) >= 20 * 9
        else:
            assert got == [i for i in range(bad[20]) if i not in bad]
            assert f"item {bad[20]}" in str(error)
        assert "the budget of 20 skips is used up" in "".join(error.__notes__)


PATIENCE_SECONDS = 30  # for a thread of this process to get its turn


@pytest.mark.parametrize("buffer_size", [1, 2])
@pytest.mark.parametrize("make", [multi_proc, dedicated, distributed])
def test_the_next_sequence_is_begun_while_the_reader_has_one(make, buffer_size, tmp_path):
    Items.begun = [threading.Event() for _ in range(6)]
    with make(None, tmp_path, num_workers=1, buffer_size=buffer_size, executor="thread") as dataset:
        dataset.initialize()
        dataset.init_seq_order(epoch=1)
        for seq_idx in range(5):
            dataset.load_seqs(seq_idx, seq_idx + 1)
            assert Items.begun[seq_idx + 1].wait(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("seconds", "seq_bytes", "num_seqs"),
    [(5 * GROUP_SECONDS, 16, 1), (GROUP_SECONDS / 5, 16, 5), (1e-6, 16, 50), (1e-6, 1 << 18, 4)],
)
def test_a_run_is_what_is_read_within_some_milliseconds_and_bytes(seconds, seq_bytes, num_seqs):
    ahead = RunsAhead(GroupSize(max_bytes=1 << 20, max_items=50), 100, lambda: 2)
    number = 0
    for ticket in range(20):
        length = ahead.choose()
        ahead.send(number, length)
        number += length
        assert ahead.take(ticket) == (number - length, length)
        ahead.note(length, length * seconds, seq_bytes)
    assert ahead.choose() == num_seqs
    assert ahead.max_open() == 2 * 100 // num_seqs


def test_few_runs_are_under_way_while_nothing_is_known_and_what_is_ahead_is_limited_in_bytes():
    ahead = RunsAhead(GroupSize(max_items=64), 1000, lambda: 3, max_bytes=1 << 20, end=10_000)
    for number in range(3 * MIN_RUNS):
        assert ahead.max_open() == 3 * MIN_RUNS
        ahead.send(number, 1)
    for seq_bytes, max_open in ((1 << 8, 3 * 1000 // 64), (1 << 19, 3 * MIN_RUNS)):
        ahead = RunsAhead(GroupSize(max_items=64), 1000, lambda: 3, max_bytes=1 << 20, end=10_000)
        ahead.note(64, 64e-6, seq_bytes)
        assert ahead.max_open() == max_open


def test_few_ranges_are_asked_for_while_the_end_of_a_sub_epoch_is_unknown():
    size = GroupSize(max_items=8)
    while size.is_growing:
        size.note(size.choose(), 1e-6 * size.choose(), 16)
    ahead = RunsAhead(size, 1000, lambda: 2)
    tickets = ahead.sent(ranges(None, 0, ahead))
    num_sent = 0
    while num_sent < ahead.max_open():
        next(tickets)
        num_sent += 1
    assert num_sent == 2 * MIN_RUNS
    ahead.take(0)
    assert ahead.max_open() > 100


def test_the_first_range_is_short_and_each_is_at_most_twice_as_long_as_the_one_before():
    size = GroupSize(max_items=64)
    lengths = []
    for _ in range(2):
        tickets = ranges(None, 0, RunsAhead(size, 1000, lambda: 2))
        lengths.append([num_seqs for _, num_seqs, _ in islice(tickets, 6)])
        while size.is_growing:
            size.note(size.choose(), 1e-6 * size.choose(), 16)
    assert lengths == [[1, 2, 2, 2, 2, 2], [4, 8, 16, 32, 64, 64]]
