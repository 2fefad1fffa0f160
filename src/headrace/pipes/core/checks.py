"""Checks of the arguments of pipes, with the error types that torchdata's classes raise."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from headrace.errors import ConfigError, check_count

from .base import is_iter_pipe


def check_sources(name: str, sources: Sequence[Any], is_right: Callable[[Any], bool] = is_iter_pipe) -> tuple[Any, ...]:
    """Return the sources of a pipe.

    Args:
        name: The class of the pipe, for errors.
        sources: What the user gave.
        is_right: `is_iter_pipe` or `is_map_pipe`.

    Raises:
        ConfigError: There are none.
        TypeError: One of them is not such a pipe.
    """
    if not sources:
        raise ConfigError(f"{name} needs at least one pipe, got none")
    for source in sources:
        if not is_right(source):
            kind = "IterDataPipe" if is_right is is_iter_pipe else "MapDataPipe"
            raise TypeError(f"All inputs are required to be `{kind}` for `{name}`, got {type(source).__name__}")
    return tuple(sources)


def check_positive(name: str, value: Any) -> int:
    """Return an integer that is at least 1."""
    return check_count(name, value, minimum=1)


def wanted_columns(num_columns: int, skipped: Sequence[int] | None) -> list[int]:
    """Return the columns that are not skipped.

    Raises:
        RuntimeError: All columns are skipped.
    """
    wanted = [column for column in range(num_columns) if column not in (skipped or ())]
    if not wanted:
        raise RuntimeError("All instances are being filtered out: check `sequence_length` and `columns_to_skip`.")
    return wanted


def check_takes(function: Callable[..., Any], num_arguments: int) -> None:
    """Check that a function can be called with a number of positional arguments.

    Raises:
        ConfigError: It cannot. Functions whose signature Python cannot tell are accepted.
        TypeError: It is not callable.
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
