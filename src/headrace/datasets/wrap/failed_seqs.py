"""Sequences that failed among the many of a run: the engine's policy on errors decides about each by itself.

A result tells of its failed sequences where they stood, so that the good ones before the first one that is not skipped,
since the budget is used up or an option is wrong, are delivered like all others.
"""

from __future__ import annotations

from headrace.engine import Delivered, Failure, Run

from .blockwise import Parts

FailedSeqs = list[tuple[int, Failure | bytes]]
"""What failed among the sequences of a run, in order: how many good ones come before it, and why. Where failed ones are
not skipped, it is one at most, with which the run ends early."""


def encoded(failed: FailedSeqs) -> FailedSeqs:
    """Return failures in a form that travels to another process."""
    return [(before, told if isinstance(told, bytes) else told.to_bytes()) for before, told in failed]


def pass_failed(
    run: Run, delivered: Delivered, parts: Parts, failed: FailedSeqs
) -> tuple[Parts, BaseException | None, int]:
    """Apply the engine's policy on errors to the failed sequences of a run.

    Args:
        run: Which has delivered the result just now.
        delivered: The ticket.
        parts: The good sequences.
        failed: Those that failed.

    Returns:
        The good sequences that come before the first one that is not skipped, or all of them; its error; and how many
        sequences there were before it in all.
    """
    for number, (num_before, told) in enumerate(failed):
        failure = Failure.from_bytes(told) if isinstance(told, bytes) else told
        error = run.skip_item(delivered, failure)
        if error is not None:
            return _first_of(parts, num_before), error, num_before + number
    return parts, None, len(parts[0]) + len(failed)


def _first_of(parts: Parts, num_seqs: int) -> Parts:
    tags, indices, fracs, (values, offsets) = parts
    if num_seqs == len(tags):
        return parts
    cut = {key: column[: offsets[key][num_seqs] if key in offsets else num_seqs] for key, column in values.items()}
    return (
        tags[:num_seqs],
        None if indices is None else indices[:num_seqs],
        None if fracs is None else fracs[:num_seqs],
        (cut, {key: ends[: num_seqs + 1] for key, ends in offsets.items()}),
    )
