"""`LhotseDataLoader` in programs of its own: no `__main__` guard, exits in the middle, kills, interrupts, forks."""

import os
import select
import signal
import subprocess
import sys

import pytest

HEAD = """
import itertools, os, random, signal, sys, threading, time
import headrace

class Dataset:  # of __main__, without a guard
    def __getitem__(self, batch):
        return batch, random.random()

"""


def test_a_program_without_a_main_guard(run_program):
    done = run_program(
        HEAD
        + """
loader = headrace.LhotseDataLoader(Dataset(), [[1, 2], [3]], num_workers=2)
print([batch for batch, _ in loader], [batch for batch, _ in loader])
"""
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[[1, 2], [3]] [[1, 2], [3]]\n", "", 0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "next(loader)", "loader = None"])
def test_a_program_that_ends_in_mid_pass_ends_at_once(run_program, end):
    """The workers are in batches that take for ever, the sampler is endless."""
    done = run_program(
        HEAD
        + f"""
class Slow:
    def __getitem__(self, batch):
        if batch > 2:
            time.sleep(1000)
        return batch

loader = headrace.LhotseDataLoader(Slow(), itertools.count(), num_workers=2)
print(next(loader))
{end}
print("end")
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "0"
    assert not done.stderr


def test_a_kept_pool_that_is_busy_does_not_hold_up_the_end(run_program):
    done = run_program(
        HEAD
        + """
import concurrent.futures

class Pooled:
    pool = None
    def __getitem__(self, batch):
        if Pooled.pool is None:
            Pooled.pool = concurrent.futures.ProcessPoolExecutor(2)
        Pooled.pool.submit(time.sleep, 1000)
        return Pooled.pool.submit(abs, -batch).result(), os.getpid()

with headrace.LhotseDataLoader(Pooled(), range(2), num_workers=2) as loader:
    found = list(loader)
print([value for value, _ in found])
"""
    )
    assert (done.stdout, done.returncode) == ("[0, 1]\n", 0), done.stderr


def test_no_process_outlives_a_trainer_that_is_killed(wait_for_end, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        HEAD
        + """
import concurrent.futures

class Pooled:
    pool = None
    def __getitem__(self, batch):
        if Pooled.pool is None:
            Pooled.pool = concurrent.futures.ProcessPoolExecutor(1)
        return os.getpid(), Pooled.pool.submit(os.getpid).result()

loader = headrace.LhotseDataLoader(Pooled(), itertools.count(), num_workers=2)
pids = set()
while len(pids) < 4:
    pids.update(next(loader))
print(*pids, flush=True)
time.sleep(1000)
"""
    )
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        pidfds = [os.pidfd_open(int(pid)) for pid in trainer.stdout.readline().split()]
        assert len(pidfds) == 4
        trainer.kill()
        for pidfd in pidfds:
            wait_for_end(pidfd)


@pytest.mark.kernel_timing
def test_an_interrupt_loses_no_batch(run_program):
    done = run_program(
        HEAD
        + """
class Slow:
    def __getitem__(self, batch):
        time.sleep(0.02)
        return batch

def interrupt(signum, frame):
    if frame.f_code.co_name != "<module>" and len(found) < 150:  # this program itself keeps what it was given
        raise KeyboardInterrupt

def send_interrupts():
    for _ in range(8):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, interrupt)
loader = headrace.LhotseDataLoader(Slow(), range(150), num_workers=2)
found, interrupts = [], 0
iter(loader)
thread = threading.Thread(target=send_interrupts)
thread.start()
while len(found) < 150:
    try:
        found.append(next(loader))
    except StopIteration:
        break
    except KeyboardInterrupt:
        interrupts += 1
thread.join()
print(found == list(range(150)), interrupts)
"""
    )
    is_whole, interrupts = done.stdout.split()
    assert is_whole == "True", done.stderr
    assert int(interrupts) > 0  # those that come while one is worked on are one


def test_a_fork_of_the_trainer_cannot_use_the_loader_and_does_it_no_harm(run_program):
    done = run_program(
        HEAD
        + """
loader = headrace.LhotseDataLoader(Dataset(), range(200), num_workers=1)
found = [next(loader)[0] for _ in range(3)]
pid = os.fork()
if pid == 0:
    code = 1
    try:
        while True:
            next(loader)
    except headrace.HeadraceError as error:
        code = 7 if "forked" in str(error) else 2
    except BaseException as error:
        print(repr(error), flush=True)
    os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
found += [batch for batch, _ in iter(loader.__next__, None)]
""".replace("found += [batch for batch, _ in iter(loader.__next__, None)]", "")
        + """
try:
    while True:
        found.append(next(loader)[0])
except StopIteration:
    pass
print(found == list(range(200)))
"""
    )
    assert done.stdout == "7\nTrue\n", done.stdout + done.stderr


def test_two_loaders_may_be_read_in_turns(run_program):
    done = run_program(
        HEAD
        + """
with headrace.LhotseDataLoader(Dataset(), range(20)) as one, headrace.LhotseDataLoader(Dataset(), range(20, 40)) as two:
    print([(left[0], right[0]) for left, right in zip(one, two)] == list(zip(range(20), range(20, 40))))
"""
    )
    assert done.stdout == "True\n", done.stderr


def test_a_worker_that_is_stopped_is_replaced(run_program):
    done = run_program(
        HEAD
        + """
from headrace.engine import EngineOptions, Restarting

class Stops:
    def __getitem__(self, batch):
        if batch == 5 and not os.path.exists("stopped"):
            open("stopped", "w").close()
            os.kill(os.getpid(), signal.SIGSTOP)
        return batch

options = EngineOptions(on_stall=Restarting(), stall_seconds=0.5)
with headrace.LhotseDataLoader(Stops(), range(20), num_workers=2, engine_options=options) as loader:
    print(list(loader) == list(range(20)))
"""
    )
    assert done.stdout == "True\n", done.stderr


def test_a_program_that_is_interrupted_by_ctrl_c_leaves_nothing(tmp_path, wait_for_end):
    program = tmp_path / "program.py"
    program.write_text(
        HEAD
        + """
class Slow:
    def __getitem__(self, batch):
        if batch:
            time.sleep(1000)
        return os.getpid()

loader = headrace.LhotseDataLoader(Slow(), itertools.count())
print(next(loader), flush=True)
next(loader)
"""
    )
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        pidfd = os.pidfd_open(int(trainer.stdout.readline()))
        trainer.send_signal(signal.SIGINT)
        assert select.select([pidfd], [], [], 120)[0]
        wait_for_end(pidfd)
        _, errors = trainer.communicate(timeout=120)
        assert errors.rstrip().endswith("KeyboardInterrupt")
