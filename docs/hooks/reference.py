"""Pages of the reference, one for each room or part of it, made from the `__all__` of the sources: a hook of MkDocs.

Names are found by reading the sources, not by importing them, so that no optional package is needed. A name comes once,
below the room that exports it, with an example, of its docstring or of a page, and links to the pages that explain it
(`page_examples.py`). What only other rooms use is left out (`internal_names.py`). The build fails if a page is too
large, or if a name has no entry.
"""

from __future__ import annotations

import ast
import re
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from internal_names import INTERNAL_NAMES
from page_examples import find_examples, find_methods, read_notebook

_ROOT = Path(__file__).parents[2]
_FOLDER = "reference/api"
_MAX_PAGE_BYTES = 200_000  # what a reader on a slow line waits for
_MAX_GUIDES = 4  # links from a name to the pages that use it most

# Where a room has too many names for a page: title of the page -> modules of the room, None for all others.
_DIVIDED: dict[str, dict[str, tuple[str, ...] | None]] = {
    "batching": {
        "Batching policies": ("base", "buckets", "consecutive", "pack", "wrappers", "plan", "steps"),
        "Layouts and chunks": None,
    },
    "datasets": {
        "Dataset": ("base",),
        "Datasets of files": (
            "files.audio",
            "files.hdf",
            "files.hugging_face",
            "files.lm",
            "files.ogg_zip",
            "files.source",
        ),
        "Datasets in memory": ("files",),
        "Datasets made of others": ("join", "distribute"),
        "Datasets that change others": ("wrap",),
        "Batches of the epoch API": ("returnn",),
        "Epoch API and configs": None,
    },
    "engine": {
        "Engine": ("engine", "options", "report", "run", "user"),
        "Executors and events": None,
    },
    "pipes.iter": {
        "Pipes for files": ("ops.files", "ops.sources", "core"),
        "Pipes that map and batch": (
            "ops.map",
            "ops.flatmap",
            "ops.batch",
            "ops.bucket",
            "ops.map_batches",
            "ops.collate",
        ),
        "Pipes that branch and join": ("ops.branches",),
        "Pipes that order, count and cache": None,
    },
    "sources": {
        "Sources": ("base", "registry", "mapped", "memory"),
        "Formats of your own": ("formats", "shared"),
        "Sources of arrays": ("arrays", "hdf", "tar"),
        "Sources of recordings": ("audio", "ogg_zip"),
        "Sources of tables": ("tables",),
        "Sources of text and images": None,
    },
}
_FIRST = ("loading", "batching", "datasets", "sources", "torch")  # what most readers look for
_TITLES = {
    "show.iteration": "Progress",
    "show.plot": "Plots",
    "ranks": "Ranks",
    "rng": "Randomness",
    "torch": "headrace.torch",
    "pipes.map": "Map-style pipes",
}
# The page that explains the names of a room, for those that no page uses: the first that fits.
_GUIDES = (
    ("adapters.lhotse", "reference/lhotse.md"),
    ("adapters", "reference/trainers.md"),
    ("batching", "reference/batching.md"),
    ("cli", "reference/cli.md"),
    ("dataloader2", "reference/pipes.md"),
    ("datasets", "reference/datasets.md"),
    ("engine", "reference/workers.md"),
    ("errors", "how-to/symptoms.md"),
    ("features", "how-to/folders.md"),
    ("files", "how-to/files.md"),
    ("index", "how-to/see-what-is-there.md"),
    ("loading", "reference/loader.md"),
    ("order", "reference/orderings.md"),
    ("pipes", "reference/pipes.md"),
    ("ranks", "concepts/plan.md"),
    ("rng", "concepts/randomness.md"),
    ("show", "how-to/see-what-is-there.md"),
    ("sources", "how-to/choosing.md"),
    ("specs", "how-to/adding-a-format.md"),
    ("testing", "how-to/adding-a-format.md"),
    ("torch", "how-to/torch.md"),
    ("vocabularies", "how-to/text.md"),
)


@dataclass(frozen=True)
class Page:
    """A page of the reference.

    Attributes:
        path: Below the folder of the docs.
        title: Its heading.
        names: In full, e.g. "headrace.order.Laplace".
    """

    path: str
    title: str
    names: tuple[str, ...]


def plan_pages(package: Path = _ROOT / "src/headrace") -> list[Page]:
    """Return the pages, in the order of the navigation, which together have each public name of each room once."""
    pages = []
    seen: set[tuple[str, str]] = set()
    for module, file in _list_public_modules(package):
        exported = _exported_names(file)
        shown = {name: home for name, home in exported.items() if name not in INTERNAL_NAMES.get(module, ())}
        new = {name: home for name, home in shown.items() if (name, _final_home(module, home)) not in seen}
        seen |= {(name, _final_home(module, home)) for name, home in shown.items()}
        for title, names in _divide(module, new):
            path = f"{_FOLDER}/{re.sub(r'[^a-z0-9]+', '-', (title or module).lower()).strip('-')}.md"
            pages.append(Page(path, title, tuple(f"headrace.{module}.{name}" for name in names)))
    return pages


def _list_public_modules(package: Path) -> Iterator[tuple[str, Path]]:
    """Yield the modules that users import from: name below `headrace`, and file."""
    rooms = {file.parent.name for file in package.glob("*/__init__.py")} - {"cli", "pipes", "adapters", "show", *_FIRST}
    for room in (*_FIRST, *sorted(rooms)):
        yield room, package / room / "__init__.py"
    for module in ("pipes", "pipes/graph"):
        yield module.replace("/", "."), package / module / "__init__.py"
    for module in ("pipes/iter", "pipes/map", "pipes/utils", "dataloader2/graph", "show/iteration", "show/plot"):
        yield module.replace("/", "."), package / f"{module}.py"
    for name in ("errors", "ranks", "specs"):
        yield name, package / f"{name}.py"
    for file in sorted((package / "adapters").iterdir()):
        init = file / "__init__.py" if file.is_dir() else file
        if init.exists() and file.name != "__init__.py" and _declared_all(ast.parse(init.read_text())) is not None:
            yield f"adapters.{file.stem}", init


def _declared_all(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(name, "id", "") == "__all__" for name in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def _exported_names(file: Path) -> dict[str, str]:
    """Return name -> module that defines it, as an import of `file` says it; "" for its own definitions."""
    tree = ast.parse(file.read_text())
    imported = {
        alias.asname or alias.name: "." * node.level + (node.module or "")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = _declared_all(tree)
    if names is None:  # what it defines, or imports under the same name (`from .walk import find as find`)
        definitions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        again = [
            alias.asname
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
            if alias.asname == alias.name
        ]
        names = [name for name in (*definitions, *again) if not name.startswith("_")]
    return {name: imported.get(name, "") for name in sorted(names, key=str.lower)}


def _final_home(module: str, home: str) -> str:
    """Return where a name is defined, below `headrace`, so that a name that two rooms export comes once."""
    if not home:
        return module
    if home.startswith("headrace."):
        return home.removeprefix("headrace.")
    level = len(home) - len(home.lstrip("."))
    is_package = (_ROOT / "src/headrace" / module.replace(".", "/")).is_dir()
    above = module.split(".")[: len(module.split(".")) - (level - 1 if is_package else level)]
    return ".".join([*above, *filter(None, [home.lstrip(".")])])


def _divide(module: str, homes: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield title and names of the pages of a module."""
    parts = _DIVIDED.get(module, {_TITLES.get(module, f"headrace.{module}"): None})
    left = dict(homes)
    for title, modules in parts.items():
        names = [
            name
            for name, home in left.items()
            if modules is None or _is_below(_final_home(module, home), module.split(".")[0], modules)
        ]
        left = {name: home for name, home in left.items() if name not in names}
        if names:
            yield title, names


def _is_below(home: str, room: str, modules: tuple[str, ...]) -> bool:
    return any(f"{home}.".startswith(f"{room}.{module}.") for module in modules)


# --- examples and links ---


def add_to_entries(written: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return what the entry of each name gets, in the form of a docstring: an example, and links to pages.

    Args:
        written: Path -> Markdown, of the pages that are written by hand.
        names: In full.
    """
    names = list(names)
    titles = {path: _title_of(path, text) for path, text in written.items()}
    examples = find_examples(names, written)
    methods = find_methods()
    added = {}
    for name in names:
        short = name.rpartition(".")[2]
        parts = []
        if name.startswith("headrace.pipes.") and short in methods:
            parts.append(f"Of any pipe it is a method: `pipe.{methods[short]}(...)`.")
        if name in examples:
            found = examples[name]
            code = textwrap.indent(f"```python\n{found.code}\n```", "    ")
            parts.append(f"Example: Example, from [{titles[found.path]}]({_url_of(found.path)})\n{code}")
        guides = _find_guides(short, written.items()) or [_guide_of(name)]
        links = ", ".join(f"[{titles[path]}]({_url_of(path)})" for path in guides)
        added[name] = "\n\n".join([*parts, f"*Read more:* {links}"])
    return added


def read_pages(folder: Path = _ROOT / "docs") -> dict[str, str]:
    """Return path -> Markdown of all pages that are written by hand; of notebooks the code."""
    pages = {file.relative_to(folder).as_posix(): file.read_text() for file in sorted(folder.rglob("*.md"))}
    for file in sorted(folder.glob("notebooks/*.ipynb")):
        pages[f"notebooks/{file.stem}.md"] = read_notebook(file)
    return pages


def _title_of(path: str, text: str) -> str:
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    return f"the notebook {Path(path).stem}" if path.startswith("notebooks/") or not title else title.group(1)


def _url_of(path: str) -> str:
    """Return the address of a page, as seen from an entry."""
    return f"../../../{path.removesuffix('.md').removesuffix('index')}/".replace("//", "/")


def _guide_of(name: str) -> str:
    room = name.removeprefix("headrace.")
    return next(path for start, path in _GUIDES if f"{room}.".startswith(f"{start}."))


def _find_guides(name: str, written: Iterable[tuple[str, str]]) -> list[str]:
    """Return the pages that speak of a name most often."""
    found = []
    for path, text in written:
        count = len(re.findall(rf"\b{re.escape(name)}\(|`(?:hr\.)?{re.escape(name)}[`(]", text))
        if count and path != "index.md" and not path.startswith((_FOLDER, "notebooks/")):
            found.append((-count, path))
    return [path for _, path in sorted(found)[:_MAX_GUIDES]]


# --- what MkDocs calls ---


def on_config(config: Any) -> Any:
    """Put the pages below "Reference" of the navigation, and examples and links into the entries."""
    for part in config.nav:
        if "Reference" in part:
            part["Reference"].append(
                {"All names": [f"{_FOLDER}.md", *({page.title: page.path} for page in plan_pages())]}
            )
    added = add_to_entries(read_pages(), (name for page in plan_pages() for name in page.names))
    options = config.plugins["mkdocstrings"].config.handlers["python"]["options"]
    options["extensions"] = [{"docs/hooks/add_examples.py": {"texts": added}}]
    return config


on_config.mkdocs_priority = 50  # before mkdocstrings reads its options; as `mkdocs.plugins.event_priority` sets it


def on_post_page(output: str, **_: Any) -> str:
    """Take out the indentation of what templates made, a fifth of a page; code keeps its own."""
    parts = re.split(r"(<pre.*?</pre>)", output, flags=re.DOTALL)
    return "".join(part if part.startswith("<pre") else re.sub(r"\n\s+", "\n", part) for part in parts)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages, which are nowhere on disk."""
    from mkdocs.structure.files import File

    for page in plan_pages():
        files.append(File.generated(config, page.path, content=_text_of(page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """List all names on the first page of the reference."""
    if page.file.src_uri != f"{_FOLDER}.md":
        return markdown
    lines = []
    for part in plan_pages():
        links = ", ".join(f"[`{name.rpartition('.')[2]}`][{name}]" for name in part.names)
        lines.append(f"**[{part.title}]({Path(part.path).relative_to('reference')})**: {links}\n")
    return markdown + "\n" + "\n".join(lines)


def on_post_build(config: Any) -> None:
    """Fail where a name has no entry, or a page of the reference is too large."""
    from mkdocs.exceptions import PluginError

    site = Path(config.site_dir)
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    missing = [name for page in plan_pages() for name in page.names if name not in entries]
    large = [
        f"{file.relative_to(site)} ({file.stat().st_size:,} bytes)"
        for file in (site / "reference").rglob("*.html")
        if file.stat().st_size > _MAX_PAGE_BYTES
    ]
    if missing or large:
        raise PluginError(f"names without an entry: {missing}; pages above {_MAX_PAGE_BYTES:,} bytes: {large}")


def _text_of(page: Page) -> str:
    """Return the Markdown of a page."""
    blocks = [f"# {page.title}\n"]
    for name in page.names:
        inherited = "\n    options:\n      inherited_members: true" if name == "headrace.datasets.Dataset" else ""
        blocks.append(f"::: {name}{inherited}\n")
    return "\n".join(blocks)
