"""TLS with a stranger, who may send what he wants: it is looked at piece by piece."""

from __future__ import annotations

import contextlib
import socket
import ssl

from ..tls import TlsSocket
from ..wire import WireError

# What lies before each record: its kind, the version, and how many bytes follow, with their maximum.
_RECORD_HEAD_BYTES = 5
_MAX_RECORD_BYTES = (16 << 10) + 256
# Records of a stranger. An agent sends some ten, with a long chain of certificates a few more.
_MAX_STRANGE_RECORDS = 64
_READ_BYTES = 64 << 10


class Gate:
    """The TLS of a trainer with a stranger: sees one record of it at a time, and not many in all.

    OpenSSL reads on by itself as long as records come that have nothing to say (TLS allows them at any time, to change
    keys for example), so who sends only such ones would never have it return. So until a stranger is known, OpenSSL
    has a pair of sockets in place of the connection, and is given what comes by us.

    Args:
        sock: A connection that does not block; owned from now on.
        context: TLS context of the trainer.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        inner, self._outer = socket.socketpair()
        inner.setblocking(False)
        self._outer.setblocking(False)
        try:
            wrapped = context.wrap_socket(inner, server_side=True, do_handshake_on_connect=False)
        except BaseException:
            inner.close()
            self._outer.close()
            raise
        self.tls = TlsSocket(wrapped)
        self._head = bytearray()  # of the record that comes
        self._num_missing_bytes = 0  # of that, after its head
        self._num_records = 0
        self._unsent = bytearray()

    def let_in(self) -> bool:
        """Pass on what there is of the next record; tell whether it is complete.

        Raises:
            WireError: It is too long, or one too many.
            OSError: The stranger is gone.
        """
        try:
            while self._num_missing_bytes or len(self._head) < _RECORD_HEAD_BYTES:
                data = self._sock.recv(self._num_missing_bytes or _RECORD_HEAD_BYTES - len(self._head))
                if not data:
                    raise ConnectionResetError("it was closed before it had identified itself")
                self._outer.send(data)
                if self._num_missing_bytes:
                    self._num_missing_bytes -= len(data)
                else:
                    self._begin_record(data)
        except BlockingIOError:
            return False
        self._head.clear()
        return True

    def _begin_record(self, data: bytes) -> None:
        self._head += data
        if len(self._head) == _RECORD_HEAD_BYTES:
            self._num_records += 1
            self._num_missing_bytes = int.from_bytes(self._head[-2:], "big")
            if self._num_missing_bytes > _MAX_RECORD_BYTES or self._num_records > _MAX_STRANGE_RECORDS:
                raise WireError("it sends more than a worker does before it has identified itself")

    def let_out(self) -> None:
        """Send what TLS says, as far as the connection takes it.

        Raises:
            OSError: The stranger is gone.
        """
        with contextlib.suppress(BlockingIOError):
            while True:
                self._unsent += self._outer.recv(_READ_BYTES)
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]

    def let_all_out(self) -> None:
        """Do that, and see that nothing is left.

        Raises:
            WireError: The connection does not take it all.
            OSError: The stranger is gone.
        """
        self.let_out()
        if self._unsent:
            raise WireError("it does not read the replies")

    def open(self) -> TlsSocket:
        """Return the connection with TLS, from which OpenSSL reads by itself from now on, after `let_all_out`.

        What came with the last record that was let in can be read from it, and what comes after that.
        """
        self.tls.move_to(self._sock)
        self._outer.close()
        return self.tls

    def close(self) -> None:
        """Close the connection; in a forked process, our copy of it."""
        self.tls.close()
        self._outer.close()
        self._sock.close()
