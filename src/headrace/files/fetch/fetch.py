"""Fetches bytes into a partial file: from local and network disks, web servers, object stores.

Invariants: when `fetch_to` returns, the part holds exactly the bytes of exactly the version that was asked for (it is
checked at the end against the digests that are known); when it raises, the bytes so far are kept with a side file that
describes them, and the next call continues from there. No wait is without a limit, and only transient failures are
tried again. `ranges.py` has the loop.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from typing import IO, Any

import xxhash

from headrace.errors import CacheError, SourceError

from ..locations import is_url, local_path
from .local import LocalReader, local_error, stat_local
from .options import MIB, FetchOptions, SourceChangedError, SourceStat, difference_text
from .part import PartFile, discard_part, part_errors
from .plan import ByteRange
from .ranges import RangeFetch, ask_stat, fetch_stream
from .reader import OnBytes, RangesIgnoredError, Reader, StoppedError

__all__ = [
    "FetchOptions",
    "SourceChangedError",
    "SourceStat",
    "discard_part",
    "fetch_to",
    "is_url",
    "open_url",
    "stat_source",
]


_STEP_BYTES = 4 * MIB


class ChecksumError(SourceError):
    """The received bytes do not match the checksum that the store gives."""


def check_digests(part: PartFile, on_bytes: OnBytes) -> None:
    """Compare each range in the part with what was received.

    Raises:
        CacheError: One differs: the disk did not keep what was written.
    """
    for fetched in part.fetched:
        digest = xxhash.xxh3_128()
        _read_into(digest, part, fetched.where, on_bytes)
        if digest.hexdigest() != fetched.digest:
            raise CacheError(
                f"{fetched.where} of the part file are not what was written: XXH3-128 {digest.hexdigest()} instead of "
                f"{fetched.digest}",
                where=part.path,
                fix="check the disk and the memory of this machine",
            )


def check_store_digest(part: PartFile, stat: SourceStat, name: str, on_bytes: OnBytes) -> None:
    """Compare the whole part with the checksum that the store gives.

    Raises:
        ChecksumError: They differ.
    """
    assert stat.digest is not None
    kind, _, expected = stat.digest.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    _read_into(digest, part, ByteRange(0, stat.size), on_bytes)
    if digest.hexdigest() != expected:
        raise ChecksumError(
            f"the {kind} of the received bytes is {digest.hexdigest()}, the store says {expected}",
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


_DEFAULTS = FetchOptions()


def stat_source(path_or_url: str | os.PathLike[str], *, options: FetchOptions = _DEFAULTS) -> SourceStat:
    """Return the current size and version of a file or an object.

    A local path costs a system call, a URL a request. Links are followed.

    Args:
        path_or_url: A local path, or a URL of a kind that fsspec knows.
        options: How long and how often to ask.

    Raises:
        SourceError: It is missing, may not be read, is no file, or its store does not answer.
        ConfigError: The URL is of an unknown kind, or its package is not installed.
    """
    local = local_path(path_or_url)
    if local is not None:
        return stat_local(local)
    reader = _open_reader(os.fspath(path_or_url), options)
    try:
        return ask_stat(reader, options, _ignore)
    finally:
        reader.close()


def fetch_to(
    path_or_url: str | os.PathLike[str],
    part_path: str | os.PathLike[str],
    stat: SourceStat,
    *,
    options: FetchOptions = _DEFAULTS,
    on_bytes: OnBytes | None = None,
) -> None:
    """Write one version of a source to a part file: exactly `stat.size` bytes.

    Objects are read by ranges, several at a time; local files in order, by the kernel. A part that an earlier call left
    is continued if it is of this version: the call may have failed, or its process may have been killed. Nothing is
    synced to the disk: that is left to the caller. Two calls at once must not use the same part.

    Args:
        path_or_url: A local path, or a URL of a kind that fsspec knows.
        part_path: Where to write; its folder must exist. A side file of this name and `.ranges` lies beside it until
            the part is whole. `discard_part` removes both.
        stat: The result of `stat_source`.
        options: How long, how often, how many at a time.
        on_bytes: Called in this thread with the number of bytes that were added to the part (first: those that were in
            it; negative if the fetch starts over), so that the sum is its bytes; with 0 a few times a second while
            nothing arrives. An exception from it ends the fetch within a second and is passed on; the bytes so far are
            kept.

    Raises:
        SourceChangedError: The source has changed, or did so twice; the part is removed.
        SourceError: The source is missing, is refused, does not answer, or is not what its store's checksum says.
        CacheError: The part cannot be written, or does not hold what was written.
        OSError: There is no space (ENOSPC) or the quota is used up (EDQUOT): make room and call again.
        ConfigError: The URL is of an unknown kind, or its package is not installed.
    """
    try:
        _fetch_to(os.fspath(path_or_url), os.fspath(part_path), stat, options, _guarded(on_bytes))
    except StoppedError as stopped:
        reason = stopped.reason
    else:
        return
    raise reason  # out here, so that its own cause and context are kept


def open_url(path_or_url: str | os.PathLike[str], *, options: FetchOptions = _DEFAULTS) -> IO[bytes]:
    """Open a small file or object for reading: a list, a config.

    An object is fetched whole into an unnamed temporary file.

    Raises:
        SourceError: As `stat_source` and `fetch_to`.
        ConfigError: As those.
    """
    local = local_path(path_or_url)
    if local is not None:
        try:
            return open(local, "rb")
        except OSError as error:
            raise local_error(local, error) from error
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        part = os.path.join(folder, "part")
        try:
            fetch_to(path_or_url, part, stat_source(path_or_url, options=options), options=options)
        except SourceChangedError:  # between the two calls; a second time is an error
            fetch_to(path_or_url, part, stat_source(path_or_url, options=options), options=options)
        return open(part, "rb")


def _fetch_to(source: str, part_path: str, stat: SourceStat, options: FetchOptions, report: OnBytes) -> None:
    reader = _open_reader(source, options)
    part: PartFile | None = None
    try:
        part = PartFile(part_path, stat, with_digests=options.checksum is not None)
        try:
            _fetch(reader, part, stat, options, report)
        except (SourceChangedError, ChecksumError) as error:
            report(-part.num_bytes)
            part.start_over()
            now = ask_stat(reader, options, report)
            if now != stat:
                raise SourceChangedError(difference_text(stat, now), where=reader.name) from error
            _fetch(reader, part, stat, options, report)
    except (SourceChangedError, ChecksumError, CacheError):  # the received bytes are useless
        if part is not None:
            part.discard()
        raise
    finally:
        may_still_write = True
        try:
            may_still_write = not reader.close()
        finally:
            if part is not None:
                _leave(part, may_still_write=may_still_write)


def _fetch(reader: Reader, part: PartFile, stat: SourceStat, options: FetchOptions, on_bytes: OnBytes) -> None:
    by_store = options.checksum == "store" and not isinstance(reader, LocalReader)
    expected_digest = stat.digest
    if by_store and expected_digest is None:
        expected_digest = ask_stat(reader, options, on_bytes).digest
        if expected_digest is None:
            fix = "use checksum='xxh3', which compares what was written with what was received"
            raise SourceError("the store gives no checksum of it", where=reader.name, fix=fix)
    part.allocate()
    on_bytes(part.num_bytes)
    try:
        RangeFetch(reader, part, stat, options, on_bytes).run()
    except RangesIgnoredError:
        on_bytes(-part.num_bytes)
        part.start_over()
        part.allocate()
        fetch_stream(reader, part, stat, options, on_bytes)
    now = ask_stat(reader, options, on_bytes)
    if now != stat:
        raise SourceChangedError(difference_text(stat, now), where=reader.name)
    if options.checksum is not None:
        check_digests(part, on_bytes)
    if by_store:
        check_store_digest(part, SourceStat(stat.size, stat.version, expected_digest), reader.name, on_bytes)
    if not reader.close():
        what = f"a read of it has been hanging for {options.timeout_seconds:g} s or more, and cannot be ended"
        raise SourceError(what, where=reader.name, fix="check the disk that the file is on")
    part.finish()


def _leave(part: PartFile, *, may_still_write: bool) -> None:
    """Keep the received bytes for the next call, unless there are none or a hanging call may still write."""
    if may_still_write or not part.fetched:
        part.discard()
    else:
        part.close()


def _open_reader(source: str, options: FetchOptions) -> Reader:
    local = local_path(source)
    if local is not None:
        return LocalReader(local, options)
    # Here, not above: asyncio takes 50 ms to import, and most sources are local files.
    from .remote import open_remote

    return open_remote(source, options)


def _guarded(on_bytes: OnBytes | None) -> OnBytes:
    if on_bytes is None:
        return _ignore

    def report(num_bytes: int) -> None:
        try:
            on_bytes(num_bytes)
        except BaseException as reason:
            raise StoppedError(reason) from reason

    return report


def _ignore(_num_bytes: int) -> None:
    pass
