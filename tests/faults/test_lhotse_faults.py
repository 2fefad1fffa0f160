"""`LhotseDataLoader` in programs of its own: no `__main__` guard, exits in the middle, kills, interrupts, forks."""

import pytest

HEAD = """
import itertools, os, random, signal, sys, threading, time
import headrace

class Dataset:  # of __main__, without a guard
    def __getitem__(self, batch):
        return batch, random.random()

"""


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
try:
    while True:
        found.append(next(loader)[0])
except StopIteration:
    pass
print(found == list(range(200)))
"""
    )
    assert done.stdout == "7\nTrue\n", done.stdout + done.stderr
