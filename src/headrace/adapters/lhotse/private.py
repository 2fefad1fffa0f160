"""Private state of lhotse's samplers and datasets that a stream of batches depends on.

Three kinds of things are found by walking over an object and its parts:

* **Generators.** A transform (`CutMix`, `PerturbSpeed(randgen=...)`) has one of its own, or makes one when it is first
  called. `Keyed` seeds such generators for each batch, so that they depend on the batch and on nothing else.
* **Seeds that are words.** "randomized" and "trng" become numbers once, when the first pass begins.
* **Counters.** Lazy sets of cuts count their passes (`CutSet.from_shar(stateful_shuffle=True)`), or carry a generator
  over from one pass to the next. `Private` saves and restores these.

Cuts, and containers of hundreds of objects, are data and are not searched.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import secrets
import sys
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import xxhash

from headrace.errors import ConfigError, ResumeError
from headrace.rng import derive_seed

from .seeds import legacy_state, pack, plain_legacy, plain_python, python_state, unpack

_logger = logging.getLogger("headrace.adapters")
WORDS = ("randomized", "trng")
_SEEDS = ("seed", "base_seed")
_COUNTERS = ("num_iters", "num_times_iterated")
_RANK_STEP = 100_000  # between the seeds of two ranks, as lhotse's `worker_init_fn` has it
_MAX_OBJECTS = 20_000
_MAX_ITEMS = 256
_LEAVES = (str, bytes, int, float, complex, bool, type(None), types.ModuleType, type, np.ndarray, np.generic)
_SKIPPED = (
    "lhotse.cut.data", "lhotse.cut.mono", "lhotse.cut.multi", "lhotse.cut.mixed", "lhotse.cut.padding", "lhotse.audio",
    "lhotse.supervision", "lhotse.features.base", "lhotse.array", "lhotse.image", "threading", "queue", "concurrent",
    "multiprocessing", "logging", "io", "_io", "headrace.engine",
)  # fmt: skip


class Found(NamedTuple):
    """An object that the walk found.

    Attributes:
        path: Its path from the root: the same in every process that makes the same objects.
        value: The object.
        in_transforms: Whether it is part of a transform that a sampler applies to its batches.
    """

    path: str
    value: Any
    in_transforms: bool


def walk(root: Any) -> Iterator[Found]:
    """Yield an object and its parts, each once."""
    seen: dict[int, Any] = {}
    pending = [Found("", root, in_transforms=False)]
    while pending and len(seen) < _MAX_OBJECTS:
        found = pending.pop()
        if id(found.value) in seen:
            continue
        seen[id(found.value)] = found.value  # held, so that no other object gets its id
        yield found
        for name, part in _parts(found.value):
            if not isinstance(part, _LEAVES):
                pending.append(Found(found.path + name, part, found.in_transforms or name == "._transforms"))


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()] if len(value) <= _MAX_ITEMS else []
    if isinstance(value, list | tuple):
        return [(f"[{number}]", part) for number, part in enumerate(value)] if len(value) <= _MAX_ITEMS else []
    if isinstance(value, functools.partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, types.MethodType):
        return [(".self", value.__self__)]
    if isinstance(value, types.FunctionType):
        cells = value.__closure__ or ()
        names = value.__code__.co_freevars
        return [(f"<{name}>", cell.cell_contents) for name, cell in zip(names, cells, strict=True) if _is_filled(cell)]
    module = type(value).__module__
    if module.startswith(_SKIPPED) or _is_generator(value) or _is_tensor(value):
        return []
    found = [(f".{name}", part) for name, part in getattr(value, "__dict__", {}).items()]
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        all_names = [slots] if isinstance(slots, str) else list(slots)
        usual = [name for name in all_names if name not in ("__dict__", "__weakref__") and hasattr(value, name)]
        found.extend((f".{name}", getattr(value, name)) for name in usual)
    return found


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asked whether it is there
    except ValueError:
        return False
    return True


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_generator(value: Any) -> bool:
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    if isinstance(value, np.random.Generator | np.random.RandomState):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Generator", ()))


def parts_with_epochs(sampler: Any) -> list[Any]:
    """Return the parts that shuffle by an epoch which no sampler sets: WebDataset's shards."""
    kind = getattr(sys.modules.get("lhotse.dataset.webdataset"), "LazyWebdatasetIterator", None)
    return [] if kind is None else [found.value for found in walk(sampler) if isinstance(found.value, kind)]


# --- generators of one batch ---


class Keyed:
    """Generators that are seeded anew for each batch.

    Args:
        found: Where to look for them. Transforms of lhotse that would make one when they are first called get it here.
    """

    def __init__(self, found: Iterable[Found]) -> None:
        self._generators: list[tuple[Any, int]] = []
        parts = list(found)
        for path, value, _ in parts:
            if (name := _lazy_generator(value)) is not None:
                seed = getattr(value, "seed", None)
                made = seed if isinstance(seed, random.Random) else _new(seed if type(seed) is int else 0)
                setattr(value, name, made)
                parts.append(Found(f"{path}.{name}", made, in_transforms=False))
        known: set[int] = set()
        for path, value, _ in parts:
            if _is_generator(value) and id(value) not in known:
                known.add(id(value))
                self._generators.append((value, _digest(path, value)))

    def __bool__(self) -> bool:
        return bool(self._generators)

    def seed(self, key: int, number: int) -> None:
        """Seed all of them for a batch: about 10 us each.

        Args:
            key: Key of the pass, 64 bits.
            number: Number of the batch.
        """
        signed = key - 2**64 if key >= 2**63 else key
        for generator, own in self._generators:
            _seed(generator, derive_seed(signed, "lhotse: generator", epoch=own, corpus_idx=number, bits=63))

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Restore their current states at the end."""
        states = [_state_of(generator) for generator, _ in self._generators]
        try:
            yield
        finally:
            for (generator, _), state in zip(self._generators, states, strict=True):
                _set_state(generator, state)


def _new(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - for data


def _lazy_generator(value: Any) -> str | None:
    """Return the attribute in which a transform of lhotse will store a generator that it has not made yet."""
    if type(value).__module__.startswith("lhotse.dataset.cut_transforms"):
        for name in ("rng", "random"):
            if getattr(value, name, value) is None:
                return name
    return None


def _digest(path: str, generator: Any) -> int:
    """Return what identifies a generator: its path, and the seed that its owner gave it."""
    digest = xxhash.xxh3_64_intdigest(f"{path} {_plain_state(generator)!r}".encode("utf-8", "surrogatepass"))
    return digest - 2**64 if digest >= 2**63 else digest


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed % 2**32)
    elif isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state
    else:
        generator.manual_seed(seed)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


class NewIds:
    """Makes lhotse take the ids of new cuts (mixed, padded, joined) from a generator, in a `with` block.

    It takes them from the system otherwise, so that two runs would have different ones.

    Args:
        generator: Where from; None: Python's global one, which must be seeded by then.

    Attributes:
        are_used: Whether an id was taken.
    """

    def __init__(self, generator: random.Random | None = None) -> None:
        self._bits = random.getrandbits if generator is None else generator.getrandbits
        self._usual: Any = None
        self.are_used = False

    def __enter__(self) -> NewIds:
        self.begin()
        return self

    def begin(self) -> None:
        """Begin without an end."""
        utils: Any = sys.modules.get("lhotse.utils")
        if utils is not None:
            self._usual = getattr(utils, "_lhotse_uuid", None)
            utils._lhotse_uuid = self._make

    def __exit__(self, *error: object) -> None:
        utils: Any = sys.modules.get("lhotse.utils")
        if utils is not None and utils._lhotse_uuid == self._make:
            utils._lhotse_uuid = self._usual

    def _make(self) -> uuid.UUID:
        self.are_used = True
        return uuid.UUID(int=self._bits(128), version=4)


def new_ids(seed: int) -> NewIds:
    """Return new ids of a generator of their own."""
    return NewIds(_new(seed))


# --- what goes on from one pass to the next ---


class Private:
    """Seeds, counters and generators of a sampler that carry over from one pass to the next.

    Args:
        sampler: Its parts are walked over once, here; seeds that are words become numbers.
        keys_transforms: Whether the generators of its transforms are seeded for each batch, and so are not kept.
        base_seed: For "randomized": the base seed of the user's `worker_init_fn`, the loader's seed, or None.
        rank: Rank of this process among those that train.
        is_sharing: Whether the sampler gives each rank a share of one stream, which must be the same on all of them.

    Attributes:
        has_transforms: Whether the sampler applies functions to its batches.
        keyed: The generators of its transforms.

    Raises:
        ConfigError: Ranks that share a stream would each draw another one.
    """

    def __init__(
        self, sampler: Any, *, keys_transforms: bool, base_seed: int | None, rank: int, is_sharing: bool
    ) -> None:
        found = list(walk(sampler))
        self._rank = 0 if is_sharing else rank
        self._base_seed, self._is_sharing = base_seed, is_sharing
        self._seeds: dict[str, tuple[Any, str, str]] = {}
        self._counters: dict[str, tuple[Any, str]] = {}
        self._chains: dict[str, tuple[Any, list[Any]]] = {}
        self._late: dict[str, Any] = {}  # generators that were made here
        self.has_transforms = any(path.endswith("._transforms") and value for path, value, _ in found)
        for path, value, _ in found:
            self._note(path, value)
        self.keyed = Keyed([part for part in found if part.in_transforms])
        kept = [part for part in found if _is_generator(part.value) and not (keys_transforms and part.in_transforms)]
        self._generators = {path: value for path, value, _ in kept}

    def _note(self, path: str, value: Any) -> None:
        is_of_lhotse = type(value).__module__.startswith("lhotse.")
        attributes = getattr(value, "__dict__", {})
        for name in _SEEDS:
            word = attributes.get(name)
            if isinstance(word, str) and word in WORDS:
                self._seeds[f"{path}.{name}"] = value, name, word
                setattr(value, name, self._resolve(word))
                if isinstance(attributes.get("rng"), random.Random):  # made of the word, before ranks were known
                    attributes["rng"].seed(getattr(value, name))
        if not is_of_lhotse:
            return
        if attributes.get("concurrent") is True:
            value.concurrent = False
            _logger.info(
                "concurrent=True gives batches in an order that depends on time; the loader draws them in a "
                "thread of its own instead"
            )
        for name in _COUNTERS:
            if type(attributes.get(name)) is int:
                self._counters[f"{path}.{name}"] = value, name
        if "stateful_shuffle" in attributes and type(attributes.get("epoch")) is int:
            self._counters[f"{path}.epoch"] = value, "epoch"
        if attributes.get("shuffle_iters") and isinstance(attributes.get("iterators"), list):
            self._chains[f"{path}.iterators"] = value, list(value.iterators)
        if type(value).__name__ == "LazyShuffler" and value.rng is None:
            # It would draw from the global generator, in a thread beside the training.
            value.rng = _new(0)
            value.rng.setstate(random.getstate())
            if self._rank:
                value.rng.seed(derive_seed(_global_word(), "lhotse: shuffler", corpus_idx=self._rank))
            self._late[f"{path}.rng"] = value.rng

    def _resolve(self, word: str) -> int:
        """Return a number for a word, as lhotse would in the first worker of this rank."""
        if word == "randomized":
            base = _global_word() if self._base_seed is None else self._base_seed
            return (base + _RANK_STEP * self._rank) % 2**32
        if self._is_sharing:
            raise ConfigError(
                'seed="trng" draws another seed on each rank, and this sampler gives each rank a share of one order: '
                "sequences would be lost and repeated",
                fix='give a number, or "randomized"; or world_size=1, rank=0 where the data are split already',
            )
        return secrets.randbelow(2**31)

    def word_of(self, name: str) -> str | None:
        """Return the word that an attribute of the sampler itself had for a seed."""
        entry = self._seeds.get(f".{name}")
        return None if entry is None else entry[2]

    def state(self) -> dict[str, Any]:
        """Return all of it as plain data; empty if there is nothing."""
        seeds: dict[str, Any] = {path: ["seed", getattr(owner, name), self._rank]
                                 for path, (owner, name, _) in self._seeds.items()}  # fmt: skip
        counters = {path: ["count", getattr(owner, name)] for path, (owner, name) in self._counters.items()}
        chains = {}
        for path, (owner, original) in self._chains.items():
            positions = {id(part): number for number, part in enumerate(original)}
            chains[path] = ["order", [positions.get(id(part), -1) for part in owner.iterators]]
        generators = {**self._generators, **self._late}
        return {
            **seeds, **counters, **chains,
            **{path: ["generator", _plain_state(generator)] for path, generator in generators.items()},
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore everything.

        Raises:
            ResumeError: The state does not fit.
        """
        try:
            for path, (kind, value, *more) in state.items():
                if kind == "seed" and path in self._seeds:
                    owner, name, _ = self._seeds[path]
                    setattr(owner, name, (int(value) + _RANK_STEP * (self._rank - int(more[0]))) % 2**32)
                elif kind == "count" and path in self._counters:
                    setattr(*self._counters[path], int(value))
                elif kind == "order" and path in self._chains:
                    owner, original = self._chains[path]
                    if sorted(value) != list(range(len(original))):
                        raise ValueError(f"{value} is not an order of {len(original)} parts")  # noqa: TRY301
                    owner.iterators[:] = [original[position] for position in value]
                elif kind == "generator" and (path in self._generators or path in self._late):
                    generator = self._generators.get(path) or self._late[path]
                    _set_state(generator, _state_from_plain(generator, value))
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise ResumeError(
                f"the state of a generator of the sampler does not fit: {type(error).__name__}: {error}",
                fix="make the sampler and its transforms as they were",
            ) from error

    def renew(self, start: Mapping[str, Any], epoch: int, last_epoch: int) -> None:
        """Prepare a pass after one that was interrupted, at whatever position its thread was.

        Args:
            start: The state when that one began.
            epoch: Epoch of the new one.
            last_epoch: Epoch of the old one.
        """
        moved = {path for path, (owner, name) in self._counters.items() if getattr(owner, name) != start[path][1]}
        self.restore(start)
        for path in moved:
            owner, name = self._counters[path]
            setattr(owner, name, start[path][1] + 1)
        if epoch != last_epoch:
            for path, generator in {**self._generators, **self._late}.items():
                _seed(generator, derive_seed(_digest(path, generator), "lhotse: epoch", epoch=epoch, bits=63))


def _global_word() -> int:
    return int(random.getstate()[1][0])


def _plain_state(generator: Any) -> Any:
    """Return the state of a generator as JSON data."""
    state = _state_of(generator)
    if isinstance(generator, random.Random):
        return plain_python(state)
    if isinstance(generator, np.random.RandomState):
        return plain_legacy(generator.get_state(legacy=True))
    if isinstance(generator, np.random.Generator):
        return _listed(state)
    return pack(state.numpy())


def _state_from_plain(generator: Any, plain: Any) -> Any:
    if isinstance(generator, random.Random):
        return python_state(plain)
    if isinstance(generator, np.random.RandomState):
        return legacy_state(plain)
    if isinstance(generator, np.random.Generator):
        return plain
    return sys.modules["torch"].from_numpy(unpack(plain, np.uint8).copy())


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
