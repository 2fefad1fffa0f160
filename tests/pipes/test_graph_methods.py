"""What is declared for type checkers is what is there."""

import inspect

import pytest

from headrace.pipes import IterPipe, MapPipe
from headrace.pipes.core.methods import IterMethods, MapMethods
from headrace.pipes.core.registry import list_functions

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
