"""Addresses of a trainer: as they are written, and what listens on them, of IPv4 and IPv6."""

from __future__ import annotations

import errno
import socket

from headrace.errors import ConfigError

# Of the system's queue of connections: as many workers may be started at once, while the trainer is busy.
_BACKLOG = 1024
# How many ports are tried where any will do.
_MAX_PORTS = 20
# A machine without IPv6, or without one of its own names.
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def join_address(host: str, port: int) -> str:
    """Return "host:port", or "[host]:port"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str, *, min_port: int = 1) -> tuple[str, int]:
    """Return the host and the port of "host:port" or "[host]:port".

    Args:
        address: The text.
        min_port: 0 where that stands for any port that is free.

    Raises:
        ConfigError: It is neither.
    """
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or not min_port <= int(port) < 1 << 16:
        raise ConfigError(f"{address!r} is not an address", fix="give HOST:PORT, such as node7:7070 or [fd00::7]:7070")
    host = host[1:-1] if is_bracketed else host
    if not host or (":" in host and not is_bracketed):
        raise ConfigError(f"{address!r} is not an address", fix="give HOST:PORT, such as node7:7070 or [fd00::7]:7070")
    return host, int(port)


def listen(host: str, port: int) -> list[socket.socket]:
    """Listen on one port on all addresses of a host."""
    errors: list[str] = []
    for _ in range(_MAX_PORTS if port == 0 else 1):
        sockets, errors = _listen_once(host, port)
        if sockets and (port or not errors):
            return sockets
        for sock in sockets:  # the port is somebody else's on another address, where a worker might look for us
            sock.close()
    raise ConfigError(
        f"this process cannot listen on port {port} of {host or 'this machine'}: {'; '.join(errors)}",
        fix="give the host or the port on which workers reach this machine, or port=0 for any that is free",
    )


def _listen_once(host: str, port: int) -> tuple[list[socket.socket], list[str]]:
    """Return what listens on a port, and where it is not free."""
    sockets: list[socket.socket] = []
    errors: list[str] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            try:
                sockets.append(_listen_on(family, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    errors.append(f"{address[0]}: {error.strerror}")
            else:
                port = sockets[0].getsockname()[1]
    except OSError as error:
        errors.append(str(error.strerror or error))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets, errors


def _listen_on(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


# The system probes the other machine after a silence of 10 s; every 5 s, 3 times.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


def set_up_socket(sock: socket.socket) -> None:
    """Have a connection send at once, and have the system find out in half a minute that the other machine is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
