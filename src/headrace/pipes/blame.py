"""Finds the pipe in which an exception was raised, from the traceback alone: nothing is spent while all goes well."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from headrace.errors import takes_note

from .naming import show_call


def find_raiser(traceback: TracebackType | None) -> Any | None:
    """Return the innermost pipe whose method is in a traceback, or `None`."""
    raiser = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_argcount:
            first = traceback.tb_frame.f_locals.get(code.co_varnames[0])
            if looks_like_pipe(type(first)):
                raiser = first
        traceback = traceback.tb_next
    return raiser


def name_raiser(error: BaseException) -> None:
    """Add a note to an exception that says in which pipe it was raised, unless it has one already.

    Args:
        error: An exception on its way out of a graph.
    """
    traceback = error.__traceback__
    # Not the caller's frame: a look at its variables keeps a copy of them, `error` too, and so everything in a cycle.
    raiser = find_raiser(traceback and traceback.tb_next)
    if raiser is None:
        return
    note = f"This exception is thrown by __iter__ of {describe(raiser)}"
    if note not in (getattr(error, "__notes__", None) or ()):
        takes_note(error, note)


def describe(pipe: Any) -> str:
    """Return the repr of a pipe, with its parameters; only its class if that fails: user code."""
    try:
        text = repr(pipe)
        return show_call(pipe, looks_like_pipe) if text == type(pipe).__name__ else text
    except Exception:  # noqa: BLE001 - user code: an odd __repr__ must not hide what is being told
        return type(pipe).__name__


def looks_like_pipe(cls: type) -> bool:
    """Tell classes of pipes by the names of their base classes: torch's too, and `base` imports this module."""
    return any(kind.__name__ in _BASES for kind in cls.__mro__)


_BASES = frozenset({"IterPipe", "MapPipe", "IterDataPipe", "MapDataPipe"})
