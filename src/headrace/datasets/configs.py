"""`init_dataset`: a dataset from a dict, as configs write it.

Nothing that a config says is evaluated. Text that stands for a callable has the form "package.module:function" and is
imported.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, did_you_mean
from headrace.order import parse_seq_ordering

from .base import Dataset

# Module of this room by class; it is imported when the class is asked for: a worker needs one of them.
_MODULE_OF = {
    "AudioDataset": "audio",
    "DistributeFilesDataset": "distribute_files",
    "DummyDataset": "generating",
    "HDFDataset": "hdf",
    "MapDataset": "mapped",
    "MapDatasetWrapper": "mapped",
    "MetaDataset": "meta",
    "MultiProcDataset": "multi_proc",
    "StaticDataset": "mapped",
    "Task12AXDataset": "generating",
}
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_CALLABLE_OPTIONS = ("chunking", "get_sub_epoch_dataset", "map_dataset", "seq_ordering", "transform")

DatasetConfig = Dataset | Mapping[str, Any] | str | Callable[[], Any]


def init_dataset(
    config: DatasetConfig,
    extra_kwargs: Mapping[str, Any] | None = None,
    default_kwargs: Mapping[str, Any] | None = None,
    *,
    parent_dataset: Dataset | None = None,
) -> Dataset:
    """Make a dataset and initialize it.

    Args:
        config: A dataset (initialized again, and returned); a dict whose key "class" is a name or a class; a function
            that returns one of these; or text: a Python literal dict, "ClassName:option=value,...", or a comma list of
            HDF5 files.
        extra_kwargs: Options that override those of the config.
        default_kwargs: Options used where the config has none.
        parent_dataset: Its `random_seed_offset` and sharding are defaults, too.

    Raises:
        ConfigError: An unknown class or option; the nearest valid name is given.
    """
    if isinstance(config, Dataset):
        config.initialize()
        return config
    if callable(config):
        return init_dataset(config(), extra_kwargs, default_kwargs, parent_dataset=parent_dataset)
    if isinstance(config, str):
        config = _parse_text(config)
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"a dataset is described by a dict, got {type(config).__name__}", fix='write {"class": "HDFDataset", ...}'
        )
    options = {**(default_kwargs or {}), **_defaults_of_parent(parent_dataset), **config, **(extra_kwargs or {})}
    if "class" not in options:
        raise ConfigError(
            f"a dataset config needs the key 'class'; it has {sorted(map(str, options))}",
            fix=f"one of {', '.join(_MODULE_OF)}",
        )
    cls = resolve_class(options.pop("class"))
    _check_options(cls, options)
    for name in _CALLABLE_OPTIONS:
        if name in options:
            options[name] = _resolve_option(name, options[name])
    dataset = cls(**options)
    dataset.initialize()
    return dataset


def resolve_class(name: str | type[Dataset]) -> type[Dataset]:
    """Return a dataset class by its name, or by "package.module:Class".

    Raises:
        ConfigError: There is no such class.
    """
    if isinstance(name, type) and issubclass(name, Dataset):
        return name
    if not isinstance(name, str):
        raise ConfigError(f"'class' must be a name or a sub-class of Dataset, got {name!r}")
    if name in _MODULE_OF:
        cls: type[Dataset] = getattr(importlib.import_module(f"{__package__}.{_MODULE_OF[name]}"), name)
        return cls
    if _CALLABLE.fullmatch(name):
        found = resolve_callable(name)
        if isinstance(found, type) and issubclass(found, Dataset):
            return found
        raise ConfigError(f"{name!r} is not a sub-class of headrace.datasets.Dataset")
    raise ConfigError(
        f"unknown dataset class {name!r}",
        fix=f"{did_you_mean(name, _MODULE_OF)}; or 'package.module:Class' for your own",
    )


def resolve_callable(text: str) -> Any:
    """Import what "package.module:name" stands for.

    Raises:
        ConfigError: The module or the name does not exist.
    """
    module_name, _, path = text.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"cannot import the module {module_name!r} of {text!r}: {error}",
            fix="check the name and that it is on PYTHONPATH",
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"the module {module_name!r} has no {path!r}", fix=did_you_mean(part, _public_names(found))
            )
        found = getattr(found, part)
    return found


def _public_names(namespace: Any) -> list[str]:
    return [name for name in dir(namespace) if not name.startswith("_")]


def _resolve_option(name: str, value: Any) -> Any:
    if not (isinstance(value, str) and _CALLABLE.fullmatch(value)):
        return value
    if name == "seq_ordering":
        try:
            return parse_seq_ordering(value)
        except ConfigError:
            if importlib.util.find_spec(value.partition(":")[0].partition(".")[0]) is None:
                raise  # a misspelt ordering, such as "laplce:x", not a module
    return resolve_callable(value)


def _check_options(cls: type[Dataset], options: Mapping[str, Any]) -> None:
    """Refuse options that no constructor of the class's ancestry takes, and name one that its own constructor needs."""
    valid: set[str] = set()
    constructors = [vars(ancestor)["__init__"] for ancestor in cls.__mro__[:-1] if "__init__" in vars(ancestor)]
    for constructor in constructors:
        parameters = list(inspect.signature(constructor).parameters.values())[1:]
        valid |= {p.name for p in parameters if p.kind not in _VARIADIC}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    unknown = [str(name) for name in options if name not in valid]
    if unknown:
        names = {name for name in valid if not name.startswith("_")}
        raise ConfigError(
            f"{cls.__name__} has no option {unknown[0]!r}",
            where=f"dataset config with the keys {sorted(map(str, options))}",
            fix=did_you_mean(unknown[0], names),
        )
    own = list(inspect.signature(constructors[0]).parameters.values())[1:]
    missing = [p.name for p in own if p.default is p.empty and p.kind not in _VARIADIC and p.name not in options]
    if missing:
        raise ConfigError(
            f"{cls.__name__} needs the option {missing[0]!r}", where=f"dataset config with the keys {sorted(options)}"
        )


def _defaults_of_parent(parent: Dataset | None) -> dict[str, Any]:
    if parent is None:
        return {}
    return {
        "random_seed_offset": parent.random_seed_offset,
        "_num_shards": parent.num_shards,
        "_shard_index": parent.shard_index,
    }


def _parse_text(text: str) -> Mapping[str, Any]:
    text = text.strip()
    if text.startswith("{"):
        return _literal(text, text)
    head, colon, rest = text.partition(":")
    if colon and head in _MODULE_OF:
        return {"class": head, **_parse_assignments(rest, text)}
    if colon and re.fullmatch(r"\w*[Dd]ata[Ss]et\w*", head):
        resolve_class(head)  # a misspelt class is not a file name
    files = [str(Path(name.strip())) for name in text.split(",") if name.strip()]
    if not files:
        raise ConfigError("empty text instead of a dataset config")
    return {"class": "HDFDataset", "files": files}


def _parse_assignments(text: str, whole: str) -> dict[str, Any]:
    """Parse "a=1,b='x,y',c=(1,2)" as the keyword arguments of a call, whose values must be literals."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ConfigError(f"options are written option=value: {whole!r}")
        return {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"cannot read the options of {whole!r}: {error}", fix="write ClassName:option=value,..."
        ) from error


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)  # a bare word is text: seq_ordering=random


def _literal(text: str, whole: str) -> Mapping[str, Any]:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"not a Python literal: {whole[:80]!r} ({error})", fix="a config text is data: no calls, no names"
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"a dataset config is a dict, got {type(value).__name__}")
    return value
