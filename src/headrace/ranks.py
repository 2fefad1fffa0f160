"""Which of how many training processes this is: the one place that asks the launcher, and says which one answered.

Nothing is imported and no process group is started: a framework is asked only if the program has loaded it and has
initialised it, a launcher only by the environment variables that it sets. Incomplete or contradictory settings are
refused: to assume a single process would make each rank read all data.
"""

from __future__ import annotations

import operator
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError

_FIX = "give rank= and world_size=, or start the program by a launcher that sets both"
_FIX_OF_LIGHTNING = (
    "Lightning starts its processes like this, and sets their ranks when the trainer begins (torch.distributed): "
    "start to iterate only then, as trainer.fit does; or give rank= and world_size="
)
# Dimensions of a device mesh along which processes get different data, by the names that torch, torchtitan, Lightning
# and accelerate give them; and those along which processes work on the same data. `_divides_data` knows more of them.
_DATA_DIMS = frozenset(("dp", "ddp", "fsdp", "hsdp", "data", "data_parallel", "batch", "replicate", "shard"))
_SAME_DATA_DIMS = frozenset(
    ("tp", "pp", "cp", "sp", "ep", "etp", "tensor", "pipeline", "pipe", "context", "sequence", "expert", "model")
)


@dataclass(frozen=True)
class Ranks:
    """A training process among others.

    Attributes:
        rank: Which one, from 0.
        world_size: How many there are.
        source: Where the numbers come from, for messages.

    Raises:
        ConfigError: `rank` is not in 0..world_size - 1.

    Examples:
        >>> import headrace as hr
        >>> hr.Ranks(rank=1, world_size=4, source="arguments").world_size
        4
    """

    rank: int
    world_size: int
    source: str = "arguments"

    def __post_init__(self) -> None:
        """Check that both are whole numbers and fit together."""
        for name in ("rank", "world_size"):
            value = getattr(self, name)
            try:
                number = None if isinstance(value, bool) else operator.index(value)
            except TypeError:
                number = None
            if number is None:
                raise ConfigError(f"{name} must be a whole number, got {value!r}", where=self.source, fix=_FIX)
            object.__setattr__(self, name, number)
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} of {self.world_size} processes is impossible: ranks are 0..world_size - 1",
                where=self.source,
                fix=_FIX,
            )


def find_ranks(rank: int | None = None, world_size: int | None = None) -> Ranks:
    """Find out which of how many training processes this is.

    The first of these that knows: the arguments; Megatron, if its parallel groups are initialised (which divides the
    data among some of the ranks only); torch.distributed, if initialised; torchrun (`RANK`, `WORLD_SIZE`); SLURM, in a
    step that srun started (`SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`); Open MPI and MPICH; JAX, if `jax.distributed` is
    initialised; Ray Train, in one of its workers. If none does, this is a single process.

    A launcher that runs inside another one knows better, so the tasks of SLURM do not count where mpirun has started
    processes of its own in them. The script of sbatch and the shell of salloc are single processes, however many tasks
    the job has.

    Args:
        rank: Which one, from 0; together with `world_size`.
        world_size: How many there are.

    Raises:
        ConfigError: Only one of the two numbers is given or set, or they do not fit together; both are named.

    Examples:
        >>> import headrace as hr
        >>> hr.find_ranks(rank=1, world_size=4)
        Ranks(rank=1, world_size=4, source='arguments')
    """
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            raise ConfigError(f"rank={rank} and world_size={world_size} must be given together", fix="give both")
        return Ranks(rank, world_size)
    for ask in _ASKED:
        found = ask()
        if found is not None:
            return found
    return Ranks(0, 1, "single process")


class LateRanks:
    """Ranks that are looked up again until iteration starts, and may not change from then on.

    A loader is often made before the training is distributed: before `init_process_group`, or before a trainer starts
    its other processes.

    Args:
        find: Looks them up.
        where: What they are for, for messages.
    """

    def __init__(self, find: Callable[[], Ranks], where: str) -> None:
        self._find, self._where = find, where
        self._settled: Ranks | None = None

    @property
    def is_settled(self) -> bool:
        """Whether iteration has started."""
        return self._settled is not None

    def look_up(self) -> Ranks:
        """Return the ranks as they are known now.

        Raises:
            ConfigError: The environment contradicts itself.
        """
        return self._settled or self._find()

    def settle(self) -> Ranks:
        """Return the ranks and fix them from now on.

        Raises:
            ConfigError: As `look_up`, or they were settled before and are different now.
        """
        found = self._find()
        if self._settled is None:
            self._settled = found
        elif (found.rank, found.world_size) != (self._settled.rank, self._settled.world_size):
            settled = self._settled
            raise ConfigError(
                f"this started as rank {settled.rank} of {settled.world_size} ({settled.source}), and is rank "
                f"{found.rank} of {found.world_size} ({found.source}) now",
                where=self._where,
                fix="take the first batch after the distributed training was started (init_process_group), or make "
                "another one then, or give rank= and world_size=",
            )
        return self._settled


def ranks_of_mesh(mesh: Any) -> Ranks:
    """Return which share of the data this process gets in a mesh of processes, some of which work on the same data.

    Args:
        mesh: A `torch.distributed.device_mesh.DeviceMesh`. If its dimensions have names, those of data parallelism
            count (`"dp"`, `"dp_replicate"`, `"dp_shard"`, `"fsdp"`, `"data"`, ...), and those of tensor, pipeline,
            context and expert parallelism do not. One dimension of another name, or without one, divides the data.

    Raises:
        ConfigError: It is no such mesh, this process is not in it, or it does not say which dimensions divide the data.

    Examples:
        >>> import headrace as hr
        >>> from headrace.ranks import ranks_of_mesh
        >>> def open_loader(corpus, mesh):  # a DeviceMesh of torch
        ...     ranks = ranks_of_mesh(mesh)
        ...     return hr.DataLoader(corpus, batch_size=32, rank=ranks.rank, world_size=ranks.world_size)
    """
    try:
        names = None if mesh.mesh_dim_names is None else tuple(mesh.mesh_dim_names)
        shape, coordinate = tuple(mesh.shape), mesh.get_coordinate()
    except AttributeError as error:
        raise ConfigError(
            f"mesh must be a DeviceMesh of torch, got {type(mesh).__name__}",
            fix='give torch.distributed.device_mesh.init_device_mesh(...)["dp"], or rank= and world_size=',
        ) from error
    text = f"mesh of {shape}" if names is None else f"mesh {dict(zip(names, shape, strict=True))}"
    if coordinate is None:
        raise ConfigError("this process is not in the mesh", where=text, fix="give the mesh that it trains in")
    divides = [None if names is None else _divides_data(names[dim]) for dim in range(len(shape))]
    if len(shape) == 1:
        divides = [divides[0] is not False]
    if None in divides:
        unknown = "has no names" if names is None else f"does not say so for {names[divides.index(None)]!r}"
        raise ConfigError(
            f"which dimensions of the mesh divide the data? It {unknown}",
            where=text,
            fix='give the part along which the data are divided, such as mesh["dp"], or rank= and world_size=',
        )
    dims = [dim for dim, is_data in enumerate(divides) if is_data]
    rank, world_size = 0, 1
    for dim in dims:
        rank, world_size = rank * shape[dim] + coordinate[dim], world_size * shape[dim]
    return Ranks(rank, world_size, text)


def _divides_data(name: str) -> bool | None:
    """Tell whether processes along a dimension of a mesh get different data; None if its name does not say so."""
    if name in _DATA_DIMS or (name.startswith("dp_") and "cp" not in name):  # such as dp_replicate, dp_shard
        return True
    return False if name in _SAME_DATA_DIMS or name.endswith("_parallel") else None


def parts_of_torch() -> bool:
    """Tell whether torch.distributed has groups of only some ranks: they may be for tensor or pipeline parallelism."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    found = _of_torch()
    if world is None or found is None:
        return False
    try:
        sizes = {len(ranks) for ranks in world.pg_group_ranks.values()}
    except (AttributeError, TypeError):  # another version of torch
        return False
    return any(1 < size < found.world_size for size in sizes)


def _of_megatron() -> Ranks | None:
    state = sys.modules.get("megatron.core.parallel_state")
    is_initialized = getattr(state, "model_parallel_is_initialized", None)
    if state is None or is_initialized is None or not is_initialized():
        return None
    return Ranks(
        state.get_data_parallel_rank(), state.get_data_parallel_world_size(), "data parallelism of megatron.core"
    )


def _of_torch() -> Ranks | None:
    distributed = sys.modules.get("torch.distributed")
    # While torch is being imported, its module may not have all of its functions yet.
    is_initialized = getattr(distributed, "is_initialized", None)
    if distributed is None or is_initialized is None or not distributed.is_available() or not is_initialized():
        return None
    return Ranks(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _of_torchrun() -> Ranks | None:
    return _of_variables("torchrun", "RANK", "WORLD_SIZE")


def _of_slurm() -> Ranks | None:
    if _text("SLURM_PROCID") is None:
        return None  # SLURM_NTASKS alone is an option of srun
    if _text("SLURM_JOB_ID") is None:  # passed on incompletely, for example into a container
        size = "SLURM_NTASKS" if _text("SLURM_STEP_NUM_TASKS") is None else "SLURM_STEP_NUM_TASKS"
        return _of_variables("SLURM", "SLURM_PROCID", size)
    if _text("SLURM_STEP_NUM_TASKS") is None:
        return None  # the script of sbatch: one process, though SLURM_NTASKS may be more
    outer = _of_variables("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    # mpirun starts its daemons as tasks of SLURM, and its processes inherit the daemons' numbers.
    inner = _of_open_mpi() or _of_mpich()
    is_daemon = inner and outer and (inner.rank, inner.world_size) != (outer.rank, outer.world_size)
    return None if is_daemon else outer


def _of_open_mpi() -> Ranks | None:
    return _of_variables("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


def _of_mpich() -> Ranks | None:
    return _of_variables("MPICH", "PMI_RANK", "PMI_SIZE")


def _of_jax() -> Ranks | None:
    jax = sys.modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if jax is None or is_initialized is None or not is_initialized():
        return None
    return Ranks(jax.process_index(), jax.process_count(), "jax.distributed")


def _of_ray() -> Ranks | None:
    train = sys.modules.get("ray.train")
    get_context = getattr(train, "get_context", None)
    if get_context is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            context: Any = get_context()
            rank, world_size = context.get_world_rank(), context.get_world_size()
    except (
        RuntimeError,
        UserWarning,
    ):  # not a worker of Ray Train: version 2 raises the first, version 1 the second
        return None
    return None if rank is None or world_size is None else Ranks(rank, world_size, "Ray Train")


_ASKED: tuple[Callable[[], Ranks | None], ...] = (
    _of_megatron,
    _of_torch,
    _of_torchrun,
    _of_slurm,
    _of_open_mpi,
    _of_mpich,
    _of_jax,
    _of_ray,
)


def _text(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return an environment variable; an empty one counts as unset."""
    return environ.get(name) or None


def _of_variables(launcher: str, rank_name: str, size_name: str) -> Ranks | None:
    """Return what two environment variables say, `None` if neither is set."""
    texts = {name: _text(name) for name in (rank_name, size_name)}
    if set(texts.values()) == {None}:
        return None
    where = f"{launcher} ({', '.join(f'{name}={text}' for name, text in texts.items() if text is not None)})"
    for name, text in texts.items():
        if text is None:
            others = ", ".join(other for other in texts if other != name)
            is_lightning = name == "RANK" and _text("LOCAL_RANK") and _text("NODE_RANK")
            raise ConfigError(
                f"the environment sets {others}, but not {name}",
                where=where,
                fix=_FIX_OF_LIGHTNING if is_lightning else _FIX,
            )
        if not (text.strip().isascii() and text.strip().isdecimal()):
            raise ConfigError(f"{name}={text!r} in the environment is not a number", where=where, fix=_FIX)
    return Ranks(int(texts[rank_name] or 0), int(texts[size_name] or 0), where)
