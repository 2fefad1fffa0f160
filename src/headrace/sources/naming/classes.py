"""Classes by the names that configs give them, and their options checked before anything is opened.

The same rules hold for sources, writers and datasets: a name of Headrace, or "package.module:Class" for one of the
user's own; an option that no constructor takes is refused with the nearest one that does. Nothing that a config says is
evaluated.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from headrace.errors import ConfigError, did_you_mean
from headrace.exports import refuse_departed

CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # "package.module:name"
# The options of configs that may name a function or a user-defined class, at any depth.
NAMING_OPTIONS = frozenset(
    {
        "chunking",
        "class",
        "get_sub_epoch_dataset",
        "map_dataset",
        "map_func",
        "map_seq",
        "map_seq_stream",
        "seq_ordering",
        "targets_post_process",
        "transform",
    }
)
_FLAGS = {"source": "--set", "writer": "--set-out"}  # of the command line, by what a class is
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_T = TypeVar("_T")


@dataclass(frozen=True)
class NamedClasses(Generic[_T]):
    """The classes of one kind that a config may name.

    Attributes:
        kind: What they are, for messages: "dataset".
        base: What a user-defined class must derive from.
        package: Where the base is to be had, for messages.
        module_of: Class -> its module, imported when the class is asked for.
    """

    kind: str
    base: type[_T]
    package: str
    module_of: Mapping[str, str]

    def resolve(self, name: Any) -> type[_T]:
        """Return a class by its name, by "package.module:Class", or as it is.

        Raises:
            ConfigError: There is no such class.
            NotCarriedOverError: There was one; the fix names what to use instead.
        """
        if isinstance(name, type) and issubclass(name, self.base):
            return name
        if not isinstance(name, str):
            raise ConfigError(f"'class' must be a name or a sub-class of {self.base.__name__}, got {name!r}")
        if name in self.module_of:
            cls: type[_T] = getattr(importlib.import_module(self.module_of[name]), name)
            return cls
        refuse_departed(name, f"{self.package}.{name}")
        if CALLABLE.fullmatch(name):
            found = resolve_named("class", name)
            if isinstance(found, type) and issubclass(found, self.base):
                return found
            raise ConfigError(f"{name!r} is not a sub-class of {self.package}.{self.base.__name__}")
        raise ConfigError(
            f"unknown {self.kind} class {name!r}",
            fix=f"{did_you_mean(name, self.module_of)}; or 'package.module:Class' for your own",
        )

    def make(self, cls: type[_T], *args: Any, **options: Any) -> _T:
        """Call a class, after its options were checked.

        Raises:
            ConfigError: An option is unknown or missing, or the class refuses it.
        """
        check_options(cls, options, self.kind, num_positional=len(args))
        return cls(*args, **options)


def resolve_callable(text: str) -> Any:
    """Import what "package.module:name" stands for.

    Raises:
        ConfigError: The module or the name does not exist, or the module raises when it is imported.
    """
    module_name, _, path = text.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        if not isinstance(error, ImportError):
            raise ConfigError(
                f"the module {module_name!r} of {text!r} raises when it is imported: {type(error).__name__}: {error}",
                fix=f'see `python -c "import {module_name}"`',
            ) from error
        raise ConfigError(
            f"cannot import the module {module_name!r} of {text!r}: {error}",
            fix="check the name and that it is on PYTHONPATH",
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            names = [name for name in dir(found) if not name.startswith("_")]
            raise ConfigError(f"the module {module_name!r} has no {path!r}", fix=did_you_mean(part, names))
        found = getattr(found, part)
    return found


def resolve_named(option: str, text: str) -> Any:
    """Import what an option of a config names, see `resolve_callable`.

    Args:
        option: One of `NAMING_OPTIONS`: what is not among them is not looked at where a config is checked.
        text: "package.module:name".
    """
    assert option in NAMING_OPTIONS, option
    return resolve_callable(text)


def check_options(cls: type, options: Mapping[str, Any], kind: str, *, num_positional: int = 0) -> None:
    """Refuse options that no constructor of the class's ancestry takes, and name one that its own constructor needs.

    Args:
        cls: The class.
        options: Its keyword arguments.
        kind: What the class is, for messages.
        num_positional: How many arguments come before them.

    Raises:
        ConfigError: An option is unknown or missing.
        NotCarriedOverError: There was such an option; the fix names what to use instead.
    """
    unknown = [str(name) for name in options if name not in options_of(cls)]
    if unknown:
        refuse_departed(unknown[0], f"the option {unknown[0]!r} of {cls.__name__}")
        raise ConfigError(
            f"{cls.__name__} has no option {unknown[0]!r}",
            where=f"{kind} config with the keys {sorted(map(str, options))}",
            fix=did_you_mean(unknown[0], public_options_of(cls)),
        )
    own = _parameters(_constructors(cls)[0])[num_positional:] if _constructors(cls) else ()
    missing = [p.name for p in own if p.default is p.empty and p.kind not in _VARIADIC and p.name not in options]
    if missing:
        name, flag = missing[0], _FLAGS.get(kind)
        command = "" if flag is None else f"; with headrace convert: {flag} {name}=..."
        raise ConfigError(
            f"{cls.__name__} needs the option {name!r}",
            where=f"{kind} config with the keys {sorted(options)}",
            fix=f"give {name}=...{command}",
        )


def options_of(cls: type) -> set[str]:
    """Return the names of all options that the constructors of a class take."""
    valid: set[str] = set()
    for constructor in _constructors(cls):
        parameters = _parameters(constructor)
        valid |= {p.name for p in parameters if p.kind not in _VARIADIC}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return valid


def public_options_of(cls: type) -> set[str]:
    """Return those of `options_of` that users may give: to be named in the error about one that there is not."""
    return {name for name in options_of(cls) if not name.startswith("_")}


def first_option_of(cls: type) -> str | None:
    """Return the name of the first argument of a class, if it may be given by position."""
    constructors = _constructors(cls)
    first = next(iter(_parameters(constructors[0])), None) if constructors else None
    return first.name if first is not None and first.kind is first.POSITIONAL_OR_KEYWORD else None


def _constructors(cls: type) -> list[Any]:
    return [vars(ancestor)["__init__"] for ancestor in cls.__mro__[:-1] if "__init__" in vars(ancestor)]


@lru_cache(maxsize=256)  # a look at a signature takes 30 us, and a dataset of each sub-epoch has some
def _parameters(constructor: Any) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(constructor).parameters.values())[1:]
