"""`headrace worker`: be a worker of a trainer on another machine, started there by srun, ssh or by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.engine.remote.agent import WAIT_SECONDS, serve
from headrace.engine.remote.handshake import SECRET_VARIABLE, take_secret
from headrace.engine.remote.tls import Tls

from .console import open_messages


def worker(
    connect: Annotated[
        list[str],
        typer.Option(metavar="HOST:PORT", help="Where the trainer listens; may be given again: tried in turn."),
    ],
    secret_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"File with the secret of the run; default: the variable {SECRET_VARIABLE}."),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="How long to try to reach the trainer at first, and how long one that is reached may be busy. "
            f"Default: {WAIT_SECONDS:g}, and an hour.",
        ),
    ] = None,
    return_wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="The same after a connection to it has ended.")
    ] = 10.0,
    grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.0, help="How long to finish what was begun when told to end (SIGTERM)."),
    ] = 20.0,
    tls_ca: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Certificates that the trainer's has to come from: the connection has TLS."),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificate of this worker, if the trainer asks for one.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Its private key, if it is in another file.")
    ] = None,
    tls_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name in the trainer's certificate, if it is not HOST.")
    ] = None,
) -> None:
    """Do the work of a loader that runs on another machine.

    The trainer has a RemoteExecutor(ConnectedWorkers(), port=...), which needs as many of these as it has workers. Both
    sides have to know the same secret.
    """
    num_sessions = serve(
        connect,
        take_secret(secret_file),
        wait_seconds=wait,
        return_seconds=return_wait,
        grace_seconds=grace,
        tls=Tls.if_given(ca=tls_ca, cert=tls_cert, key=tls_key, name=tls_name),
    )
    open_messages().print(f"the trainer is not there any more, after {num_sessions} connections")
