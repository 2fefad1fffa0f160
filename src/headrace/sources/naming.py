"""Classes by the names that configs give them, their options, and which functions a config may name.

The same rules hold for sources, writers and datasets: a name of Headrace, or "package.module:Class" for one of the
user's own; an option that no constructor takes is refused with the nearest one that does. Nothing that a config says is
evaluated.

The author of a config in TOML or JSON need not be the user who runs it, and a name is imported and called. So from such
a file only modules are imported that the user allowed, and those beside the config: they came with it
(`check_callables`). A dict that a Python program gives to `init_dataset` is that program's own, and not looked at
unless it says so. All names stand in the options of `NAMING_OPTIONS`, at any depth: nothing else is ever resolved.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from headrace.errors import ConfigError, did_you_mean
from headrace.exports import refuse_departed
from headrace.order import parse_seq_ordering

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
        raise ConfigError(
            f"cannot import the module {module_name!r} of {text!r}: {type(error).__name__}: {error}",
            fix=f'check the name and that it is on PYTHONPATH, or see `python -c "import {module_name}"`',
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"the module {module_name!r} has no {path!r}", fix=did_you_mean(part, dir(found)))
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
            fix=did_you_mean(unknown[0], options_of(cls)),
        )
    own = _parameters(_constructors(cls)[0])[num_positional:] if _constructors(cls) else ()
    missing = [p.name for p in own if p.default is p.empty and p.kind not in _VARIADIC and p.name not in options]
    if missing:
        raise ConfigError(
            f"{cls.__name__} needs the option {missing[0]!r}",
            where=f"{kind} config with the keys {sorted(options)}",
            fix=f"give {missing[0]}=... (on the command line by --set or --set-out)",
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

    def check(module: str, what: str, option: str) -> None:
        if not _is_allowed(module, allowed, folder):
            raise ConfigError(
                f"{what}, and a config is data: it may not choose what is run",
                where=f"{where}, option {option!r}",
                fix=f"if you trust it: --allow-callables {module}, or callables=[{module!r}] in Python; "
                "or put the module beside the config",
            )

    for option, text in _names_in(config):
        module = text.partition(":")[0]
        check(module, f"the config names {text!r}", option)
        found = resolve_callable(text)
        if isinstance(found, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
            home = found if isinstance(found, types.ModuleType) else inspect.getmodule(found)
            home_name = home.__name__ if home else module
            check(home_name, f"the config names {text!r}, which is of the module {home_name!r}", option)


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
            and not (option == "seq_ordering" and is_ordering(value))
        ):
            yield option, value


def is_ordering(text: str) -> bool:
    """Tell whether a text is an ordering, perhaps a misspelt one that is refused later, and not a name."""
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
