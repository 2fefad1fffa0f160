"""Workers of a stream: one reads it for all others; what dies, breaks or is skipped changes nothing else."""

import os

import numpy as np
import pytest
from deaths import kill_once
from sub_epoch_files import open_files

from headrace import HeadraceError, MultiProcDataset, WorkerDiedError
from headrace.batching import Buckets, FixedCount, FrameBudget
from headrace.engine import EngineOptions, Raising, Skipping, get_worker_info
from headrace.loading import DataLoader

pytestmark = pytest.mark.usefixtures("warm_workers")


class Stream:
    """Sixty sequences, some of which do something."""

    def __init__(self, num=60, **deeds):
        self.num, self.deeds = num, {int(place.removeprefix("at_")): deed for place, deed in deeds.items()}

    def __iter__(self):
        for i in range(self.num):
            if i in self.deeds:
                self.deeds[i]()
            yield {"data": np.full((7 * i % 11 + 1, 2), i, np.float32)}


def print_of(batch):
    return batch.position, batch.tags, batch.seq_idx.tolist(), batch["data"].tobytes()


def open_loader(stream=None, workers=2, **options):
    options = {"batching": FrameBudget(30), "window_seqs": 8, "num_workers": workers, **options}
    return DataLoader(Stream() if stream is None else stream, **options)


def batches_of(**options):
    with open_loader(workers=0, **options) as loader:
        return [print_of(batch) for batch in loader]


def who_made(seq):
    return {**seq, "worker": np.int64(get_worker_info().worker_idx), "pid": np.int64(os.getpid())}


def test_batches_are_made_by_workers_and_not_by_the_trainer():
    with open_loader(workers=3, transform=who_made) as loader:
        found = [(batch["worker"].tolist(), batch["pid"].tolist()) for batch in loader]
    assert all(len(set(pids)) == 1 for _, pids in found)
    assert {worker for workers, _ in found for worker in workers} <= {0, 1, 2}
    assert len({pid for _, pids in found for pid in pids} - {os.getpid()}) > 1


def test_the_batches_are_views_of_shared_memory_and_stay_as_they_are():
    expected = batches_of()
    with open_loader() as loader:
        batches = list(loader)
        assert [print_of(batch) for batch in batches] == expected
    assert [print_of(batch) for batch in batches] == expected


def test_a_killed_worker_begins_anew_and_changes_no_batch(tmp_path):
    with open_loader(Stream(at_31=kill_once(tmp_path / "died"))) as loader:
        assert [print_of(batch) for batch in loader] == batches_of()
        assert loader.report.num_restarts == 1


def test_a_worker_that_may_not_be_replaced_is_named(tmp_path):
    options = EngineOptions(on_death=Raising())
    with (
        open_loader(Stream(at_31=kill_once(tmp_path / "died")), engine_options=options) as loader,
        pytest.raises(WorkerDiedError, match="SIGKILL"),
    ):
        list(loader)


class Truncated(ValueError):
    """A file of the stream is truncated."""


def tear():
    raise Truncated("no more of it")


@pytest.mark.sample(3)
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("policy", [Raising(), Skipping(budget=5)])
def test_a_stream_that_breaks_gives_all_batches_before_and_then_its_error_whatever_may_be_skipped(workers, policy):
    expected = batches_of()
    found = []
    with open_loader(
        Stream(at_42=tear), workers, executor="thread", engine_options=EngineOptions(on_error=policy)
    ) as loader:
        with pytest.raises(Truncated, match="no more of it") as info:
            found.extend(print_of(batch) for batch in loader)
        state = loader.state_dict()
    assert any("sequence 42" in note for note in info.value.__notes__)
    assert found == expected[: len(found)]
    assert state["position"] == len(found) > 5
    with open_loader() as loader:  # the file is mended
        loader.load_state_dict(state)
        assert [print_of(batch) for batch in loader] == expected[len(found) :]


def test_an_error_of_a_stream_crosses_from_a_process_with_its_type():
    with open_loader(Stream(at_42=tear)) as loader, pytest.raises(Truncated, match="no more of it"):
        list(loader)


def refuse_batch_of_20(seqs):
    if any(seq["data"][0, 0] == 20 for seq in seqs):
        raise ValueError("not this one")
    return [seq["data"][0, 0] for seq in seqs]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_batch_that_cannot_be_made_is_skipped_alone(workers):
    options = {"collate": refuse_batch_of_20, "executor": "thread"}
    with (
        open_loader(workers=workers, **options) as loader,
        pytest.raises(ValueError, match="not this one"),
    ):
        list(loader)
    with open_loader(workers=workers, engine_options=EngineOptions(on_error=Skipping()), **options) as loader:
        found = [i for batch in loader for i in batch]
        assert loader.report.num_skipped == 1
    missing = set(range(60)) - set(found)
    assert 20 in missing
    assert len(missing) < 10
    errors = []
    for rank in (0, 1):
        ranks = {"rank": rank, "world_size": 2}
        with open_loader(
            workers=workers, engine_options=EngineOptions(on_error=Skipping()), **ranks, **options
        ) as loader:
            try:
                list(loader)
            except HeadraceError as error:
                errors.append(str(error))
    assert len(errors) == 1
    assert "one step less" in errors[0]


def test_a_last_batch_that_is_skipped_is_noticed_where_ranks_have_equal_steps():
    def refuse_last(seqs):
        if any(seq["data"][0, 0] == 59 for seq in seqs):
            raise ValueError("not this one")
        return len(seqs)

    options = {"collate": refuse_last, "engine_options": EngineOptions(on_error=Skipping()), "executor": "thread"}
    options["batching"] = FixedCount(5)
    with open_loader(**options) as loader:
        assert list(loader) == [5] * 11
    with (
        open_loader(rank=1, world_size=2, **options) as loader,
        pytest.raises(HeadraceError, match="one step less"),
    ):
        list(loader)


def test_leaving_early_ends_the_reading_and_the_next_epoch_begins_anew():
    with open_loader(batching=FixedCount(2)) as loader:
        for _ in range(3):
            for batch in loader:
                assert batch.position == 0
                break
        assert len(list(loader)) == 30


@pytest.mark.parametrize("workers", [0, 2])
def test_padding_begins_the_stream_again(workers):
    with open_loader(workers=workers, executor="thread", rank=4, world_size=5, remainder="pad") as loader:
        found = [(print_of(batch), batch.is_repeat) for batch in loader]
    expected = batches_of()
    num = len(expected)
    assert num % 5 == 3, "choose other lengths"
    assert found == [(expected[n % num], n >= num) for n in range(4, num + 2, 5)]


class Forgetful(Stream):
    """It gives fewer sequences the second time."""

    def __init__(self):
        super().__init__()
        self.num_passes = 0

    def __iter__(self):
        self.num_passes += 1
        return super().__iter__() if self.num_passes == 1 else iter(())


def test_a_stream_that_cannot_be_repeated_says_so_when_it_has_to_be_padded():
    with (
        open_loader(Forgetful(), workers=0, rank=4, world_size=5, remainder="pad") as loader,
        pytest.raises(HeadraceError, match="fewer than 2 batches when it is read again"),
    ):
        list(loader)


def test_steps_per_epoch_is_filled_up_by_repeats_and_an_empty_stream_cannot_be():
    options = {"remainder": "pad", "steps_per_epoch": 9, "executor": "thread", "batching": FixedCount(2)}
    with open_loader(Stream(5), **options) as loader:
        assert len(loader) == 9
        assert [(batch.position, batch.is_repeat) for batch in loader] == [(step % 3, step >= 3) for step in range(9)]
    with open_loader(Stream(0), **options) as loader, pytest.raises(HeadraceError, match="ended after 0"):
        list(loader)


def test_a_state_beyond_the_end_of_a_stream_is_refused():
    with open_loader(workers=0) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with open_loader(Stream(30)) as loader:  # of an iterable nothing else is known than its class
        loader.load_state_dict({**state, "position": 50, "digest": None})  # None: of an older version
        with pytest.raises(HeadraceError, match="the state is at batch 50"):
            list(loader)


def test_the_progress_of_workers_is_explained():
    with open_loader() as loader:
        list(loader)
        assert "8 of 8 windows planned: 60 sequences" in loader.explain()


def test_a_budget_that_nothing_fits_into_is_warned_of(caplog):
    with open_loader(batching=FrameBudget(1, too_long="drop"), stream=Stream(8), workers=0) as loader:
        assert len(list(loader)) == 1  # one has one frame
    assert "are over" not in caplog.text
    with open_loader(batching=FrameBudget(1), stream=Longer(), workers=0) as loader:
        assert len(list(loader)) == 3
    assert "all of the first 3 sequences of the stream are over FrameBudget(max_frames=1)" in caplog.text


class Longer:
    """Three sequences of more than one frame."""

    def __iter__(self):
        return iter([{"data": np.zeros((n, 1), np.float32)} for n in (2, 3, 4)])


# --- datasets of files ---


BUCKETS = {"batching": Buckets(FrameBudget(20), num_buckets=3), "window_seqs": 8}


@pytest.mark.parametrize(("workers", "executor"), [(1, "process"), (2, "thread"), (3, "process")])
def test_workers_of_the_loader_read_files_as_the_trainer_does(files, workers, executor):
    with open_files(files) as dataset, DataLoader(dataset, **BUCKETS) as loader:
        expected = [[print_of(batch) for batch in epoch] for epoch in loader.epochs(1, 3)]
    with open_files(files) as dataset:
        with DataLoader(dataset, num_workers=workers, executor=executor, **BUCKETS) as loader:
            assert [[print_of(batch) for batch in epoch] for epoch in loader.epochs(1, 3)] == expected
        dataset.init_seq_order(epoch=1)  # the user's own was not touched
        assert dataset.is_less_than_num_seqs(0)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
@pytest.mark.parametrize("workers", [0, 2])
def test_in_mid_sub_epoch_another_number_of_ranks_goes_on_with_files(files, before, after, workers):
    with open_files(files) as dataset, DataLoader(dataset, **BUCKETS) as loader:
        loader.set_epoch(2)
        expected = [print_of(batch) for batch in loader]
    assert len(expected) > 8
    found, states = [], []
    for rank in range(before):
        ranks = {"rank": rank, "world_size": before}
        with open_files(files) as dataset, DataLoader(dataset, **BUCKETS, **ranks) as loader:
            loader.set_epoch(2)
            found += [print_of(batch) for _, batch in zip(range(2), loader, strict=False)]
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    for rank in range(after):
        ranks = {"rank": rank, "world_size": after, "remainder": "keep", "num_workers": workers, "executor": "thread"}
        with open_files(files) as dataset, DataLoader(dataset, **BUCKETS, **ranks) as loader:
            loader.load_state_dict(states[0])
            found += [print_of(batch) for batch in next(loader.epochs())]
    assert sorted(found) == expected


def note_pid(seq):
    return {**seq, "pid": np.int64(os.getpid())}


def double(seq, rng):
    return {"data": 2 * seq["data"] + rng.random()}


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["files", "dedicated"])
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_what_workers_of_the_dataset_have_read_is_made_into_batches_by_those_of_the_loader(files, kind, executor):
    def open_dataset():
        if kind == "files":
            return open_files(files, use_worker_proc=True, executor=executor)
        return MultiProcDataset(
            {"class": "HDFDataset", "files": files, "seq_ordering": "random"}, 2, 8, "dedicated", executor=executor
        )

    options = {**BUCKETS, "transform": double}
    with open_dataset() as dataset, DataLoader(dataset, **options) as loader:
        expected = [[print_of(batch) for batch in epoch] for epoch in loader.epochs(1, 2)]
        report = loader.explain().splitlines()[-2]
    with open_dataset() as dataset, DataLoader(dataset, num_workers=2, executor=executor, **options) as loader:
        found = []
        for epoch in loader.epochs(1, 2):
            found.append([])
            for batch in epoch:
                found[-1].append(print_of(batch))
                assert set(batch.corpus_idx.tolist()) == {-1}
                if (epoch.epoch, batch.step) == (2, 3):
                    state = loader.state_dict()
        assert found == expected
        assert report in loader.explain()
    with open_dataset() as dataset, DataLoader(dataset, num_workers=1, executor=executor, **options) as loader:
        loader.load_state_dict(state)
        assert [print_of(batch) for batch in next(loader.epochs())] == expected[1][4:]
    ranks = {"rank": 1, "world_size": 2, "remainder": "pad"}
    with (
        open_dataset() as dataset,
        DataLoader(dataset, num_workers=2, executor=executor, transform=note_pid, **BUCKETS, **ranks) as loader,
    ):
        batches = list(loader)
    assert len(batches) == -(-len(expected[0]) // 2)
    assert executor == "thread" or os.getpid() not in {pid for batch in batches for pid in batch["pid"].tolist()}


def test_an_error_of_the_dataset_s_workers_comes_behind_the_batches_before_it(files):
    with open(files[5], "r+b") as file:
        file.truncate(100)
    with (
        open_files(files, use_worker_proc=True, executor="thread") as dataset,
        DataLoader(dataset, num_workers=2, executor="thread", batching=FixedCount(1), window_seqs=4) as loader,
    ):
        loader.set_epoch(2)
        with pytest.raises(HeadraceError, match=r"5\.hdf"):
            list(loader)
