"""Names with braces, as shards are named: `train-{000000..000099}.tar`, `{train,dev}/*.tar`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from headrace.errors import ConfigError

_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})")
_BRACES = re.compile(r"\{(?:[0-9]{1,18}\.\.[0-9]{1,18}|[^{},]*(?:,[^{},]*)+)\}")
_MAX_NAMES = 10_000_000  # of a list: some GB; more is surely a mistake


def has_braces(name: str) -> bool:
    """Tell whether there is a range or a list of alternatives in a name."""
    return _BRACES.search(name) is not None


def list_braces(pattern: str) -> list[str]:
    """Return the names of a pattern with braces: `a-{000..009}` is ten, `{train,dev}.tar` two, in this order.

    Of several braces, the last varies fastest. Braces inside of braces stay as they are.

    Raises:
        ConfigError: A range goes down, or has leading zeros and ends of different widths; or there are more names than
            10 million.
    """
    num = math.prod(len(_choices(match[0], pattern)) for match in _BRACES.finditer(pattern))
    if num > _MAX_NAMES:
        raise ConfigError(
            f"the ranges expand to {num:,} names, and at most {_MAX_NAMES:,} are allowed",
            where=pattern,
            fix="name only existing files",
        )
    return list(expand_braces(pattern))


class _Numbers:
    """The numbers of a range, as texts; none is made before it is asked for."""

    def __init__(self, low: str, high: str) -> None:
        self._range = range(int(low), int(high) + 1)
        self._width = len(low) if low.startswith("0") and len(low) > 1 else 0

    def __len__(self) -> int:
        return self._range.stop - self._range.start  # `len` of a range is limited to 64 bits

    def __iter__(self) -> Iterator[str]:
        return (f"{number:0{self._width}d}" for number in self._range)


def _choices(braces: str, pattern: str) -> _Numbers | list[str]:
    match = _RANGE.fullmatch(braces[1:-1])
    if match is None:
        return braces[1:-1].split(",")
    low, high = match.groups()
    if low.startswith("0") and 1 < len(low) != len(high):
        raise ConfigError(f"with leading zeros both ends of a range have the same width: {braces}", where=pattern)
    if int(low) > int(high):
        raise ConfigError(f"bad range in shard spec {braces}", where=pattern)
    return _Numbers(low, high)


def expand_braces(pattern: str) -> Iterator[str]:
    """Yield the names of a pattern with braces, see `list_braces`; however many.

    Raises:
        ConfigError: A range is wrong.
    """
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    for choice in _choices(match[0], pattern):
        for rest in expand_braces(pattern[match.end() :]):
            yield f"{pattern[: match.start()]}{choice}{rest}"
