"""A socket between two of our processes that carries whole packets, and descriptors with them.

`AF_UNIX` with `SOCK_SEQPACKET`: a sender that is killed half-way leaves no half packet. A packet that is too long for
the socket goes into a memfd, whose descriptor goes in its place; the receiver cannot tell. Descriptors that do not
arrive, because the receiver may open no more, are an error and not a silence; `needs_descriptors` says so too, for
code that opens some.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Iterator, Sequence

from headrace.errors import ConfigError

from ..memory.memfd import create_memfd

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


@contextlib.contextmanager
def needs_descriptors(what: str) -> Iterator[None]:
    """Say clearly, for the length of a block, that no more files can be opened.

    Args:
        what: Needs them.

    Raises:
        ConfigError: In place of the `OSError` that says so.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _OUT_OF_DESCRIPTORS:
            raise
        text = f"{what}, and no more files can be opened"
        raise _error(f"{text} on this machine" if error.errno == errno.ENFILE else f"{text}{_limit()}") from error


def lost_descriptors() -> ConfigError:
    """Return the error for descriptors that another process sent, and that could not be opened here."""
    return _error("descriptors sent between processes were lost: no more files can be opened" + _limit())


def _limit() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return "" if limit == resource.RLIM_INFINITY else f" in this process, whose limit is {limit}"


def _error(what: str) -> ConfigError:
    return ConfigError(
        what,
        where=f"process {os.getpid()}",
        fix="raise the limit on open files (ulimit -n), or keep fewer files open",
    )


# Bytes. Linux takes packets of up to about 208 KiB by default (net.core.wmem_default); a shorter limit leaves room for
# several under way. Longer packets cost a memfd each, some 50 us.
MAX_PACKET_BYTES = 48 << 10
_MAX_FDS = 16
# In place of a packet that lies in a memfd: a byte that begins no MessagePack document.
_SPILLED = b"\xc1"
_FD_BYTES = array.array("i").itemsize
# As plain numbers: the flags of `socket` are enums, and arithmetic on those takes longer than a system call.
# Where there are no such flags, there are no channels either (`executor.py`), but the module can be imported.
_RECEIVE = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_RECEIVE_NOWAIT = int(_RECEIVE | socket.MSG_DONTWAIT)
_LOST = int(socket.MSG_CTRUNC | socket.MSG_TRUNC)
_SEND = int(getattr(socket, "MSG_NOSIGNAL", 0))


class Channel:
    """One end of a pair. Not thread-safe.

    Args:
        sock: A connected `SOCK_SEQPACKET` socket; the channel owns it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return one end, which never blocks, and the socket of the other end, to be given away."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        return cls(ours), theirs

    @classmethod
    def of_fd(cls, fd: int) -> Channel:
        """Return the end that has this descriptor, and own it."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """Return the descriptor, to wait on; -1 when closed."""
        return self._sock.fileno()

    def send(self, packet: bytes, fds: Sequence[int] = ()) -> bool:
        """Send a packet and copies of descriptors.

        Returns:
            False if it would block (a non-blocking end only): nothing was sent.

        Raises:
            OSError: The other end is closed (`BrokenPipeError`, `ConnectionResetError`).
            ConfigError: A descriptor was needed, and this process may open no more.
        """
        if not fds and len(packet) <= MAX_PACKET_BYTES:  # the usual case
            try:
                self._sock.send(packet, _SEND)
            except BlockingIOError:
                return False
            return True
        if len(packet) > MAX_PACKET_BYTES:
            with needs_descriptors("a message of many bytes"):
                fd = _spill(packet)
            try:
                return self._send(_SPILLED, [fd, *fds])
            finally:
                os.close(fd)
        return self._send(packet, fds)

    def receive(self, *, block: bool = True) -> tuple[bytes, list[int]] | None:
        """Return the next packet and the descriptors that came with it, which the caller owns.

        A packet of no bytes means that the other end is closed, or this one: the collector, which ends the objects of
        a cycle in any order, may have closed the socket before the owner of this channel says good-bye.

        Args:
            block: Whether to wait for one.

        Returns:
            None if there is no packet.

        Raises:
            ConfigError: Descriptors were lost, because this process may open no more.
        """
        flags = _RECEIVE if block else _RECEIVE_NOWAIT
        try:
            packet, controls, told, _ = self._sock.recvmsg(MAX_PACKET_BYTES, _MAX_FDS * _FD_BYTES + 16, flags)
        except (BlockingIOError, InterruptedError):
            return None
        except ConnectionResetError:
            # The other end is closed and had not received all. That is told once; what it had sent comes after it.
            return self.receive(block=block)
        except OSError:
            if self._sock.fileno() < 0:
                return b"", []
            raise
        fds: list[int] = _fds_in(controls) if controls else []
        if told & _LOST:
            close_all(fds)
            raise lost_descriptors()
        if packet == _SPILLED:
            return _unspill(fds.pop(0)), fds
        return packet, fds

    def shut_down(self) -> None:
        """Let the other end see the end now, even if a child of this process still holds a copy of the descriptor."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptor; harmless when closed."""
        self._sock.close()

    def _send(self, packet: bytes, fds: Sequence[int]) -> bool:
        try:
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            self._sock.sendmsg([packet], control, _SEND)
        except BlockingIOError:
            return False
        return True


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def _fds_in(controls: Sequence[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in controls:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    return fds.tolist()


def write_memfd(name: str, data: bytes) -> int:
    """Return the descriptor of a new memfd that holds `data`."""
    fd = create_memfd(name)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_memfd(fd: int) -> bytes:
    """Return what a memfd holds, also while others read it."""
    num_bytes = os.fstat(fd).st_size
    data = bytearray()
    while len(data) < num_bytes:
        data += os.pread(fd, num_bytes - len(data), len(data))
    return bytes(data)


def _spill(packet: bytes) -> int:
    return write_memfd("headrace-packet", packet)


def _unspill(fd: int) -> bytes:
    try:
        return read_memfd(fd)
    finally:
        os.close(fd)
