"""Names with ranges in braces, as shards are named: `train-{000000..000099}.tar`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from headrace.errors import ConfigError

_RANGE = re.compile(r"\{([0-9]{1,18})\.\.([0-9]{1,18})\}")
_MAX_NAMES = 10_000_000  # of a list: some GB; more is surely a mistake


def has_ranges(name: str) -> bool:
    """Tell whether there is a range in a name."""
    return _RANGE.search(name) is not None


def list_ranges(pattern: str) -> list[str]:
    """Return the names of a pattern with ranges, see `expand_ranges`.

    Raises:
        ConfigError: A range is wrong, or there are more names than 10 million.
    """
    num = math.prod(int(high) - int(low) + 1 for low, high in _RANGE.findall(pattern) if int(low) <= int(high))
    if num > _MAX_NAMES:
        raise ConfigError(
            f"the ranges expand to {num:,} names, and at most {_MAX_NAMES:,} are allowed",
            where=pattern,
            fix="name only existing files",
        )
    return list(expand_ranges(pattern))


def expand_ranges(pattern: str) -> Iterator[str]:
    """Yield the names of a pattern: `a-{000..009}` is ten. Of several ranges, the last varies fastest.

    Raises:
        ConfigError: A range goes down, or has leading zeros and ends of different widths.
    """
    match = _RANGE.search(pattern)
    if match is None:
        yield pattern
        return
    low, high = match.groups()
    has_zeros = low.startswith("0") and len(low) > 1
    if has_zeros and len(low) != len(high):
        raise ConfigError(f"with leading zeros both ends of a range have the same width: {match[0]}", where=pattern)
    if int(low) > int(high):
        raise ConfigError(f"bad range in shard spec {match[0]}", where=pattern)
    width = len(low) if has_zeros else 0
    for number in range(int(low), int(high) + 1):
        for rest in expand_ranges(pattern[match.end() :]):
            yield f"{pattern[: match.start()]}{number:0{width}d}{rest}"
