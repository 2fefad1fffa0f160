"""Finds examples for the entries of the reference: the shortest piece of code of a page that uses a name.

The code of pages is executed by the checks, so an entry shows what works. What a piece of code uses is told by its
imports and those above it on the page (`hr.Buckets`, `from headrace.pipes.iter import Batcher`), by configs
(`{"class": "HDFDataset"}`), and for pipes by their methods (`.batch(10)`).
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_MAX_LINES = 14  # of an example; of a longer piece of code only the statement that uses the name is shown
_FENCE = re.compile(r"(<!-- skip: next -->\s*)?^```(python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """Code that uses a name.

    Attributes:
        path: Of the page, below the folder of the docs.
        code: The lines to show.
        is_excerpt: Whether it is only a part of what is executed at once.
    """

    path: str
    code: str
    is_excerpt: bool

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Smaller for a better example."""
        return self.is_excerpt, self.code.count("\n"), len(self.code)


def find_examples(names: Iterable[str], pages: Mapping[str, str]) -> dict[str, Example]:
    """Return the best example of each name that some page uses.

    Args:
        names: In full, as the reference lists them: "headrace.order.Laplace".
        pages: Path -> text in Markdown.
    """
    known = _Names(names)
    best: dict[str, Example] = {}
    for path, text in pages.items():
        bound: dict[str, str] = {}
        for code in _executed(text):
            tree = ast.parse(code)
            bound |= _imports(tree)
            for name, statement in _uses(tree, bound, known):
                found = _shorten(path, code, statement)
                if found and (name not in best or found.rank < best[name].rank):
                    best[name] = found
    return best


def read_notebook(path: Path) -> str:
    """Return the code of a notebook as Markdown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return "\n".join(f"```python\n{text}\n```" for text in code if not re.search(r"^[%!]", text, re.MULTILINE))


def find_methods(package: Path = _ROOT / "src/headrace") -> dict[str, str]:
    """Return class of a pipe -> the method that makes one: {"Batcher": "batch"}."""
    found = {}
    for file in sorted(package.glob("pipes/ops/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            for mark in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "functional_pipe":
                    found[node.name] = str(ast.literal_eval(mark.args[0]))
    return found


class _Names:
    """The names of the reference, and which of them is meant by a path or a method."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_short: dict[str, list[str]] = {}
        for name in names:
            self._by_short.setdefault(name.rpartition(".")[2], []).append(name)
        methods = find_methods()
        self._by_method = {methods[short]: short for short in methods if short in self._by_short}
        self._rooms = _rooms_of_the_package()

    def find(self, path: str) -> str | None:
        """Return the name that is meant by a path that code imports: "headrace.Buckets"."""
        module, _, short = path.rpartition(".")
        if module == "headrace":
            module = f"headrace.{self._rooms.get(short, '')}"
        names = self._by_short.get(short, [])
        if len(names) == 1 and path.startswith("headrace"):
            return names[0]
        return next((name for name in names if module.startswith(name.rpartition(".")[0])), None)

    def find_dataset(self, short: str) -> str | None:
        """Return the name of a class that a config gives."""
        rooms = ("headrace.datasets.", "headrace.sources.", "headrace.vocabularies.")
        return next((name for name in self._by_short.get(short, []) if name.startswith(rooms)), None)

    def find_method(self, method: str) -> str | None:
        """Return the name of the pipe that a method makes."""
        names = self._by_short.get(self._by_method.get(method, ""), [])
        return next((name for name in names if name.startswith("headrace.pipes.iter.")), None)


def _rooms_of_the_package() -> dict[str, str]:
    for node in ast.parse((_ROOT / "src/headrace/__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_ROOM_OF":
            rooms = ast.literal_eval(node.value)
            return {name: room for room, names in rooms.items() for name in names}
    raise AssertionError("src/headrace/__init__.py has no _ROOM_OF")


def _executed(text: str) -> Iterator[str]:
    """Yield the pieces of code of a page that are executed: blocks of Python, and modules that are saved and run."""
    for skipped, language, code in _FENCE.findall(text):
        if not skipped and (language == "python" or re.match(r"# \w+\.py\n", code)):
            yield code


def _imports(tree: ast.Module) -> dict[str, str]:
    """Return local name -> path, of what is imported from Headrace."""
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(item.asname or item.name.partition(".")[0], item) for item in node.names]
            bound |= {local: item.name if item.asname else local for local, item in names}
        elif isinstance(node, ast.ImportFrom):
            bound |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
    return {local: path for local, path in bound.items() if path.partition(".")[0] == "headrace"}


def _uses(tree: ast.Module, bound: Mapping[str, str], known: _Names) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield each name that is used, with the statements around it, the outermost first."""
    has_pipes = any(path.startswith(("headrace.pipes", "headrace.DataLoader2")) for path in bound.values())

    def visit(node: ast.AST, around: list[ast.stmt]) -> Iterator[tuple[str, list[ast.stmt]]]:
        inner = [*around, node] if isinstance(node, ast.stmt) else around
        name = None
        if isinstance(node, ast.Name | ast.Attribute) and (path := _path_of(node, bound)):
            name = known.find(path)
        elif isinstance(node, ast.Dict):
            values = {ast.unparse(key): value for key, value in zip(node.keys, node.values, strict=True) if key}
            given = values.get("'class'")
            name = known.find_dataset(str(given.value)) if isinstance(given, ast.Constant) else None
        elif has_pipes and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = known.find_method(node.func.attr)
        if name:
            yield name, inner
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    for statement in tree.body:
        yield from visit(statement, [])


def _path_of(node: ast.expr, bound: Mapping[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return bound.get(node.id)
    if isinstance(node, ast.Attribute):
        above = _path_of(node.value, bound)
        return f"{above}.{node.attr}" if above else None
    return None


def _shorten(path: str, code: str, around: list[ast.stmt]) -> Example | None:
    """Return the whole code if it is short, or else the largest statement around a use that is."""
    lines = code.rstrip().split("\n")
    if len(lines) <= _MAX_LINES:
        return Example(path, "\n".join(lines), is_excerpt=False)
    for statement in around:
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(mark.lineno for mark in decorators)]) - 1
        part = textwrap.dedent("\n".join(lines[first : statement.end_lineno]))
        if part.count("\n") < _MAX_LINES:
            return Example(path, part, is_excerpt=True)
        if statement is around[-1] and isinstance(statement, ast.With | ast.For | ast.ClassDef | ast.FunctionDef):
            header = textwrap.dedent("\n".join(lines[first : statement.body[0].lineno - 1]))
            return Example(path, f"{header}\n    ...", is_excerpt=True)
    return None
