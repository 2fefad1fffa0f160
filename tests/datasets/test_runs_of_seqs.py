"""Runs of sequences: an error or a death concerns its own sequence, and slow sequences go in small runs."""

import os
import sys

import numpy as np
import pytest

from headrace.datasets import DistributeFilesDataset, MultiProcDataset, init_dataset
from headrace.datasets.distribute.stream import RangeTickets
from headrace.datasets.wrap.ahead import MIN_RUNS, RunsAhead
from headrace.engine import EngineOptions, Restarting, Skipping
from headrace.engine.group_size import GROUP_SECONDS, GroupSize
from headrace.errors import WorkerDiedError

pytestmark = pytest.mark.usefixtures("warm_workers")

NUM_SEQS, CULPRIT = 600, 350


class Items:
    def __init__(self, fails):
        self.fails = fails

    def __len__(self):
        return NUM_SEQS

    def __getitem__(self, i):
        if i == CULPRIT and self.fails == "raise":
            raise ZeroDivisionError("bad")
        if i == CULPRIT and self.fails == "die":
            os._exit(3)
        return {"data": np.full((4, 1), i, np.float32)}


def wrapped(fails):
    return {"class": "MapDatasetWrapper", "map_dataset": Items(fails)}


def multi_proc(fails, _path, method="seq_order", num_workers=2, **options):
    return MultiProcDataset(wrapped(fails), num_workers, 100, method, **options)


def dedicated(fails, path, **options):
    return multi_proc(fails, path, "dedicated", **options)


def distributed(fails, path, **options):
    file = path / "a.txt"
    file.write_text("x")
    config = wrapped(fails)
    options = {"num_workers": 2, "partition_epoch": 1, **options}
    return DistributeFilesDataset(files=[str(file)], get_sub_epoch_dataset=lambda files: config, **options)


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


@pytest.mark.sample(2)
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("make", [multi_proc, distributed])
def test_all_before_a_sequence_that_fails_are_delivered_and_those_behind_it_can_be(make, num_workers, tmp_path):
    with make("raise", tmp_path, num_workers=num_workers) as dataset:
        got, error = read_until_it_fails(dataset, ZeroDivisionError)
        assert got == list(range(CULPRIT))
        assert f"seq-{CULPRIT}" in "".join(error.__notes__)
        for seq_idx in range(CULPRIT + 1, NUM_SEQS):
            dataset.load_seqs(seq_idx, seq_idx + 1)
            assert dataset.get_data(seq_idx, "data")[0, 0] == seq_idx


def test_dedicated_workers_deliver_all_before_a_sequence_that_fails(tmp_path):
    with multi_proc("raise", tmp_path, "dedicated", 1) as dataset:
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


class SomeFail:
    """Each tenth item fails."""

    def __len__(self):
        return NUM_SEQS

    def __getitem__(self, i):
        if i % 10 == 7:
            raise ZeroDivisionError(f"item {i}")
        return {"data": np.full((i % 3 + 1, 1), i, np.float32)}


@pytest.mark.sample(2)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [multi_proc, distributed, dedicated])
def test_a_used_up_budget_withholds_no_good_sequence_before_the_error(make, num_workers, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "Items", lambda _: SomeFail())
    quarantine = tmp_path / "left_out"
    options = EngineOptions(on_error=Skipping(budget=20, quarantine=quarantine))
    dataset = make(None, tmp_path, num_workers=num_workers, engine_options=options)
    got, error = read_until_it_fails(dataset, ZeroDivisionError)
    bad = [i for i in range(NUM_SEQS) if i % 10 == 7]
    if make is dedicated and num_workers > 1:
        assert len(got) == len(set(got))
        assert not set(got) & set(bad)
        assert len(got) >= 20 * 9
    else:
        assert got == [i for i in range(bad[20]) if i not in bad]
        assert f"item {bad[20]}" in str(error)
    assert "the budget of 20 skips is used up" in "".join(error.__notes__)
    assert dataset.engine_report.num_skipped == 20
    assert len(quarantine.read_text().splitlines()) == 20
    dataset.close()


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


def test_few_runs_are_under_way_while_nothing_is_known_of_the_sequences():
    ahead = RunsAhead(GroupSize(), 1000, lambda: 3)
    assert ahead.max_open() == 3 * MIN_RUNS
    for number in range(3 * MIN_RUNS):
        ahead.send(number, 1)
    assert ahead.max_open() == 3 * MIN_RUNS


def test_few_ranges_are_asked_for_while_the_end_of_a_sub_epoch_is_unknown():
    size = GroupSize(max_items=8)
    while size.is_growing:
        size.note(size.choose(), 1e-6 * size.choose(), 16)
    ahead = RunsAhead(size, 1000, lambda: 2)
    tickets = RangeTickets(None, 0, ahead)
    num_sent = 0
    while num_sent < tickets.max_open():
        next(tickets)
        num_sent += 1
    assert num_sent == 2 * MIN_RUNS
    ahead.take(0)
    assert tickets.max_open() > 100


def test_the_first_range_is_short_and_each_is_at_most_twice_as_long_as_the_one_before():
    size = GroupSize(max_items=64)
    lengths = []
    for _ in range(2):
        tickets = RangeTickets(None, 0, RunsAhead(size, 1000, lambda: 2))
        ranges = [next(tickets) for _ in range(6)]
        lengths.append([ticket.stop - ticket.start for ticket in ranges])
        while size.is_growing:
            size.note(size.choose(), 1e-6 * size.choose(), 16)
    assert lengths == [[1, 2, 2, 2, 2, 2], [4, 8, 16, 32, 64, 64]]


def test_what_is_ahead_is_limited_in_bytes_but_for_some_runs():
    ahead = RunsAhead(GroupSize(max_items=64), 1000, lambda: 1, max_bytes=1 << 20)
    ahead.note(64, 64e-6, 1 << 10)
    assert ahead.max_open() == 1000 // 64
    ahead.note(64, 64e-6, 1 << 19)
    assert ahead.max_open() == MIN_RUNS
