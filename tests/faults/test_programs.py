"""Programs as people write them: no guard, from stdin, in an interpreter, in `exec`, with everything in `__main__`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Runner = Callable[..., subprocess.CompletedProcess[str]]

_PLAIN = """
import sys
import numpy as np
from headrace.engine import Engine, Job, get_worker_info
factor = 3
class Seq:
    def __init__(self, number): self.data = np.full(4, number * factor)
make = lambda number: (Seq(number), get_worker_info().num_workers)
engine = Engine(Job(lambda info: make), num_workers=2)
values = [delivered.value for delivered in engine.run(range(10))]
assert [int(seq.data[0]) for seq, _ in values] == list(range(0, 30, 3))
assert all(type(seq) is Seq and num_workers == 2 for seq, num_workers in values)
print("good", get_worker_info())
"""


@pytest.mark.parametrize("how", ["file", "stdin", "interactive"])
def test_a_program_without_a_guard_works(how: str, run_program: Runner) -> None:
    text = _PLAIN.replace(
        "class Seq:\n    def __init__(self, number): self.data = np.full(4, number * factor)\n", _CLASS
    )
    ended = run_program(text, how)
    assert ended.stdout.split() == ["good", "None"], ended.stderr
    assert ended.returncode == 0
    if how != "interactive":  # there, the prompts go to stderr
        assert ended.stderr == ""


_CLASS = "class Seq:\n    def __init__(self, number): self.data = np.full(4, number * factor)\n\n"


def test_code_that_is_executed_in_a_dict_of_its_own_works(run_program: Runner) -> None:
    ended = run_program(f"exec(compile({_PLAIN!r}, 'cell', 'exec'), {{}})")
    assert (ended.stdout, ended.stderr) == ("good None\n", "")


def test_a_module_that_was_run_under_another_name_works(run_program: Runner) -> None:
    ended = run_program(f"""
import pathlib, runpy
pathlib.Path('other.py').write_text({_PLAIN!r})
runpy.run_path('other.py', run_name='foo')
""")
    assert (ended.stdout, ended.stderr) == ("good None\n", "")


def test_the_program_is_not_run_again_in_a_worker_or_its_own_pool(run_program: Runner) -> None:
    ended = run_program("""
import os
print("once", flush=True)
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from headrace.engine import Engine, Job
def setup(info):
    pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    return lambda number: list(pool.map(abs, [number, -number]))
with Engine(Job(setup), num_workers=2) as engine:
    print([delivered.value for delivered in engine.run(range(3))])
""")
    assert (ended.stdout, ended.stderr) == ("once\n[[0, 0], [1, 1], [2, 2]]\n", "")


def test_what_the_program_did_to_its_surroundings_holds_in_workers(run_program: Runner) -> None:
    ended = run_program("""
import os, pathlib, sys
pathlib.Path("plugins").mkdir()
pathlib.Path("plugins/special.py").write_text("def double(number): return 2 * number")
sys.path.insert(0, os.path.abspath("plugins"))
sys.argv.append("--flag")
os.environ["HERE"] = "yes"
os.chdir("plugins")
import special
from headrace.engine import Engine, Job
def setup(info):
    return lambda number: (special.double(number), sys.argv[1:], os.environ["HERE"], os.path.basename(os.getcwd()))
with Engine(Job(setup), num_workers=1) as engine:
    print(next(engine.run([4])).value)
""")
    assert (ended.stdout, ended.stderr) == ("(8, ['--flag'], 'yes', 'plugins')\n", "")


@pytest.mark.sample(3)
@pytest.mark.parametrize("method", [None, "exec", "spawn", "forkserver"])
def test_every_start_method_gives_the_same(method: str | None, run_program: Runner) -> None:
    text = _PLAIN.replace("num_workers=2)", f"num_workers=2, executor=ProcessExecutor(start_method={method!r}))", 1)
    ended = run_program("from headrace.engine.process.executor import ProcessExecutor\n" + text)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("good None\n", "", 0)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_numerical_libraries_use_as_many_threads_as_were_told(num_threads: int, run_program: Runner) -> None:
    ended = run_program(f"""
import os
from headrace.engine import Engine, Job
from headrace.engine.process.executor import ProcessExecutor
def setup(info):
    import numpy
    numpy.ones((500, 500)) @ numpy.ones((500, 500))
    return lambda number: (os.environ["OMP_NUM_THREADS"], len(os.listdir("/proc/self/task")))
executor = ProcessExecutor(threads_per_worker={num_threads})
with Engine(Job(setup), num_workers=1, executor=executor) as engine:
    print(*next(engine.run([4])).value)
""")
    assert ended.stderr == ""
    variable, num_seen = map(int, ended.stdout.split())
    assert variable == num_threads
    # One more is the guard. OpenBLAS starts no more threads than there are cores.
    assert num_seen == 2 if num_threads == 1 else num_seen >= 2


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "ending",
    ["", "sys.exit(3)", "raise ValueError('of the training loop')", "del engine, run", "os._exit(0)", "engine.close()"],
)
def test_a_program_ends_as_it_likes_with_workers_at_work(ending: str, run_program: Runner) -> None:
    ended = run_program(f"""
import os, sys, threading
from headrace.engine import Engine, Job
engine = Engine(Job(lambda info: lambda number: threading.Event().wait() if number == 3 else number), num_workers=2)
run = engine.run(range(100))
next(run)
{ending}
""")
    expected = {"sys.exit(3)": 3, "raise ValueError('of the training loop')": 1}.get(ending, 0)
    assert ended.returncode == expected
    assert ended.stdout == ""
    assert ended.stderr.count("Traceback") == ("raise" in ending)
    assert "headrace" not in ended.stderr
