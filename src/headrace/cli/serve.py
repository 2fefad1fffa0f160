"""`headrace serve`: be a service that does the work of several trainings, and what they share only once."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.engine.remote.addresses import join_address, split_address
from headrace.engine.remote.handshake import SECRET_VARIABLE, take_secret
from headrace.engine.remote.service import Service
from headrace.engine.remote.tls import Tls
from headrace.files.cache.options import parse_bytes

from .console import open_messages


def serve(
    bind: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0: any that is free.")],
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Worker processes for each recipe.")],
    max_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Limit on the batches that are kept for others, such as 8GiB.")
    ] = "8GiB",
    secret_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"File with the secret; default: the variable {SECRET_VARIABLE}."),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificate of this service: connections have TLS.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Its private key, if it is in another file.")
    ] = None,
    tls_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificates that those of the trainings have to come from.")
    ] = None,
    tls_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name in the certificates of the trainings, if not their address."),
    ] = None,
) -> None:
    """Do the work of several trainings, and what they share only once.

    A training uses it by executor=headrace.SharedService("HOST:PORT"). Both have to know the same secret. Ends by
    SIGTERM or Ctrl-C.
    """
    if sys.argv[0].endswith("__main__.py") and sys.path[0] == os.getcwd():
        del sys.path[0]  # of `python -m`: modules of this folder are not those that trainings mean
    host, port = split_address(bind, min_port=0)
    service = Service(
        host,
        port,
        take_secret(secret_file),
        num_workers=workers,
        max_bytes=parse_bytes(re.sub(r"^([\d.]+)\s*([A-Za-z])", r"\1 \2", max_bytes.strip()), "--max-bytes"),
        tls=Tls.if_given(ca=tls_ca, cert=tls_cert, key=tls_key, name=tls_name),
    )
    messages = open_messages()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    messages.print(f"listening on {join_address(host, service.port)}, with {workers} workers for each recipe")
    try:
        service.serve()
    finally:
        report = service.report()
        service.close()
    messages.print(f"ended: {report.num_hits} batches had been kept when they were asked for")
