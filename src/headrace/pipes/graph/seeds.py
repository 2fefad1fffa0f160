"""The seeds of random pipes: shared ones, on which all workers agree, and local ones, in which they differ.

All seeds are pure functions of what they are for: (seed, epoch, worker, how many before), by hashing. No global
generator is read or written, unless `draw_seed` is asked to. The classes and functions are documented by torchdata,
whose generator was two Philox streams; the numbers here are not the same.

Invariants: epochs of one seed differ; a spawned generator gives the same shared seeds as its parent would, and local
seeds that depend on its parent's seed, epoch and worker only, not on what the parent has given out.
"""

from __future__ import annotations

import copy
import secrets
import sys
from collections.abc import Iterable
from typing import Any

from headrace.rng import derive_seed

from ..core.walk import list_pipes, sources_of
from ..sharding import is_sharding_pipe

_UINT64 = 2**64


class SeedGenerator:
    """Gives seeds out, each another number in [0, 2**64).

    Args:
        seed: What all seeds follow from; `None`: one is drawn from the operating system.

    Raises:
        ValueError: The seed does not fit into 64 bits.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed(seed)

    def seed(self, seed: int | None = None) -> SeedGenerator:
        """Begin anew with another seed, and return the generator.

        Args:
            seed: From 0 to 2**64 - 1; `None`: one is drawn from the operating system.

        Raises:
            ValueError: The seed does not fit into 64 bits.
        """
        seed = draw_seed() if seed is None else int(seed)
        if not 0 <= seed < _UINT64:
            raise ValueError(f"a seed is an integer from 0 to 2**64 - 1, got {seed}")
        self._seed = self._worker_key = seed
        self._epoch = self._num_shared = self._num_local = 0
        return self

    def generate_shared_seed(self) -> int:
        """Return the next seed that is the same in all workers and ranks, if each asks as often."""
        self._num_shared += 1
        return derive_seed(
            _signed(self._seed), "pipes: shared seed", epoch=self._epoch, occurrence=self._num_shared - 1
        )

    def generate_seed(self) -> int:
        """Return the next seed of this worker, another one than in any other worker."""
        self._num_local += 1
        return derive_seed(
            _signed(self._worker_key), "pipes: local seed", epoch=self._epoch, occurrence=self._num_local - 1
        )

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """Return the generator of a worker: shared seeds go on as here, local ones are its own.

        Args:
            worker_id: The worker, or the rank. Generators may be spawned from spawned ones.
            inplace: Make this one the worker's, instead of a copy.

        Raises:
            ValueError: The number is negative.
        """
        if worker_id < 0:
            raise ValueError(f"Expected `worker_id` equal or larger than 0, got {worker_id}")
        spawned = self if inplace else copy.copy(self)
        spawned._worker_key = derive_seed(_signed(spawned._worker_key), "pipes: worker", corpus_idx=worker_id)
        spawned._num_local = 0
        return spawned

    def for_epoch(self, epoch: int) -> SeedGenerator:
        """Return the generator of an epoch: of the same seed and worker, at its start, whatever was given out before.

        Args:
            epoch: Its number. Epoch 0 is what a new generator has.
        """
        derived = copy.copy(self)
        derived._epoch = epoch
        derived._num_shared = derived._num_local = 0
        return derived

    def __repr__(self) -> str:
        return f"SeedGenerator(seed={self._seed}, epoch={self._epoch}, worker_key={self._worker_key})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeedGenerator) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes with each seed


def draw_seed(*, from_torch: bool = False) -> int:
    """Draw a seed from the operating system, or, as torchdata did, from torch's global generator.

    Args:
        from_torch: Draw from torch's generator, which moves on: `torch.manual_seed` then fixes what follows.
            Without effect if torch is not loaded.
    """
    torch = sys.modules.get("torch")
    if from_torch and torch is not None:
        return int(torch.empty((), dtype=torch.int64).random_().item())
    return secrets.randbits(64)


def is_random_pipe(pipe: Any) -> bool:
    """Tell whether a pipe is random: whether it has a method `set_seed`."""
    return callable(getattr(type(pipe), "set_seed", None))


def set_datapipes_seed(datapipes: Iterable[Any], seed_generator: SeedGenerator, distributed_shared: bool) -> None:
    """Give each random pipe of several its seed.

    Args:
        datapipes: Pipes; those that are not random are passed over and cost no seed.
        seed_generator: Where the seeds come from.
        distributed_shared: Give shared seeds, on which all workers agree.
    """
    for pipe in datapipes:
        if is_random_pipe(pipe):
            pipe.set_seed(
                seed_generator.generate_shared_seed() if distributed_shared else seed_generator.generate_seed()
            )


def set_graph_random_seed(datapipe: Any, seed_generator: SeedGenerator) -> Any:
    """Give each random pipe of a graph its seed: a shared one before sharding, a local one elsewhere.

    What is upstream of a sharding pipe must be shuffled in the same way in all workers, or shares overlap.

    Args:
        datapipe: The end of the graph.
        seed_generator: Where the seeds come from.

    Returns:
        The pipe.
    """
    pipes = list_pipes(datapipe)
    before_sharding: set[int] = set()
    for pipe in reversed(pipes):
        if is_sharding_pipe(pipe) or id(pipe) in before_sharding:
            before_sharding |= {id(source) for source in sources_of(pipe)}
    set_datapipes_seed([pipe for pipe in pipes if id(pipe) in before_sharding], seed_generator, True)
    set_datapipes_seed([pipe for pipe in pipes if id(pipe) not in before_sharding], seed_generator, False)
    return datapipe


def _signed(number: int) -> int:
    return number - _UINT64 if number >= _UINT64 // 2 else number
