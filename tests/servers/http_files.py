"""A plain web server for files in memory: ranges, ETags, connections that stay open, and scripted faults."""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import struct
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from .faults import Fault, Faults

_RANGE = re.compile(r"bytes=(\d+)-(\d+)?")
_SLOW_BYTES, _SLOW_SECONDS = 1024, 0.002
_PACED_BYTES = 128 * 1024


@dataclass(frozen=True)
class Request:
    """One request that came."""

    method: str
    path: str
    range: str | None
    headers: dict[str, str]


class FileServer:
    """A web server on the loopback, while the context lasts.

    Args:
        files: Content by name. It may be changed while the server runs.
        version: Which header says the version: `"etag"`, `"date"` (Last-Modified) or None.
        ranges: Whether it knows ranges.
        head: Whether it knows HEAD; else 403, as for a URL that was signed for GET.
        lengths: Whether it says Content-Length to GET; without, the body ends with the connection.

    Attributes:
        files: Content by name.
        faults: What goes wrong.
        requests: What was asked for, in order.
        bytes_per_second: What each connection gives at most, as object stores do; None: what it can.
        head_body: Whether HEAD says the length of the file; else 0, as programs do that make no body for it.
    """

    def __init__(
        self,
        files: dict[str, bytes] | None = None,
        *,
        version: str | None = "etag",
        ranges: bool = True,
        head: bool = True,
        lengths: bool = True,
    ) -> None:
        self.files = dict(files or {})
        self.version, self.ranges, self.head, self.lengths = version, ranges, head, lengths
        self.head_body = True
        self.bytes_per_second: float | None = None
        self.faults = Faults()
        self.requests: list[Request] = []
        self._ends = threading.Event()
        self._versions: dict[str, tuple[bytes, int, str]] = {}  # by name: of which content, how manieth, its digest
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        server = self

        class Handler(_Handler):
            owner = server

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self.faults.clear()
        self._server.shutdown()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        """The server's URL, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def url(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.address}/{name}"

    def num_requests(self, method: str = "GET") -> int:
        """Count the requests so far."""
        return sum(request.method == method for request in self.requests)

    def version_header(self, name: str) -> tuple[str, str] | None:
        """Return the header that says which version a file is."""
        content = self.files[name]
        with self._lock:
            known, number, digest = self._versions.get(name, (None, 0, ""))
            if known is not content:
                number, digest = number + 1, hashlib.md5(content).hexdigest()
                self._versions[name] = content, number, digest
        if self.version == "etag":
            return "ETag", f'"{digest}"'
        return ("Last-Modified", f"Mon, {number:02} Jan 2024 00:00:00 GMT") if self.version == "date" else None


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing it waits for them
    request_queue_size = 128  # where the queue overflows, a connection takes a second


class _Handler(BaseHTTPRequestHandler):
    owner: FileServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        with self.owner._lock:
            self.owner._connections.add(self.connection)

    def finish(self) -> None:
        with self.owner._lock:
            self.owner._connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        owner, name = self.owner, self.path.partition("?")[0].lstrip("/")
        wanted = self.headers.get("Range")
        owner.requests.append(Request(self.command, self.path, wanted, dict(self.headers)))
        fault = owner.faults.take(self.command, self.path)
        if fault is not None and fault.kind == "call":
            fault.call()
        if fault is not None and fault.kind == "status":
            headers = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
            self._send(fault.status, headers, b"something is wrong")
        elif name not in owner.files:
            self._send(404, {}, b"not here")
        elif self.command == "HEAD" and not owner.head:
            self._send(403, {}, b"")
        else:
            self._send_file(name, wanted, fault)

    def _send_file(self, name: str, wanted: str | None, fault: Fault | None) -> None:
        kind = None if fault is None else fault.kind
        content = self.owner.files[name]
        headers = dict([header]) if (header := self.owner.version_header(name)) else {}
        match = _RANGE.fullmatch(wanted or "")
        if match is None or not self.owner.ranges or kind in ("ignore_range", "longer_body"):
            if kind == "longer_body":
                content += b"more"
            self._send(200, self._packed(headers, kind), content, fault)
            return
        start = int(match[1])
        stop = min(int(match[2] or len(content)) + 1, len(content))
        if start >= len(content):
            self._send(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
            return
        if kind == "shorter_range":
            stop = start + max(1, (stop - start) // 3)
        shift = 1 if kind == "wrong_range" else 0
        if kind != "no_range_header":
            headers["Content-Range"] = f"bytes {start + shift}-{stop - 1 + shift}/{len(content)}"
        self._send(206, self._packed(headers, kind), content[start:stop], fault)

    def _packed(self, headers: dict[str, str], kind: str | None) -> dict[str, str]:
        return {**headers, "Content-Encoding": "gzip"} if kind == "packed" else headers

    def _send(self, status: int, headers: dict[str, str], body: bytes, fault: Fault | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        says_length = self.owner.lengths and (fault is None or fault.kind != "longer_body")
        has_length = says_length or self.command == "HEAD" or status not in (200, 206)
        if has_length:
            says_zero = self.command == "HEAD" and not self.owner.head_body
            self.send_header("Content-Length", "0" if says_zero else str(len(body)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault is None or not self._send_badly(body, fault):
            self._send_paced(body)

    def _send_paced(self, body: bytes) -> None:
        rate = self.owner.bytes_per_second
        if rate is None:
            self.wfile.write(body)
            return
        view, start = memoryview(body), time.monotonic()
        for position in range(0, len(body), _PACED_BYTES):
            self.wfile.write(view[position : position + _PACED_BYTES])
            if self.owner._ends.wait(max(0.0, start + (position + _PACED_BYTES) / rate - time.monotonic())):
                break

    def _send_badly(self, body: bytes, fault: Fault) -> bool:
        """Send a body as the fault says; False if the fault is not about the body."""
        if fault.kind in ("cut", "truncate", "stall"):
            self.wfile.write(body[: fault.after_bytes])
            self.wfile.flush()
            if fault.kind == "stall":
                fault.release.wait()
            if fault.kind == "cut":  # a reset instead of an orderly end
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            self.close_connection = True
            return True
        if fault.kind == "slow":
            for start in range(0, len(body), _SLOW_BYTES):
                self.wfile.write(body[start : start + _SLOW_BYTES])
                if self.owner._ends.wait(_SLOW_SECONDS):
                    break
            return True
        return False
