"""Which failures are transient, and how long to wait before the next try.

Errors of many libraries arrive here (aiohttp, botocore, requests, httpx, gcsfs, the operating system). They are told
apart by HTTP status, errno and the names of their classes, so that no library need be imported for it. All others are
permanent: a missing file, a refusal or wrong credentials do not get better by asking again.
"""

from __future__ import annotations

import email.utils
import errno
import http
import random
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError

from .options import FetchOptions

# Disk full and quota used up are for the caller: a cache makes room and calls again.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

_TRANSIENT_STATUS = frozenset({408, 425, 429})  # and 500 to 599
_FINAL_STATUS = frozenset({501, 505})
_PASSING_ERRNO = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.EREMOTEIO,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EPIPE,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ENOMEM,
        errno.ENOBUFS,
    }
)
# Classes of the libraries below fsspec that mean: the network failed, not the request.
_PASSING_NAMES = frozenset(
    {
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",
        "ConnectionError",  # botocore, requests: not the one of Python
        "FSTimeoutError",  # fsspec
        "HTTPClientError",  # botocore
        "IncompleteReadError",
        "ResponseStreamingError",
        "TransportError",  # httpx, google
        "Timeout",  # requests
        "ChunkedEncodingError",
        "ProtocolError",  # urllib3
        "IncompleteRead",  # http.client
        "SSLEOFError",  # a connection that was cut under TLS
        "gaierror",  # no address for a host name, yet
        "ServiceRequestError",  # azure
        "ServiceResponseError",
    }
)
_FINAL_NAMES = frozenset({"ClientConnectorCertificateError", "SSLCertVerificationError", "UnsupportedProtocol"})

# The system's random numbers: they have no state that a user's seed could reach, or that Headrace could change.
_random = random.SystemRandom()


class TransientError(Exception):
    """A transient failure that Headrace noticed: a short body, a time-out, a wrong header."""


class HttpStatusError(Exception):
    """A server answered with a status other than success.

    Args:
        status: The status code.
        retry_after: The header of that name, if there was one.
    """

    def __init__(self, status: int, retry_after: str | None = None) -> None:
        super().__init__(status, retry_after)
        self.status = status
        self.headers = {} if retry_after is None else {"Retry-After": retry_after}

    def __str__(self) -> str:
        """Return the status in words."""
        return status_text(self.status)


def is_transient(error: BaseException) -> bool:
    """Tell whether the same request may succeed later."""
    if isinstance(error, TransientError | TimeoutError | CancelledError):
        return True
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & _FINAL_NAMES:
        return False
    if isinstance(error, ConnectionError) or names & _PASSING_NAMES:
        return True  # before the status: aiohttp gives a body that was cut the status 400
    status = status_of(error)
    if status is not None:
        return status in _TRANSIENT_STATUS or (500 <= status <= 599 and status not in _FINAL_STATUS)
    return isinstance(error, OSError) and error.errno in _PASSING_ERRNO


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error or its cause; None if there is none."""
    for part in _chain(error):
        for candidate in _status_candidates(part):
            if isinstance(candidate, int) and 100 <= candidate <= 599:
                return int(candidate)
    return None


def _status_candidates(error: BaseException) -> Iterator[object]:
    """Yield possible status values, lazily: aiohttp warns about its `code`, and has `status`, too."""
    yield getattr(error, "status", None)
    response = getattr(error, "response", None)
    yield getattr(response, "status_code", None)
    if isinstance(response, Mapping):  # botocore
        yield response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    yield getattr(error, "status_code", None)
    yield getattr(error, "code", None)


def status_text(status: int) -> str:
    """Return `"HTTP 503 Service Unavailable"`."""
    try:
        return f"HTTP {status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def cause_text(error: BaseException) -> str:
    """Describe an error in a line: its status or class, and its text."""
    text = str(error).strip()
    if isinstance(error, TransientError | HttpStatusError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def retry_after_seconds(error: BaseException, now: float | None = None) -> float:
    """Return how long the server asks to wait: `Retry-After`, in seconds or as a date; 0 without one.

    Args:
        error: The exception.
        now: The time since 1970 in seconds; None: the clock.
    """
    for part in _chain(error):
        response = getattr(part, "response", None)
        headers = getattr(part, "headers", None) or getattr(response, "headers", None)
        if headers is None and isinstance(response, Mapping):
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
        if isinstance(headers, Mapping):
            text = headers.get("Retry-After") or headers.get("retry-after")
            if text:
                return _seconds_until(str(text), time.time() if now is None else now)
    return 0.0


def wait_seconds(options: FetchOptions, num_failures: int, error: BaseException) -> float:
    """Return how long to wait after the n-th failure in a row, from 1: doubling, with jitter, and as the server asks.

    Never more than `max_wait_seconds`.
    """
    doubled = options.first_wait_seconds * 2.0 ** min(num_failures - 1, 60)
    wait = min(doubled, options.max_wait_seconds) * (1.0 - 0.5 * _random.random())
    return max(wait, min(retry_after_seconds(error), options.max_wait_seconds))


def _seconds_until(text: str, now: float) -> float:
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return 0.0


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and what caused it, explicitly; at most 8."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < 8 and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    return chain
