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
    num = math.prod(_choices(match[0], pattern)[0] for match in _BRACES.finditer(pattern))
    if num > _MAX_NAMES:
        raise ConfigError(
            f"the ranges expand to {num:,} names, and at most {_MAX_NAMES:,} are allowed",
            where=pattern,
            fix="name only existing files",
        )
    return list(expand_braces(pattern))


def _choices(braces: str, pattern: str) -> tuple[int, Iterator[str]]:
    """Return how many alternatives there are, and yield them."""
    match = _RANGE.fullmatch(braces[1:-1])
    if match is None:
        texts = braces[1:-1].split(",")
        return len(texts), iter(texts)
    low, high = match.groups()
    is_padded = low.startswith("0") and len(low) > 1
    if is_padded and len(low) != len(high):
        raise ConfigError(f"with leading zeros both ends of a range have the same width: {braces}", where=pattern)
    if int(low) > int(high):
        raise ConfigError(f"bad range in shard spec {braces}", where=pattern)
    width = len(low) if is_padded else 0
    return int(high) - int(low) + 1, (f"{number:0{width}d}" for number in range(int(low), int(high) + 1))


def expand_braces(pattern: str) -> Iterator[str]:
    """Yield the names of a pattern with braces, see `list_braces`; however many.

    Raises:
        ConfigError: A range is wrong.
    """
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    for choice in _choices(match[0], pattern)[1]:
        for rest in expand_braces(pattern[match.end() :]):
            yield f"{pattern[: match.start()]}{choice}{rest}"
