"""One reading of a stream feeds all workers, whoever of them dies, and whatever room there is."""

import gc
import json
import os
import time
from collections import Counter

import numpy as np
import pytest
from deaths import kill_once

from headrace import ConfigError
from headrace.batching import FixedCount, FrameBudget
from headrace.engine import EngineOptions, Skipping, get_worker_info
from headrace.engine.process.executor import ProcessExecutor
from headrace.loading import DataLoader
from headrace.loading.streams import runs

pytestmark = pytest.mark.usefixtures("warm_workers")


class Counted:
    """Notes each item that is read, by whomever, and does something at some of them."""

    def __init__(self, path, num=60, frames=7, **deeds):
        self.path, self.num, self.frames = str(path), num, frames
        self.deeds = {int(place.removeprefix("at_")): deed for place, deed in deeds.items()}

    def __iter__(self):
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for i in range(self.num):
                if i in self.deeds:
                    self.deeds[i]()
                os.write(file, f"{i} {os.getpid()}\n".encode())
                yield {"data": np.full((self.frames * i % 11 + 1, self.frames), i, np.float32)}
        finally:
            os.close(file)


def read_of(path):
    lines = [line.split() for line in path.read_text().splitlines()]
    return Counter(int(number) for number, _ in lines), {int(pid) for _, pid in lines}


def double(seq, rng):
    return {"data": 2 * seq["data"] + rng.random(dtype=np.float32)}


def print_of(batch):
    return batch.position, batch.tags, batch.seq_idx.tolist(), batch["data"].tobytes()


def open_loader(stream, workers=2, **options):
    options = {"batching": FrameBudget(30), "window_seqs": 8, "transform": double, **options}
    return DataLoader(stream, num_workers=workers, **options)


def batches_of(stream, workers=2, **options):
    with open_loader(stream, workers, **options) as loader:
        return [print_of(batch) for batch in loader]


@pytest.mark.sample(3)
@pytest.mark.parametrize("transform", [None, double])
@pytest.mark.parametrize(("workers", "executor"), [(0, "process"), (1, "process"), (3, "process"), (3, "inline")])
def test_each_item_is_read_once_for_any_number_of_workers(tmp_path, workers, executor, transform):
    path = tmp_path / "read"
    options = {"executor": executor, "transform": transform, "seed_globals": False}
    found = batches_of(Counted(path), workers, **options)
    counts, pids = read_of(path)
    assert counts == Counter(range(60))
    assert len(pids) == 1
    assert (os.getpid() in pids) == (workers == 0 or executor != "process")
    assert found == batches_of(Counted(tmp_path / "again"), 0, transform=transform)


def test_what_is_left_early_is_read_once_more_only_as_far_as_it_is_wanted(tmp_path):
    path = tmp_path / "read"
    with open_loader(Counted(path, 4000), window_seqs=40) as loader:
        for epoch in (1, 2):
            loader.set_epoch(epoch)
            next(iter(loader))
        iterator = iter(loader)
        next(iterator)
        iterator.close()
    counts, _ = read_of(path)
    assert counts[0] == 3
    assert counts[3999] == 0


class Bomb:
    """An item's own value, which kills who carries it, once."""

    def __init__(self, path, is_packed):
        self.path, self.is_packed = str(path), is_packed

    def __reduce__(self):
        if self.is_packed:
            kill_once(self.path)()
        return explode, (self.path, self.is_packed)


def explode(path, is_packed):
    if not is_packed:
        kill_once(path)()
    return Bomb(path, is_packed)


class Bombs:
    """Each item holds its number and, one of them, a bomb."""

    def __init__(self, path, place, is_packed, size=3):
        self.path, self.place, self.is_packed, self.size = path, place, is_packed, size

    def __iter__(self):
        for i in range(60):
            bomb = Bomb(self.path, self.is_packed) if i == self.place else None
            yield {"data": np.full(self.size, i, np.float32), "bomb": bomb}


def without_bomb(seq):
    return {"data": seq["data"] + 1}


@pytest.mark.sample(3)
@pytest.mark.parametrize(("place", "size"), [(0, 3), (33, 5000), (59, 3)])
@pytest.mark.parametrize("is_packed", [True, False])
def test_who_dies_while_sequences_are_packed_or_unpacked_loses_none(tmp_path, place, is_packed, size):
    options = {"batching": FixedCount(4), "window_seqs": 8, "transform": without_bomb, "num_workers": 2}
    with DataLoader(Bombs(str(tmp_path / "died"), place, is_packed, size), **options) as loader:
        found = [number for batch in loader for number in batch["data"][:, 0].tolist()]
        assert loader.report.num_restarts == 1
    assert found == [i + 1 for i in range(60)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("places", [(0,), (7, 8), (31, 59)])
def test_a_reader_that_dies_anywhere_changes_no_batch(tmp_path, places):
    deeds = {f"at_{place}": kill_once(tmp_path / f"died-{place}") for place in places}
    with open_loader(Counted(tmp_path / "read", **deeds)) as loader:
        assert [print_of(batch) for batch in loader] == batches_of(Counted(tmp_path / "whole"), 0)
        assert loader.report.num_restarts == len(places)
        assert [print_of(batch) for batch in loader] != []  # and another epoch goes on with the new reader


@pytest.mark.sample(1)
@pytest.mark.parametrize("deed", ["transform", "collate"])
def test_one_who_makes_batches_and_dies_changes_none(tmp_path, deed):
    def die_at_20(value):
        if value == 20:
            kill_once(tmp_path / "died")()

    def transform(seq, rng):
        if deed == "transform":
            die_at_20(seq["data"][0, 0])
        return double(seq, rng)

    def collate(seqs):
        if deed == "collate":
            for seq in seqs:
                die_at_20(round(float(seq["data"][0, 0]) / 2 - 0.25))
        return [seq["data"].tobytes() for seq in seqs]

    def made(workers, transform):
        with open_loader(
            Counted(tmp_path / f"read-{workers}"), workers, transform=transform, collate=collate
        ) as loader:
            return list(loader), loader.report.num_restarts

    kill_once_path = tmp_path / "died"
    found, num_restarts = made(2, transform)
    assert num_restarts == 1
    assert kill_once_path.exists()
    assert found == made(0, double)[0]
    assert read_of(tmp_path / "read-2")[0] == Counter(range(60))  # the reader goes on


@pytest.mark.sample(1)
@pytest.mark.parametrize(("carried_bytes", "max_bytes"), [(1 << 12, None), (1 << 20, 24 << 20)])
def test_without_room_sequences_are_carried_all_the_same(tmp_path, monkeypatch, carried_bytes, max_bytes):
    monkeypatch.setattr(runs, "_CARRIED_BYTES", carried_bytes)
    stream = Counted(tmp_path / "read", num=80, frames=2000)  # up to 88 kB an item
    options = {"batching": FixedCount(3), "max_bytes": max_bytes}
    found = batches_of(stream, 3, **options)
    assert read_of(tmp_path / "read")[0] == Counter(range(80))
    assert found == batches_of(Counted(tmp_path / "whole", num=80, frames=2000), 0, batching=FixedCount(3))


def settled(get):
    """Return a number when it has stayed what it is."""
    last, since = get(), time.monotonic()
    while time.monotonic() - since < 0.5:
        if get() != last:
            last, since = get(), time.monotonic()
        time.sleep(0.02)
    return last


def test_a_reader_waits_for_a_slow_consumer_and_holds_no_more_than_its_share(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_CARRIED_BYTES", 2 << 20)
    path = tmp_path / "read"
    stream = Counted(path, num=400, frames=2000)  # some 48 kB an item
    with open_loader(stream, batching=FixedCount(2), window_seqs=2) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        num_read = settled(lambda: read_of(path)[0].total())
        assert num_read < 200  # 2 MiB hold some 43; the rest waits in the reader, and with those who make batches
        assert len([*iterator]) == 197


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_done", [1, 7])
def test_a_resume_with_any_number_of_processes_goes_on(tmp_path, num_done):
    expected = batches_of(Counted(tmp_path / "whole"), 0)
    with open_loader(Counted(tmp_path / "read"), num_done % 3 + 1) as loader:
        for _ in zip(range(num_done), loader, strict=False):
            pass
        state = json.loads(json.dumps(loader.state_dict()))
    with open_loader(Counted(tmp_path / "read"), 2) as loader:
        loader.load_state_dict(state)
        assert [print_of(batch) for batch in next(loader.epochs())] == expected[num_done:]


def test_sequences_that_fail_in_a_transform_are_skipped_and_those_of_the_stream_never(tmp_path):
    def refuse_20(seq):
        if seq["data"][0, 0] == 20:
            raise ValueError("not this one")
        return seq

    options = {"transform": refuse_20, "engine_options": EngineOptions(on_error=Skipping())}
    with open_loader(Counted(tmp_path / "read"), **options) as loader:
        found = [i for batch in loader for i in batch.seq_idx.tolist()]
        assert loader.report.num_skipped == 1
    assert sorted({*range(60)} - {*found}) == [20]
    assert read_of(tmp_path / "read")[0] == Counter(range(60))


def test_what_cannot_be_carried_is_named_with_what_to_do():
    class Files:
        def __iter__(self):
            return iter([open(os.devnull, "rb") for _ in range(4)])

    def close(file):
        file.close()
        return np.zeros(2)

    with (
        DataLoader(Files(), batch_size=2, num_workers=2, transform=close) as loader,
        pytest.raises(ConfigError, match="cannot be sent") as info,
    ):
        list(loader)
    assert any("give num_workers=1" in note for note in info.value.__notes__)
    with DataLoader(Files(), batch_size=2, num_workers=1, transform=close) as loader:
        assert len(list(loader)) == 2


def test_a_process_executor_of_one_s_own_is_that_of_the_reader_too(tmp_path):
    executor = ProcessExecutor(start_method="spawn", threads_per_worker=1)
    found = batches_of(Counted(tmp_path / "read"), executor=executor)
    assert found == batches_of(Counted(tmp_path / "whole"), 0)
    assert os.getpid() not in read_of(tmp_path / "read")[1]


def test_who_reads_is_one_worker_of_one_and_who_transforms_one_of_all(tmp_path):
    class Whose:
        def __iter__(self):
            info = get_worker_info()
            return ({"data": np.array([info.worker_idx, info.num_workers])} for _ in range(8))

    def whose(seq):
        return {**seq, "made": np.array(get_worker_info().num_workers)}

    with DataLoader(Whose(), batch_size=2, num_workers=3, transform=whose) as loader:
        for batch in loader:
            assert batch["data"].tolist() == [[0, 1], [0, 1]]
            assert batch["made"].tolist() == [3, 3]


def test_a_forked_child_of_the_trainer_that_ends_leaves_the_stream_alone(tmp_path):
    expected = batches_of(Counted(tmp_path / "whole", 400), 0)
    loader = open_loader(Counted(tmp_path / "read", 400))
    iterator = iter(loader)
    found = [print_of(next(iterator))]
    pid = os.fork()
    if pid == 0:
        del iterator, loader
        gc.collect()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    found += [print_of(batch) for batch in iterator]
    assert found == expected
    loader.close()
