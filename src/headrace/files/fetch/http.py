"""Files of web servers, through the session of fsspec's HTTP file system.

The file system's own way to read a range checks nothing. Here status, `Content-Range`, length and version of
each answer are checked, a server that knows no ranges is noticed before its body is read, and `Retry-After` is obeyed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from headrace.errors import SourceError

from .options import FetchOptions, SourceChangedError, SourceStat
from .part import PartFile
from .plan import ByteRange
from .reader import Piece, RangesIgnoredError, Reader
from .retry import HttpStatusError, TransientError

_CONTENT_RANGE = re.compile(r"bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)", re.IGNORECASE)
_BUFFER_BYTES = 1 << 20  # of a connection: aiohttp's own 64 KiB reach half the speed
_MISSING = frozenset({404, 410})
_VERSION_HEADERS = ("ETag", "Last-Modified")


class HttpReader(Reader):
    """The reader of an `http://` or `https://` URL.

    Args:
        path: The URL as the file system wants it.
        file_system: fsspec's, of this process.
        options: Sizes and limits.
        name: The URL for messages.
    """

    def __init__(self, path: str, file_system: Any, options: FetchOptions, name: str) -> None:
        super().__init__(name, range_bytes=options.range_bytes, num_streams=options.num_streams)
        self._path = path
        self._file_system = file_system

    def submit_stat(self) -> Future[SourceStat]:
        """Start to ask for size and version."""
        return self._start(self._stat())

    def submit(self, byte_range: ByteRange, stat: SourceStat, part: PartFile) -> Future[Piece]:
        """Start to read a range."""
        del part
        return self._start(self._read(byte_range, stat))

    def submit_stream(self, stat: SourceStat) -> Future[HttpStream]:
        """Start to read the whole."""
        return self._start(self._open_stream(stat))

    def _start(self, coroutine: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._file_system.loop)

    @asynccontextmanager
    async def _ask(self, method: str, byte_range: str | None) -> AsyncIterator[Any]:
        """Send a request; yield the answer, whatever its status, before its body is read."""
        import aiohttp

        options = dict(self._file_system.kwargs)
        # `identity`: sizes and ranges are those of the file, not of a compressed form.
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
        if byte_range is not None:
            headers["Range"] = f"bytes={byte_range}"
        session = await self._file_system.set_session()
        options = {"allow_redirects": True, "read_bufsize": _BUFFER_BYTES, **options}
        options["timeout"] = aiohttp.ClientTimeout(total=None)  # the loop of the fetch has the limit
        options["raise_for_status"] = False
        async with session.request(
            method, self._file_system.encode_url(self._path), headers=headers, **options
        ) as answer:
            yield answer

    async def _stat(self) -> SourceStat:
        async with self._ask("HEAD", None) as answer:
            if answer.status in _MISSING:
                raise HttpStatusError(answer.status)
            size = answer.headers.get("Content-Length")
            is_plain = answer.ok and not _is_packed(answer.headers)
            if is_plain and size is not None and size.isdecimal() and size != "0":
                return SourceStat(int(size), _version_from(answer.headers), _digest_from(answer.headers))
        # Some servers refuse HEAD, omit the size, or say 0; a URL that is signed for GET is refused with 403.
        async with self._ask("GET", "0-0") as answer:
            size = _parse_range(answer.headers)[1]
            if answer.status == 416 and size == "0":
                return SourceStat(0, _version_from(answer.headers))
            self._check_status(answer)
            if answer.status != 206:
                size = answer.headers.get("Content-Length")
                answer.close()  # else the whole body would follow
            if size is None or not size.isdecimal():
                fix = "download it by other means, or serve it from a server that says Content-Length"
                raise SourceError("the server does not say how large this is", where=self.name, fix=fix)
            return SourceStat(int(size), _version_from(answer.headers))

    async def _read(self, byte_range: ByteRange, stat: SourceStat) -> Piece:
        async with self._ask("GET", f"{byte_range.start}-{byte_range.stop - 1}") as answer:
            if answer.status == 416:
                raise SourceChangedError(f"the server has no {byte_range} of it any more", where=self.name)
            self._check_status(answer)
            self._check_version(answer.headers, stat)
            if answer.status != 206:
                answer.close()
                raise RangesIgnoredError
            came, size = _parse_range(answer.headers)
            self._check_size(size, stat)
            num_bytes = _check_range(byte_range, came)
            return Piece(num_bytes, await _read_body(answer.content, num_bytes, byte_range))

    async def _open_stream(self, stat: SourceStat) -> HttpStream:
        context = contextlib.AsyncExitStack()
        answer = await context.enter_async_context(self._ask("GET", None))
        try:
            self._check_status(answer)
            self._check_version(answer.headers, stat)
            self._check_size(answer.headers.get("Content-Length"), stat)
        except BaseException:
            answer.close()
            await context.aclose()
            raise
        return HttpStream(answer, context, self._file_system.loop)

    def _check_status(self, answer: Any) -> None:
        if answer.status not in (200, 206):
            raise HttpStatusError(answer.status, answer.headers.get("Retry-After"))
        if _is_packed(answer.headers):
            raise SourceError(
                f"the server sends it compressed (Content-Encoding: {answer.headers['Content-Encoding']}), though "
                "it was asked not to: its size is unknown",
                where=self.name,
                fix="let the server send the file as it is",
            )

    def _check_version(self, headers: Mapping[str, str], stat: SourceStat) -> None:
        """Compare the header that the version came from; an answer without it says nothing."""
        header, _, expected = stat.version.partition(":")
        now = headers.get(header) if header else None
        if now is not None and now != expected:
            raise SourceChangedError(
                f"the source has changed: {header} {expected} was expected, it is {now} now", where=self.name
            )

    def _check_size(self, size: str | None, stat: SourceStat) -> None:
        if size is not None and size != str(stat.size):
            what = f"the source has changed: {stat.size} bytes were expected, it has {size} now"
            raise SourceChangedError(what, where=self.name)


class HttpStream:
    """The body of an answer that holds the whole file, read from its start."""

    def __init__(self, answer: Any, context: contextlib.AsyncExitStack, loop: asyncio.AbstractEventLoop) -> None:
        self._answer = answer
        self._context = context
        self._loop = loop

    def submit(self, num_bytes: int) -> Future[list[bytes]]:
        """Start to read the next bytes."""
        return asyncio.run_coroutine_threadsafe(self._read(num_bytes), self._loop)

    def close(self) -> None:
        """Close the connection, without waiting."""

        async def close() -> None:
            self._answer.close()
            await self._context.aclose()

        asyncio.run_coroutine_threadsafe(close(), self._loop)

    async def _read(self, num_bytes: int) -> list[bytes]:
        data: list[bytes] = []
        while num_bytes > 0 and (more := await self._answer.content.read(num_bytes)):
            data.append(more)
            num_bytes -= len(more)
        return data


async def _read_body(content: Any, num_bytes: int, byte_range: ByteRange) -> list[bytes]:
    data: list[bytes] = []
    num_came = 0
    async for more in content.iter_any():
        data.append(more)
        num_came += len(more)
        if num_came > num_bytes:
            raise TransientError(f"more than {num_bytes} bytes came for {byte_range}")
    if num_came < num_bytes:
        raise TransientError(f"only {num_came} of {num_bytes} bytes came for {byte_range}")
    return data


def _parse_range(headers: Mapping[str, str]) -> tuple[ByteRange | None, str | None]:
    """Return the range of an answer and the size of the whole, each None if not given."""
    match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
    if match is None:
        return None, None
    start, last, size = match.groups()
    return None if start is None else ByteRange(int(start), int(last) + 1), None if size == "*" else size


def _check_range(byte_range: ByteRange, came: ByteRange | None) -> int:
    """Return how many bytes of the range the server sends; it may send fewer, from the start of the range on."""
    if came is None:
        raise TransientError(f"the answer to {byte_range} is unclear: its Content-Range is missing or invalid")
    if came.start != byte_range.start or not came.start < came.stop <= byte_range.stop:
        raise TransientError(f"{byte_range} were requested, and the answer claims to hold {came}")
    return len(came)


def _version_from(headers: Mapping[str, str]) -> str:
    return next((f"{name}:{headers[name]}" for name in _VERSION_HEADERS if headers.get(name)), "")


def _digest_from(headers: Mapping[str, str]) -> str | None:
    try:
        digest = base64.b64decode(headers.get("Content-MD5", ""), validate=True)
    except ValueError:
        return None
    return f"md5:{digest.hex()}" if len(digest) == 16 else None


def _is_packed(headers: Mapping[str, str]) -> bool:
    return headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity")
