"""Texts and digests of what a stream depends on: the options of an order, and the options that a user has written."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.files.locations import is_url
from headrace.order import OrderRecipe

# Options of any class, also of one that is not ours, that only say how fast, from where, or under which name.
IDLE_OPTIONS = frozenset(
    {
        "buffer_size",
        "cache_byte_size",
        "engine_options",
        "estimated_num_seqs",
        "executor",
        "file_cache",
        "index",
        "max_bytes",
        "max_bytes_per_worker",
        "name",
        "num_workers",
        "preload_next_n_sub_epochs",
        "use_cache_manager",
        "use_file_cache",
        "use_worker_proc",
        "worker_init",
    }
)


def digest_text(text: str) -> str:
    """Return a short digest of a text, 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def digest_of_state(state: Mapping[str, Any], without: str) -> str:
    """Return the digest of a state without one entry, 32 hex digits.

    It is that of the JSON text, and so the same after the state was written as JSON and read again.

    Args:
        state: What is saved.
        without: The entry that the digest is kept in.

    Raises:
        TypeError: Something in it cannot be written as JSON (or ValueError, OverflowError, RecursionError).
    """
    content = {key: value for key, value in state.items() if key != without}
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(content, order="sorted"))


def digest_array(array: NDArray[Any]) -> str:
    """Return a short digest of numbers, 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).data)


def recipe_text(recipe: OrderRecipe, epoch: int) -> str:
    """Return the options of an order as a text."""
    return (
        f"{recipe.policy_for_epoch(epoch)}; sub-epochs {recipe.num_sub_epochs}, repeats {recipe.num_repeats}, "
        f"shards {recipe.num_shards}; seeds {recipe.fixed_random_seed} {recipe.random_seed_offset or 0}"
    )


def options_text(value: Any, text_of: Callable[[Any], str | None]) -> str:
    """Return a text of options: equal for equal ones, whatever their order in dicts and the folder of their files.

    Functions are told by their names (a `partial` by its arguments as well), and other objects by their classes: what
    they do is the user's to version. Of a file that is named by its path or a URL only the last name counts.

    Args:
        value: Dicts, lists, texts, numbers, arrays, and anything else.
        text_of: Tells what it knows better; `None` for all else.
    """
    known = text_of(value)
    if known is not None:
        return known
    if isinstance(value, Mapping):
        items = sorted((str(key), options_text(item, text_of)) for key, item in value.items())
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in items) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        texts = [options_text(item, text_of) for item in value]
        is_list = isinstance(value, list | tuple)
        return f"[{', '.join(texts)}]" if is_list else "{" + ", ".join(sorted(texts)) + "}"
    if isinstance(value, os.PathLike) or (isinstance(value, str) and _is_path(value)):
        return repr(os.path.basename(os.path.normpath(value)))
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if value is None or isinstance(value, str | bool | int | float | complex | bytes | range | np.generic | np.dtype):
        return repr(value)
    if isinstance(value, np.ndarray):
        content = options_text(value.tolist(), text_of) if value.dtype.hasobject else digest_array(value)
        return f"{value.dtype}{list(value.shape)} {content}"
    if isinstance(value, partial):
        return f"partial{options_text([value.func, value.args, value.keywords], text_of)}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{type(value).__qualname__}{options_text(fields, text_of)}"
    owner = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    module = getattr(owner, "__module__", None) or ""
    # Where one of ours lies in the package is no part of what it is: a state outlives a move of its file.
    return f"{'headrace' if module.startswith('headrace.') else module}.{owner.__qualname__}"


def _is_path(text: str) -> bool:
    """Whether a text says where a file is; a relative path is known by the file that is there."""
    return os.path.isabs(text) or is_url(text) or (os.sep in text and os.path.lexists(text))


def given_options(cls: type[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor by name, without idle ones, and without those equal to a default.

    Args:
        cls: The class. What its constructor passes on by `**kwargs` are arguments of its base.
        args: By position.
        kwargs: By name.
    """
    constructors = [vars(ancestor)["__init__"] for ancestor in cls.__mro__[:-1] if "__init__" in vars(ancestor)]
    parameters = [list(inspect.signature(constructor).parameters.values())[1:] for constructor in constructors]
    names = [p.name for p in parameters[0] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given = {names[number] if number < len(names) else f"*{number}": value for number, value in enumerate(args)}
    given.update(kwargs)
    defaults = {p.name: p.default for own in reversed(parameters) for p in own}
    idle = cls.idle_options(given)

    def is_default(name: str, value: Any) -> bool:
        default = defaults.get(name, inspect.Parameter.empty)
        return value is default or (isinstance(value, str | int | float | tuple) and value == default)

    return {name: value for name, value in given.items() if name not in idle and not is_default(name, value)}
