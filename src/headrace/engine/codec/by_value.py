"""cloudpickle, with the names of the files of functions that travel by value: tracebacks show the user's file and line.

From 3.1.3 on cloudpickle leaves these names out. All of Headrace pickles by value with this module.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Callable
from typing import Any

import cloudpickle

_reducers = cloudpickle.Pickler.dispatch_table


def _code_with_file(file: str, make: Callable[..., types.CodeType], *args: Any) -> types.CodeType:
    return make(*args).replace(co_filename=file)


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    make, args = _reducers[types.CodeType](code)
    return _code_with_file, (code.co_filename, make, *args)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no type hints
    """`cloudpickle.Pickler`, which also carries the names of files."""

    dispatch_table: Any = _reducers.new_child({types.CodeType: _reduce_code})


def dumps(value: object) -> bytes:
    """Pickle a value as `cloudpickle.dumps` does, with the names of files."""
    file = io.BytesIO()
    Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()
