"""An exception of user code on its way from a worker to the consumer.

Invariant: the consumer gets the same type if it can be rebuilt there; otherwise a `TransformError` that names the type.
Nothing of the text is lost: a failure holds the message and the traceback as text whatever happens to the object.
"""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from headrace.errors import TransformError, takes_note

from ..codec import by_value
from .worker_info import CurrentItem, current_scope


class Failure:
    """An exception with what is known of it. Not changed once it is made.

    A plain class: msgspec would encode a dataclass field by field, and what is here may be no valid Unicode, or no
    MessagePack; so it asks `to_bytes` instead.

    Args:
        type_name: Its type, with the module unless it is a built-in.
        text: `str(exception)`.
        traceback: The worker's traceback from the first frame of user code on, as text.
        item: The sequence that was worked on, where known.
        exception: The exception itself; one that came from another process is unpickled when it is first asked for, so
            that who only passes a failure on runs no user code. `None` if it could not be carried.
        ends_stream: The iterator that raised it cannot go on (a generator that raised is over).
    """

    __slots__ = ("_carried", "_exception", "ends_stream", "item", "text", "traceback", "type_name")

    def __init__(
        self,
        type_name: str,
        text: str,
        traceback: str,
        item: CurrentItem | None = None,
        exception: BaseException | None = None,
        ends_stream: bool = False,
    ) -> None:
        self.type_name, self.text, self.traceback = type_name, text, traceback
        self.item, self.ends_stream = item, ends_stream
        self._exception = exception
        self._carried: bytes | None = None  # pickled, and not looked at yet

    def __repr__(self) -> str:
        return f"<Failure {self.type_name}: {self.text}>"

    @property
    def exception(self) -> BaseException | None:
        """The exception itself, or `None` if it could not be carried."""
        carried, self._carried = self._carried, None
        if carried is not None:
            exception: Any = None
            try:
                exception = pickle.loads(carried)  # noqa: S301 - from our own worker
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - user code: an __init__ that wants more, a __reduce__ that exits
                exception = None
            self._exception = exception if isinstance(exception, BaseException) else None
        return self._exception

    @classmethod
    def of(
        cls,
        exception: BaseException,
        *,
        item: CurrentItem | None = None,
        ends_stream: bool = False,
        num_own_frames: int = 1,
    ) -> Failure:
        """Describe an exception.

        Args:
            exception: Caught just now, by the function that called user code.
            item: What was worked on.
            ends_stream: Whether the iterator that raised it is over.
            num_own_frames: How many frames at the start of its traceback are ours: they are left out of the text, so
                that the text does not depend on what carries the tickets.
        """
        trace = exception.__traceback__
        for _ in range(num_own_frames):
            trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
        lines = traceback.format_exception(type(exception), exception, trace)
        return cls(_type_name(type(exception)), _text_of(exception), "".join(lines), item, exception, ends_stream)

    @classmethod
    def of_current(cls, exception: Exception) -> Failure:
        """Describe an exception that was raised over the item that the calling worker noted last."""
        scope = current_scope()
        return cls.of(exception, item=None if scope is None else scope.item, num_own_frames=0)

    def to_bytes(self) -> bytes:
        """Encode for another process; an exception that cannot be pickled travels as text only."""
        fields = (self.type_name, self.text, self.traceback, self.item, self.ends_stream)
        carried = self._carried
        if carried is None:
            try:
                carried = by_value.dumps(self._exception)
            except Exception:  # noqa: BLE001 - user code: __reduce__ may raise anything; the text goes on
                carried = None
        return pickle.dumps((fields, carried), protocol=5)

    @classmethod
    def from_bytes(cls, data: bytes) -> Failure:
        """Decode what a Headrace worker encoded."""
        (type_name, text, trace, item, ends_stream), carried = pickle.loads(data)  # noqa: S301 - from our own worker
        failure = cls(type_name, text, trace, item, None, ends_stream)
        failure._carried = carried
        return failure

    def ending_stream(self) -> Failure:
        """Return the same failure as one after which the iterator that raised it cannot go on."""
        return Failure(self.type_name, self.text, self.traceback, self.item, self.exception, True)

    def raisable(self, ticket: int | None, worker_idx: int) -> BaseException:
        """Return the exception to raise at the consumer, with a note of where it comes from.

        A `StopIteration` would end the consumer's loop silently, so it becomes a `TransformError` too.
        """
        error, note = self.exception, self._note(ticket, worker_idx)
        if error is not None and not isinstance(error, StopIteration) and takes_note(error, note):
            return error
        stand_in = TransformError(f"a worker's function raised {self.type_name}: {self.text}")
        stand_in.__cause__ = error
        stand_in.add_note(note)
        return stand_in

    def _note(self, ticket: int | None, worker_idx: int) -> str:
        where = ["while it was set up" if ticket is None else f"ticket {ticket}", f"worker {worker_idx}"]
        if self.item is not None and str(self.item):
            where.insert(0, str(self.item))
        note = f"headrace: {', '.join(where)}"
        error = self.exception
        if not isinstance(error, KeyboardInterrupt) and (error is None or error.__traceback__ is None):
            note += f"\nThe worker's traceback:\n{self.traceback.rstrip()}"
        return note


def _type_name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text_of(exception: BaseException) -> str:
    try:
        return str(exception)
    except Exception:  # noqa: BLE001 - user code: a __str__ that raises must not hide the error
        return "(its text cannot be had: __str__ raised)"
