"""What the source tree itself says: files, lines of code, folders, circles of imports, names that cross files.

Only the text is read; nothing is imported.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


_FILE_NAME = re.compile(r"`((?:[\w]+/)*\w+\.pyi?)`")
_NAMES_OF_OTHERS = {"_asdict", "_fields", "_make", "_replace", "_info", "_cat_file", "_indices"}
"""What begins with an underscore and is public: of named tuples, and of fsspec's asynchronous file systems."""


@dataclass(frozen=True)
class Module:
    """One file of the package.

    Attributes:
        name: Its dotted name; a folder's `__init__.py` has the name of the folder.
        path: Where it is.
    """

    name: str
    path: Path

    @property
    def is_package(self) -> bool:
        """Whether it is an `__init__.py`."""
        return self.path.name == "__init__.py"

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed text."""
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the parsed text."""
        return list(ast.walk(self.tree))

    def num_code_lines(self) -> int:
        """Count lines that hold code: no comments, blanks or docstrings."""
        text = self.path.read_text(encoding="utf-8")
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
        return len(lines - set(_docstring_lines(self.nodes)))

    def resolve(self, node: ast.ImportFrom) -> str:
        """Return the dotted name of the module that `from ... import` names."""
        if node.level == 0:
            return node.module or ""
        parts = self.name.split(".")
        package = parts if self.is_package else parts[:-1]
        base = package[: len(package) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])


def _docstring_lines(nodes: Iterable[ast.AST]) -> Iterator[int]:
    for line, text in _docstrings(nodes):
        yield from range(line, line + text.count("\n") + 1)


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, as it stands there."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield node.body[0].lineno, text


class SourceTree:
    """A package as text.

    Args:
        root: Its folder, for example `src/headrace`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules = {module.name: module for module in _modules_below(root)}

    def max_entries(self) -> tuple[int, Path]:
        """Return the largest number of files and folders in a folder, and that folder."""
        folders = [self.root, *(path for path in self.root.rglob("*") if path.is_dir() and path.name != "__pycache__")]
        counts = [(sum(entry.name != "__pycache__" for entry in folder.iterdir()), folder) for folder in folders]
        return max(counts, key=lambda item: (item[0], str(item[1])))

    def crowded(self, max_entries: int, max_of_root: int) -> list[str]:
        """Return the folders that show a reader more files and folders than these."""
        entries: Counter[Path] = Counter()
        for module in self.modules.values():
            folder = module.path.parent
            entries[folder] += 1
            if module.is_package and folder != self.root:
                entries[folder.parent] += 1
        limits = {folder: max_of_root if folder == self.root else max_entries for folder in entries}
        return [f"{folder}: {count}" for folder, count in sorted(entries.items()) if count > limits[folder]]

    def missing_files(self, room: str) -> list[str]:
        """Return the files that docstrings of a room name and that do not exist.

        A name such as `core/base.py` counts from the folder of the file that says it, from its room, or from the root.

        Args:
            room: The folder's name; "" for the files beside the rooms.
        """
        found = []
        for module in self.modules.values():
            parts = module.path.relative_to(self.root).parts
            if (parts[0] if len(parts) > 1 else "") != room:
                continue
            bases = (module.path.parent, self.root / room, self.root)
            for line, text in _docstrings(module.nodes):
                names = [name for name in _FILE_NAME.findall(text) if not any((base / name).exists() for base in bases)]
                found += [f"{module.path.relative_to(self.root)}:{line} {name}" for name in names]
        return found

    def imports(self, module: Module) -> set[str]:
        """Return the modules of the package that one imports, for type checkers and inside of functions, too."""
        found: set[str] = set()
        for node in module.nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = module.resolve(node)
                names = [f"{base}.{alias.name}" for alias in node.names]
                found.update(name if name in self.modules else base for name in names)
        return {name for name in found if name in self.modules and name != module.name}

    def circles(self) -> list[list[str]]:
        """Return the sets of files that import each other in a circle; a folder's `__init__.py` counts as none."""
        files = {name: module for name, module in self.modules.items() if not module.is_package}
        return _strongly_connected({name: self.imports(module) & files.keys() for name, module in files.items()})

    def class_checks(self, rooms: Iterable[str], base: str) -> list[str]:
        """Return where `isinstance` asks for a sub-class of a class of the package, in the files of some rooms.

        Args:
            rooms: Dotted names.
            base: The name of the class, for example `Dataset`; to ask for it itself is no ladder and does not count.
        """
        names = self._subclasses_of(base)
        found = []
        for module in self.modules.values():
            if not any(f"{module.name}.".startswith(f"{room}.") for room in rooms):
                continue
            for node in module.nodes:
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                    asked = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                    found += [f"{module.name}:{node.lineno} {name}" for name in sorted(asked & names)]
        return found

    def _subclasses_of(self, base: str) -> set[str]:
        bases = {
            node.name: {part.id for part in node.bases if isinstance(part, ast.Name)}
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, ast.ClassDef)
        }
        found = {base}
        while more := {name for name, parts in bases.items() if parts & found} - found:
            found |= more
        return found - {base}

    def code_of_rooms(self) -> dict[str, int]:
        """Return room (a folder of the root, "" for the files beside them) -> its lines of code."""
        found: Counter[str] = Counter()
        for module in self.modules.values():
            parts = module.path.relative_to(self.root).parts
            found[parts[0] if len(parts) > 1 else ""] += module.num_code_lines()
        return dict(found)

    def ambiguous_names(self) -> dict[str, list[str]]:
        """Return the names that several classes have -> the modules that define them."""
        homes: dict[str, list[str]] = {}
        for name, module in self.modules.items():
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    homes.setdefault(node.name, []).append(name)
        return {name: modules for name, modules in sorted(homes.items()) if len(modules) > 1}

    def lonely_protocols(self) -> list[str]:
        """Return the Protocols that at most one class satisfies, by the names that it defines or inherits."""
        members: dict[str, set[str]] = {}
        bases: dict[str, set[str]] = {}
        protocols: list[tuple[str, ast.ClassDef]] = []
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    names = {part.id for base in node.bases for part in ast.walk(base) if isinstance(part, ast.Name)}
                    if "Protocol" in names:
                        protocols.append((module.name, node))
                    else:
                        members.setdefault(node.name, set()).update(_members_of(node))
                        bases.setdefault(node.name, set()).update(names)
        inherited = {
            name: set().union(*(members.get(base, set()) for base in _reachable(bases, name))) for name in bases
        }
        return [
            f"{module}:{node.lineno} {node.name}"
            for module, node in protocols
            if sum(_members_of(node) <= found for found in inherited.values()) < 2
        ]

    def private_imports(self) -> list[str]:
        """Return the imports of another file's `_name`."""
        found = []
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.ImportFrom) and module.resolve(node).startswith(self.root.name):
                    private = [alias.name for alias in node.names if _is_private(alias.name)]
                    found += [f"{module.name}:{node.lineno} {name}" for name in private]
        return found

    def private_reads(self) -> list[str]:
        """Return the reads of `object._name` where neither the file nor a class that it extends defines that name."""
        defined = {name: _defined_names(module.nodes) for name, module in self.modules.items()}
        anywhere = frozenset().union(*defined.values())
        found = []
        for name, module in self.modules.items():
            inherited = _inherited_names(self, module, defined)
            own = defined[name] | inherited
            found += [
                f"{name}:{node.lineno} {ast.unparse(node)}"
                for node in module.nodes
                if isinstance(node, ast.Attribute)
                and _is_private(node.attr)
                and node.attr not in _NAMES_OF_OTHERS
                and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
                and not (isinstance(node.value, ast.Call) and _name_of(node.value.func) == "super")
                and node.attr not in own
                and node.attr in anywhere
            ]
        return found


def _modules_below(root: Path) -> Iterator[Module]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        yield Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)


def _members_of(node: ast.ClassDef) -> set[str]:
    """Return the attributes and methods that a class itself defines, those that its methods assign to self included."""
    found = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
    found |= {
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and _name_of(part.value) == "self":
            found.add(part.attr)
    return found


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _defined_names(nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Assign) and any(_name_of(target) == "__slots__" for target in node.targets):
            names.update(part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant))
    return {name for name in names if _is_private(name)}


def _inherited_names(tree: SourceTree, module: Module, defined: Mapping[str, set[str]]) -> set[str]:
    """Return the private names of the files whose classes this file extends, directly or not."""
    found: set[str] = set()
    waiting, seen = [module], {module.name}
    while waiting:
        current = waiting.pop()
        bases = {_name_of(base) for node in current.nodes if isinstance(node, ast.ClassDef) for base in node.bases}
        for node in current.nodes:
            if isinstance(node, ast.ImportFrom) and any(alias.name in bases for alias in node.names):
                source = tree.modules.get(current.resolve(node))
                if source is not None and source.name not in seen:
                    seen.add(source.name)
                    found |= defined[source.name]
                    waiting.append(source)
    return found


def _strongly_connected(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the sets of more than one node that all reach each other."""
    reached = {node: _reachable(graph, node) for node in graph}
    sets = {frozenset(other for other in reached[node] if node in reached[other]) for node in graph}
    return sorted(sorted(found) for found in sets if len(found) > 1)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found, waiting = {start}, [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found
