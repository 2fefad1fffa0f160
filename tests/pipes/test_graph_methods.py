"""What is declared for type checkers is what is there."""

import importlib.util
import inspect
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from headrace.pipes import IterPipe, MapPipe
from headrace.pipes.core import methods
from headrace.pipes.core.registry import list_functions


def load_stub(module):
    """Return the declarations for type checkers as if they were a module beside it."""
    path = Path(module.__file__).with_suffix(".pyi")
    loader = SourceFileLoader(f"{module.__name__}_stub", str(path))
    stub = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(stub)
    return stub


STUB = load_stub(methods)
IterMethods, MapMethods = STUB.IterMethods, STUB.MapMethods
KINDS = {"iterable": (IterPipe, IterMethods), "map-style": (MapPipe, MapMethods)}


def parameters_after_the_source(function):
    """Of a class or function, what follows the pipe before the dot."""
    parameters = list(inspect.signature(function).parameters.values())
    if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]
    return [(each.name, each.kind, each.default) for each in parameters]


def registered(kind):
    functions = list_functions(kind).items()
    return {name: function for name, function in functions if function.__module__.startswith("headrace.")}


@pytest.mark.parametrize(("kind", "declared"), KINDS.values(), ids=KINDS)
def test_each_functional_name_is_declared_and_no_other(kind, declared):
    public = {name for name in vars(declared) if not name.startswith("_")}
    assert public == set(registered(kind))


@pytest.mark.parametrize(("kind", "declared"), KINDS.values(), ids=KINDS)
def test_declared_parameters_are_those_of_what_is_called(kind, declared):
    for name, function in registered(kind).items():
        declaration = list(inspect.signature(getattr(declared, name)).parameters.values())[1:]
        found = [(each.name, each.kind, each.default) for each in declaration]
        assert found == parameters_after_the_source(function), name
