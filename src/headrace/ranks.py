"""Which of how many training processes this is: the one place that asks the launcher, and says which one answered.

Nothing is imported and no process group is started: a framework is asked only if the program has loaded it and has
initialised it, a launcher only by the environment variables that it sets. What is half set, or cannot be, is refused:
taking it for a single process would read all data on each rank.
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


@dataclass(frozen=True)
class Ranks:
    """A training process among others.

    Attributes:
        rank: Which one, from 0.
        world_size: How many there are.
        source: Who said so, for messages.

    Raises:
        ConfigError: `rank` is not in 0..world_size - 1.
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
                f"rank {self.rank} of {self.world_size} processes cannot be: ranks are 0..world_size - 1",
                where=self.source,
                fix=_FIX,
            )


def find_ranks(rank: int | None = None, world_size: int | None = None) -> Ranks:
    """Find out which of how many training processes this is.

    The first of these that knows: the arguments; torch.distributed, if initialised; torchrun (`RANK`, `WORLD_SIZE`);
    SLURM, in a step that srun started (`SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`); Open MPI and MPICH; JAX, if
    `jax.distributed` is initialised; Ray Train, in one of its workers. If none does, this is a single process.

    A launcher that runs inside another one knows better, so the tasks of SLURM do not count where mpirun has started
    processes of its own in them. The script of sbatch and the shell of salloc are single processes, however many tasks
    the job has.

    Args:
        rank: Which one, from 0; together with `world_size`.
        world_size: How many there are.

    Raises:
        ConfigError: Only one of the two numbers is given or set, or they do not fit together; both are named.
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
    if _text("SLURM_JOB_ID") is None:  # handed on by something that does not tell all, such as a container
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
    ):  # this is no worker of Ray Train: the first says version 2, the second version 1
        return None
    return None if rank is None or world_size is None else Ranks(rank, world_size, "Ray Train")


_ASKED: tuple[Callable[[], Ranks | None], ...] = (
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
            raise ConfigError(f"the environment sets {others}, but not {name}", where=where, fix=_FIX)
        if not (text.strip().isascii() and text.strip().isdecimal()):
            raise ConfigError(f"{name}={text!r} in the environment is not a number", where=where, fix=_FIX)
    return Ranks(int(texts[rank_name] or 0), int(texts[size_name] or 0), where)
