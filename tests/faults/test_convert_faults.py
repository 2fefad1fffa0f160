"""Conversions that are killed, run out of disk, or meet another: shards are whole, and the rest is made later."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from headrace.cli.app import app
from headrace.sources import HDFSource, HDFWriter, open_source

pytestmark = pytest.mark.long

read_seq = HDFSource.read_seq

NUM_SEQS = 12
# For each moment: a child runs the command and is killed there by SIGKILL; another runs it again. One program for all,
# so that everything is imported once.
PROGRAM = """
import json, os, shutil, signal, sys
from pathlib import Path
corpus, folder, moments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

import headrace.cli.convert.shards as shards
import headrace.sources.hdf.writer as hdf_write
from headrace.cli import main
from headrace.sources import HDFSource

kind, left = None, 0

def strike(event):
    global left
    if event == kind:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def watch(event, function):
    def run(*args, **kwargs):
        strike("before " + event)
        result = function(*args, **kwargs)
        strike("after " + event)
        return result
    return run

hdf_write.HDFWriter.append = watch("append", hdf_write.HDFWriter.append)
hdf_write.HDFWriter.close = watch("close", hdf_write.HDFWriter.close)
shards._verify = watch("verify", shards._verify)

def convert(out):
    pid = os.fork()
    if pid == 0:
        sys.argv = ["headrace", "convert", corpus, os.path.join(out, "part.hdf"), "--shard-seqs", "3", "--quiet"]
        main()
        os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def contents(out):
    return {path.name: path.read_bytes() for path in Path(out).glob("[!.]*")}  # a later day removes what has a dot

whole = os.path.join(folder, "whole")
os.mkdir(whole)
assert convert(whole) == 0
for kind, left in moments:
    moment = kind, left
    out = os.path.join(folder, f"{kind} {left}")
    os.mkdir(out)
    assert convert(out) == -signal.SIGKILL, moment
    for name in os.listdir(out):  # what has its name is whole
        if name.endswith(".hdf"):
            HDFSource(os.path.join(out, name), index=None).close()
    kind = None
    assert convert(out) == 0, moment
    assert contents(out) == contents(whole), (moment, os.listdir(out))
print("the same")
"""
MOMENTS = [
    ("after append", 7),
    ("before close", 2),
    ("after close", 3),
    ("after verify", 4),
    ("before verify", 1),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.hdf"
    with HDFWriter(path, labels={"classes": ["x", "y", "z"]}) as writer:
        for number in range(NUM_SEQS):
            data = np.random.RandomState(number).rand(1 + number % 4, 3).astype(np.float32)
            writer.append(f"tag/{number}", {"data": data, "classes": np.array([number % 3], np.int32)})
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "part.hdf"


def convert(corpus: Path, out: Path) -> Result:
    return CliRunner().invoke(app, ["convert", str(corpus), str(out), "--shard-seqs", "3", "--quiet"])


def test_after_a_kill_at_any_moment_the_next_run_makes_the_bytes_of_an_unbroken_one(
    corpus: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(corpus), str(tmp_path), json.dumps(MOMENTS)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.endswith("the same\n"), (done.stdout, done.stderr)


def test_what_is_whole_is_not_written_again(corpus: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise OSError(5, "the disk is unwell")

    with monkeypatch.context() as broken:
        broken.setattr(HDFSource, "read_seq", lambda self, i: fail() if i == 7 else read_seq(self, i))
        result = convert(corpus, out)
        assert result.exit_code == 1
        assert "part-00002.hdf, sequence 7 of the corpus" in result.stderr
        assert "2 of 4 shards are whole" in result.stderr
    first = out.with_name("part-00000.hdf")
    inode = first.stat().st_ino
    assert convert(corpus, out).exit_code == 0
    assert first.stat().st_ino == inode
    written = open_source(str(out.with_name("part-*.hdf")), index=None)
    assert list(written.index.tags) == [f"tag/{number}" for number in range(NUM_SEQS)]
    written.close()
    assert len(os.listdir(out.parent)) == 4


def _in_small_disk(folder: Path, *command: str) -> list[str]:
    mount = 'mount -t tmpfs -o size=300000 tmpfs "$0" && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder), *command]


FULL_DISK = """
import os, sys
from typer.testing import CliRunner
from headrace.cli.app import app
corpus, disk = sys.argv[1:]
out = os.path.join(disk, "part.hdf")
with open(os.path.join(disk, "filler"), "wb") as file:
    file.write(bytes(150_000))

def run():
    return CliRunner().invoke(app, ["convert", corpus, out, "--shard-seqs", "3", "--quiet"])

result = run()
assert result.exit_code == 1, result.output
assert "No space left" in result.stderr and "2 of 4 shards are whole" in result.stderr, result.stderr
names = sorted(os.listdir(disk))
assert names == ["filler", "part-00000.hdf", "part-00001.hdf"], names
os.unlink(os.path.join(disk, "filler"))
result = run()
assert result.exit_code == 0, result.stderr
assert len(os.listdir(disk)) == 4
print("whole")
"""


def test_a_full_disk_leaves_whole_shards_and_the_rest_is_made_when_there_is_room(tmp_path: Path) -> None:
    disk, corpus = tmp_path / "disk", tmp_path / "large.hdf"
    disk.mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    tried = subprocess.run(_in_small_disk(disk, "true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this system does not let us mount a disk: {tried.stderr.strip()}")
    with HDFWriter(corpus) as writer:
        for number in range(NUM_SEQS):
            writer.append(str(number), {"data": np.full((1000, 3), number, np.float32)})
    command = [sys.executable, "-c", FULL_DISK, str(corpus), str(disk)]
    done = subprocess.run(_in_small_disk(disk, *command), capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "whole\n", done.stderr


def test_a_worker_that_is_killed_is_replaced_and_its_shard_written_again(
    corpus: Path, out: Path, run_program: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_program(f"""
import os, signal
from pathlib import Path
from headrace.cli.app import app
from headrace.sources import HDFSource, hdf
from typer.testing import CliRunner

class Deadly(HDFSource):
    def read_seq(self, corpus_idx):
        mark = Path({str(out.parent / "mark")!r})
        if corpus_idx == 7 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read_seq(corpus_idx)

import sys, types
module = types.ModuleType("deadly")
module.Deadly = Deadly
sys.modules["deadly"] = module
arguments = ["convert", {str(corpus)!r}, {str(out)!r}, "--from", "deadly:Deadly", "--shard-seqs", "3"]
result = CliRunner().invoke(app, [*arguments, "--num-workers", "2", "--quiet"])
print(result.exit_code, result.stderr)
""")
    assert done.stdout.startswith("0"), (done.stdout, done.stderr)
    (out.parent / "mark").unlink()
    written = open_source(str(out.with_name("part-*.hdf")), index=None)
    assert list(written.index.tags) == [f"tag/{number}" for number in range(NUM_SEQS)]
    written.close()
    assert len(list(out.parent.glob("[!.]*"))) == 4
