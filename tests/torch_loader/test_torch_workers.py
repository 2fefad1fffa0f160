"""Workers of `headrace.torch.DataLoader`: who they are for torch, what they draw, how they end and are replaced."""

from __future__ import annotations

import os
import pickle
import random
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="headrace.torch is a loader for PyTorch")

import torch_cases as cases  # noqa: E402
from torch.utils import data as torch_data  # noqa: E402

from headrace import ConfigError, EngineOptions, HeadraceError, StalledError  # noqa: E402
from headrace.engine import Skipping  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.extra


class Asking(torch_data.Dataset):
    """Says what torch says of the worker that reads it."""

    name = "the one that was given"

    def __len__(self):
        return 8

    def __getitem__(self, i):
        info = torch_data.get_worker_info()
        time.sleep(0.01)
        return i, info.id, info.num_workers, info.seed, info.dataset is self, torch.get_num_threads()


def test_torchs_worker_info_answers_in_workers_and_nowhere_else():
    torch.manual_seed(2)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    torch.manual_seed(2)
    seen = set()
    for i, who, num, own, is_same, num_threads in DataLoader(Asking(), batch_size=None, num_workers=2):
        seen.add(i)
        assert (num, own, is_same, num_threads) == (2, seed + who, True, 1)
    assert seen == set(range(8))
    assert torch_data.get_worker_info() is None
    here = cases.Items(lambda i: torch_data.get_worker_info() is None, 2)
    assert list(DataLoader(here, batch_size=None)) == [True, True]


class Divided(torch_data.IterableDataset):
    """torch's example: `worker_init_fn` gives each worker a part."""

    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        return iter(range(self.start, self.end))


def divide(worker_id):
    info = torch_data.get_worker_info()
    dataset, size = info.dataset, (info.dataset.end - info.dataset.start) // info.num_workers
    dataset.start += worker_id * size
    dataset.end = dataset.start + size


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_init_fn_gives_each_worker_its_part_of_a_stream(persistent):
    loader = DataLoader(
        Divided(0, 8), batch_size=2, num_workers=2, worker_init_fn=divide, persistent_workers=persistent
    )
    for _ in range(2):
        assert cases.plain(loader) == [[0, 1], [4, 5], [2, 3], [6, 7]]


def test_what_a_worker_init_fn_raises_comes_from_the_first_batch():
    def fail(worker_id):
        raise RuntimeError("no licence")

    with pytest.raises(RuntimeError, match="no licence"):
        next(iter(DataLoader(range(4), num_workers=1, worker_init_fn=fail)))


def drawn(i):
    return torch.rand(2), np.random.rand(), random.random()


def test_what_items_draw_is_the_same_after_the_same_seed_for_any_number_of_workers():
    def run(seed, num_workers, **options):
        torch.manual_seed(seed)
        loader = DataLoader(cases.Items(drawn), batch_size=4, num_workers=num_workers, **options)
        return [[part.tolist() for part in batch] for batch in loader]

    expected = run(1, 0)
    assert len({value for batch in expected for value in batch[1]}) == 11
    assert run(1, 1) == run(1, 2) == run(1, 2, persistent_workers=True) == expected != run(2, 0)
    with_generator = [run(n, n, generator=torch.Generator().manual_seed(8)) for n in range(2)]
    assert with_generator[0] == with_generator[1]


def test_epochs_draw_differently_also_with_workers_that_stay():
    for options in ({}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}):
        loader = DataLoader(cases.Items(drawn, 4), batch_size=4, **options)
        epochs = [next(iter(loader))[1].tolist() for _ in range(3)]
        assert epochs[0] != epochs[1] != epochs[2]


def test_drawing_items_leaves_the_generators_of_this_process_where_torch_leaves_them():
    torch.manual_seed(3)
    list(torch_data.DataLoader(cases.Items(int), shuffle=True))
    expected = torch.rand(1)
    torch.manual_seed(3)
    list(DataLoader(cases.Items(drawn), shuffle=True))
    assert torch.equal(torch.rand(1), expected)


def test_workers_get_the_dataset_as_it_is_when_an_iteration_begins():
    dataset = cases.Items(int, 3)
    loader = DataLoader(dataset, num_workers=1)
    assert cases.plain(loader) == [[0], [1], [2]]
    dataset.function = lambda i: i + 10
    assert cases.plain(loader) == [[10], [11], [12]]


def test_workers_that_are_to_stay_do():
    pids = set
    dataset = cases.Items(lambda i: os.getpid(), 6)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    assert pids(loader) == pids(loader)
    fresh = DataLoader(dataset, batch_size=None, num_workers=1)
    assert pids(fresh).isdisjoint(pids(fresh))
    loader.close()
    assert len(pids(loader)) == 1


def test_several_iterators_of_one_loader_are_independent():
    loader = DataLoader(range(5), num_workers=1)
    assert [(int(a), int(b)) for a, b in zip(loader, loader, strict=True)] == [(i, i) for i in range(5)]
    assert int(next(iter(loader))) == int(next(iter(loader))) == 0


def slow(i):
    time.sleep(0.05)
    return i, os.getpid()


def test_a_killed_worker_is_replaced_and_no_batch_is_lost():
    loader = DataLoader(cases.Items(slow, 24), batch_size=2, num_workers=2)
    seen = []
    for number, (numbers, pids) in enumerate(loader):
        seen += numbers.tolist()
        if number == 2:
            os.kill(int(pids[0]), signal.SIGKILL)
    assert seen == list(range(24))
    assert loader.report is not None


class SlowStream(torch_data.IterableDataset):
    def __iter__(self):
        for i in range(10):
            time.sleep(0.05)
            yield i, os.getpid(), torch.rand(1)


def test_a_killed_worker_of_a_stream_goes_on_where_it_was():
    torch.manual_seed(0)
    expected = [(int(i), float(x)) for i, _, x in DataLoader(SlowStream(), num_workers=1)]
    torch.manual_seed(0)
    seen = []
    for i, pid, x in DataLoader(SlowStream(), num_workers=1):
        seen.append((int(i), float(x)))
        if int(i) == 2:
            os.kill(int(pid), signal.SIGKILL)
    assert seen == expected


def test_errors_of_items_keep_their_type_and_text():
    for num_workers in (0, 1):
        loader = DataLoader(cases.Items(lambda i: 1 // (i - 3), 6), num_workers=num_workers)
        with pytest.raises(ZeroDivisionError, match="integer division"):
            list(loader)


def fails_at_3_and_8(i):
    if i in (3, 8):
        raise KeyError(i)
    return i


@pytest.mark.parametrize("num_workers", [0, 2])
def test_behind_a_batch_that_failed_comes_the_next_one_as_by_torch(num_workers):
    loader = DataLoader(cases.Items(fails_at_3_and_8, 11), batch_size=2, num_workers=num_workers)
    iterator, found = iter(loader), []
    while True:
        try:
            found.append(next(iterator).tolist())
        except KeyError as error:
            found.append(error.args[0])
            state = loader.state_dict()
        except StopIteration:
            break
    assert found == [[0, 1], 3, [4, 5], [6, 7], 8, [10]]
    loader.load_state_dict(state)
    assert cases.plain(loader) == [[10]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_that_are_to_be_left_out_are(num_workers):
    loader = DataLoader(cases.Items(fails_at_3_and_8, 11), batch_size=2, num_workers=num_workers)
    loader.engine_options = EngineOptions(on_error=Skipping())
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [4, 5]]
    state = loader.state_dict()
    assert cases.plain(iterator) == [[6, 7], [10]]
    loader.load_state_dict(state)
    assert cases.plain(loader) == [[6, 7], [10]]


class FailingStream(torch_data.IterableDataset):
    def __iter__(self):
        yield 1
        raise OSError("the disk is gone")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_iteration_that_an_error_has_ended_never_seems_complete(num_workers):
    iterator = iter(DataLoader(FailingStream(), batch_size=None, num_workers=num_workers))
    assert next(iterator) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(iterator)
    with pytest.raises(HeadraceError, match="ended by an error: OSError"):
        next(iterator)


def test_a_timeout_ends_the_wait_for_a_batch():
    iterator = iter(DataLoader(cases.Items(lambda i: time.sleep(600), 2), num_workers=1, timeout=0.5))
    with pytest.raises(StalledError, match=r"^DataLoader timed out after \d+ seconds: worker 0 "):  # torch's words
        next(iterator)


@pytest.mark.long  # the batch has to come within two seconds
def test_a_timeout_is_for_a_batch_and_not_for_the_start_of_the_workers():
    batches = [[0, 1]]
    loader = DataLoader(
        cases.Items(lambda i: i if i < 2 else time.sleep(600), 3),
        batch_sampler=batches,
        num_workers=1,
        timeout=2,
        worker_init_fn=lambda worker_id: time.sleep(2.5),
        persistent_workers=True,
    )
    assert cases.plain(loader) == [[0, 1]]
    batches[0] = [2]
    iterator = iter(loader)  # of the worker that is ready
    with pytest.raises(StalledError, match=r"timed out after 2 seconds"):
        next(iterator)


def test_a_multiprocessing_context_says_how_workers_start():
    loader = DataLoader(cases.Items(int, 4), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    assert cases.plain(loader) == [[0, 1], [2, 3]]
    loader = DataLoader(cases.Items(int, 4), batch_size=2, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(ConfigError, match="omit 'fork'"):
        iter(loader)


def test_options_of_the_engine_may_be_given_and_a_loader_can_be_pickled():
    loader = DataLoader([1, 2, 3], num_workers=1, prefetch_factor=4)
    loader.engine_options = EngineOptions(tickets_per_worker=1)
    next(iter(loader))
    again = pickle.loads(pickle.dumps(loader))
    assert again.engine_options == loader.engine_options
    assert cases.plain(again) == [[1], [2], [3]]


CHILDREN = """
import os
from headrace.torch import DataLoader

def children():
    tasks = f"/proc/self/task/{os.getpid()}/children"
    return len(open(tasks).read().split())

class Parents:
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return os.getppid()

loader = DataLoader(range(100), num_workers=2)
kept = [next(iter(loader)), next(iter(loader))]
iterator = iter(loader)
next(iterator)
assert children()
del iterator
stays = DataLoader(range(4), num_workers=1, persistent_workers=True)
next(iter(stays))
del loader, stays
parents = set()
for epoch in range(3):
    with DataLoader(Parents(), num_workers=1) as loader:
        parents |= {int(batch) for batch in loader}
os.environ["ANOTHER"] = "one"
parents |= {int(batch) for batch in DataLoader(Parents(), num_workers=1)}
del loader
print(children(), len(parents), [int(batch) for batch in kept])
"""


def test_one_process_that_has_imported_torch_is_left_when_loaders_and_iterators_are_dropped():
    done = subprocess.run([sys.executable, "-c", CHILDREN], capture_output=True, text=True, timeout=250, check=False)
    assert (done.stdout, done.stderr) == ("1 2 [0, 0]\n", "")


# --- a script, run as a file ---

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import Dataset
from IMPORTED import DataLoader

class Digits(Dataset):
    def __init__(self, size, transform):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 10, (size,), generator=generator)
        self.images = torch.rand(size, 28, 28, generator=generator) + self.labels[:, None, None]
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.transform(self.images[i].numpy()), int(self.labels[i])

torch.manual_seed(1)
to_tensor = lambda image: (torch.from_numpy(image.copy()) - 5) / 3
digits = Digits(320, to_tensor)
test = DataLoader(Digits(100, to_tensor), batch_size=50)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(2):
    train = DataLoader(digits, 64, epoch == 1, num_workers=WORKERS, drop_last=False, pin_memory=False)
    for step, (data, target) in enumerate(train):
        assert type(data) is torch.Tensor and target.dtype is torch.int64
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        print(epoch, step, len(train), len(train.dataset), loss.item())
    with torch.no_grad():
        print(sum((model(data).argmax(1) == target).sum().item() for data, target in test))
"""


def test_an_ordinary_script_prints_the_same_with_the_import_swapped(tmp_path):
    printed = []
    for module, num_workers in (("torch.utils.data", 0), ("headrace.torch", 2)):
        path = tmp_path / "train.py"
        path.write_text(SCRIPT.replace("IMPORTED", module).replace("WORKERS", str(num_workers)))
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        printed.append(done.stdout)
    assert len(printed[1].splitlines()) == 12
    assert printed[1] == printed[0]


def test_closing_a_loader_ends_the_workers_of_iterators_that_live():
    with DataLoader(Asking(), batch_size=1, num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
    with pytest.raises(HeadraceError, match="closed"):
        next(iterator)
    assert len(list(loader)) == 8  # others start
    loader.close()


def test_the_class_takes_a_type_as_torchs_and_its_iterator_ends_workers_by_torchs_name():
    assert DataLoader[int].__origin__ is DataLoader
    loader = DataLoader(cases.Items(lambda i: os.getpid(), 8), batch_size=None, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    pidfd = os.pidfd_open(next(batches))
    loader._iterator._shutdown_workers()
    assert select.select([pidfd], [], [], 120)[0]
    os.close(pidfd)
    with pytest.raises(HeadraceError, match="closed"):
        next(batches)
    loader.close()
