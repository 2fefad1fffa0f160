"""The sampler of a loader: how a pass over it begins, and how its position is kept.

Two ways lead back to a position. *Replay*: begin the pass in the same way and draw the same batches again, without
loading anything. *Snapshots*: the sampler's own state, and a replay of the few batches since it was taken. lhotse's own
samplers are replayed, though they have a state: theirs counts in a way that loses or repeats cuts after `filter()`,
with several ranks, and with random turns. Either way, the batches drawn again are compared by a digest of the cuts'
ids, so a sampler that gives another stream is an error.

Invariant: nothing here runs while another thread draws from the sampler.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sized
from types import GeneratorType
from typing import Any, Literal, get_args

import xxhash

from headrace.errors import ConfigError, HeadraceError, ResumeError
from headrace.ranks import LateRanks, Ranks, find_ranks

Resume = Literal["auto", "replay", "snapshot"]

_SETTINGS = ("seed", "world_size", "shuffle", "drop_last")
_PLAIN = (int, float, str, bool, type(None))


class SamplerSide:
    """The sampler of a loader.

    Args:
        sampler: A lhotse sampler, or any iterable of batches.
        resume: How positions are kept: by replay, by the sampler's own state, or as it suits the sampler.

    Attributes:
        keeps_state: Whether positions are kept by the sampler's own state.
        is_elastic: Whether that state is of all ranks, so that it can be resumed on another number of ranks.

    Raises:
        ConfigError: It is not a sampler, its order depends on chance, or it has no state and `resume="snapshot"`.
    """

    def __init__(self, sampler: Any, resume: Resume = "auto") -> None:
        if not isinstance(sampler, Iterable) and not hasattr(sampler, "__getitem__"):
            raise ConfigError(
                f"a sampler gives batches of cuts or of indices when it is iterated over, and {type(sampler)} does not",
                fix="give a lhotse sampler, a list of lists of indices, or any iterable of batches",
            )
        if resume not in get_args(Resume):
            raise ConfigError(f'resume must be "auto", "replay" or "snapshot", got {resume!r}')
        has_state = all(callable(getattr(sampler, name, None)) for name in ("state_dict", "load_state_dict"))
        if resume == "snapshot" and not has_state:
            raise ConfigError(
                f'resume="snapshot" needs a sampler with state_dict and load_state_dict, and {type(sampler)} has none',
                fix='leave resume out, or give resume="replay"',
            )
        _refuse_chance(sampler)
        self.sampler = sampler
        self.is_elastic = has_state and bool(getattr(sampler, "is_elastic", False))
        if resume == "auto":
            self.keeps_state = has_state and (self.is_elastic or not is_of_lhotse(sampler))
        else:
            self.keeps_state = resume == "snapshot"
        self.is_elastic = self.is_elastic and self.keeps_state
        self._ranks = LateRanks(self._find_ranks, type(sampler).__name__)
        self._num_passes = 0

    def _find_ranks(self) -> Ranks:
        """Look the ranks up in the sampler, or in the environment if it does not know them."""
        rank, world_size = getattr(self.sampler, "rank", None), getattr(self.sampler, "world_size", None)
        if not isinstance(rank, int) or not isinstance(world_size, int):
            return find_ranks()
        return Ranks(rank, world_size, "the sampler")

    @property
    def rank(self) -> int:
        """The rank of the sampler, else of this process."""
        return self._ranks.look_up().rank

    @property
    def world_size(self) -> int:
        """How many ranks there are; the same."""
        return self._ranks.look_up().world_size

    def settle_ranks(self) -> None:
        """Note that a pass begins: the ranks may not change from then on.

        Raises:
            ConfigError: They are not known, or have changed.
        """
        self._ranks.settle()

    @property
    def epoch(self) -> int | None:
        """The sampler's own epoch, if it has one."""
        epoch = getattr(self.sampler, "epoch", None)
        return epoch if isinstance(epoch, int) else None

    def set_epoch(self, epoch: int) -> None:
        """Set the sampler's epoch, if it has one."""
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)

    def describe(self) -> dict[str, Any]:
        """Return its type and those settings that decide what it gives."""
        found = {name: getattr(self.sampler, name, None) for name in _SETTINGS}
        settings = {name: value for name, value in found.items() if value is not None and isinstance(value, _PLAIN)}
        return {"type": type(self.sampler).__name__, **settings}

    def check(self, saved: Mapping[str, Any]) -> None:
        """Refuse a state of another sampler.

        Raises:
            ResumeError: The type, or a setting, is another one; they are named.
        """
        for name, own in self.describe().items():
            if saved.get(name, own) == own or (name == "world_size" and self.is_elastic):
                continue
            way_out = ", or use PlannedCutSampler, which can be resumed on any number of ranks"
            raise ResumeError(
                f"the state was saved with a sampler whose {name} is {saved[name]!r}, and this one's is {own!r}",
                where=type(self.sampler).__name__,
                fix=f"make the sampler as it was{way_out if name == 'world_size' else ''}",
            )

    def begin(self, state: Any, is_restart: bool) -> Iterator[Any]:
        """Begin a pass.

        Args:
            state: State of the sampler, or None: from the beginning of its epoch.
            is_restart: Whether to drop a position that was loaded into the sampler.

        Raises:
            HeadraceError: It is a generator, which gives its batches once.
            ResumeError: The sampler refuses the state.
        """
        sampler = self.sampler
        if isinstance(sampler, GeneratorType) and self._num_passes:
            raise HeadraceError(
                "a generator gives its batches once, and this is the second pass over it",
                fix="give a list, or an object whose __iter__ begins anew",
            )
        self._num_passes += 1
        if is_restart and hasattr(sampler, "allow_iter_to_reset_state"):
            sampler.allow_iter_to_reset_state()
        if state is not None:
            try:
                sampler.load_state_dict(copy.deepcopy(state))  # lhotse's empty what they are given
            except Exception as error:
                raise ResumeError(
                    f"the sampler refuses the state: {type(error).__name__}: {error}",
                    where=type(sampler).__name__,
                    fix="make the sampler as it was",
                ) from error
        return iter(sampler)

    def snapshot(self) -> Any:
        """Return the sampler's state as it is now."""
        state = self.sampler.state_dict()
        return state if self.is_elastic else copy.deepcopy(state)


def _refuse_chance(sampler: Any) -> None:
    """Refuse options of lhotse's samplers by which every pass, and every rank, gets another order."""
    seed = getattr(sampler, "seed", None)
    if seed in ("randomized", "trng"):
        raise ConfigError(
            f"the sampler's seed={seed!r} is another number in each process, so ranks would lose and repeat cuts, and "
            "no position could be resumed",
            where=type(sampler).__name__,
            fix="give an int, for example seed=rank where each rank has cuts of its own",
        )
    if getattr(sampler, "concurrent", False) is True:
        raise ConfigError(
            "concurrent=True gives batches in an order that depends on timing",
            where=type(sampler).__name__,
            fix="omit it: the loader runs the sampler in a thread of its own",
        )


def ids_of(batch: Any) -> list[str]:
    """Return the contents of a batch of a sampler: the ids of its cuts, or the indices; of texts, the texts."""
    if hasattr(batch, "tolist"):  # an array or a tensor
        batch = batch.tolist()
    if isinstance(batch, _PLAIN):
        return [str(batch)]
    if isinstance(batch, Mapping):
        return ids_of(list(batch.items()))
    own = getattr(batch, "id", None)
    if isinstance(own, str | int):
        return [str(own)]
    if isinstance(batch, Iterable) and isinstance(batch, Sized):
        return [one for part in batch for one in ids_of(part)]
    texts = [getattr(batch, name, None) for name in ("text", "source", "target")]
    found = [one for text in texts if text is not None for one in ids_of(text)]
    return found or [type(batch).__name__]


def chain_digest(before: int, batch: Any) -> int:
    """Return the digest of a batch and all batches before it, 64 bits."""
    return xxhash.xxh3_64_intdigest("\0".join(ids_of(batch)).encode("utf-8", "surrogatepass"), before)


def is_of_lhotse(value: Any) -> bool:
    """Tell whether a sampler or a dataset is one of lhotse's, or of a class below them."""
    return any(kind.__module__.partition(".")[0] == "lhotse" for kind in type(value).__mro__)
