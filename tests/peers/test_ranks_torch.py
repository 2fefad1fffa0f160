"""Ranks as a real process group tells them, where torch is installed."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch.distributed")

pytestmark = pytest.mark.extra

GROUP = """
import datetime, sys
import torch.distributed as distributed
from headrace.ranks import find_ranks
before = find_ranks()
rank, meeting = int(sys.argv[1]), sys.argv[2]
limit = datetime.timedelta(seconds=240)
distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2, timeout=limit)
print(before, find_ranks(), sep="; ")
distributed.barrier()
distributed.destroy_process_group()
assert find_ranks() == before
"""
# In one system call: both ranks write to one pipe, and PYTHONUNBUFFERED may be set.
LAUNCHED = """
import os
from headrace.ranks import find_ranks
ranks = find_ranks()
os.write(1, f"{ranks.rank} {ranks.world_size} {ranks.source}\\n".encode())
"""


def environment(**variables):
    own = ("RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI_")
    return {**{name: text for name, text in os.environ.items() if not name.startswith(own)}, **variables}


def test_a_process_group_is_asked_while_it_lives(tmp_path):
    # Their variables are wrong on purpose: the group knows better.
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", GROUP, str(rank), str(tmp_path / "meeting")],
            env=environment(RANK="3", WORLD_SIZE="7"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank, program in enumerate(programs):
            output, errors = program.communicate(timeout=240)
            assert program.returncode == 0, errors
            before, _, during = output.strip().partition("; ")
            assert "rank=3, world_size=7, source='torchrun" in before
            assert during == f"Ranks(rank={rank}, world_size=2, source='torch.distributed')"
    finally:
        for program in programs:
            program.kill()
            program.communicate()


def test_torchrun_says_it_by_the_environment(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LAUNCHED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert sorted(line.partition(" (")[0] for line in done.stdout.splitlines()) == ["0 2 torchrun", "1 2 torchrun"]
