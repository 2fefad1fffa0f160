"""Who says which training process this is, and what is refused."""

import collections
import os
import pickle
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.ranks import Ranks, find_ranks, ranks_of_mesh

PREFIXES = ("SLURM_", "OMPI_", "PMI_")
SCRIPT = "from headrace.ranks import find_ranks; r = find_ranks(); print(r.rank, r.world_size, r.source)"

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "5"}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "6"}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in os.environ:
        if name.startswith(PREFIXES) or name in TORCHRUN:
            monkeypatch.delenv(name)
    for module in ("torch.distributed", "jax", "ray.train"):
        monkeypatch.delitem(sys.modules, module, raising=False)


@pytest.fixture
def environment(monkeypatch):
    def set_variables(*settings):
        for variables in settings:
            for name, value in variables.items():
                monkeypatch.setenv(name, value)

    return set_variables


def found():
    ranks = find_ranks()
    return ranks.rank, ranks.world_size, ranks.source.partition(" (")[0]


def test_alone_it_is_a_single_process():
    assert find_ranks() == Ranks(0, 1, "single process")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, (1, 4, "torchrun")),
        (SLURM, (2, 3, "SLURM")),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "3"}, (2, 3, "SLURM")),
        (OPEN_MPI, (4, 5, "Open MPI")),
        (MPICH, (5, 6, "MPICH")),
    ],
)
def test_each_launcher_is_understood(environment, variables, expected):
    environment(variables)
    assert found() == expected
    for name in variables:
        assert f"{name}={variables[name]}" in find_ranks().source or name in ("SLURM_JOB_ID", "SLURM_NTASKS")


def test_arguments_come_first_then_the_launcher_that_runs_inside_the_other(environment):
    environment(MPICH)
    assert found() == (5, 6, "MPICH")
    environment(OPEN_MPI)
    assert found() == (4, 5, "Open MPI")
    environment(TORCHRUN)
    assert found() == (1, 4, "torchrun")
    assert find_ranks(2, 9) == find_ranks(rank=2, world_size=9) == Ranks(2, 9, "arguments")


def test_tasks_of_slurm_come_before_mpi_unless_they_are_its_daemons(environment):
    environment(SLURM, {"PMI_RANK": "2", "PMI_SIZE": "3"})
    assert found() == (2, 3, "SLURM")
    environment(OPEN_MPI)  # one daemon a node is a task of SLURM; it started five processes
    assert found() == (4, 5, "Open MPI")
    environment({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"})
    assert found() == (0, 3, "Open MPI")


def test_the_script_of_a_slurm_job_is_one_process_however_many_tasks_the_job_has(environment):
    environment({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"})
    assert found() == (0, 1, "single process")


def test_an_option_of_srun_is_no_task(environment):
    environment({"SLURM_NTASKS": "4"})
    assert found() == (0, 1, "single process")


def test_empty_variables_count_as_unset(environment):
    environment({"RANK": "", "WORLD_SIZE": ""})
    assert found() == (0, 1, "single process")


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({"RANK": "1"}, ["RANK=1", "WORLD_SIZE"]),
        ({"WORLD_SIZE": "4"}, ["WORLD_SIZE=4", "RANK"]),
        ({"SLURM_PROCID": "1"}, ["SLURM_PROCID=1", "SLURM_NTASKS"]),
        ({"OMPI_COMM_WORLD_RANK": "1"}, ["OMPI_COMM_WORLD_SIZE"]),
        ({"PMI_SIZE": "2"}, ["PMI_RANK"]),
        ({"RANK": "4", "WORLD_SIZE": "4"}, ["rank 4 of 4", "RANK=4", "WORLD_SIZE=4"]),
        ({"RANK": "0", "WORLD_SIZE": "0"}, ["rank 0 of 0"]),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, ["RANK='-1'", "not a number"]),
        ({"RANK": "one", "WORLD_SIZE": "2"}, ["RANK='one'", "not a number"]),
        ({"RANK": "1", "WORLD_SIZE": "2.0"}, ["WORLD_SIZE='2.0'", "not a number"]),
        ({"RANK": "²", "WORLD_SIZE": "4"}, ["not a number"]),
        ({**SLURM, "SLURM_PROCID": "3"}, ["rank 3 of 3"]),
    ],
)
def test_what_is_half_set_or_cannot_be_is_refused_with_both_values(environment, variables, names):
    environment(variables)
    with pytest.raises(ConfigError) as caught:
        find_ranks()
    for name in (*names, "fix: give rank= and world_size="):
        assert name in str(caught.value)
    assert find_ranks(0, 1) == Ranks(0, 1)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"rank": 1}, "rank=1 and world_size=None"),
        ({"world_size": 1}, "rank=None and world_size=1"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"rank": -1, "world_size": 2}, "rank -1 of 2"),
        ({"rank": 0, "world_size": 0}, "rank 0 of 0"),
        ({"rank": True, "world_size": 2}, "rank must be a whole number, got True"),
        ({"rank": 0.0, "world_size": 2}, "rank must be a whole number"),
        ({"rank": 0, "world_size": "2"}, "world_size must be a whole number"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, match):
    with pytest.raises(ConfigError, match=match):
        find_ranks(**arguments)


def test_numbers_of_numpy_are_numbers():
    ranks = find_ranks(np.int64(1), np.int32(2))
    assert (type(ranks.rank), type(ranks.world_size)) == (int, int)
    assert pickle.loads(pickle.dumps(ranks)) == ranks


def fake(monkeypatch, name, **functions):
    module = types.ModuleType(name)
    for function, value in functions.items():
        setattr(module, function, value if callable(value) or hasattr(value, "__dict__") else lambda value=value: value)
    monkeypatch.setitem(sys.modules, name, module)


def test_torch_is_asked_only_if_its_group_is_initialised(monkeypatch, environment):
    environment(TORCHRUN)
    fake(monkeypatch, "torch.distributed", is_available=True, is_initialized=False)
    assert found() == (1, 4, "torchrun")
    fake(monkeypatch, "torch.distributed", is_available=False)  # a build without it has no is_initialized
    assert found() == (1, 4, "torchrun")
    fake(monkeypatch, "torch.distributed")  # being imported in another thread
    assert found() == (1, 4, "torchrun")
    fake(monkeypatch, "torch.distributed", is_available=True, is_initialized=True, get_rank=2, get_world_size=3)
    assert found() == (2, 3, "torch.distributed")


def test_jax_is_asked_only_if_it_is_distributed(monkeypatch, environment):
    fake(monkeypatch, "jax", distributed=types.SimpleNamespace(is_initialized=lambda: False))
    assert found() == (0, 1, "single process")
    fake(monkeypatch, "jax", distributed=types.SimpleNamespace())  # an old version
    assert found() == (0, 1, "single process")
    initialised = types.SimpleNamespace(is_initialized=lambda: True)
    fake(monkeypatch, "jax", distributed=initialised, process_index=1, process_count=2)
    assert found() == (1, 2, "jax.distributed")
    environment(MPICH)
    assert found() == (5, 6, "MPICH")


def test_ray_train_is_asked_in_its_workers_only(monkeypatch):
    def refuse():
        raise RuntimeError("`get_context` cannot be used outside of a Ray Train training function.")

    def warn():
        warnings.warn("`get_world_rank` is meant to only be called inside a function", UserWarning, stacklevel=1)
        return 0

    fake(monkeypatch, "ray.train", get_context=refuse)
    assert found() == (0, 1, "single process")
    context = types.SimpleNamespace(get_world_rank=warn, get_world_size=lambda: 1)
    fake(monkeypatch, "ray.train", get_context=lambda: context)
    assert found() == (0, 1, "single process")
    context = types.SimpleNamespace(get_world_rank=lambda: None, get_world_size=lambda: None)
    assert found() == (0, 1, "single process")
    context = types.SimpleNamespace(get_world_rank=lambda: 1, get_world_size=lambda: 3)
    assert found() == (1, 3, "Ray Train")


@pytest.mark.parametrize(("variables", "expected"), [({}, "0 1 single process"), (TORCHRUN, "1 4 torchrun (RANK=1,")])
def test_a_program_of_its_own_finds_its_rank_and_loads_no_framework(variables, expected):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    script = f"{SCRIPT}; import sys; assert not {{'torch', 'jax', 'ray', 'numpy'}} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**clean, **variables}, capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout.startswith(expected)


# --- parts of the ranks that work on the same data ---


class Mesh:
    """The face of torch's `DeviceMesh` that is used."""

    def __init__(self, dims, rank):
        self.shape = tuple(dims.values()) if isinstance(dims, dict) else dims
        self.mesh_dim_names = tuple(dims) if isinstance(dims, dict) else None
        self.place = None if rank is None else tuple(int(i) for i in np.unravel_index(rank, self.shape))

    def get_coordinate(self):
        return self.place


@pytest.mark.parametrize(
    ("dims", "rank", "expected"),
    [
        ({"dp": 4}, 3, (3, 4)),
        ({"tp": 4}, 3, (0, 1)),
        ({"rows": 4}, 3, (3, 4)),
        ((5,), 2, (2, 5)),
        ({"dp": 2, "tp": 3}, 4, (1, 2)),
        ({"pp": 2, "dp_replicate": 2, "dp_shard": 3, "cp": 1, "tp": 2}, 12 + 6 + 4 + 1, (5, 6)),
        ({"pp": 2, "tp": 3}, 4, (0, 1)),
    ],
)
def test_the_dimensions_of_data_parallelism_count_in_a_mesh(dims, rank, expected):
    ranks = ranks_of_mesh(Mesh(dims, rank))
    assert (ranks.rank, ranks.world_size) == expected


@given(st.permutations(["dp", "dp_shard", "tp", "pp"]), st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_as_many_ranks_get_each_share_as_work_on_the_same_data(names, sizes):
    dims, total = dict(zip(names, sizes, strict=True)), int(np.prod(sizes))
    found = [ranks_of_mesh(Mesh(dims, rank)) for rank in range(total)]
    shares = collections.Counter((ranks.rank, ranks.world_size) for ranks in found)
    num_shares = dims["dp"] * dims["dp_shard"]
    assert shares == {(rank, num_shares): total // num_shares for rank in range(num_shares)}


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (Mesh((2, 2), 0), "has no names"),
        (Mesh({"dp": 2, "rows": 2}, 0), "does not say so for 'rows'"),
        (Mesh({"dp": 2, "tp": 2}, None), "not in the mesh"),
        ("dp", "must be a DeviceMesh of torch, got str"),
    ],
)
def test_a_mesh_that_does_not_say_which_share_this_is_is_refused(mesh, text):
    with pytest.raises(ConfigError, match=text):
        ranks_of_mesh(mesh)


def test_megatron_knows_which_ranks_get_the_same_data(monkeypatch, environment):
    environment(TORCHRUN)
    groups = {"get_data_parallel_rank": 1, "get_data_parallel_world_size": 2}
    fake(monkeypatch, "megatron.core.parallel_state", model_parallel_is_initialized=False, **groups)
    assert found() == (1, 4, "torchrun")
    fake(monkeypatch, "megatron.core.parallel_state", model_parallel_is_initialized=True, **groups)
    assert found() == (1, 2, "data parallelism of megatron.core")


def test_processes_of_lightning_are_told_when_their_ranks_are_known(environment):
    environment({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"})
    with pytest.raises(ConfigError, match="Lightning starts its processes like this"):
        find_ranks()
