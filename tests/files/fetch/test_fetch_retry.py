"""Which failures can pass, and how long to wait."""

from __future__ import annotations

import errno
import random
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.files.fetch.fetch import FetchOptions
from headrace.files.fetch.retry import (
    HttpStatusError,
    TransientError,
    cause_text,
    is_transient,
    retry_after_seconds,
    status_of,
    wait_seconds,
)


class _BotoError(Exception):
    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"status {status}")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}}}


class _RequestsResponse:
    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status_code, self.headers = status, headers


class _RequestsError(OSError):
    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"status {status}")
        self.response = _RequestsResponse(status, headers or {})


def _translated(status: int) -> OSError:
    """As s3fs does it."""
    error = OSError(errno.EIO, "odd")
    error.__cause__ = _BotoError(status)
    return error


_STATUS_ERRORS = [HttpStatusError, _BotoError, _RequestsError, _translated]


@pytest.mark.parametrize("make", _STATUS_ERRORS)
def test_servers_that_are_busy_are_asked_again_and_those_that_refuse_are_not(make):
    busy, refusals = [408, 425, 429, 500, 502, 503, 504, 599], [400, 401, 403, 404, 405, 410, 412, 416, 501, 505]
    assert [status_of(make(status)) for status in busy + refusals] == busy + refusals
    assert [status for status in busy + refusals if is_transient(make(status))] == busy


def test_what_a_disk_or_network_says_in_a_bad_moment_can_pass_and_what_stays_as_it_is_does_not():
    passing = ["EIO", "ESTALE", "ETIMEDOUT", "ECONNRESET", "ECONNREFUSED", "EHOSTUNREACH", "EBUSY"]
    lasting = ["ENOENT", "EACCES", "EPERM", "EISDIR", "ENOSPC", "EDQUOT", "EROFS", "EINVAL"]
    assert [name for name in passing + lasting if is_transient(OSError(getattr(errno, name), "x"))] == passing


@pytest.mark.parametrize(
    "error", [TransientError("x"), TimeoutError(), ConnectionResetError(), socket.gaierror(-3, "again"), EOFError("x")]
)
def test_network_errors_can_pass_and_programming_errors_do_not(error):
    assert is_transient(error) == (not isinstance(error, EOFError))


@pytest.mark.extra
@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        ("botocore.exceptions", "EndpointConnectionError", {"endpoint_url": "x"}),
        ("botocore.exceptions", "ConnectTimeoutError", {"endpoint_url": "x"}),
        ("botocore.exceptions", "ReadTimeoutError", {"endpoint_url": "x"}),
        ("botocore.exceptions", "ConnectionClosedError", {"endpoint_url": "x"}),
        ("botocore.exceptions", "ResponseStreamingError", {"error": "x"}),
        ("requests", "ConnectionError", {}),
        ("requests", "ReadTimeout", {}),
        ("requests.exceptions", "ChunkedEncodingError", {}),
        ("httpx", "ConnectError", {"message": "x"}),
        ("httpx", "ReadTimeout", {"message": "x"}),
        ("httpx", "RemoteProtocolError", {"message": "x"}),
        ("aiohttp", "ServerDisconnectedError", {}),
        ("aiohttp", "ClientPayloadError", {}),
        ("http.client", "RemoteDisconnected", {}),
        ("http.client", "IncompleteRead", {"partial": b""}),
        ("fsspec.exceptions", "FSTimeoutError", {}),
    ],
)
def test_what_the_libraries_say_of_a_bad_network_can_pass(module, name, arguments):
    assert is_transient(getattr(pytest.importorskip(module), name)(**arguments))


@pytest.mark.extra
@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        ("botocore.exceptions", "NoCredentialsError", {}),
        ("botocore.exceptions", "ProfileNotFound", {"profile": "x"}),
        ("requests.exceptions", "InvalidURL", {}),
        ("httpx", "UnsupportedProtocol", {"message": "x"}),
        ("aiohttp", "InvalidURL", {"url": "x"}),
    ],
)
def test_what_the_libraries_say_of_a_wrong_request_does_not_pass(module, name, arguments):
    assert not is_transient(getattr(pytest.importorskip(module), name)(**arguments))


def test_a_certificate_that_is_wrong_does_not_pass():
    class ClientConnectorCertificateError(ConnectionError):
        pass

    assert not is_transient(ClientConnectorCertificateError("expired"))


@given(st.integers(1, 2000), st.floats(0, 10), st.floats(0, 100))
def test_waits_double_up_to_their_limit_less_up_to_a_half(num_failures, first, extra):
    options = FetchOptions(first_wait_seconds=first, max_wait_seconds=first + extra)
    full = min(first * 2.0 ** min(num_failures - 1, 60), first + extra)
    assert 0.5 * full <= wait_seconds(options, num_failures, TransientError("x")) <= full


def test_waiting_touches_no_generator_of_the_user():
    random.seed(7)
    np.random.seed(7)
    before = random.getstate(), np.random.get_state()[1].tolist()
    waits = {wait_seconds(FetchOptions(), 3, TransientError("x")) for _ in range(20)}
    random.seed(7)
    waits |= {wait_seconds(FetchOptions(), 3, TransientError("x")) for _ in range(20)}
    assert len(waits) == 40  # a seed does not repeat them: processes of one job do not come back together
    random.seed(7)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.parametrize("make", [_BotoError, _RequestsError])
def test_a_server_that_says_when_to_come_back_is_heard_up_to_the_limit(make):
    options = FetchOptions(first_wait_seconds=0.1, max_wait_seconds=9)
    assert wait_seconds(options, 1, make(503, {"Retry-After": "7"})) == 7
    assert wait_seconds(options, 1, make(503, {"retry-after": "70"})) == 9
    assert wait_seconds(options, 1, make(503, {"Retry-After": "soon"})) <= 0.1


def test_the_time_to_come_back_may_be_a_date():
    error = HttpStatusError(503, "Thu, 01 Jan 1970 00:01:00 GMT")
    assert retry_after_seconds(error, now=20.0) == 40.0
    assert retry_after_seconds(error, now=90.0) == 0.0


def test_the_cause_is_said_in_a_line():
    assert cause_text(HttpStatusError(503)) == "HTTP 503 Service Unavailable"
    assert cause_text(HttpStatusError(599)) == "HTTP 599"
    assert cause_text(ConnectionResetError(104, "gone")) == "ConnectionResetError: [Errno 104] gone"
    assert cause_text(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_tries": 0},
        {"num_tries": 1.5},
        {"num_tries": True},
        {"first_wait_seconds": -1},
        {"first_wait_seconds": 2, "max_wait_seconds": 1},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": float("inf")},
        {"timeout_seconds": "60"},
        {"num_streams": 0},
        {"num_streams": 1000},
        {"range_bytes": 10},
        {"checksum": "crc"},
    ],
)
def test_options_are_checked_when_they_are_built(wrong):
    with pytest.raises(ConfigError, match=next(reversed(wrong))):
        FetchOptions(**wrong)
