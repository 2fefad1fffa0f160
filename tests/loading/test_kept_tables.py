"""Tables of batch counts are made once, shared, and never trusted more than they deserve."""

import logging
import os

import numpy as np
import pytest

from headrace import CacheError, MapDataset, ResumeError
from headrace.batching import BatchTable, Buckets, FixedCount, FrameBudget, PlanCounts
from headrace.batching.base import Batching
from headrace.files import KeepLimit
from headrace.loading import DataLoader
from headrace.loading import plan_cache as kept_tables
from headrace.loading.plan import EpochPlan


class Lengths:
    """Sequences of given lengths."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return {"data": np.zeros((int(self.lengths[i]), 1), np.float32)}


LENGTHS = [7 * i % 20 + 1 for i in range(300)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_tables, "_MIN_KEPT_SEQS", 100)
    monkeypatch.setattr("headrace.files.kept._warned_of", set())
    forget_memory(monkeypatch)
    return tmp_path / "cache" / "plans"


def forget_memory(monkeypatch):
    """Be another process."""
    monkeypatch.setattr(kept_tables, "_in_memory", {})


def open_loader(lengths=LENGTHS, **options):
    dataset = MapDataset(Lengths(lengths), lengths={"data": lengths}, seq_ordering="random")
    return DataLoader(dataset, **{"batching": FrameBudget(40), "window_seqs": 20, **options})


@pytest.fixture
def planned(monkeypatch):
    """Return the numbers of the windows that are planned from now on."""
    numbers, make = [], EpochPlan._make_window

    def noting(plan, number):
        numbers.append(number)
        return make(plan, number)

    monkeypatch.setattr(EpochPlan, "_make_window", noting)
    return numbers


def test_the_second_loader_plans_nothing_to_know_its_length(planned, monkeypatch, cache):
    with open_loader() as loader:
        length, counts = len(loader), loader.count(1)
    assert sorted(planned) == list(range(15))
    assert len(list(cache.iterdir())) == 1
    planned.clear()
    with open_loader() as loader:  # in the same process
        assert len(loader) == length
    forget_memory(monkeypatch)
    with open_loader(rank=1, world_size=2, num_workers=2) as loader:  # another rank, in another process
        assert len(loader) == length // 2
        assert loader.count(1) == counts
    assert planned == []


def test_a_whole_epoch_leaves_a_table_for_the_next_run(planned, monkeypatch):
    with open_loader() as loader:
        num_batches = len(list(loader))
    planned.clear()
    forget_memory(monkeypatch)
    with open_loader() as loader:
        assert len(loader) == num_batches
    assert planned == []


def test_after_a_resume_the_length_is_known_without_a_plan_and_the_batches_are_the_same(planned, monkeypatch):
    with open_loader() as loader:
        assert len(loader)
        batches = [(batch.position, batch.tags) for batch in loader]
        loader.set_epoch(1)
        for batch in loader:
            if batch.position == len(batches) - 5:
                break
        state = loader.state_dict()
    forget_memory(monkeypatch)
    planned.clear()
    with open_loader() as loader:
        loader.load_state_dict(state)
        assert len(loader) == len(batches)
        assert planned == []
        assert [(batch.position, batch.tags) for batch in loader] == batches[-4:]
    assert len(set(planned)) <= 2


def test_a_state_with_a_false_window_is_refused_by_the_table():
    with open_loader() as loader:
        assert len(loader)
        for batch in loader:
            if batch.position == 30:
                break
        state = loader.state_dict()
    state["window"][1] -= 1
    del state["digest"]  # else it is refused before, as it is not as it was saved
    with open_loader() as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        with pytest.raises(ResumeError, match="which is wrong"):
            len(loader)
        iterator.close()


@pytest.mark.parametrize(
    "other",
    [
        {"batching": FrameBudget(41)},
        {"seed": 1, "batching": Buckets(FrameBudget(40), num_buckets=3)},
        {"window_seqs": 21},
        {"lengths": [*LENGTHS[:-1], LENGTHS[-1] + 1]},
    ],
)
def test_another_recipe_or_corpus_has_a_table_of_its_own(other, planned, cache):
    with open_loader() as loader:
        assert len(loader)
    planned.clear()
    with open_loader(**other) as loader:
        assert len(loader)
    assert len(set(planned)) >= 14
    assert len(list(cache.iterdir())) == 2


def test_each_epoch_has_a_table_of_its_own(planned, cache):
    with open_loader() as loader:
        assert loader.num_steps(1)
        planned.clear()
        assert loader.num_steps(2)
    assert len(planned) == 15
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"x", None, "flip", "old"])
def test_a_damaged_table_is_made_again(damage, planned, monkeypatch, cache):
    with open_loader() as loader:
        length = len(loader)
    (path,) = cache.iterdir()
    content = path.read_bytes()
    if damage == "flip":
        damage = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
    elif damage == "old":  # of another format, with a checksum that is right
        body = b"\x81\xa4name\xa1x"
        damage = kept_tables.xxhash.xxh3_128_digest(body) + body
    path.write_bytes(content[:-1] if damage is None else damage)
    forget_memory(monkeypatch)
    planned.clear()
    with open_loader() as loader:
        assert len(loader) == length
    assert len(set(planned)) == 15
    assert path.read_bytes() == content


def test_a_table_under_the_name_of_another_is_not_used(planned, monkeypatch, cache):
    with open_loader() as loader:
        length = len(loader)
    (path,) = cache.iterdir()
    with open_loader(batching=FrameBudget(50)) as loader:
        assert len(loader) != length
    for other in set(cache.iterdir()) - {path}:
        os.replace(other, path)
    forget_memory(monkeypatch)
    with open_loader() as loader:
        assert len(loader) == length


@pytest.mark.parametrize("obstacle", ["read-only", "file"])
def test_a_folder_that_cannot_be_used_is_logged_once_and_the_table_stays_in_memory(
    obstacle, planned, monkeypatch, caplog, tmp_path
):
    if obstacle == "file":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    else:
        monkeypatch.setattr(kept_tables, "atomic_write", _refuse)
    with caplog.at_level(logging.WARNING, "headrace.loading"):
        for epoch in (1, 2):
            with open_loader() as loader:
                loader.set_epoch(epoch)
                length = len(loader)
    assert [record.message for record in caplog.records if "stays in memory" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1
    planned.clear()
    with open_loader() as loader:
        loader.set_epoch(2)
        assert len(loader) == length
    assert planned == []


def _refuse(path, **_options):
    raise PermissionError(13, "Permission denied", str(path))


def test_only_so_many_tables_are_kept(monkeypatch, cache):
    monkeypatch.setattr(kept_tables, "_LIMIT", KeepLimit(max_files=3))
    now = os.stat(cache.parent.parent).st_mtime - 1000
    monkeypatch.setattr(kept_tables, "_MAX_IN_MEMORY", 2)
    for number in range(6):
        kept_tables.keep_table(
            f"{number}", kept_tables.PlanTable(BatchTable(np.array([number])), PlanCounts(seqs=number))
        )
        os.utime(cache / f"{number}.hrplan", (now + number, now + number))
    kept_tables.keep_table("6", kept_tables.PlanTable(BatchTable(np.array([6])), PlanCounts()))
    assert len(list(cache.iterdir())) == 3
    assert len(kept_tables._in_memory) == 2
    found = kept_tables.find_table("5", 1)
    assert found.batches.num_batches == found.counts.seqs == 5
    assert kept_tables.find_table("5", 2) is None
    assert kept_tables.find_table("0", 1) is None


def test_small_corpora_and_counts_that_are_arithmetic_are_not_kept(cache):
    with open_loader(LENGTHS[:99]) as loader:
        assert len(loader)
    with open_loader(batching=FixedCount(4)) as loader:
        assert len(loader) == 75
    assert not cache.exists()


class Own(FrameBudget):
    """A policy of the user's own, whose code may change under its name."""


def test_a_policy_of_the_users_own_is_planned_each_time(cache):
    of_several = Buckets((FrameBudget(40), Own(40)), bounds=(20,))
    for batching in (Own(40), Buckets(Own(40), num_buckets=2), of_several):
        assert isinstance(batching, Batching)
        with open_loader(batching=batching) as loader:
            assert len(loader)
    assert not cache.exists()


def test_a_table_that_does_not_fit_the_plan_is_given_up_and_said(monkeypatch, cache):
    with open_loader() as loader:
        length = len(loader)
        name = loader._runs.plan_of(1)._get_name()
        table = kept_tables.find_table(name, 15)
        batches = table.batches.batches_of_windows
        batches[3] += 1
        kept_tables.keep_table(name, kept_tables.PlanTable(BatchTable(batches), table.counts))
    forget_memory(monkeypatch)
    with open_loader() as loader:
        assert len(loader) == length + 1
        with pytest.raises(CacheError, match="window 3"):
            list(loader)
    assert not list(cache.iterdir())
    with open_loader() as loader:
        assert len(loader) == len(list(loader)) == length


def test_what_has_the_name_of_a_table_and_is_no_file_is_not_waited_for(monkeypatch, cache):
    with open_loader() as loader:
        length = len(loader)
    (path,) = cache.iterdir()
    path.unlink()
    os.mkfifo(path)
    forget_memory(monkeypatch)
    with open_loader() as loader:
        assert len(loader) == length
