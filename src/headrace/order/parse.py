"""Parse a `seq_ordering` string, once, into a policy."""

from __future__ import annotations

import difflib
import re

from headrace.errors import ConfigError

from .by_length import Laplace, SortBinShuffle, SortBinShuffleX2, Sorted, SortedReverse
from .plain import Default, EveryN, Permute, Random, RandomSample, Reverse
from .policy import Policy

_PLAIN = {policy.name: policy for policy in (Default, Reverse, Sorted, SortedReverse)}
_SHUFFLED = {policy.name: policy for policy in (Random, RandomSample, Permute)}
_BINNED = {policy.name: policy for policy in (Laplace, SortBinShuffle, SortBinShuffleX2)}
_NAMES = (*_PLAIN, EveryN.name, *_SHUFFLED, *_BINNED)

VALID_FORMS = (
    *_PLAIN,
    f"{EveryN.name}:K",
    *(f"{name}[:n][:seed=K]" for name in _SHUFFLED),
    *(f"{name}[:B or :.k][:n][:seed=K]" for name in _BINNED),
)

_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)


def parse_seq_ordering(text: str) -> Policy:
    """Return the policy that a `seq_ordering` string names; case matters.

    In `random:n` and `laplace:B:n`, n is the number of full epochs that keep the same shuffle, not a seed. A seed is
    spelt out: `random:seed=42`, `laplace:.1000:3:seed=42`. B is a number of bins, `.k` the number of sequences in one.

    >>> parse_seq_ordering("laplace:.1000:seed=42")
    Laplace(num_bins=None, seqs_per_bin=1000, num_epochs=1, seed=42)

    Raises:
        ConfigError: The string is none of the valid forms, which the error lists.
    """
    name, *parts = text.split(":")
    if name not in _NAMES:
        nearest = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ConfigError(f"invalid seq_ordering {text!r}: unknown name {name!r}", fix=hint + _forms())
    try:
        return _parse_parts(name, parts)
    except _WrongPartError as error:
        raise ConfigError(f"invalid seq_ordering {text!r}: {error}", fix=_forms()) from None
    except ConfigError as error:
        raise ConfigError(f"invalid seq_ordering {text!r}: {error.what}", fix=_forms()) from None


class _WrongPartError(Exception):
    """A part between colons cannot be understood."""


def _forms() -> str:
    return f"valid forms: {', '.join(VALID_FORMS)} (n = full epochs with the same shuffle)"


def _parse_parts(name: str, parts: list[str]) -> Policy:
    if name in _PLAIN:
        _end(parts)
        return _PLAIN[name]()
    if name == EveryN.name:
        num_blocks = _number(parts.pop(0) if parts else "", "the number of blocks")
        _end(parts)
        return EveryN(num_blocks)
    seed = _number(parts.pop().removeprefix("seed="), "the seed") if parts and parts[-1].startswith("seed=") else None
    num_bins = seqs_per_bin = None
    if name in _BINNED and parts:
        bins = parts.pop(0)
        if bins.startswith("."):
            seqs_per_bin = _number(bins[1:], "the number of sequences per bin")
        else:
            num_bins = _number(bins, "the number of bins")
    num_epochs = _number(parts.pop(0), "the number of epochs") if parts else 1
    _end(parts)
    if name in _BINNED:
        return _BINNED[name](num_bins, seqs_per_bin, num_epochs, seed)
    return _SHUFFLED[name](num_epochs, seed)


def _number(part: str, meaning: str) -> int:
    if not _NUMBER.fullmatch(part):
        raise _WrongPartError(f"{meaning} must be digits, got {part!r}")
    return int(part)


def _end(parts: list[str]) -> None:
    if parts:
        raise _WrongPartError(f"{':'.join(parts)!r} comes after the last part of the option")
