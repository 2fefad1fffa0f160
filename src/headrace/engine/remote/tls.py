"""TLS between a trainer and its workers: certificates from files, and a connection that is used as a plain socket is.

Invariants: no version below TLS 1.3; a worker believes no trainer without a certificate of the given authority for the
name it connects to; a trainer with an authority believes no worker without one either. The secret of the run is bound
to the trainer's certificate, so that another member of the same cluster cannot stand between the two.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec

from headrace.errors import ConfigError

from .wire import WireError

TLS_VARIABLE = "HEADRACE_WORKER_TLS"
"""The environment variable that tells an agent of a launcher where its certificates are."""

# Of small buffers that are sent together: one record of TLS has as much at most.
_RECORD_BYTES = 16 << 10
# Bytes of one call: another one tells how far it came.
_MAX_SEND_BYTES = 256 << 10


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Where certificates are, as PEM files. Where a launcher starts workers, these look for them at the same paths.

    Attributes:
        ca: Certificates of the authorities that the other side's has to come from. A trainer that has none asks workers
            for none.
        cert: The certificate of this side, with those between it and the authority. A trainer needs one.
        key: The private key for it, if it is in a file of its own.
        name: For workers: the name in the trainer's certificate, if they connect to another one.

    Examples:
        >>> import headrace as hr
        >>> from headrace.engine.remote import Tls
        >>> tls = Tls(cert="trainer.pem", key="trainer.key", ca="ca.pem")
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    name: str | None = None

    @classmethod
    def if_given(cls, **files: str | None) -> Tls | None:
        """Return what options of a command say, or None if none of them is given."""
        return cls(**files) if any(file is not None for file in files.values()) else None

    def context_of_trainer(self) -> ssl.SSLContext:
        """Return what a trainer wraps connections with.

        Raises:
            ConfigError: A file is missing or wrong.
        """
        if self.cert is None:
            raise ConfigError("a trainer with TLS needs a certificate", fix="give Tls(cert=..., key=..., ca=...)")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return self._load(context)

    def context_of_worker(self) -> ssl.SSLContext:
        """Return what a worker wraps its connection with.

        Raises:
            ConfigError: A file is missing or wrong.
        """
        if self.ca is None:
            raise ConfigError(
                "a worker with TLS needs the certificate of the authority (CA) that signed that of its trainer",
                fix="give --tls-ca, or Tls(ca=...) to the trainer whose launcher starts it",
            )
        return self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        path: str | None = None
        try:
            if (path := self.ca) is not None:
                context.load_verify_locations(path)
            if (path := self.cert) is not None:
                context.load_cert_chain(path, self.key, password=_no_password)
        except OSError as error:
            key = f" with the key {self.key}" if path == self.cert and self.key else ""
            raise ConfigError(f"a certificate cannot be used: {error}", where=f"{path}{key}") from error
        return context

    def bind_secret(self, secret: bytes) -> bytes:
        """Return the secret as a trainer with this certificate uses it.

        Raises:
            ConfigError: The certificate cannot be read.
        """
        try:
            text = Path(self.cert or "").read_text(encoding="ascii", errors="replace")
            begin, end = text.index(ssl.PEM_HEADER), text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
            return bind_secret(secret, ssl.PEM_cert_to_DER_cert(text[begin:end]))
        except (OSError, ValueError) as error:
            raise ConfigError(f"a certificate cannot be read: {error}", where=self.cert) from error


def bind_secret(secret: bytes, certificate: bytes) -> bytes:
    """Return a secret that both sides have only if they speak of the same certificate of the trainer, as DER."""
    return hmac.new(secret, b"certificate\0" + certificate, hashlib.sha256).digest()


def take_tls() -> Tls | None:
    """Return where the certificates of an agent are that a launcher has started, if it is to use TLS."""
    text = os.environ.pop(TLS_VARIABLE, "")
    return msgspec.json.decode(text, type=Tls) if text else None


def connect_tls(sock: socket.socket, context: ssl.SSLContext, name: str) -> TlsSocket:
    """Wrap the connection of a worker, and have it block; waits for the trainer as long as the socket has a timeout.

    Raises:
        WireError: The other side is not who it should be, or speaks no TLS.
        OSError: It is gone, or says nothing.
    """
    try:
        wrapped = context.wrap_socket(sock, server_hostname=name)
        wrapped.settimeout(None)
        return TlsSocket(wrapped)
    except ssl.SSLEOFError as error:
        raise ConnectionResetError("it closed the connection") from error
    except ssl.SSLCertVerificationError as error:
        raise WireError(
            f"the certificate of the trainer is refused: {error.verify_message}",
            fix="give the authority that has signed it as --tls-ca, and as --tls-name the name that is in it",
        ) from error
    except ssl.SSLError as error:
        raise _tls_error(error) from error


def _tls_error(error: ssl.SSLError) -> WireError:
    return WireError(
        f"the TLS handshake with the other side failed: {error.reason or error}",
        fix="give both sides certificates of the same authority: RemoteExecutor(tls=...) and --tls-ca, --tls-cert",
    )


def _no_password() -> str:
    raise ConfigError("a private key is encrypted, and nobody can be asked for its passphrase", fix="decrypt it")


class TlsSocket:
    """A connection with TLS that has the methods of a socket that are used here, with the same errors.

    Args:
        sock: Socket of this connection.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.fileno, self.setsockopt, self.setblocking = sock.fileno, sock.setsockopt, sock.setblocking
        self.getsockname, self.getpeername, self.getsockopt = sock.getsockname, sock.getpeername, sock.getsockopt
        self.gettimeout, self.settimeout, self.shutdown, self.close, self.pending = (
            sock.gettimeout,
            sock.settimeout,
            sock.shutdown,
            sock.close,
            sock.pending,
        )

    @property
    def certificate(self) -> bytes:
        """Of the other side, as DER."""
        return self._sock.getpeercert(binary_form=True) or b""

    def shake_hands(self) -> bool:
        """Go on with the handshake of a trainer; tell whether it is complete.

        Raises:
            WireError: The other side is refused, or speaks no TLS.
            OSError: It is gone.
        """
        try:
            self._sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except ssl.SSLEOFError as error:
            raise ConnectionResetError("it closed the connection in the middle of the TLS handshake") from error
        except ssl.SSLError as error:
            raise _tls_error(error) from error
        return True

    def recv_into(self, target: memoryview) -> int:
        """Fill a buffer as far as there is something; one record at least where the socket blocks."""
        num_bytes = 0
        while num_bytes < target.nbytes:
            try:
                num_read = self._sock.recv_into(target[num_bytes:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not num_bytes:
                    raise BlockingIOError from None
                break
            num_bytes += num_read
            if not num_read or self._sock.gettimeout() != 0.0:
                break
        return num_bytes

    def recvmsg_into(self, targets: Sequence[memoryview]) -> tuple[int]:
        """Fill buffers, one after the other, as far as there is something."""
        num_bytes = self.recv_into(targets[0])
        filled_bytes = targets[0].nbytes
        for target in targets[1:]:
            if num_bytes < filled_bytes:
                break
            try:
                num_bytes += self.recv_into(target)
            except BlockingIOError:
                break
            filled_bytes += target.nbytes
        return (num_bytes,)

    def recv(self, num_bytes: int, flags: int = 0) -> bytes:
        """Return what there is; with `MSG_DONTWAIT` without waiting, with `MSG_PEEK` of the bytes below TLS."""
        if flags & socket.MSG_PEEK:
            return socket.socket.recv(self._sock, num_bytes, flags)
        buffer = bytearray(num_bytes)
        with self._not_waiting(flags):
            return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def send(self, data: bytes | memoryview) -> int:
        """Send some of the bytes, and return how many."""
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, parts: Sequence[memoryview], _ancillary: tuple[()] = (), flags: int = 0) -> int:
        """Send some of the bytes of buffers, and return how many; with `MSG_DONTWAIT` without waiting.

        What would block has to be tried again with the same bytes, and perhaps more after them.
        """
        with self._not_waiting(flags):
            if parts[0].nbytes >= _RECORD_BYTES:
                return self.send(parts[0][:_MAX_SEND_BYTES])
            joined = bytearray()
            for part in parts:
                joined += part[: _RECORD_BYTES - len(joined)]
                if len(joined) == _RECORD_BYTES:
                    break
            return self.send(memoryview(joined))

    @contextlib.contextmanager
    def _not_waiting(self, flags: int) -> Iterator[None]:
        is_waiting = self._sock.gettimeout() is None
        if not is_waiting or not flags & socket.MSG_DONTWAIT:
            yield
            return
        self._sock.setblocking(False)
        try:
            yield
        finally:
            self._sock.setblocking(True)

    def move_to(self, sock: socket.socket) -> None:
        """Go on over another connection, which is owned from now on; the one until now is closed."""
        os.dup2(sock.fileno(), self._sock.fileno(), inheritable=False)
        sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
