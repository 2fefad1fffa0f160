"""Which functions and classes a config may name, where the config is data: TOML, JSON, a literal.

The author of such a file need not be the user who runs it, and a name is imported and called. So only modules that the
user allowed are imported, and those beside the config: they came with it. A dict that a Python program gives to
`init_dataset` is that program's own, and not looked at unless it says so.

All names stand in the options of `NAMING_OPTIONS`, at any depth: nothing else is ever resolved.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.errors import ConfigError
from headrace.order import parse_seq_ordering

from .classes import CALLABLE, NAMING_OPTIONS, resolve_callable


def check_callables(config: Any, *, where: str, callables: Iterable[str] = (), folder: str | None = None) -> None:
    """Refuse a config that names a function or class that it may not use.

    Args:
        config: Mappings, lists and texts, to any depth.
        where: What to call it in errors.
        callables: Modules that it may name; a package stands for all that is in it.
        folder: Where modules may be that it names, which must be on the path of imports already.

    Raises:
        ConfigError: It names another; nothing of that was imported.
    """
    allowed = tuple(callables)
    for option, text in _names_in(config):
        module = text.partition(":")[0]
        if not _is_allowed(module, allowed, folder):
            raise ConfigError(
                f"the config names {text!r}, and a config is data: it may not choose what is run",
                where=f"{where}, option {option!r}",
                fix=f"if you trust it: --allow-callables {module}, or callables=[{module!r}] in Python; "
                "or put the module beside the config",
            )
        found = resolve_callable(text)
        if isinstance(found, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
            home = inspect.getmodule(found)
            name = found.__name__ if isinstance(found, types.ModuleType) else home.__name__ if home else module
            if not _is_allowed(name, allowed, folder):
                raise ConfigError(
                    f"{text!r} is of the module {name!r}, which the config may not name",
                    where=f"{where}, option {option!r}",
                    fix=f"if you trust it: --allow-callables {name}, or callables=[{name!r}] in Python",
                )


def _names_in(config: Any) -> Iterator[tuple[str, str]]:
    """Yield each option that names something, and the name; without recursion, whatever the depth."""
    waiting: list[tuple[str | None, Any]] = [(None, config)]
    while waiting:
        option, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(key if key in NAMING_OPTIONS else None, item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(option, item) for item in value]
        elif (
            option is not None
            and isinstance(value, str)
            and CALLABLE.fullmatch(value)
            and not (option == "seq_ordering" and _is_ordering(value))
        ):
            yield option, value


def _is_ordering(text: str) -> bool:
    """Whether a text is an ordering, perhaps a misspelt one that is refused later."""
    try:
        parse_seq_ordering(text)
    except ConfigError:
        return importlib.util.find_spec(text.partition(":")[0].partition(".")[0]) is None
    return True


def _is_allowed(module: str, allowed: tuple[str, ...], folder: str | None) -> bool:
    if any(module == name or module.startswith(f"{name}.") for name in allowed):
        return True
    if folder is None:
        return False
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: `__main__`
        return False
    if spec is None:
        return False
    # In the folder itself: below it there may be an environment in which everything is installed.
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    return any(os.path.dirname(os.path.realpath(place)) == os.path.realpath(folder) for place in places)
