"""The seeds of random pipes: shared ones, the same in all workers, and local ones, different in each.

A seed is a hash of (seed of the generator, epoch, worker, number of seeds before it). No global generator is read or
written, except by `draw_seed(from_torch=True)`. Names are torchdata's, whose generator was two Philox streams: the
numbers here are not the same as there.

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

from ..core.base import Pipe, decides_when_to_begin, is_iter_pipe, is_map_pipe
from ..core.walk import list_pipes, sources_of
from ..sharding import is_sharding_pipe

_UINT64 = 2**64


class SeedGenerator:
    """Generates seeds, integers in [0, 2**64).

    Args:
        seed: The seed that all others follow from; `None`: one is drawn from the operating system.

    Raises:
        ValueError: The seed does not fit into 64 bits.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed(seed)

    def seed(self, seed: int | None = None) -> SeedGenerator:
        """Restart with another seed, and return the generator.

        Args:
            seed: From 0 to 2**64 - 1; `None`: one is drawn from the operating system.

        Raises:
            ValueError: The seed does not fit into 64 bits.
        """
        seed = draw_seed() if seed is None else check_seed(seed)
        self._seed = self._worker_key = seed
        self._lasting_seed = self._lasting_worker_key = seed
        self._epoch = self._num_shared = self._num_local = 0
        return self

    def generate_shared_seed(self) -> int:
        """Return the next shared seed: the same in all workers and ranks that have drawn equally many."""
        self._num_shared += 1
        return derive_seed(
            _signed(self._seed), "pipes: shared seed", epoch=self._epoch, occurrence=self._num_shared - 1
        )

    def generate_seed(self) -> int:
        """Return the next local seed: different in each worker."""
        self._num_local += 1
        return derive_seed(
            _signed(self._worker_key), "pipes: local seed", epoch=self._epoch, occurrence=self._num_local - 1
        )

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """Return the generator of a worker: it continues the shared seeds, and has local seeds of its own.

        Args:
            worker_id: The worker, or the rank. Generators may be spawned from spawned ones.
            inplace: Change this generator instead of returning a copy.

        Raises:
            ValueError: The number is negative.
        """
        if worker_id < 0:
            raise ValueError(f"Expected `worker_id` equal or larger than 0, got {worker_id}")
        spawned = self if inplace else copy.copy(self)
        spawned._worker_key = _key_of_worker(spawned._worker_key, worker_id)
        spawned._lasting_worker_key = _key_of_worker(spawned._lasting_worker_key, worker_id)
        spawned._num_local = 0
        return spawned

    def for_epoch(self, epoch: int) -> SeedGenerator:
        """Return the generator of an epoch: with the same seed and worker, at its start whatever was drawn before.

        Args:
            epoch: Its number. Epoch 0 is what a new generator has.
        """
        derived = copy.copy(self)
        derived._epoch = epoch
        derived._num_shared = derived._num_local = 0
        return derived

    @property
    def lasting_seed(self) -> int:
        """The seed that the seeds of `for_all_epochs` follow from: the one this generator began with.

        A service that reseeds the generator in each epoch must set it to the same value in all epochs.
        """
        return self._lasting_seed

    @lasting_seed.setter
    def lasting_seed(self, seed: int) -> None:
        self._lasting_seed = self._lasting_worker_key = seed

    def for_all_epochs(self) -> SeedGenerator:
        """Return this worker's generator of epoch 0, with as many seeds drawn as from this one: alike in all epochs."""
        lasting = copy.copy(self)
        lasting._seed, lasting._worker_key, lasting._epoch = self._lasting_seed, self._lasting_worker_key, 0
        return lasting

    def __repr__(self) -> str:
        return f"SeedGenerator(seed={self._seed}, epoch={self._epoch}, worker_key={self._worker_key})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeedGenerator) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes with each seed


def draw_seed(*, from_torch: bool = False) -> int:
    """Draw a seed from the operating system, or, as torchdata did, from torch's global generator.

    Args:
        from_torch: Draw from torch's global generator, so that `torch.manual_seed` decides the seed. Without effect if
            torch is not loaded.
    """
    torch = sys.modules.get("torch")
    if from_torch and torch is not None:
        return int(torch.empty((), dtype=torch.int64).random_().item())
    return secrets.randbits(64)


def check_seed(seed: int) -> int:
    """Return a seed as an `int`.

    Raises:
        ValueError: It does not fit into 64 bits.
    """
    if not 0 <= seed < _UINT64:
        raise ValueError(f"a seed is an integer from 0 to 2**64 - 1, got {seed}")
    return int(seed)


def is_random_pipe(pipe: Any) -> bool:
    """Tell whether a pipe is random: whether it has a method `set_seed`."""
    return callable(getattr(type(pipe), "set_seed", None))


def set_datapipes_seed(datapipes: Iterable[Any], seed_generator: SeedGenerator, distributed_shared: bool) -> None:
    """Set the seeds of the random ones of some pipes.

    A pipe that is read only by pipes that keep its items, such as caches, gets the same seed in all epochs.

    Args:
        datapipes: The pipes; those that are not random use up no seed.
        seed_generator: Where the seeds come from.
        distributed_shared: Use shared seeds, the same in all workers, instead of local ones.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.dataloader2 import graph as graphs
        >>> from headrace.dataloader2.random import SeedGenerator
        >>> pipe = IterableWrapper(range(8)).shuffle()
        >>> graphs.set_datapipes_seed([pipe], SeedGenerator(1), distributed_shared=True)
        >>> sorted(pipe)
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    pipes = list(datapipes)
    keepers = find_keepers(pipes)
    _note_seeds(keepers, _seed_pipes(pipes, keepers, seed_generator, distributed_shared), seed_generator)


def _seed_pipes(
    pipes: list[Any], keepers: dict[int, list[Any]], seed_generator: SeedGenerator, is_shared: bool
) -> dict[int, int]:
    """Set the seeds of pipes; return them by the `id` of the pipe."""
    lasting = seed_generator.for_all_epochs()
    seeds: dict[int, int] = {}
    for pipe in filter(is_random_pipe, pipes):
        of_epoch, of_all = (
            generator.generate_shared_seed() if is_shared else generator.generate_seed()
            for generator in (seed_generator, lasting)
        )
        seeds[id(pipe)] = of_all if is_kept(keepers[id(pipe)]) else of_epoch
        pipe.set_seed(seeds[id(pipe)])
    return seeds


def _note_seeds(keepers: dict[int, list[Any]], seeds: dict[int, int], seed_generator: SeedGenerator) -> None:
    """Tell the pipes that keep items which seeds decide what they keep."""
    for keeper in {id(each): each for found in keepers.values() for each in found if isinstance(each, Pipe)}.values():
        before = list_pipes(keeper)[:-1]
        given = [seeds[id(pipe)] for pipe in before if id(pipe) in seeds and is_kept(keepers[id(pipe)])]
        if any(isinstance(pipe, Pipe) and pipe.is_fed_elsewhere for pipe in before):
            given.append(seed_generator.lasting_seed)
        keeper.note_seeds(tuple(given))


def note_seeds_of_globals(pipes: list[Any], seed_generator: SeedGenerator, *, is_shared: bool) -> None:
    """Tell pipes that keep items how to seed the global generators while they read them: alike in all epochs.

    For processes that seed the global generators in each epoch.

    Args:
        pipes: The pipes; those that keep no items are left alone.
        seed_generator: Where the seeds come from. It is not changed.
        is_shared: Use seeds that are the same in all workers.
    """
    lasting = seed_generator.for_all_epochs()
    key = lasting._seed if is_shared else lasting._worker_key
    for number, pipe in enumerate(each for each in pipes if isinstance(each, Pipe) and each.keeps_items):
        pipe.note_seed_of_globals(derive_seed(_signed(key), "pipes: kept items", occurrence=number))


def find_keepers(pipes: list[Any]) -> dict[int, list[Any]]:
    """Find for each pipe the nearest downstream pipes that keep its items for all epochs.

    Caches in memory and map-style pipes made of iterable ones keep items.

    Args:
        pipes: The pipes of a graph, sources first.

    Returns:
        `id` of a pipe -> the pipes that keep its items, and `None` if it is also read anew in each epoch.
    """
    found: dict[int, dict[int, Any]] = {id(pipe): {} for pipe in pipes}
    for reader in reversed(pipes):
        own = found[id(reader)] or {id(None): None}
        found[id(reader)] = own
        for source in sources_of(reader):
            keeps = (isinstance(reader, Pipe) and reader.keeps_items) or (is_map_pipe(reader) and is_iter_pipe(source))
            found.setdefault(id(source), {}).update({id(reader): reader} if keeps else own)
    return {key: list(keepers.values()) for key, keepers in found.items()}


def is_kept(keepers: list[Any]) -> bool:
    """Tell, from what `find_keepers` found for a pipe, whether it is read only by pipes that keep its items."""
    return all(keeper is not None for keeper in keepers)


def find_unrepeatable(datapipe: Any) -> tuple[Any, Any] | None:
    """Find a pipe that keeps items which cannot be read again after a resume, because others read their source too.

    The source is random, and the others read it with other random numbers, or it is a fork, which they have advanced.

    Args:
        datapipe: The end of a graph.

    Returns:
        The source, and the pipe that keeps its items; `None` if there is none.
    """
    pipes = list_pipes(datapipe)
    keepers = find_keepers(pipes)
    for pipe in pipes:
        if len(found := keepers[id(pipe)]) > 1 and (is_random_pipe(pipe) or decides_when_to_begin(pipe)):
            return pipe, next(keeper for keeper in found if keeper is not None)
    return None


def set_graph_random_seed(datapipe: Any, seed_generator: SeedGenerator) -> Any:
    """Set the seed of each random pipe of a graph: a shared one upstream of sharding, a local one elsewhere.

    What is upstream of a sharding pipe must be shuffled in the same way in all workers, or their shares overlap.

    Args:
        datapipe: The end of the graph.
        seed_generator: Where the seeds come from.

    Returns:
        The pipe.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> from headrace.dataloader2 import graph as graphs
        >>> from headrace.dataloader2.random import SeedGenerator
        >>> pipe = IterableWrapper(range(8)).shuffle()
        >>> orders = [list(graphs.set_graph_random_seed(pipe, SeedGenerator(1))) for _ in range(2)]
        >>> orders[0] == orders[1]
        True
    """
    pipes = list_pipes(datapipe)
    before_sharding: set[int] = set()
    for pipe in reversed(pipes):
        if is_sharding_pipe(pipe) or id(pipe) in before_sharding:
            before_sharding |= {id(source) for source in sources_of(pipe)}
    keepers = find_keepers(pipes)
    shared = [pipe for pipe in pipes if id(pipe) in before_sharding]
    own = [pipe for pipe in pipes if id(pipe) not in before_sharding]
    seeds = _seed_pipes(shared, keepers, seed_generator, True) | _seed_pipes(own, keepers, seed_generator, False)
    _note_seeds(keepers, seeds, seed_generator)
    return datapipe


def _key_of_worker(key: int, worker_id: int) -> int:
    return derive_seed(_signed(key), "pipes: worker", corpus_idx=worker_id)


def _signed(number: int) -> int:
    return number - _UINT64 if number >= _UINT64 // 2 else number
