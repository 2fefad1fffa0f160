"""An S3 store on the loopback: moto's server in a thread, behind a gate that follows a script of faults."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from .faults import Fault, Faults

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def has_s3() -> bool:
    """Tell whether moto's server and s3fs are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("moto", "flask", "s3fs"))


class S3Server:
    """A store on the loopback, while the context lasts; use `environment` to reach it.

    Of the faults, `status`, `cut`, `truncate`, `stall` and `call` are known.

    Attributes:
        faults: What goes wrong.
        environment: Variables that lead s3fs and other clients here.
    """

    def __init__(self) -> None:
        self.faults = Faults()
        self.requests: list[tuple[str, str, str | None]] = []
        self._connections: set[socket.socket] = set()

    def __enter__(self) -> Self:
        import s3fs
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        # File systems that fsspec keeps have the address of the store before this one.
        s3fs.S3FileSystem.clear_instance_cache()
        connections = self._connections

        class Quiet(WSGIRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                connections.add(self.connection)

            def finish(self) -> None:
                connections.discard(self.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def log(self, *arguments: Any) -> None:
                pass

        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._gate, threaded=True, request_handler=Quiet)
        self._server.daemon_threads = False  # type: ignore[attr-defined] # so that closing it waits for them
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}"}
        return self

    def __exit__(self, *error: object) -> None:
        self.faults.clear()
        reset = urllib.request.Request(self.environment["AWS_ENDPOINT_URL"] + "/moto-api/reset", method="POST")
        urllib.request.urlopen(reset).close()  # moto keeps objects in temporary files
        self._server.shutdown()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()

    def put(self, bucket: str, key: str, content: bytes) -> str:
        """Store an object, in one part; return its URL."""
        client = self._client()
        client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key=key, Body=content)
        client.close()
        return f"s3://{bucket}/{key}"

    def put_in_parts(self, bucket: str, key: str, parts: list[bytes]) -> str:
        """Store an object in several parts, each of 5 MiB at least but the last; return its URL."""
        client = self._client()
        client.create_bucket(Bucket=bucket)
        name = {"Bucket": bucket, "Key": key}
        upload = {**name, "UploadId": client.create_multipart_upload(**name)["UploadId"]}
        tags = [
            {"PartNumber": number, "ETag": client.upload_part(PartNumber=number, Body=part, **upload)["ETag"]}
            for number, part in enumerate(parts, 1)
        ]
        client.complete_multipart_upload(MultipartUpload={"Parts": tags}, **upload)
        client.close()
        return f"s3://{bucket}/{key}"

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            region_name=ENVIRONMENT["AWS_DEFAULT_REGION"],
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def _gate(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path, environ.get("HTTP_RANGE")))
        fault = self.faults.take(method, path)
        if fault is not None and fault.kind == "call":
            fault.call()
        if fault is not None and fault.kind == "status":
            headers = [("Content-Length", "0")]
            if fault.retry_after is not None:
                headers.append(("Retry-After", fault.retry_after))
            start_response(f"{fault.status} Wrong", headers)
            return []
        body = self._app(environ, start_response)
        return body if fault is None else _spoil(b"".join(body), fault)


def _spoil(body: bytes, fault: Fault) -> Iterator[bytes]:
    if fault.kind not in ("cut", "truncate", "stall"):
        yield body
        return
    yield body[: fault.after_bytes]
    if fault.kind == "stall":
        fault.release.wait()
    raise ConnectionAbortedError  # the server closes the connection
