"""`LhotseDataLoader` over plain datasets and samplers: order, passes, errors, randomness. Neither lhotse nor torch."""

import concurrent.futures
import gc
import itertools
import os
import random
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from examples_of_laws import examples
from headrace import LhotseDataLoader
from headrace.adapters.lhotse.ahead import Ahead
from headrace.adapters.lhotse.draws import Drawing
from headrace.adapters.lhotse.sampler import SamplerSide
from headrace.engine import EngineOptions, Restarting, Skipping, get_worker_info
from headrace.errors import ConfigError, HeadraceError, StalledError, TransformError, WorkerDiedError
from servers.leaks import nothing_left

WORKERS = [0, 1, 3]


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with nothing_left():
        yield


class Numbers:
    """Gives what it is asked for."""

    def __getitem__(self, batch):
        return {"ids": np.atleast_1d(np.array(batch)), "worker": os.getpid()}


class Noisy:
    """Draws from the global generators."""

    def __getitem__(self, batch):
        return batch, random.random(), float(np.random.rand())


class Picky:
    """Fails on some batches."""

    def __init__(self, bad):
        self.bad = bad

    def __getitem__(self, batch):
        if batch in self.bad:
            raise KeyError(f"bad {batch}")
        return batch


class Identity:
    def __getitem__(self, batch):
        return batch


class Counting:
    """A sampler with epochs, whose batches depend on the epoch."""

    def __init__(self, num=12):
        self.num, self.epoch = num, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        yield from np.random.RandomState(self.epoch).permutation(self.num).tolist()


def take(loader, found):
    """Append the batches up to the next error, and return that; None at the end of the pass."""
    try:
        while True:
            found.append(next(loader))
    except StopIteration:
        return None
    except (HeadraceError, LookupError, OSError) as error:
        return error


def ids(batches):
    return [batch["ids"].tolist() for batch in batches]


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_come_in_the_order_of_the_sampler(workers):
    sampler = [[3, 1], [2], [5, 9, 4], [0]] * 5
    with LhotseDataLoader(Numbers(), sampler, num_workers=workers) as loader:
        assert ids(loader) == sampler
        assert ids(loader) == sampler


def test_the_documented_arguments_and_attributes():
    dataset, sampler = Numbers(), [1, 2]
    with LhotseDataLoader(dataset, sampler, 2, 3) as loader:
        assert (loader.dataset, loader.sampler) == (dataset, sampler)
        assert (loader.num_workers, loader.prefetch_factor) == (2, 3)
    with LhotseDataLoader(dataset, sampler) as loader:
        assert (loader.num_workers, loader.prefetch_factor) == (1, 2)


@pytest.mark.parametrize("workers", WORKERS)
def test_the_loader_is_its_own_iterator(workers):
    with LhotseDataLoader(Identity(), range(4), num_workers=workers) as loader:
        assert iter(loader) is loader
        assert next(loader) == 0
        assert list(loader) == [0, 1, 2, 3], "iter begins anew"
        with pytest.raises(StopIteration):
            next(loader)
        with pytest.raises(StopIteration):
            next(loader)
        assert [next(iter(loader)), next(loader)] == [0, 1]


def test_next_without_iter_begins_a_pass():
    with LhotseDataLoader(Identity(), range(3), num_workers=0) as loader:
        assert [next(loader), next(loader), next(loader)] == [0, 1, 2]
        with pytest.raises(StopIteration):
            next(loader)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_pass_after_a_break_has_nothing_of_the_one_before(workers):
    with LhotseDataLoader(Identity(), range(30), num_workers=workers) as loader:
        for stop in (2, 0, 7, 29):
            assert list(itertools.islice(loader, stop)) == list(range(stop))
        assert list(loader) == list(range(30))


@pytest.mark.parametrize("workers", WORKERS)
def test_an_empty_sampler_gives_an_empty_pass(workers):
    with LhotseDataLoader(Identity(), [], num_workers=workers) as loader:
        assert list(loader) == []
        assert list(loader) == []


@pytest.mark.parametrize("workers", WORKERS)
def test_set_epoch_is_told_to_the_sampler(workers):
    sampler = Counting()
    with LhotseDataLoader(Identity(), sampler, num_workers=workers) as loader:
        for epoch in (0, 3, 0):
            loader.set_epoch(epoch)
            assert loader.epoch == epoch
            assert list(loader) == np.random.RandomState(epoch).permutation(12).tolist()
        sampler.set_epoch(5)  # as users of torch's DataLoader do
        assert list(loader) == np.random.RandomState(5).permutation(12).tolist()


def test_workers_stay_over_passes():
    with LhotseDataLoader(Numbers(), range(20), num_workers=2) as loader:
        first = {batch["worker"] for batch in loader}
        second = {batch["worker"] for batch in loader}
    assert os.getpid() not in first
    assert second <= first or len(first | second) <= 2


class Parents:
    """Gives the process that the worker was forked by."""

    def __getitem__(self, batch):
        return os.getppid()


def children_of_this_process():
    with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
        return {int(pid) for pid in file.read().split()}


def test_start_begins_what_the_first_pass_would_begin():
    with LhotseDataLoader(Parents(), range(6), num_workers=2) as loader:
        before = children_of_this_process()
        loader.start()
        begun = children_of_this_process() - before
        assert len(begun) == 1
        assert set(loader) == begun
    with pytest.raises(HeadraceError, match="closed"):
        loader.start()


def test_no_workers_means_this_process():
    with LhotseDataLoader(Numbers(), range(3), num_workers=0) as loader:
        assert {batch["worker"] for batch in loader} == {os.getpid()}


# --- randomness ---


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_drawn_from_global_generators_does_not_depend_on_workers(workers):
    with LhotseDataLoader(Noisy(), Counting(), num_workers=0, seed=5) as loader:
        expected = [list(loader), list(loader)]
        loader.set_epoch(1)
        expected.append(list(loader))
    assert len({noise for some in expected for _, *both in some for noise in both}) == 2 * 36, "all draws differ"
    with LhotseDataLoader(Noisy(), Counting(), num_workers=workers, seed=5) as loader:
        found = [list(loader), list(loader)]
        loader.set_epoch(1)
        assert [*found, list(loader)] == expected


def test_a_broken_off_pass_draws_the_same_again():
    with LhotseDataLoader(Noisy(), Counting(), num_workers=2) as loader:
        first = list(itertools.islice(loader, 5))
        assert list(loader)[:5] == first


def test_another_seed_draws_other_numbers_and_no_seed_leaves_them_to_chance():
    draws = []
    for seed in (0, 1, None, None):
        with LhotseDataLoader(Noisy(), range(3), num_workers=1, seed=seed) as loader:
            draws.append(tuple(noise for _, noise, _ in loader))
    assert len(set(draws)) == 4


def test_the_generators_of_this_process_stay_as_they_are():
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    with LhotseDataLoader(Noisy(), range(5), num_workers=0) as loader:
        list(loader)
        next(iter(loader))
    assert (random.random(), np.random.rand()) == expected


# --- errors ---


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_comes_at_its_place_with_the_ids_and_the_loop_may_go_on(workers):
    with LhotseDataLoader(Picky([4, 11]), range(14), num_workers=workers) as loader:
        found, errors = [], []
        while error := take(loader, found):
            assert isinstance(error, KeyError)
            errors.append((len(found), str(error.args[0]), "\n".join(error.__notes__)))
    assert found == [number for number in range(14) if number not in (4, 11)]
    assert [error[:2] for error in errors] == [(4, "bad 4"), (10, "bad 11")]
    assert "batch 4 of epoch 0, id 4" in errors[0][2]
    assert "batch 11 of epoch 0, id 11" in errors[1][2]


def test_an_error_names_all_ids_of_the_batch():
    class Failing:
        def __getitem__(self, batch):
            raise OSError("unreadable")

    with LhotseDataLoader(Failing(), [["cut-a", "cut-b", "cut-c"]], num_workers=1) as loader:
        error = take(loader, [])
    assert str(error) == "unreadable"
    assert "3 ids: cut-a, cut-b, cut-c" in "\n".join(error.__notes__)


@pytest.mark.parametrize("workers", WORKERS)
def test_what_the_sampler_raises_comes_at_its_place_and_ends_the_pass(workers):
    class Breaking:
        def __iter__(self):
            yield from range(5)
            raise LookupError("no more cuts")

    with LhotseDataLoader(Identity(), Breaking(), num_workers=workers) as loader:
        found = []
        error = take(loader, found)
        assert found == list(range(5))
        assert isinstance(error, LookupError)
        assert "raised by the sampler, at batch 5 of epoch 0" in "\n".join(error.__notes__)
        assert take(loader, found) is None
        assert list(itertools.islice(loader, 3)) == [0, 1, 2]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_result_that_cannot_be_sent_fails_alone(workers):
    class Locked:
        def __getitem__(self, batch):
            return threading.Lock() if batch == 40 else batch

    with LhotseDataLoader(Locked(), range(60), num_workers=workers) as loader:
        found = []
        error = take(loader, found)
        assert found == list(range(40))
        assert isinstance(error, TransformError)
        assert "batch 40 of epoch 0" in "\n".join(error.__notes__)
        assert take(loader, found) is None
    assert found == [*range(40), *range(41, 60)]


class Unpacks:
    """Cannot be unpickled in the process that made the loader."""

    def __init__(self, pid):
        self.pid = pid

    def __reduce__(self):
        return _unpack, (self.pid,)


def _unpack(pid):
    if pid == os.getpid():
        raise RuntimeError("not here")
    return Unpacks(pid)


def test_a_result_that_cannot_be_restored_fails_alone():
    class Returning:
        def __init__(self):
            self.pid = os.getpid()

        def __getitem__(self, batch):
            return Unpacks(self.pid) if batch == 3 else batch

    with LhotseDataLoader(Returning(), range(6), num_workers=2) as loader:
        assert [next(loader) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(RuntimeError, match="not here"):
            next(loader)
        assert [next(loader), next(loader)] == [4, 5]


def test_a_batch_that_cannot_be_sent_fails_alone():
    with LhotseDataLoader(Identity(), [1, 2, threading.Lock(), 3], num_workers=1) as loader:
        found = []
        error = take(loader, found)
        assert isinstance(error, ConfigError)
        assert "cannot be sent" in error.what
        assert "batch 2 of epoch 0" in "\n".join(error.__notes__)
        assert take(loader, found) is None
        assert found == [1, 2, 3]


@pytest.mark.parametrize("workers", WORKERS)
def test_failing_batches_can_be_left_out(workers, tmp_path):
    quarantine = tmp_path / "quarantine.jsonl"
    options = EngineOptions(on_error=Skipping(quarantine=quarantine))
    with LhotseDataLoader(Picky([2, 3, 9]), range(12), num_workers=workers, engine_options=options) as loader:
        assert list(loader) == [number for number in range(12) if number not in (2, 3, 9)]
        assert loader.report.num_skipped == 3
    assert len(quarantine.read_text().splitlines()) == 3


def test_ranks_of_which_one_leaves_a_batch_out_are_refused():
    class Ranked(Counting):
        rank, world_size = 1, 2

    options = EngineOptions(on_error=Skipping())
    with LhotseDataLoader(Picky([2]), Ranked(), num_workers=1, engine_options=options) as loader:
        error = take(loader, [])
    assert isinstance(error, HeadraceError)
    assert "one step less than the others" in str(error)


class Chosen:
    """A sampler with the options of lhotse's."""

    def __init__(self, seed=0, concurrent=False):
        self.seed, self.concurrent = seed, concurrent

    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_workers": -1}, "num_workers must be at least 0"),
        ({"num_workers": True}, "num_workers must be an integer"),
        ({"prefetch_factor": 0}, "prefetch_factor must be at least 1"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"resume": "always"}, "resume must be"),
        ({"resume": "snapshot"}, "state_dict and load_state_dict"),
        ({"worker_init_fn": 3}, "worker_init_fn must be a function"),
        ({"threads_per_worker": 0}, "threads_per_worker must be at least 1"),
        ({"start_method": "thread"}, "no start method"),
        ({"max_bytes": 0}, "max_bytes must be at least 1"),
        ({"engine_options": {}}, "engine_options is an EngineOptions"),
        ({"sampler": 7}, "a sampler gives batches"),
        ({"dataset": Numbers}, "reads dataset"),
        ({"dataset": 7}, "reads dataset"),
        ({"prefetch_factor": None}, "prefetch_factor must be an integer"),
        ({"batch_size": 4}, "no option 'batch_size'.*max_duration"),
        ({"collate_fn": list}, "no option 'collate_fn'.*__getitem__"),
        ({"timeout": 3}, "no option 'timeout'.*stall_seconds"),
        ({"persistent_workers": True}, "no option 'persistent_workers'.*workers always stay"),
        ({"sampler": Chosen(seed="trng")}, "seed='trng'.*give an int"),
        ({"sampler": Chosen(seed="randomized")}, "seed='randomized'.*give an int"),
        ({"sampler": Chosen(concurrent=True)}, "concurrent=True gives batches in an order that depends on timing"),
        ({"thread_per_worker": 1}, "no option 'thread_per_worker'.*threads_per_worker"),
    ],
)
def test_wrong_options_are_refused_when_it_is_built(options, text):
    with pytest.raises(ConfigError, match=f"(?s){text}"):
        LhotseDataLoader(**{"dataset": Numbers(), "sampler": [1], **options})


def test_worker_init_fn_is_not_called_where_the_training_makes_the_batches():
    random.seed(3)
    before = random.getstate()
    with LhotseDataLoader(Numbers(), [1], num_workers=0, worker_init_fn=random.seed) as loader:
        assert list(loader)
    assert random.getstate() == before


def test_a_generator_gives_one_pass():
    with LhotseDataLoader(Identity(), (number for number in range(3)), num_workers=1) as loader:
        assert list(loader) == [0, 1, 2]
        with pytest.raises(HeadraceError, match="second pass"):
            iter(loader)


def test_a_closed_loader_says_so():
    loader = LhotseDataLoader(Identity(), range(3), num_workers=1)
    assert next(loader) == 0
    loader.close()
    loader.close()
    for use in (iter, next):
        with pytest.raises(HeadraceError, match="closed"):
            use(loader)


def test_a_length_is_that_of_the_sampler():
    with LhotseDataLoader(Identity(), [1, 2, 3], num_workers=0) as loader:
        assert len(loader) == 3
    with LhotseDataLoader(Identity(), Counting(), num_workers=0) as loader:
        assert bool(loader)
        with pytest.raises(TypeError):
            len(loader)


# --- workers ---


def test_a_dropped_loader_leaves_nothing():
    loader = LhotseDataLoader(Identity(), itertools.count(), num_workers=2)
    assert next(loader) == 0
    seen = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert seen() is None, "it is part of a cycle"
    finally:
        gc.enable()


class WithChildren:
    """Starts processes of its own, and keeps them."""

    def __init__(self):
        self.pool = None

    def __getitem__(self, batch):
        if self.pool is None:
            self.pool = concurrent.futures.ProcessPoolExecutor(1)
        return self.pool.submit(abs, -batch).result()


def test_workers_may_have_children_and_a_pool_kept_in_a_worker_ends_with_it():
    with LhotseDataLoader(WithChildren(), range(4), num_workers=2) as loader:
        assert list(loader) == [0, 1, 2, 3]


def test_workers_use_one_thread_unless_told_otherwise():
    class Threads:
        def __getitem__(self, batch):
            return os.environ["OMP_NUM_THREADS"]

    for options, expected in (({}, "1"), ({"threads_per_worker": 2}, "2")):
        with LhotseDataLoader(Threads(), [0], num_workers=1, **options) as loader:
            assert list(loader) == [expected]


def test_worker_init_fn_is_called_with_the_number_of_the_worker():
    seen = {}

    class Asks:
        def __getitem__(self, batch):
            return os.environ["LHOTSE_TEST_WORKER"], get_worker_info().worker_idx

    def init(worker_id):
        os.environ["LHOTSE_TEST_WORKER"] = str(worker_id)

    with LhotseDataLoader(Asks(), range(10), num_workers=2, worker_init_fn=init) as loader:
        for name, worker_idx in loader:
            seen[name] = worker_idx
    assert seen
    assert all(name == str(worker_idx) for name, worker_idx in seen.items())


class Gated:
    """Batch 0 waits until somebody opens the gate; the others leave a mark."""

    def __init__(self, folder):
        self.gate, self.marks = str(folder / "gate"), str(folder / "marks")
        os.mkfifo(self.gate)

    def __getitem__(self, batch):
        if batch == 0:
            os.close(os.open(self.gate, os.O_RDONLY))
        else:
            with open(self.marks, "a") as marks:
                marks.write(".")
        return batch, os.getpid()

    def open_when(self, num_marks):
        pause = threading.Event()
        while not os.path.exists(self.marks) or os.path.getsize(self.marks) < num_marks:
            pause.wait(0.005)
        os.close(os.open(self.gate, os.O_WRONLY))


def test_while_a_worker_is_slow_the_others_do_the_rest(tmp_path):
    gated = Gated(tmp_path)
    opener = threading.Thread(target=gated.open_when, args=(14,))  # of 16 batches: one is slow, one waits behind it
    opener.start()
    with LhotseDataLoader(gated, range(16), num_workers=2, prefetch_factor=8) as loader:
        found = list(loader)
    opener.join()
    assert [number for number, _ in found] == list(range(16))
    assert sum(pid == found[0][1] for _, pid in found) <= 2


# --- the sampler's thread ---


def test_the_sampler_runs_ahead_in_a_thread_of_its_own():
    threads, ahead = [], threading.Event()

    class Watched:
        def __iter__(self):
            for number in range(50):
                threads.append(threading.current_thread())
                if number == 2:
                    ahead.set()
                yield number

    with LhotseDataLoader(Identity(), Watched(), num_workers=1) as loader:
        assert next(loader) == 0
        assert ahead.wait(120), "nobody asks for more, and it is drawn all the same"
        assert list(loader) == list(range(50))
    assert threads[0] is threading.current_thread()
    assert {thread.name for thread in threads[1:3]} == {"headrace-sampler"}


def test_a_sampler_that_hangs_is_named():
    gate = threading.Event()

    def hang():
        yield 0
        gate.wait()

    drawing = Drawing(SamplerSide(hang()), packs=True)
    drawing.begin()
    ahead = Ahead(drawing, drawing.draw(), 4, 0.3, "my sampler")
    assert ahead.take().number == 0
    with pytest.raises(StalledError, match="the sampler has given no batch") as caught:
        ahead.take()
    assert "my sampler" in str(caught.value)
    assert "gate.wait()" in str(caught.value)
    assert not ahead.close(0.1)
    gate.set()
    assert ahead.close()


def draws_to_begin():
    return iter(np.random.permutation(20).tolist())


def draws_for_each_batch():
    return (number * 100 + random.randrange(100) for number in range(20))


@pytest.mark.parametrize("draw", [draws_to_begin, draws_for_each_batch])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_sampler_that_draws_from_global_generators_is_resumed_and_leaves_those_of_the_user(draw, workers):
    class Legacy:
        def __iter__(self):
            return draw()

    with LhotseDataLoader(Identity(), Legacy(), num_workers=1) as loader:
        whole = list(loader)
        assert list(loader) != whole, "another pass draws other numbers"
    with LhotseDataLoader(Identity(), Legacy(), num_workers=workers) as loader:
        head = [next(loader) for _ in range(7)]
        state = loader.state_dict()
    random.seed(4)
    np.random.seed(4)
    expected = random.Random(4).random(), np.random.RandomState(4).rand()
    with LhotseDataLoader(Identity(), Legacy(), num_workers=2) as loader:
        loader.load_state_dict(state)
        assert head + list(loader) == whole
    assert (random.random(), np.random.rand()) == expected


# --- deaths ---


class Deadly:
    """Kills its worker once for each batch that is named, as the kernel does when memory is short."""

    def __init__(self, folder, numbers, times=1):
        self.folder, self.numbers, self.times = folder, numbers, times

    def __getitem__(self, batch):
        if batch in self.numbers:
            for time in range(self.times):
                try:
                    os.close(os.open(os.path.join(self.folder, f"{batch}.{time}"), os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), 9)
        return batch, random.random()


def test_the_stream_is_the_same_after_workers_die(tmp_path):
    with LhotseDataLoader(Deadly(tmp_path, []), range(40), num_workers=0) as loader:
        expected = list(loader)
    with LhotseDataLoader(Deadly(tmp_path, [3, 17, 30]), range(40), num_workers=2) as loader:
        assert list(loader) == expected
        assert sum(worker.num_restarts for worker in loader.report.workers) >= 3


def test_a_death_that_is_raised_names_the_batch_and_loses_none(tmp_path):
    options = EngineOptions(on_death=Restarting(budget=0))
    with LhotseDataLoader(Deadly(tmp_path, [5]), range(10), num_workers=1, engine_options=options) as loader:
        found = []
        error = take(loader, found)
        assert isinstance(error, WorkerDiedError)
        assert "SIGKILL" in error.what
        assert "'5'" in error.where
        assert take(loader, found) is None
    assert [number for number, _ in found] == list(range(10))


@examples(12)
@given(
    sizes=st.lists(st.integers(0, 5), max_size=12),
    workers=st.integers(0, 2),
    factor=st.integers(1, 3),
    stops=st.lists(st.integers(0, 12), max_size=3),
)
def test_any_sampler_gives_each_batch_once_and_in_order(sizes, workers, factor, stops):
    numbers = iter(range(100))
    sampler = [[next(numbers) for _ in range(size)] for size in sizes]
    with LhotseDataLoader(Identity(), sampler, num_workers=workers, prefetch_factor=factor) as loader:
        for stop in stops:
            assert list(itertools.islice(loader, stop)) == sampler[:stop]
        assert list(loader) == sampler


def test_the_name_is_at_the_top():
    assert "LhotseDataLoader" in headrace.__all__
    assert headrace.LhotseDataLoader is LhotseDataLoader
