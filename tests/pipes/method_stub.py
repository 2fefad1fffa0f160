"""Writes `pipes/core/methods.pyi`, which declares the functional forms of all operations for type checkers and editors.

Run this file after a change of an operation's parameters.
"""

import ast
import builtins
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

from headrace.pipes import IterPipe, MapPipe
from headrace.pipes.core import methods
from headrace.pipes.core.registry import list_functions

PATH = Path(methods.__file__).with_suffix(".pyi")
_HEAD = '''"""The functional forms, declared for type checkers and editors. Written by `tests/pipes/method_stub.py`.

Parameters are documented at the operations: `map` is `Mapper`, see `headrace.pipes.iter` and `.map`.
"""
'''
_KINDS = {"IterMethods": (IterPipe, "iterable"), "MapMethods": (MapPipe, "map-style")}


def stub_text():
    """Return the source of the stub, not formatted."""
    modules, classes = {"typing": {"Any"}}, []
    for name, (kind, title) in _KINDS.items():
        functions = list_functions(kind).items()
        ours = [each for each in sorted(functions) if each[1].__module__.startswith("headrace.")]
        body = [f'    """The functional forms of {title} pipes."""']
        body += [textwrap.indent(_declaration(*each, modules), "    ") for each in ours]
        classes.append("\n\n".join([f"class {name}:", *body]))
    imports = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(modules.items())]
    return "\n\n".join([_HEAD, "\n".join(imports), *classes]) + "\n"


def _declaration(name, function, modules):
    """Return the declaration of a method, and add what it names to the names to import from each module."""
    called = function.__init__ if isinstance(function, type) else function
    node = ast.parse(textwrap.dedent(inspect.getsource(called))).body[0]
    named, defaults = node.args.args, node.args.defaults
    num_before = 2 if isinstance(function, type) else 1  # self, and the pipe before the dot
    node.args.args = [ast.arg("self"), *named[num_before:]]
    node.args.defaults = defaults[max(0, len(defaults) - len(named) + num_before) :]
    if isinstance(function, type):
        node.returns = ast.parse("IterPipe[Any]" if issubclass(function, IterPipe) else "MapPipe[Any]").body[0].value
    node.name, node.decorator_list = name, []
    node.body = [ast.Expr(ast.Constant(inspect.getdoc(function).split("\n\n")[0].replace("\n", " ")))]
    for part in (node.args, node.returns):
        for each in ast.walk(part):
            if isinstance(each, ast.Name) and not hasattr(builtins, each.id):
                value = called.__globals__.get(each.id, {"IterPipe": IterPipe, "MapPipe": MapPipe}.get(each.id))
                home = getattr(value, "__module__", "") or ""
                named_there = getattr(sys.modules.get(home), each.id, None) is value
                modules.setdefault(home if named_there else called.__module__, set()).add(each.id)
    return ast.unparse(node)


if __name__ == "__main__":
    PATH.write_text(stub_text())
    subprocess.run(["ruff", "format", "-q", PATH], check=True)
    subprocess.run(["ruff", "check", "-q", "--fix", PATH], check=True)
