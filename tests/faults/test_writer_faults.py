"""Writers that are killed at any step, meet another writer of the same name, or run out of disk."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.sources.formats import FORMATS

NEEDS = {"parquet": "pyarrow", "arrow": "pyarrow"}
WRITERS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None, reason=f"needs {NEEDS.get(name)}"
        ),
    )
    for name, entry in FORMATS.items()
    if entry.writer
]

COMMON = """
import os, signal, sys
import numpy as np
from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.sources import open_source
from headrace.sources.registry import open_writer
from headrace.sources.formats import FORMATS
name, folder = sys.argv[1:3]
entry = FORMATS[name]
path = os.path.join(folder, "corpus" + entry.suffix)

def seqs(marker):
    for number in range(3 if marker == "old" else 2):
        letters = np.frombuffer(f"{marker}-{number}".encode(), np.uint8)
        if name == "tokens":
            yield f"{marker}-{number}", {"data": letters.astype(np.int32)}
        else:
            yield f"{marker}-{number}", {"data": np.full((2, 3), number, np.float32), "orth": letters}

def begin(marker, path=path, **options):
    writer = open_writer(entry, path, **options)
    for tag, arrays in seqs(marker):
        writer.append(tag, arrays)
    return writer

def found(path=path):
    # Which corpus is there: None, "old", "new"; anything else is an error.
    try:
        source = open_source(path, index=None)
    except SourceError as error:
        assert not os.path.exists(path), error
        return None
    tags = [source.tag(i) for i in range(len(source))]
    marker = tags[0].partition("-")[0]
    wanted = list(seqs(marker))
    assert tags == [tag for tag, _ in wanted], tags
    for i, (_, arrays) in enumerate(wanted):
        for key, array in arrays.items():
            assert source.read(i, key).tobytes() == array.tobytes(), (i, key)
    source.close()
    return marker

def names():
    return sorted(os.listdir(folder))

def warm():
    # Import everything here, so that the files that children open are those of the writer.
    import tempfile
    with tempfile.TemporaryDirectory() as other:
        place = os.path.join(other, os.path.basename(path))
        begin("old", place).close()
        assert found(place) == "old"

def child(act):
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = act() or 0
        except HeadraceError as error:
            print(error, file=sys.stderr, flush=True)
            code = 7
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

# An audit event comes before Python opens, renames, removes or makes something: the k-th one is as good as a kill in
# front of the k-th system call that others can see.
KILLED = (
    COMMON
    + """
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "shutil.rmtree", "os.listdir"}

def killed_at(step, act):
    def strike(event, arguments):
        nonlocal step
        if event in EVENTS:
            step -= 1
            if step == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    def run():
        sys.addaudithook(strike)
        return act()
    return child(run)

def age():
    # A day later, leftovers are older than a pause of a writer that lives.
    for name_ in names():
        if name_.startswith(".headrace-"):
            os.utime(os.path.join(folder, name_), (0, 0))

def expect(code, *markers):
    marker = None
    read, write = os.pipe()
    def ask():
        os.write(write, str(found()).encode())
    assert child(ask) == 0
    os.close(write)
    marker = os.read(read, 100).decode()
    os.close(read)
    assert marker in markers, (code, marker, names())
    return marker

warm()
assert child(lambda: begin("old").close()) == 0
whole = names()
assert expect(0, "old") == "old"
step, seen = 0, set()
while True:
    step += 1
    code = killed_at(step, lambda: begin("new", overwrite=True).close())
    seen.add(expect(code, "old", "new", *["None"] * (name == "tokens")))  # of which the main file comes last
    if code == 0:
        break
    assert code == -signal.SIGKILL, code
    age()
    assert child(lambda: begin("old", overwrite=True).close()) == 0
    assert expect(0, "old") == "old"
    assert names() == whole, (step, names())
assert seen - {"None"} == {"old", "new"} and step > 4, (step, seen)
num_replaced = step
for name_ in names():
    child(lambda: os.execvp("rm", ["rm", "-r", os.path.join(folder, name_)]))
step, seen = 0, set()
while True:
    step += 1
    code = killed_at(step, lambda: begin("new").close())
    seen.add(expect(code, "None", "new"))
    if code == 0:
        break
    assert code == -signal.SIGKILL, code
    age()
    if expect(code, "None", "new") == "None":
        # A file beside the main one of tokens may have its name already.
        assert child(lambda: begin("old", overwrite=name == "tokens").close()) == 0, (step, names())
    else:
        assert child(lambda: begin("old", overwrite=True).close()) == 0
    assert names() == whole, (step, names())
    for name_ in names():
        child(lambda: os.execvp("rm", ["rm", "-r", os.path.join(folder, name_)]))
assert "new" in seen and step > 4, (step, seen)
print("whole", num_replaced, step)
"""
)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WRITERS)
def test_after_a_kill_at_any_step_the_old_target_or_the_new_one_is_there_and_the_next_run_cleans_up(
    name: str, tmp_path: Path
) -> None:
    done = run(KILLED, name, str(tmp_path))
    assert done.stdout.startswith("whole"), (done.stdout, done.stderr)


AT_ONCE = (
    COMMON
    + """
def race(**options):
    go_read, go_write = os.pipe()
    pids = []
    for marker in ("old", "new"):
        ready_read, ready_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                writer = begin(marker, **options)
                os.close(go_write)
                os.write(ready_write, b"x")
                os.read(go_read, 1)  # until the parent closes it, for both at once
                writer.close()
                code = 0
            except ConfigError as error:
                code = 7 if "exists" in str(error) else 8
            finally:
                os._exit(code)
        os.close(ready_write)
        assert os.read(ready_read, 1) == b"x"
        os.close(ready_read)
        pids.append(pid)
    os.close(go_read)
    os.close(go_write)
    return dict(zip(("old", "new"), (os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)))

warm()
whole = None
for _ in range(int(sys.argv[3])):
    codes = race()
    assert sorted(codes.values()) == [0, 7], codes
    assert codes[found()] == 0, (codes, found())
    whole = whole or names()
    assert names() == whole, names()
    codes = race(overwrite=True)
    assert set(codes.values()) == {0}, codes
    assert found() in codes and names() == whole
    os.system(f"rm -r {folder}/*")
print("whole")
"""
)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WRITERS)
def test_of_two_writers_at_one_name_one_wins_and_the_other_is_told(name: str, tmp_path: Path) -> None:
    done = run(AT_ONCE, name, str(tmp_path), "10")
    assert done.stdout == "whole\n", (done.stdout, done.stderr)


# A limit of the size of a file stands for a full disk: the system refuses to write more, by an error of the same kind.
FULL = (
    COMMON
    + """
import resource
warm()

def limited(num_bytes, **options):
    def act():
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
        begin("new", **options).close()
    return child(act)

size, outcomes = 1, set()
while True:  # without an old target: nothing is left, or all is there
    code = limited(size)
    outcomes.add(code)
    assert code in (0, 7), code
    if code == 0:
        break
    assert names() == [], (size, names())
    size *= 2
assert found() == "new" and outcomes == {0, 7}, outcomes
whole = names()
for size in (1, size // 4, size // 2):  # with one: it stays, or the new one is there
    assert child(lambda: begin("old", overwrite=True).close()) == 0
    code = limited(size, overwrite=True)
    assert found() == ("new" if code == 0 else "old"), (size, code)
    assert not [name for name in names() if name.startswith(".")], names()
print("whole")
"""
)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WRITERS)
def test_on_a_full_disk_there_is_a_clear_error_and_the_old_target_or_nothing(name: str, tmp_path: Path) -> None:
    done = run(FULL, name, str(tmp_path))
    assert done.stdout == "whole\n", (done.stdout, done.stderr)
    assert "File too large" in done.stderr
