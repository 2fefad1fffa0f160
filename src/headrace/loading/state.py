"""The state of a loader: its position, and digests of everything that gives the position its meaning.

A position is a number of batches of one epoch, over all ranks. It means the same again only if the data, their order,
the batching, the seed and the user's code are the same; so each has a digest, and a state is refused if one differs.
Invariants: the state is plain JSON data of less than 1 KB, the same on every rank, and says nothing of workers. It is
taken as it is or refused: where a window begins can only be known by planning all windows before it, so a digest of the
whole state tells whether a number was lost or edited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.datasets.digests import digest_array as digest_array
from headrace.datasets.digests import digest_of_state
from headrace.datasets.digests import digest_text as digest_text
from headrace.errors import ResumeError

FORMAT = 1
_FIXES = {
    "shards": "resume with as many ranks as before, because the dataset shares itself out; or begin a new epoch, by "
    "set_epoch(n). A loader that shares the batches of an unsharded dataset goes on with any number",
    "data": "resume with the data that it was saved with: the same tags and lengths, in the same order, and texts by "
    "the same vocabularies",
    "lengths": "resume with a dataset whose get_seq_length (or get_seq_len) tells the same lengths: batches are "
    "planned by them",
    "order": "give the dataset the same seq_ordering, partition_epoch, seeds and filters (or the same sampler); a "
    "stream of your own class the same arguments, but for those that its idle_options names",
    "batching": "give the same batching, batch_order and window_seqs, or start anew",
    "seed": "give the loader the same seed",
    "user": "give the same recipe_version, or start anew: it says that your own code has changed",
}


class LoaderState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a loader.

    Attributes:
        format: Version of this schema.
        epoch: The epoch that the position belongs to.
        position: Batches of it that all ranks together are done with.
        window: The window in which the next batch is, and the number in the epoch of the window's first batch: so that
            a resume plans one window only.
        digests: Part of the recipe -> digest.
        digest: Digest of all of the above; `None` in a state of an older version, and in one that was not written yet.
    """

    format: int
    epoch: int
    position: int
    window: tuple[int, int]
    digests: dict[str, str]
    digest: str | None = None

    def __post_init__(self) -> None:
        """Refuse impossible numbers."""
        window, first = self.window
        if not 0 <= self.epoch < 2**63 or window < 0 or not 0 <= first <= self.position:
            raise ValueError(f"epoch {self.epoch}, position {self.position}, window {list(self.window)}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        state = {**msgspec.to_builtins(self), "window": list(self.window)}
        return {**state, "digest": digest_of_state(state, without="digest")}

    @classmethod
    def of_dict(cls, state: Mapping[str, Any]) -> LoaderState:
        """Check a saved state.

        Raises:
            ResumeError: It is not a state of a loader, or one of another version, or not as it was saved.
        """
        if isinstance(state, Mapping) and isinstance(state.get("format"), int) and state["format"] != FORMAT:
            raise ResumeError(
                f"the state has the format {state['format']}, and this version of Headrace writes and reads {FORMAT}",
                fix="resume with the version of Headrace that saved it",
            )
        try:
            loaded = msgspec.convert(dict(state), cls)
        except (TypeError, ValueError) as error:
            raise ResumeError(
                f"this is not the state of a loader: {error}", fix="give what state_dict() returned, unchanged"
            ) from error
        digest = loaded.to_dict()["digest"]
        if loaded.digest not in (None, digest):
            raise ResumeError(
                f"the state was changed since it was saved: its digest is {loaded.digest}, that of its content "
                f"{digest}",
                where=f"epoch {loaded.epoch}, batch {loaded.position}",
                fix="resume from an older state, and do not edit states",
            )
        return loaded

    def check_digests(self, digests: Mapping[str, str]) -> None:
        """Compare with the recipe of a loader.

        Raises:
            ResumeError: Parts differ; all of them are named.
        """
        differing = []
        for part in dict.fromkeys(["shards", *digests] if "shards" in self.digests else digests):
            digest, saved = digests.get(part), self.digests.get(part)
            if saved != digest:
                values = f"its digest was {saved} and is {digest} here"
                if part == "shards":
                    values = f"the dataset divided itself among {saved or 1}, and does so among {digest or 1} here"
                differing.append((part, values))
        if not differing:
            return
        names = {"user": "user code (recipe_version)", "shards": "number of ranks", "lengths": "data (its lengths)"}
        whats = [f"another {names.get(part, part)}: {values}" for part, values in differing]
        fixes = [_FIXES[part] for part, _ in differing]
        raise ResumeError(
            f"the state was saved with {'; and '.join(whats)}",
            where=f"epoch {self.epoch}, batch {self.position}",
            fix=fixes[0] if len(fixes) == 1 else "; ".join(f"({n}) {fix}" for n, fix in enumerate(fixes, start=1)),
        )
