"""The state of a `LhotseDataLoader`: the position of the training, and how the sampler gets there again.

All of it is plain data, except for a state of a user's own sampler. Nothing is trusted: a state is checked against the
sampler and its batches, and a checksum covers what neither can confirm, such as the number of the pass that random
transforms draw by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from headrace.datasets.digests import digest_of_state
from headrace.errors import ResumeError

from .passes import Mark

VERSION = 2
_FORMAT = "headrace.LhotseDataLoader"
_Count = Annotated[int, msgspec.Meta(ge=0)]
_CHECKSUM = "checksum"


class Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
        state: The sampler's state after `state_batches` batches with the digest `state_digest`, if it was taken.
    """

    epoch: int
    passes: _Count
    origin: _Count
    batches: _Count
    digest: _Count
    is_over: bool
    rank: _Count
    world_size: _Count
    seed: int | None
    sampler: dict[str, Any]
    state: Any = None
    state_batches: _Count = 0
    state_digest: _Count = 0

    def __post_init__(self) -> None:
        """Refuse impossible numbers."""
        if self.rank >= self.world_size or self.state_batches > self.batches:
            raise ValueError("its numbers do not fit together")

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain data."""
        state = {"format": _FORMAT, "version": VERSION, **msgspec.structs.asdict(self)}
        return {**state, _CHECKSUM: checksum_of(state)}

    @classmethod
    def of_dict(cls, state: Any) -> Saved:
        """Read a state.

        Raises:
            ResumeError: It is not such a state, or damaged.
        """
        if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
            raise ResumeError(
                f"this is not a state of a LhotseDataLoader: {str(state)[:200]}",
                fix="give what loader.state_dict() returned; a sampler's own state goes to sampler.load_state_dict",
            )
        if state.get("version") != VERSION:
            raise ResumeError(
                f"the state has version {state.get('version')!r}, and this Headrace reads {VERSION}",
                fix="resume with the version of Headrace that saved it, or begin the epoch again",
            )
        check(state)
        content = {name: value for name, value in state.items() if name not in ("format", "version", _CHECKSUM)}
        try:
            return msgspec.convert(content, cls)
        except (TypeError, ValueError) as error:
            raise ResumeError(f"the state is damaged: {error}", fix="give it as it was saved") from error


def checksum_of(state: Mapping[str, Any]) -> str:
    """Return the checksum of a state; of samplers' states, it covers what can be written as JSON."""
    try:
        return digest_of_state(state, without=_CHECKSUM)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return digest_of_state({**state, "state": None}, without=_CHECKSUM)


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
        mark: The position of the training.
    """

    epoch: int = 0
    passes: int = 0
    origin: int = 0
    mark: Mark = field(default_factory=Mark)

    @classmethod
    def of_saved(cls, saved: Saved, is_elastic: bool) -> Course:
        """Return the start of a resumed pass; with a state of all ranks, a new course from its position."""
        if is_elastic:  # the sampler's own state is all it takes, and batches count from there
            position = saved.origin + saved.batches * saved.world_size
            return cls(saved.epoch, saved.passes, position, Mark(state=saved.state))
        mark = Mark(saved.batches, saved.digest, saved.state, saved.state_batches, saved.state_digest)
        return cls(saved.epoch, saved.passes, saved.origin, mark)
