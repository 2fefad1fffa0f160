"""Objects of classes.

records, whose parts are sent one by one, and pickles (protocol 5) of all else.

Records are namedtuples, dataclasses and kinds of lists. A class of which pickling was changed in any way is none: it is
pickled as it asks for, with its buffers in the slot. Functions and classes that plain pickle cannot name (of
`__main__`, of a notebook, lambdas) go by cloudpickle, which is only tried when plain pickle has failed, because it
costs several times as much.
"""

from __future__ import annotations

import copyreg
import dataclasses
import inspect
import io
import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import TransformError

from . import by_value
from .format import Token, dtype_of, dtype_token, tensor_as_array, tensor_of, tensor_type

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


_REFUSED = (pickle.PicklingError, AttributeError, TypeError)  # what pickle raises for what it cannot name or carry


def pickle_values(values: list[Any], whole: Any) -> tuple[bytes, list[NDArray[np.uint8]]]:
    """Pickle values together.

    Args:
        values: What to pickle.
        whole: The value that they are parts of; an error names the index in it.

    Returns:
        The pickle, and its buffers as `uint8[num_bytes]`; they still belong to the values.

    Raises:
        TransformError: A value cannot be pickled.
    """
    try:
        return _pickled(values)
    except _REFUSED as error:
        for value in values:
            try:
                _pickled(value)
            except _REFUSED as cause:
                raise _refusal(value, whole, cause) from cause
        raise _refusal(whole, whole, error) from error


def _pickled(value: Any) -> tuple[bytes, list[NDArray[np.uint8]]]:
    try:
        return _pickled_by(_ValuePickler, value)
    except _REFUSED:
        return _pickled_by(_CloudPickler, value)


def _pickled_by(pickler_class: type[pickle.Pickler], value: Any) -> tuple[bytes, list[NDArray[np.uint8]]]:
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler_class(file, 5, buffer_callback=buffers.append).dump(value)
    return file.getvalue(), [_as_bytes(buffer.raw()) for buffer in buffers]


def _as_bytes(buffer: memoryview) -> NDArray[np.uint8]:
    return np.frombuffer(buffer, np.uint8) if buffer.nbytes else np.empty(0, np.uint8)


def _reduce_array(array: NDArray[Any]) -> Any:
    """Pickle an array out of band; NumPy puts datetimes and strided arrays into the pickle, in native byte order."""
    token = dtype_token(array.dtype)
    if token is None:
        return array.__reduce_ex__(5)
    is_fortran = array.flags.fnc
    data = np.ascontiguousarray(array.T if is_fortran else array).reshape(-1).view(np.uint8)
    return _restore_array, (pickle.PickleBuffer(data.data), token, array.shape, is_fortran)


def _restore_array(data: Any, token: Token, shape: tuple[int, ...], is_fortran: bool) -> NDArray[Any]:
    return np.ndarray(shape, dtype_of(token), data, order="F" if is_fortran else "C")


def _reduce_memmap(array: NDArray[Any]) -> Any:
    """Pickle the data of a mapped file out of band, as NumPy does with plain arrays only; the type is kept."""
    return _restore_memmap, (array.view(np.ndarray),)


def _restore_memmap(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(np.memmap)


def _reduce_text(text: np.str_ | np.bytes_) -> Any:
    """Pickle a text of NumPy whole; NumPy strips zeros from its end."""
    return type(text), (text[:],)


def _refuse(value: Any) -> Any:
    """Refuse what cloudpickle would turn into something else: an open file into its text, a memoryview into bytes."""
    raise TypeError(f"cannot pickle a {type(value).__name__}")


def _reduce_tensor(tensor: Any) -> Any:
    """Pickle the memory of a tensor out of band; torch itself would copy it into the pickle."""
    parts = tensor_as_array(tensor)
    return tensor.__reduce_ex__(5) if parts is None else (tensor_of, parts)


def _reducers() -> dict[type, Any]:
    """Return how types are pickled that need another way than their own."""
    reducers = {
        np.ndarray: _reduce_array,
        np.memmap: _reduce_memmap,
        np.str_: _reduce_text,
        np.bytes_: _reduce_text,
        io.TextIOWrapper: _refuse,
        memoryview: _refuse,
    }
    tensor = tensor_type()
    return reducers if tensor is None else {**reducers, tensor: _reduce_tensor}


class _ValuePickler(pickle.Pickler):
    def __init__(self, *args: Any, **options: Any) -> None:
        self.dispatch_table = {**copyreg.dispatch_table, **_reducers()}  # is read by the next line
        super().__init__(*args, **options)


class _CloudPickler(by_value.Pickler):
    def __init__(self, *args: Any, **options: Any) -> None:
        self.dispatch_table = {**by_value.Pickler.dispatch_table, **_reducers()}  # is read by the next line
        super().__init__(*args, **options)


def _refusal(value: Any, whole: Any, cause: Exception) -> TransformError:
    kind = type(value)
    return TransformError(
        f"a result holds a {kind.__module__}.{kind.__qualname__} that cannot be sent to another process: {cause}",
        where=_path_of(value, whole, "result", 8),
        fix="return arrays, numbers, text and containers of them; open files, locks and generators stay in the worker",
    )


def _path_of(value: Any, whole: Any, path: str, max_depth: int) -> str | None:
    """Return how to reach a part of a value, such as `result[0]['text']`."""
    if whole is value:
        return path
    if max_depth == 0:
        return None
    parts: list[tuple[str, Any]] = []
    if isinstance(whole, dict):
        parts = [(f"{path}[{key!r}]", part) for key, part in whole.items()]
    elif isinstance(whole, list | tuple):
        parts = [(f"{path}[{index}]", part) for index, part in enumerate(whole)]
    elif record_form(type(whole)) not in (None, NAMED_TUPLE):
        parts = [(f"{path}.{name}", part) for name, part in state_of(whole).items()]
    paths = (_path_of(value, part, part_path, max_depth - 1) for part_path, part in parts)
    return next((found for found in paths if found is not None), None)
