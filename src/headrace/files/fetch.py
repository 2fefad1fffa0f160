"""Fetches whole files: from local and network disks, web servers, object stores.

fsspec and its backends move the bytes, by `get_file`; here it is decided what is tried again, and whether what came is
the version that was asked for. Invariants: when `fetch_to` returns, the target is a whole copy of exactly that version,
by its size and by what the file system says of its version before and after, and is on the disk; when it raises,
nothing is left. Only transient failures are tried again. The packages below fsspec have time limits of their own, and
end a connection that is silent.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import itertools
import math
import os
import random
import shutil
import stat as stat_modes
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.errors import ConfigError, HeadraceError, SourceError, did_you_mean

from .atomic import fsync_path
from .locations import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, local_path, shown_url

Result = TypeVar("Result")

# The target's disk takes no more bytes. The first two are for the caller: a cache makes room and calls again.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_TARGET_ERRNO = NO_SPACE | {errno.EFBIG, errno.EROFS}
_PASSING_ERRNO = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR})  # of a network disk

# What does not get better by asking again: by the type of an error, or by the HTTP status that it tells. All else may
# be the network, in the words of some library below fsspec.
_FINAL_TYPES = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ImportError, NotImplementedError),
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
)
_TRANSIENT_STATUS = frozenset({408, 425, 429, *range(500, 600)}) - {501, 505}

# The extras of Headrace with a backend. fsspec names the packages of the others.
_EXTRAS = {"http": "http", "https": "http", "s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hf": "hf"}

# Names by which file systems report a version: exact ones first, then dates.
_VERSION_FIELDS = (
    *("ETag", "etag", "generation", "VersionId", "version_id", "blob_id", "sha", "oid", "content_hash", "mtime"),
    *("LastModified", "last_modified", "Last-Modified", "updated", "modified", "modify", "modificationTime"),
    *("time_modified", "created"),
)

# The system's random numbers: they have no state that a user's seed could reach, or that Headrace could change.
_random = random.SystemRandom()


class SourceChangedError(SourceError):
    """A source is no longer the version that was asked for: call `stat_source` again, and fetch that."""


class FetchStoppedError(Exception):
    """The caller has stopped a fetch."""


class _ShortBodyError(Exception):
    """Fewer or more bytes came than the file has."""


@dataclass(frozen=True, slots=True)
class SourceStat:
    """The size and version of a source at one moment.

    Attributes:
        size: Bytes.
        version: Differs when the content does: the modification time in nanoseconds of a local file, the ETag,
            generation or date of an object (a date is as exact as the clock behind it: often a second). Empty if the
            store has none: then only the size is compared.
    """

    size: int
    version: str


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How often a file is tried.

    Attributes:
        num_tries: How often a file is tried before the fetch fails. Only transient failures are tried again: network
            errors, HTTP 408, 425, 429 and 5xx, EIO, ESTALE, short bodies, time-outs, not a missing file or a refusal.
        first_wait_seconds: The wait after the first failure; it doubles with each further one, and a random part of up
            to a half is subtracted, so that many readers do not return at once.
        max_wait_seconds: The longest wait between two tries.

    Raises:
        ConfigError: A value is out of its range.

    Examples:
        >>> from headrace.files import FetchOptions, FileCacheOptions
        >>> options = FileCacheOptions(fetch=FetchOptions(num_tries=10))
    """

    num_tries: int = 5
    first_wait_seconds: float = 0.5
    max_wait_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Check each value."""
        check_number("FetchOptions", "num_tries", self.num_tries, int, 1)
        for name in ("first_wait_seconds", "max_wait_seconds"):
            check_number("FetchOptions", name, getattr(self, name), float, 0, 1e9)

    def wait_seconds(self, num_failures: int) -> float:
        """Return how long to wait after the n-th failure in a row, from 1: doubling, with jitter."""
        doubled = self.first_wait_seconds * 2.0 ** min(num_failures - 1, 60)
        return min(doubled, self.max_wait_seconds) * (1.0 - 0.5 * _random.random())


def check_number(
    where: str, name: str, value: object, kind: type[int | float], least: float, most: float = math.inf
) -> None:
    """Check that an option is a number of a type, and in its range; integers are floats too.

    Raises:
        ConfigError: It is not.
    """
    kinds = int if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        expected = "a whole number" if kind is int else "a number"
        bounds = f"at least {least:g}" + ("" if most == math.inf else f", at most {most:g}")
        raise ConfigError(f"{name} is {value!r}: it must be {expected}, {bounds}", where=where)


_DEFAULTS = FetchOptions()


def stat_source(path_or_url: str | os.PathLike[str], *, options: FetchOptions = _DEFAULTS) -> SourceStat:
    """Return the current size and version of a file or an object.

    A local path costs a system call, a URL a request. Links are followed.

    Args:
        path_or_url: A local path, or a URL of a kind that fsspec knows.
        options: How often to try.

    Raises:
        SourceError: It is missing, may not be read, is no file, or its store does not answer.
        ConfigError: The URL is of an unknown kind, or its package is not installed.
    """
    local = local_path(path_or_url)
    url = os.fspath(path_or_url)
    return try_often(lambda: _stat_remote(url) if local is None else _stat_local(local), url, "look at it", options)


def fetch_to(
    path_or_url: str | os.PathLike[str],
    target: str | os.PathLike[str],
    stat: SourceStat,
    *,
    options: FetchOptions = _DEFAULTS,
    stop: threading.Event | None = None,
    tell: Callable[[int], None] = lambda _: None,
) -> None:
    """Make a copy of one version of a source, whole or not at all. Two calls at once must not have the same target.

    Args:
        path_or_url: A local path, or a URL of a kind that fsspec knows.
        target: The path of the copy. Its bytes come under this name and `.part`.
        stat: The result of `stat_source`.
        options: How often to try.
        stop: Ends the fetch before the next try, or where the backend reports progress, when it is set.
        tell: Called with how many bytes are there.

    Raises:
        SourceChangedError: The source has changed.
        SourceError: The source is missing, is refused, or does not answer.
        FetchStoppedError: It was stopped.
        OSError: The target cannot be written.
        ConfigError: The URL is of an unknown kind, or its package is not installed.
    """
    source, part = os.fspath(path_or_url), f"{os.fspath(target)}.part"
    stop = stop or threading.Event()
    try:
        try_often(lambda: _fetch_once(source, part, stat, stop, tell), source, "fetch it", options, stop)
        fsync_path(part)
        os.replace(part, target)
        tell(stat.size)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def read_source(path_or_url: str, *, options: FetchOptions = _DEFAULTS) -> bytes:
    """Return the content of a small object: a list, a config.

    Raises:
        SourceError: As `stat_source`.
        ConfigError: As that.
    """

    def read() -> Any:
        file_system, path = file_system_of(path_or_url)
        return file_system.cat_file(path)

    return bytes(try_often(read, path_or_url, "read it", options))


def file_system_of(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, without a cache of listings, and the path in it.

    Settings (end points, credentials, anonymous access) come from fsspec's own configuration and from what each backend
    reads from its environment. A cached size would be the size of an older version. Called in each thread: fsspec
    caches file systems by process and thread.

    Raises:
        ConfigError: No such kind of URL is known, its package is not installed, or its options are wrong.
    """
    where, protocol = shown_url(url), url.partition("://")[0].rpartition("::")[2].lower()
    try:
        file_system, path = importlib.import_module("fsspec.core").url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        fix = f"pip install 'headrace[{extra}]'" if extra else str(error)
        raise ConfigError(f"{protocol}:// needs a package that is missing: {error}", where=where, fix=fix) from error
    except ValueError as error:
        known = importlib.import_module("fsspec.registry").available_protocols()
        fix = did_you_mean(url.partition("://")[0].lower(), known)
        raise ConfigError(f"this URL cannot be used: {error}", where=where, fix=fix) from error
    file_system.invalidate_cache(path)
    return file_system, path


def try_often(
    call: Callable[[], Result], source: str, task: str, options: FetchOptions, stop: threading.Event | None = None
) -> Result:
    """Return what a call returns, after as many tries as the options allow if the failures are transient.

    Raises:
        SourceError: It failed permanently, or too often.
        OSError: A target cannot be written.
        FetchStoppedError: `stop` was set.
    """
    for num_tries in itertools.count(1):
        try:
            return call()
        except (HeadraceError, FetchStoppedError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _TARGET_ERRNO:
                raise
            if num_tries == options.num_tries or not is_transient(error):
                raise _final_error(source, task, num_tries, error) from error
        if stop is None:
            time.sleep(options.wait_seconds(num_tries))
        elif stop.wait(options.wait_seconds(num_tries)):
            raise FetchStoppedError
    raise AssertionError


def is_transient(error: BaseException) -> bool:
    """Tell whether the same request may succeed later."""
    status, cause = _status_of(error), _chain(error)[-1]
    is_cut_short = status == 400 and "Payload" in type(cause).__name__  # aiohttp's of a body
    return not isinstance(cause, _FINAL_TYPES) if status is None or is_cut_short else status in _TRANSIENT_STATUS


def is_gone(error: BaseException) -> bool:
    """Tell whether an error means that a source does not exist, rather than that it cannot be asked."""
    status = _status_of(error)  # fsspec says "not found" of whatever a web server answers
    return isinstance(_chain(error)[-1], FileNotFoundError) if status is None else status in (404, 410)


def _fetch_once(source: str, part: str, stat: SourceStat, stop: threading.Event, tell: Callable[[int], None]) -> None:
    local = local_path(source)
    if local is not None:
        with _local_errors(local):
            _check_version(source, _stat_local(local), stat)
            shutil.copyfile(local, part)
    else:
        file_system, path = file_system_of(source)
        file_system.get_file(path, part, callback=_make_callback(stop, tell))
    if stop.is_set():
        raise FetchStoppedError
    _check_version(source, _stat_remote(source) if local is None else _stat_local(local), stat)
    num_bytes = os.path.getsize(part)
    if num_bytes != stat.size:
        raise _ShortBodyError(f"{num_bytes} bytes came of {stat.size}")


def _make_callback(stop: threading.Event, tell: Callable[[int], None]) -> Any:
    def hook(_size: object, value: int, **_options: object) -> None:
        if stop.is_set():
            raise FetchStoppedError
        tell(value)

    return importlib.import_module("fsspec.callbacks").Callback(hooks={"headrace": hook})


def _stat_local(path: str) -> SourceStat:
    with _local_errors(path):
        status = os.stat(path)
    if not stat_modes.S_ISREG(status.st_mode):
        raise SourceError("this is not a regular file", where=path, fix="pass the path of a file")
    return SourceStat(status.st_size, str(status.st_mtime_ns))


@contextmanager
def _local_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError("the file does not exist", where=path, fix="check the path") from error
    except ValueError as error:  # a null character
        raise SourceError(f"this is not a usable path: {error}", where=path) from error
    except OSError as error:
        if error.errno in _TARGET_ERRNO or error.errno in _PASSING_ERRNO:
            raise
        fix = TOO_MANY_OPEN_FIX if error.errno in TOO_MANY_OPEN else None
        raise SourceError(f"cannot read the file: {error.strerror or error}", where=path, fix=fix) from error


def _stat_remote(url: str) -> SourceStat:
    file_system, path = file_system_of(url)
    info: Mapping[str, Any] = file_system.info(path)
    name = shown_url(url)
    if info.get("type", "file") not in ("file", "link"):
        raise SourceError(f"this is a {info['type']}, not a file", where=name, fix="pass the URL of a file")
    if info.get("size") is None:
        raise SourceError("the store does not say how large this is", where=name, fix="download it by other means")
    version = next((f"{field}:{info[field]}" for field in _VERSION_FIELDS if info.get(field)), "")
    return SourceStat(int(info["size"]), version)


def _check_version(source: str, now: SourceStat, expected: SourceStat) -> None:
    if now != expected:
        sizes = f"{expected.size} bytes were expected, it has {now.size} now"
        versions = f"version {expected.version} was expected, it is {now.version or 'unknown'} now"
        what = f"the source has changed: {versions if now.size == expected.size else sizes}"
        raise SourceChangedError(what, where=shown_url(source))


def _final_error(source: str, task: str, num_tries: int, error: Exception) -> SourceError:
    status, where = _status_of(error), shown_url(source)
    cause = shown_url(f"{'' if status is None else f'HTTP {status}, '}{type(error).__name__}: {error}")
    if is_gone(error):
        return SourceError(f"the file does not exist ({cause})", where=where, fix="check the address")
    is_refused = status in (401, 403) or isinstance(error, PermissionError)
    fix = "check the credentials" if is_refused else "check the address, the network and the store"
    return SourceError(f"could not {task} ({num_tries} tries): {cause}", where=where, fix=fix)


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error or its cause; None if there is none."""
    for part in _chain(error):
        response = getattr(part, "response", None)
        of_botocore = response.get("ResponseMetadata", {}) if isinstance(response, Mapping) else {}
        by_response = getattr(response, "status_code", None), of_botocore.get("HTTPStatusCode")
        for status in (getattr(part, "status", None), *by_response):
            if isinstance(status, int) and 100 <= status <= 599:
                return int(status)
    return None


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and what caused it, explicitly."""
    chain = [error]
    while chain[-1].__cause__ is not None and chain[-1].__cause__ not in chain:
        chain.append(chain[-1].__cause__)
    return chain
