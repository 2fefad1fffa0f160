"""Checks of the arguments of pipes, with the error types that torchdata's classes raise."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from headrace.errors import ConfigError, check_count

from .base import is_iter_pipe


def check_sources(name: str, sources: Sequence[Any]) -> tuple[Any, ...]:
    """Return the iterable pipes that a pipe is made of.

    Raises:
        ConfigError: There are none.
        TypeError: One of them is something else.
    """
    if not sources:
        raise ConfigError(f"{name} needs at least one pipe, got none")
    for source in sources:
        if not is_iter_pipe(source):
            raise TypeError(f"All inputs are required to be `IterDataPipe` for `{name}`, got {type(source).__name__}")
    return tuple(sources)


def check_positive(name: str, value: Any) -> int:
    """Return an integer that is at least 1."""
    return check_count(name, value, minimum=1)


def wanted_columns(num_columns: int, skipped: Sequence[int] | None) -> list[int]:
    """Return the columns that are not skipped.

    Raises:
        RuntimeError: All are.
    """
    wanted = [column for column in range(num_columns) if column not in (skipped or ())]
    if not wanted:
        raise RuntimeError("All instances are being filtered out: check `sequence_length` and `columns_to_skip`.")
    return wanted


def check_takes(function: Callable[..., Any], num_arguments: int) -> None:
    """Check that a function can be called with a number of positional arguments.

    Raises:
        ConfigError: It cannot. A function without a readable signature passes.
        TypeError: It is not a function.
    """
    if not callable(function):
        raise TypeError(f"A callable function is expected, but {type(function)} is provided.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * num_arguments)
    except TypeError as error:
        name = getattr(function.func if isinstance(function, functools.partial) else function, "__name__", function)
        raise ConfigError(
            f"The function {name} takes ({', '.join(map(str, signature.parameters.values()))}), "
            f"but {num_arguments} positional parameters are required ({error})",
            fix="give it as many columns as `input_col` names",
        ) from None
