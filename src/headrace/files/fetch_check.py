"""The look back at the end of a fetch: is the part what the source is."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import xxhash

from headrace.errors import CacheError, SourceError

from .fetch_options import MIB, SourceStat
from .fetch_part import PartFile, part_errors
from .fetch_plan import ByteRange
from .fetch_reader import OnBytes

_STEP_BYTES = 4 * MIB


class ChecksumError(SourceError):
    """The bytes that came are not the ones of which the store gives a checksum."""


def check_digests(part: PartFile, on_bytes: OnBytes) -> None:
    """Compare each range in the part with what came.

    Raises:
        CacheError: One differs: the disk did not keep what was written.
    """
    for came in part.came:
        digest = xxhash.xxh3_128()
        _read_into(digest, part, came.where, on_bytes)
        if digest.hexdigest() != came.digest:
            raise CacheError(
                f"{came.where} of the part file are not what was written: XXH3-128 {digest.hexdigest()} instead of "
                f"{came.digest}",
                where=part.path,
                fix="check the disk and the memory of this machine",
            )


def check_store_digest(part: PartFile, stat: SourceStat, name: str, on_bytes: OnBytes) -> None:
    """Compare the whole part with the checksum that the store gives.

    Raises:
        ChecksumError: They differ.
    """
    assert stat.digest is not None
    kind, _, wanted = stat.digest.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    _read_into(digest, part, ByteRange(0, stat.size), on_bytes)
    if digest.hexdigest() != wanted:
        raise ChecksumError(
            f"the {kind} of what came is {digest.hexdigest()}, the store says {wanted}",
            where=name,
            fix="an object that was encrypted by KMS has an ETag that is no MD5: use checksum='xxh3' there",
        )


def _read_into(digest: Any, part: PartFile, where: ByteRange, on_bytes: OnBytes) -> None:
    position = where.start
    with part_errors(part.path):
        while position < where.stop:
            data = os.pread(part.descriptor, min(_STEP_BYTES, where.stop - position), position)
            if not data:
                raise CacheError(f"the part file ends at byte {position}", where=part.path)
            digest.update(data)
            position += len(data)
            on_bytes(0)
