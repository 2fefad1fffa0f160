"""The options of a fetch, and the size and version of a source.

Everything here is checked when it is built and never changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headrace.errors import ConfigError, SourceError

MIB = 1 << 20

CHECKSUMS = ("xxh3", "store")
_MIN_RANGE_BYTES = 4096
_MAX_STREAMS = 256
_MAX_SECONDS = 1e9  # the limit of waits in Python


class SourceChangedError(SourceError):
    """A source is no longer the version that was asked for: ask `stat_source` again, and fetch that."""


@dataclass(frozen=True, slots=True)
class SourceStat:
    """The size and version of a source at one moment.

    Attributes:
        size: Bytes.
        version: Differs when the content does: the modification time in nanoseconds of a local file, the ETag,
            generation or date of an object (a date is as exact as the clock behind it: often a second). Empty if the
            store has none: then only the size is compared, and nothing is resumed.
        digest: Checksum from the store, `"md5:..."` or `"sha256:..."`, or None. Not compared.
    """

    size: int
    version: str
    digest: str | None = field(default=None, compare=False)


def difference_text(expected: SourceStat, now: SourceStat) -> str:
    """Describe how a source differs from what was expected."""
    if now.size != expected.size:
        return f"the source has changed: {expected.size} bytes were expected, it has {now.size} now"
    return f"the source has changed: version {expected.version} was expected, it is {now.version or 'unknown'} now"


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How files are fetched: number of tries, time limits, number of streams.

    Attributes:
        num_tries: How often a range is tried before the fetch fails. Only transient failures are tried again: network
            errors, HTTP 408, 425, 429 and 5xx, EIO, ESTALE, short bodies, time-outs. A range that arrived resets the
            count.
        first_wait_seconds: The wait after the first failure of a range; it doubles with each further one, and a random
            part of up to a half is subtracted, so that many readers do not return at once.
        max_wait_seconds: The longest wait between two tries, also where a server asks for more (Retry-After).
        timeout_seconds: The longest wait for one answer: a range, the size and version of a file, a piece of a stream.
        num_streams: Ranges of one object in flight at a time. Fewer after each failure, more again as ranges arrive.
        range_bytes: Size of a range. At most `num_streams * range_bytes` are in memory, twice that for a moment in
            libraries that join what they received.
        checksum: None; `"xxh3"`: what was written is read again and compared with what was received; `"store"`: it is
            compared with the MD5 or SHA-256 that the store gives (S3: the ETag of an object uploaded in one part and
            not encrypted by KMS), which is refused where it gives none; local files are then compared as by `"xxh3"`.

    Raises:
        ConfigError: A value is out of its range.

    Examples:
        >>> from headrace.files import FileCacheOptions
        >>> from headrace.files.fetch import FetchOptions
        >>> options = FileCacheOptions(fetch=FetchOptions(num_tries=10, checksum="xxh3"))
    """

    num_tries: int = 5
    first_wait_seconds: float = 0.5
    max_wait_seconds: float = 30.0
    timeout_seconds: float = 60.0
    num_streams: int = 8
    range_bytes: int = 8 * MIB
    checksum: str | None = None

    def __post_init__(self) -> None:
        """Check each value."""
        for name, kind, least, most in (
            ("num_tries", int, 1, math.inf),
            ("first_wait_seconds", float, 0, _MAX_SECONDS),
            ("max_wait_seconds", float, self.first_wait_seconds, _MAX_SECONDS),
            ("timeout_seconds", float, 0, _MAX_SECONDS),
            ("num_streams", int, 1, _MAX_STREAMS),
            ("range_bytes", int, _MIN_RANGE_BYTES, math.inf),
        ):
            check_number("FetchOptions", name, getattr(self, name), kind, least, most)
        if self.timeout_seconds <= 0:
            raise ConfigError(f"timeout_seconds is {self.timeout_seconds}: it must be positive", where="FetchOptions")
        if self.checksum is not None and self.checksum not in CHECKSUMS:
            valid = ", ".join(map(repr, CHECKSUMS))
            raise ConfigError(f"checksum is {self.checksum!r}", where="FetchOptions", fix=f"valid: None, {valid}")


def check_number(where: str, name: str, value: object, kind: type[int | float], least: float, most: float) -> None:
    """Check that an option is a number of a type, and in its range; integers are floats too.

    Raises:
        ConfigError: It is not.
    """
    kinds = int if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        expected = "a whole number" if kind is int else "a number"
        bounds = f"at least {least:g}" + ("" if most == math.inf else f", at most {most:g}")
        raise ConfigError(f"{name} is {value!r}: it must be {expected}, {bounds}", where=where)
