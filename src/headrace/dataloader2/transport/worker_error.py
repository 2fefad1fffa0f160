"""Carries an exception of a pipe from a worker to the loop, in torchdata's form.

The same type is raised, with the message `Caught <Type> in worker process <id>.` and the original traceback as text.
"""

from __future__ import annotations

import pickle
import traceback
from typing import Any, NamedTuple

from headrace.engine.codec import by_value
from headrace.pipes.core.naming import describe, find_raiser


class CarriedError(NamedTuple):
    """An exception as data.

    Attributes:
        type_name: The name of its type.
        text: The message in torchdata's form.
        pickled: The type and the exception, each `None` if it cannot be pickled.
    """

    type_name: str
    text: str
    pickled: bytes

    @classmethod
    def of(cls, error: BaseException, where: str) -> CarriedError:
        """Describe an exception that was caught just now.

        Args:
            error: The exception.
            where: The process: `"worker process 1"`.
        """
        name = type(error).__name__
        trace = None if error.__traceback__ is None else error.__traceback__.tb_next  # without the frame that caught it
        lines = "".join(traceback.format_exception(type(error), error, trace))
        text = f"Caught {name} in {where}.\nOriginal {lines.rstrip()}"
        pipe = find_raiser(trace)
        if pipe is not None and "This exception is thrown by __iter__ of" not in text:
            text += f"\nThis exception is thrown by __iter__ of {describe(pipe)}"
        return cls(name, text, by_value.dumps((_carried(type(error)), _carried(error))))

    def raisable(self) -> BaseException:
        """Return the exception that the loop gets."""
        kind, cause = (_uncarried(data) for data in pickle.loads(self.pickled))  # noqa: S301 - from our own worker
        if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, StopIteration):
            error: BaseException = RuntimeError(self.text)
        else:
            error = self._built(kind)
        error.__cause__ = cause if isinstance(cause, BaseException) else None
        return error

    def _built(self, kind: type[Exception]) -> BaseException:
        try:
            if issubclass(kind, KeyError):
                return kind(_Readable(self.text))
            built: Any = kind
            error = built(message=self.text) if hasattr(kind, "message") else built(self.text)
        except Exception:  # noqa: BLE001 - user code: a constructor that wants other arguments
            return RuntimeError(self.text)
        return error if isinstance(error, BaseException) else RuntimeError(self.text)


class _Readable(str):
    """A message that a `KeyError` shows with its line breaks: it shows the `repr` of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return self


def _carried(thing: Any) -> bytes | None:
    try:
        return bytes(by_value.dumps(thing))
    except Exception:  # noqa: BLE001 - user code: an exception that holds what cannot be carried
        return None


def _uncarried(data: bytes | None) -> Any:
    try:
        return None if data is None else pickle.loads(data)  # noqa: S301 - from our own worker
    except Exception:  # noqa: BLE001 - user code: a constructor that wants other arguments
        return None


def is_of_the_engine(error: BaseException) -> bool:
    """Tell whether an exception is Ctrl-C or the engine's own exit (its main process is gone), not user code's."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and type(error) is not SystemExit)


def is_named(error: BaseException) -> bool:
    """Tell whether the text of an error already says which pipe raised it, as errors from workers and torch's do."""
    return any("thrown by __iter__ of" in argument for argument in error.args if isinstance(argument, str))
