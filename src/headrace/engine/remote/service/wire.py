"""What a trainer and a service say to each other before the first worker, on a connection that ends then.

The service listens as a trainer does (`../port/listener.py`), and the trainer introduces itself as an agent does; so
both know the secret, and have the same versions, before either says more. The workers then connect to the trainer, as
all remote workers do.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

import msgspec

from ...process.messages import Message
from ..wire import Refused

MAX_ASK_BYTES = 64 << 10
"""Bytes of a request: one that says more is not one of ours."""


class Ask(Message, frozen=True, tag=0):
    """Be a worker of mine; with no addresses: are you there?

    Attributes:
        addresses: Addresses of the trainer, "host:port": to be tried in turn.
        seat: What the worker has to say there.
        worker_idx: Which it is.
        recipe: The digest of what it is to do, see `recipe.py`; empty: its results are for this trainer alone.
    """

    addresses: list[str]
    seat: int
    worker_idx: int
    recipe: bytes


class Granted(Message, frozen=True, tag=5):
    """So it is."""


decode_ask: Callable[[bytes | memoryview], Ask] = msgspec.msgpack.Decoder(Ask).decode
"""Decode the request of a trainer."""

decode_reply: Callable[[bytes | memoryview], Refused | Granted] = msgspec.msgpack.Decoder(Refused | Granted).decode
"""Decode what a service says to it."""


def secret_of_port(secret: bytes) -> bytes:
    """Return what is to be proven at the port of a service: of no use at the port of a trainer, and the reverse."""
    return hmac.new(secret, b"headrace shared service", hashlib.sha256).hexdigest().encode()
