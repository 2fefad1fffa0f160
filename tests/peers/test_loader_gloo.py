"""Two and three real ranks of torch.distributed with gloo: equal steps, a rank that is killed, a job that goes on."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from headrace import ConfigError, DataLoader, StaticDataset
from headrace.batching import Buckets, FrameBudget
from headrace.sources import HDFWriter

pytest.importorskip("torch.distributed")
from headrace.adapters.torch_ranks import all_agree

pytestmark = pytest.mark.extra

JOB = """
import datetime, json, os, signal, sys
import numpy as np
import torch
import torch.distributed as distributed
from headrace import DataLoader, StaticDataset
from headrace.adapters.torch_ranks import gather_texts
from headrace.batching import Buckets, FrameBudget

rank, world_size, meeting, folder, seed, kill_at = int(sys.argv[1]), *sys.argv[2:]
world_size, seed, kill_at = int(world_size), int(seed), int(kill_at)
limit = datetime.timedelta(seconds=240)
distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=world_size, timeout=limit)
seqs = [{"data": np.full((7 * i % 20 + 1, 2), i, np.float32)} for i in range(300)]
loader = DataLoader(
    StaticDataset(seqs, seq_ordering="random"), batching=Buckets(FrameBudget(40), num_buckets=4),
    num_workers=2, seed=seed if rank else 0, check_ranks=gather_texts, window_seqs=50,
)
path = os.path.join(folder, "state.json")
with loader:
    if os.path.exists(path):
        loader.load_state_dict(json.load(open(path)))
    log = open(os.path.join(folder, f"log-{world_size}-{rank}"), "w")
    for batch in loader:
        if batch.step == kill_at and rank == world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        total = torch.tensor([float(batch.step)])
        distributed.all_reduce(total)  # a step of a training: all ranks take part
        assert total.item() == world_size * batch.step
        print(json.dumps([batch.position, batch.tags]), file=log, flush=True)
        if rank == 0:
            with open(path + ".new", "w") as file:
                json.dump(loader.state_dict(), file)
            os.replace(path + ".new", path)
distributed.destroy_process_group()
print("done")
"""

SHARES = """
import datetime, json, os, sys
import numpy as np
import torch
import torch.distributed as distributed
from headrace import DataLoader
from headrace.adapters.torch_ranks import all_agree, gather_texts
from headrace.batching import FixedCount

rank, world_size, meeting, folder, remainder, stop_at = int(sys.argv[1]), *sys.argv[2:]
world_size, stop_at = int(world_size), int(stop_at)
limit = datetime.timedelta(seconds=240)
distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=world_size, timeout=limit)

class Share:
    def __iter__(self):
        for i in range([61, 40, 83][rank]):
            yield {"data": np.full(3, 1000 * rank + i)}

loader = DataLoader(
    Share(), batching=FixedCount(4), window_seqs=8, num_workers=rank % 2, rank=0, world_size=1,
    remainder=remainder, agree=all_agree, agree_every=4,
)
path = os.path.join(folder, f"state-{rank}.json")
with loader, open(os.path.join(folder, f"log-{world_size}-{rank}"), "a") as log:
    if os.path.exists(path):
        loader.load_state_dict(json.load(open(path)))
    for batch in loader:
        total = torch.tensor([float(batch.step)])
        distributed.all_reduce(total)  # a step of a training: all ranks take part
        assert total.item() == world_size * batch.step
        print(json.dumps([batch.step, batch["data"][:, 0].tolist(), batch.is_repeat]), file=log)
        if batch.step == stop_at:
            break
    json.dump(loader.state_dict(), open(path, "w"))
distributed.barrier()
distributed.destroy_process_group()
"""

# Loaders that are made before the process group, as everybody does whom a trainer starts.
LATE = """
import json, os, sys
import numpy as np
import torch.distributed as distributed
from headrace import ConfigError, DataLoader, DistributeFilesDataset
from headrace.batching import FixedCount

rank, world_size, meeting, folder, *_ = int(sys.argv[1]), *sys.argv[2:]
world_size = int(world_size)
items = [{"data": np.full(3, i)} for i in range(41)]
files = [os.path.join(folder, f"{i}.hdf") for i in range(4)]
shared = DistributeFilesDataset(
    files=files, partition_epoch=1, distrib_shard_files=True, executor="inline", num_workers=0,
    get_sub_epoch_dataset=lambda part: {"class": "HDFDataset", "files": part},
)
loader = DataLoader(items, batch_size=4)
of_files = DataLoader(shared, batching=FixedCount(4), num_workers=1, remainder="keep")
early = DataLoader(items, batch_size=4)
assert len(loader) == 11 and loader.state_dict()["position"] == 0
assert "to be looked up again" in loader.explain() and "to be looked up" not in repr(loader)
of_files.state_dict(), of_files.explain()
waiting = iter(loader)
next(iter(early))
distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=world_size)
assert len(loader) == 5
found = [(batch.position, batch.tags) for batch in waiting]
with loader, of_files, early:
    tags = [tag for batch in of_files for tag in batch.tags]
    try:
        next(iter(early))
    except ConfigError as error:
        assert "started as rank 0 of 1" in str(error) and f"is rank {rank} of 2" in str(error)
    else:
        raise AssertionError("ranks have changed")
    assert "looked up again" not in loader.explain()
    json.dump([found, tags], open(os.path.join(folder, f"found-{rank}"), "w"))
distributed.barrier()
distributed.destroy_process_group()
"""

# Four ranks, of which two each work on the same batch.
MESH = """
import json, logging, os, sys
import numpy as np
import torch.distributed as distributed
from torch.distributed.device_mesh import init_device_mesh
from headrace import DataLoader

rank, world_size, meeting, folder, *_ = int(sys.argv[1]), *sys.argv[2:]
distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=int(world_size))
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
items = [{"data": np.full(3, i)} for i in range(40)]
found = []
for part in (mesh, mesh["dp"], None):
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append((record.levelname, record.getMessage()))
    logging.getLogger("headrace.loading").handlers = [handler]
    with DataLoader(items, batch_size=4, mesh=part) as loader:
        found.append(([batch.position for batch in loader], loader.ranks.source, messages))
json.dump(found, open(os.path.join(folder, f"found-{rank}"), "w"))
distributed.barrier()
distributed.destroy_process_group()
"""


def run_job(folder, world_size, seed=0, kill_at=-1, job=JOB):
    """Return exit status, output and errors of each rank."""
    own = ("RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI_")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(own)}
    meeting = folder / f"meeting-{len(list(folder.glob('meeting-*')))}"  # a file of its own for each job
    arguments = [str(world_size), str(meeting), str(folder), str(seed), str(kill_at)]
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", job, str(rank), *arguments],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        found = [program.communicate(timeout=240) for program in programs]
        return [(program.returncode, *texts) for program, texts in zip(programs, found, strict=True)]
    finally:
        for program in programs:
            program.kill()
            program.communicate()


def read_logs(folder, world_size):
    logs = [(folder / f"log-{world_size}-{rank}").read_text().splitlines() for rank in range(world_size)]
    return [[tuple(json.loads(line)) for line in log] for log in logs]


def batches_of_one_process():
    seqs = [{"data": np.full((7 * i % 20 + 1, 2), i, np.float32)} for i in range(300)]
    options = {"batching": Buckets(FrameBudget(40), num_buckets=4), "window_seqs": 50}
    with DataLoader(StaticDataset(seqs, seq_ordering="random"), **options) as loader:
        return [(batch.position, batch.tags) for batch in loader]


@pytest.mark.long
def test_three_ranks_of_which_one_is_killed_go_on_as_two(tmp_path):
    batches = batches_of_one_process()
    statuses = run_job(tmp_path, 3, kill_at=5)
    assert statuses[2][0] == -signal.SIGKILL
    assert all(status != 0 for status, *_ in statuses[:2])  # gloo told them
    position = json.loads((tmp_path / "state.json").read_text())["position"]
    assert position == 15
    before = [found[:5] for found in read_logs(tmp_path, 3)]
    statuses = run_job(tmp_path, 2)
    assert [status for status, *_ in statuses] == [0, 0], statuses
    after = read_logs(tmp_path, 2)
    assert len(after[0]) == len(after[1]) == (len(batches) - position) // 2
    found = sorted(batch for log in before + after for batch in log)
    assert found == batches[: len(found)]
    assert len(batches) - len(found) < 2


def test_ranks_that_disagree_all_stop_before_the_first_step(tmp_path):
    statuses = run_job(tmp_path, 2, seed=5)
    assert all(status not in (0, -signal.SIGKILL) for status, *_ in statuses)
    # The first to know ends at once, and the other may see no more than that.
    assert any("the ranks do not agree on seed" in errors for *_, errors in statuses)
    assert read_logs(tmp_path, 2) == [[], []]


@pytest.mark.long
@pytest.mark.parametrize(("remainder", "num_steps"), [("drop", 10), ("pad", 21)])
def test_ranks_that_read_unequal_shares_agree_on_their_steps_also_after_a_resume(tmp_path, remainder, num_steps):
    for stop_at in (5, -1):
        statuses = run_job(tmp_path, 3, seed=remainder, kill_at=stop_at, job=SHARES)
        assert [status for status, *_ in statuses] == [0, 0, 0], statuses
    for rank, log in enumerate(read_logs(tmp_path, 3)):
        num_own = -(-[61, 40, 83][rank] // 4)
        assert [step for step, *_ in log] == list(range(num_steps))
        assert [is_repeat for *_, is_repeat in log] == [step >= num_own for step in range(num_steps)]
        found = [number - 1000 * rank for _, numbers, is_repeat in log if not is_repeat for number in numbers]
        assert found == list(range(len(found)))


def read_found(folder, world_size):
    return [json.loads((folder / f"found-{rank}").read_text()) for rank in range(world_size)]


def test_loaders_that_are_made_before_the_process_group_share_the_data(tmp_path):
    for i in range(4):
        with HDFWriter(tmp_path / f"{i}.hdf") as writer:
            for j in range(6):
                writer.append(f"{i}-{j}", {"data": np.zeros((2, 2), np.float32)})
    statuses = run_job(tmp_path, 2, job=LATE)
    assert [status for status, *_ in statuses] == [0, 0], statuses
    ranks = read_found(tmp_path, 2)
    assert [[position for position, _ in found] for found, _ in ranks] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    shares = [tags for _, tags in ranks]
    assert [len(tags) for tags in shares] == [12, 12]
    assert len({tag for tags in shares for tag in tags}) == 24


@pytest.mark.long
def test_ranks_of_one_row_of_a_mesh_get_the_same_batches_and_without_it_a_warning(tmp_path):
    statuses = run_job(tmp_path, 4, job=MESH)
    assert [status for status, *_ in statuses] == [0] * 4, statuses
    for rank, (by_name, by_part, unsaid) in enumerate(read_found(tmp_path, 4)):
        assert by_name[0] == by_part[0] == list(range(rank // 2, 10, 2))
        assert by_name[2] == by_part[2] == []
        (level, text), (_, dropped) = unsaid[2]
        assert level == "WARNING"
        assert "mesh" in text
        assert "8 in batches too few for all ranks, see remainder=" in dropped
        assert unsaid[0] == list(range(rank, 8, 4))


def test_ranks_cannot_agree_before_they_know_each_other():
    with pytest.raises(ConfigError, match="not initialised"):
        all_agree(True)
