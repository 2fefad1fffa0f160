"""What two sides say to each other over several connections, if one breaks. Pure.

Each message has a number, in the order in which a side says them, whatever frames they travel in; signs of life have
none. Each frame tells how many messages of the other side have been taken in whole. What a side has said is kept until
it knows that it was heard; over a new connection it says the rest again. So each message is taken in exactly once, in
order, and no more is kept than is under way. The values of results stay where their worker has written them meanwhile.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import Any

from .wire import Alive, WireError

_KEY_BYTES = 16


class Dialogue:
    """One side of it.

    Args:
        key: What the other side calls it by; `None`: a new one.

    Attributes:
        key: Of no use to who does not know the secret of the run.
        num_heard: Messages of the other side that were taken in.
        unheard: What was said and is not known to have been heard: messages, each with its value if one goes along.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.key = secrets.token_bytes(_KEY_BYTES) if key is None else key
        self.num_heard = 0
        self.unheard: deque[tuple[Any, memoryview | None]] = deque()
        self._num_known = 0  # of ours, to have been heard

    def say(self, message: Any, value: memoryview | None = None) -> None:
        """Keep a message until it was heard."""
        if type(message) is not Alive:
            self.unheard.append((message, value))

    def note_heard(self, num_heard: int) -> None:
        """Take note of how many messages the other side has taken in.

        Raises:
            WireError: More than were said, or fewer than it has told before.
        """
        num_new = num_heard - self._num_known
        if not 0 <= num_new <= len(self.unheard):
            raise WireError("the other side acknowledged messages that were never sent")
        for _ in range(num_new):
            self.unheard.popleft()
        self._num_known = num_heard

    def hear(self, message: Any) -> None:
        """Take note of a message of the other side that is being taken in."""
        if type(message) is not Alive:
            self.num_heard += 1
