"""Objects behind URLs, through fsspec: the file system, size and version of an object, its bytes by ranges.

fsspec and its backends are imported when a URL is first used. File systems are requested from fsspec for each use,
which caches them by process and thread: none is used in a child that was forked after it was made. Listings are never
cached: a cached size is the size of an older version.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from headrace.errors import ConfigError, SourceError, did_you_mean

from ..locations import shown_url
from .http import HttpReader
from .options import FetchOptions, SourceStat
from .part import PartFile
from .plan import ByteRange
from .reader import BlockingCalls, Piece, Reader
from .retry import TransientError

_HEX_MD5 = re.compile(r"[0-9a-f]{32}")

# The extra of Headrace with a backend. The packages of other backends are named by fsspec.
_EXTRAS = {
    "http": "http",
    "https": "http",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "hf": "hf",
}

# Names by which stores report a version: exact ones first, then dates.
_VERSION_FIELDS = ("ETag", "etag", "generation", "VersionId", "version_id", "blob_id", "sha", "oid", "content_hash")
_DATE_FIELDS = (
    *("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "modified", "modify", "modificationTime"),
    *("time_modified", "created"),
)

# Options of `open` for file systems that read ranges through a file object, which would read ahead otherwise.
_OPEN_OPTIONS: dict[str, dict[str, Any]] = {"hf": {"cache_type": "none"}}


def open_remote(url: str, options: FetchOptions) -> Reader:
    """Return the reader of a URL. Sends no request yet.

    Raises:
        ConfigError: No such kind of URL is known, its package is not installed, or its options are wrong.
    """
    with _config_errors(url):
        cls = importlib.import_module("fsspec").get_filesystem_class(url.partition("::")[0].partition("://")[0].lower())
    if not cls.async_impl:
        return BlockingReader(url, _protocols(cls), options)
    file_system, path = file_system_of(url)
    if "http" in _protocols(cls):
        return HttpReader(path, file_system, options, shown_url(url))
    return AsyncReader(path, file_system, options, shown_url(url))


def file_system_of(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, of this process and without a cache of listings, and the path in it.

    Settings (end points, credentials, anonymous access) come from fsspec's own configuration and from what each backend
    reads from its environment. A file system whose class is not asynchronous is of this thread, too: for some of them
    making one means connecting.

    Raises:
        ConfigError: No such kind of URL is known, its package is not installed, or its options are wrong.
    """
    with _config_errors(url):
        file_system, path = importlib.import_module("fsspec.core").url_to_fs(url, use_listings_cache=False)
        return file_system, path


@contextmanager
def _config_errors(url: str) -> Iterator[None]:
    """Turn errors of fsspec into a `ConfigError` that names what is missing, or the valid kinds of URL."""
    where = shown_url(url)
    try:
        yield
    except ImportError as error:
        protocol = url.partition("://")[0].rpartition("::")[2].lower()
        extra = _EXTRAS.get(protocol)
        fix = f"pip install 'headrace[{extra}]'" if extra else str(error)
        raise ConfigError(f"{protocol}:// needs a package that is missing: {error}", where=where, fix=fix) from error
    except ValueError as error:
        known = importlib.import_module("fsspec.registry").available_protocols()
        fix = did_you_mean(url.partition("://")[0].lower(), known)
        raise ConfigError(f"this URL cannot be used: {error}", where=where, fix=fix) from error


class AsyncReader(Reader):
    """The reader of a file system that is asynchronous: S3, Google, Azure, ...

    Args:
        path: The path inside the file system.
        file_system: Of fsspec, of this process.
        options: Sizes and limits.
        name: The URL for messages.
    """

    def __init__(self, path: str, file_system: Any, options: FetchOptions, name: str) -> None:
        super().__init__(name, range_bytes=options.range_bytes, num_streams=options.num_streams)
        self._path = path
        self._file_system = file_system

    def submit_stat(self) -> Future[SourceStat]:
        """Start to request size and version of the object."""
        return asyncio.run_coroutine_threadsafe(self._stat(), self._file_system.loop)

    def submit(self, byte_range: ByteRange, stat: SourceStat, part: PartFile) -> Future[Piece]:
        """Start to read a range."""
        del stat, part  # the version is checked at the end: there is no common way to request one
        return asyncio.run_coroutine_threadsafe(self._read(byte_range), self._file_system.loop)

    async def _stat(self) -> SourceStat:
        return stat_from_info(await self._file_system._info(self._path), self.name)

    async def _read(self, byte_range: ByteRange) -> Piece:
        return _piece(
            byte_range, await self._file_system._cat_file(self._path, start=byte_range.start, end=byte_range.stop)
        )


class BlockingReader(Reader):
    """The reader of a file system whose calls block; each call has its own thread, and so its own file system.

    Args:
        url: The URL.
        protocols: The protocol names of its kind.
        options: Sizes and limits.
    """

    def __init__(self, url: str, protocols: tuple[str, ...], options: FetchOptions) -> None:
        super().__init__(shown_url(url), range_bytes=options.range_bytes, num_streams=options.num_streams)
        self._url = url
        self._open_options = next((_OPEN_OPTIONS[key] for key in protocols if key in _OPEN_OPTIONS), {})
        self._calls = BlockingCalls()

    def submit_stat(self) -> Future[SourceStat]:
        """Start to request size and version of the object."""
        return self._calls.submit(self._stat)

    def submit(self, byte_range: ByteRange, stat: SourceStat, part: PartFile) -> Future[Piece]:
        """Start to read a range."""
        del stat, part  # as above
        return self._calls.submit(self._read, byte_range)

    def close(self) -> bool:
        """Wait a moment for calls that cannot be cancelled; they do not write to the part."""
        self._calls.close()
        return True

    def _stat(self) -> SourceStat:
        file_system, path = file_system_of(self._url)
        file_system.invalidate_cache(path)
        return stat_from_info(file_system.info(path), self.name)

    def _read(self, byte_range: ByteRange) -> Piece:
        file_system, path = file_system_of(self._url)
        return _piece(
            byte_range, file_system.cat_file(path, start=byte_range.start, end=byte_range.stop, **self._open_options)
        )


def _piece(byte_range: ByteRange, data: bytes) -> Piece:
    if len(data) != len(byte_range):
        raise TransientError(f"{len(data)} bytes came for {byte_range}")
    return Piece(len(data), [data])


def stat_from_info(info: Mapping[str, Any], name: str) -> SourceStat:
    """Make a stat from the result of a file system's `info`.

    Raises:
        SourceError: It is a folder, or has no size.
    """
    if info.get("type", "file") not in ("file", "link"):
        raise SourceError(f"this is a {info['type']}, not a file", where=name, fix="give the URL of a file")
    size = info.get("size")
    if size is None:
        raise SourceError("the store does not say how large this is", where=name, fix="download it by other means")
    facts = {**info, **_sub_facts(info)}
    version = next((f"{field}:{facts[field]}" for field in _VERSION_FIELDS if facts.get(field)), None)
    if version is None:
        version = next((f"{field}:{facts[field]}" for field in _DATE_FIELDS if facts.get(field)), "")
    return SourceStat(int(size), version, _digest_from(facts))


def _sub_facts(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested facts that Hugging Face gives of large files and Azure of their content."""
    facts: dict[str, Any] = {}
    large = info.get("lfs")
    if isinstance(large, Mapping) and large.get("sha256"):
        facts["sha256"] = large["sha256"]
        facts["blob_id"] = large["sha256"]
    content = info.get("content_settings")
    if isinstance(content, Mapping) and content.get("content_md5"):
        facts["md5"] = bytes(content["content_md5"]).hex()
    return facts


def _digest_from(facts: Mapping[str, Any]) -> str | None:
    if isinstance(facts.get("sha256"), str):
        return f"sha256:{facts['sha256'].lower()}"
    if isinstance(facts.get("md5"), str) and _HEX_MD5.fullmatch(facts["md5"].lower()):
        return f"md5:{facts['md5'].lower()}"
    if isinstance(facts.get("md5Hash"), str):  # Google
        return f"md5:{base64.b64decode(facts['md5Hash']).hex()}"
    tag = str(facts.get("ETag", "")).strip('"')
    if _HEX_MD5.fullmatch(tag) and "StorageClass" in facts:  # S3, one part: several have a `-` and their number
        return f"md5:{tag}"
    return None


def _protocols(cls: Any) -> tuple[str, ...]:
    protocol = cls.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
