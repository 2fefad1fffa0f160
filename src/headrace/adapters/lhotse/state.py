"""The state of a `LhotseDataLoader`: the position of the training, and how the sampler gets there again.

All of it is plain data, except for a state of a user's own sampler. Nothing is trusted: a state is checked against the
sampler and its batches, and a checksum covers what neither can confirm, such as the number of the pass that random
transforms draw by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from headrace.datasets.digests import digest_of_state
from headrace.errors import ResumeError

from .passes import Mark

VERSION = 1
_ADDED = ("start_private",)  # older states do not have it
_CHECKSUM = "checksum"  # nor this
_OF_SAMPLERS = ("state", "start_state")  # may be anything


@dataclass(frozen=True)
class Saved:
    """The state of a loader.

    Attributes:
        epoch: Epoch of the sampler, or of the loader if the sampler has none.
        passes: Complete passes of this epoch before this one.
        origin: Batches of all ranks before batch 0 of the pass.
        batches: Number of batches of the pass that this rank has consumed.
        digest: Digest of these batches.
        is_over: Whether that was all.
        rank: Rank that saved the state.
        world_size: World size at that time.
        seed: Seed of the loader.
        sampler: Type and settings of the sampler.
        start_state: The sampler's state when the pass began, if it did not begin with its epoch.
        start_globals: The global generators then, if the sampler drew from them.
        start_private: The sampler's own seeds, counters and generators then; of a pass that is over, those after it.
        state: The sampler's state after `state_batches` batches with the digest `state_digest`, if it was taken.
    """

    epoch: int
    passes: int
    origin: int
    batches: int
    digest: str
    is_over: bool
    rank: int
    world_size: int
    seed: int | None
    sampler: dict[str, Any]
    start_state: Any = None
    start_globals: dict[str, Any] | None = None
    start_private: dict[str, Any] | None = None
    state: Any = None
    state_batches: int = 0
    state_digest: str = "0"

    @property
    def position(self) -> int:
        """Batches of all ranks that were consumed."""
        return self.origin + self.batches * self.world_size

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain data."""
        state = {"format": "headrace.LhotseDataLoader", "version": VERSION, **asdict(self)}
        return {**state, _CHECKSUM: checksum_of(state)}

    @classmethod
    def of_dict(cls, state: Any) -> Saved:
        """Read a state.

        Raises:
            ResumeError: It is not such a state, or damaged.
        """
        if not isinstance(state, Mapping) or state.get("format") != "headrace.LhotseDataLoader":
            raise ResumeError(
                f"this is not a state of a LhotseDataLoader: {str(state)[:200]}",
                fix="give what loader.state_dict() returned; a sampler's own state goes to sampler.load_state_dict",
            )
        if state.get("version") != VERSION:
            raise ResumeError(f"the state has version {state.get('version')!r}, and this Headrace reads {VERSION}")
        try:
            saved = cls(
                **{
                    entry.name: state[entry.name]
                    for entry in fields(cls)
                    if entry.name in state or entry.name not in _ADDED
                }
            )
            counts = [saved.passes, saved.origin, saved.batches, saved.state_batches, saved.rank, saved.world_size]
            is_whole = (
                all(type(count) is int and count >= 0 for count in counts)
                and type(saved.epoch) is int
                and type(saved.is_over) is bool
                and saved.world_size > saved.rank
                and saved.state_batches <= saved.batches
                and isinstance(saved.sampler, Mapping)
                and isinstance(saved.start_globals, Mapping | None)
                and isinstance(saved.start_private, Mapping | None)
            )
            int(saved.digest, 16), int(saved.state_digest, 16)
        except (KeyError, TypeError, ValueError) as error:
            raise ResumeError(f"the state is damaged: {type(error).__name__}: {error}") from error
        if not is_whole:
            raise ResumeError("the state is damaged: its numbers do not fit together", fix="give it as it was saved")
        check(state)
        return saved


def checksum_of(state: Mapping[str, Any]) -> str:
    """Return the checksum of a state; of samplers' states, it covers what can be written as JSON."""
    try:
        return digest_of_state(state, without=_CHECKSUM)
    except (TypeError, ValueError, OverflowError, RecursionError):
        plain = {key: value for key, value in state.items() if key not in _OF_SAMPLERS}
        return digest_of_state(plain, without=_CHECKSUM)


def check(state: Mapping[str, Any]) -> None:
    """Refuse a state that was changed since it was saved.

    Raises:
        ResumeError: Its checksum differs.
    """
    try:
        checksum = checksum_of(state)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ResumeError(f"the state is damaged: {error}", fix="give it as it was saved") from error
    if state.get(_CHECKSUM, checksum) != checksum:
        raise ResumeError(
            f"the state was changed since it was saved: its checksum is {state[_CHECKSUM]}, "
            f"that of its content {checksum}",
            fix="resume from an older state, and do not edit states",
        )


@dataclass(frozen=True)
class Course:
    """The start of a pass, and its position.

    Attributes:
        epoch: Epoch of the sampler.
        passes: Complete passes of the epoch before it.
        origin: Batches of all ranks before its batch 0.
        start_state: See `Saved`.
        start_globals: See `Saved`; filled in when the pass has begun.
        start_private: See `Saved`; the same.
        mark: The position of the training.
    """

    epoch: int = 0
    passes: int = 0
    origin: int = 0
    start_state: Any = None
    start_globals: dict[str, Any] = field(default_factory=dict)
    start_private: dict[str, Any] = field(default_factory=dict)
    mark: Mark = field(default_factory=Mark)

    @classmethod
    def of_saved(cls, saved: Saved, is_elastic: bool) -> Course:
        """Return the start of a resumed pass; with a state of all ranks, a new course from its position."""
        if is_elastic:  # the sampler's own state is all it takes, and batches count from there
            state = saved.start_state if saved.state is None else saved.state
            return cls(saved.epoch, saved.passes, saved.position, state)  # generators are keyed by the batch
        mark = Mark(saved.batches, int(saved.digest, 16))
        mark.state, mark.state_num, mark.state_digest = saved.state, 0, 0
        if saved.state is not None:
            mark.state_num, mark.state_digest = saved.state_batches, int(saved.state_digest, 16)
        start_globals = dict(saved.start_globals or {})
        return cls(saved.epoch, saved.passes, saved.origin, saved.start_state, start_globals, {}, mark)
