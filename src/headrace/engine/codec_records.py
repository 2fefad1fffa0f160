"""Which classes are records: namedtuples, dataclasses and kinds of lists whose parts can be sent one by one.

A class of which pickling was changed in any way is none: it is pickled as it asks for.
"""

from __future__ import annotations

import copyreg
import dataclasses
import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

NAMED_TUPLE, WITH_DICT, WITH_SLOTS, LIST_CLASS = "namedtuple", "dict", "slots", "list"

# Python gives these two to frozen dataclasses with slots
_GETSTATES: tuple[Any, ...] = (object.__getstate__, getattr(dataclasses, "_dataclass_getstate", None))
_SETSTATES: tuple[Any, ...] = (None, getattr(dataclasses, "_dataclass_setstate", None))


def _form(cls: Any) -> str | None:
    if (  # pickled in a way of its own
        cls.__reduce_ex__ is not object.__reduce_ex__
        or cls.__reduce__ is not object.__reduce__
        or getattr(cls, "__getstate__", None) not in _GETSTATES
        or getattr(cls, "__setstate__", None) not in _SETSTATES
        or cls in copyreg.dispatch_table
    ):
        return None
    if cls.__bases__ == (tuple,) and hasattr(cls, "_fields") and cls.__dictoffset__ == 0:
        return NAMED_TUPLE
    if cls.__bases__ == (list,) and cls.__dictoffset__ == 0:
        is_plain = (cls.__new__, cls.__init__, cls.__iter__) == (list.__new__, list.__init__, list.__iter__)
        return LIST_CLASS if is_plain else None
    if not hasattr(cls, "__dataclass_fields__") or cls.__new__ is not object.__new__:
        return None
    if hasattr(cls, "__getnewargs__") or hasattr(cls, "__getnewargs_ex__"):
        return None
    slots = {name for base in cls.__mro__ for name, part in vars(base).items() if inspect.ismemberdescriptor(part)}
    if not slots:
        return WITH_DICT if cls.__dictoffset__ != 0 else None
    is_all = slots == {field.name for field in dataclasses.fields(cls)} and cls.__dictoffset__ == 0
    return WITH_SLOTS if is_all else None


record_form: Callable[[type], str | None] = lru_cache(maxsize=512)(_form)
"""Return how the parts of an instance of a class are kept, or `None` for a class that is to be pickled."""


def state_of(record: Any) -> dict[str, Any]:
    """Return attribute -> value of an instance of a dataclass that `record_form` accepts."""
    if record_form(type(record)) == WITH_DICT:
        state: dict[str, Any] = vars(record)
        return state
    names = (field.name for field in dataclasses.fields(record))
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


def record_of(cls: type, state: dict[str, Any]) -> Any:
    """Return an instance with this state, as unpickling would: without `__init__`."""
    record: Any = object.__new__(cls)
    if record_form(cls) == WITH_DICT:
        vars(record).update(state)
    else:
        for name, value in state.items():
            object.__setattr__(record, name, value)
    return record
