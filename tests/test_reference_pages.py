"""The reference has each public name, with an example: what `headrace` and its rooms export, and the adapters."""

import ast
import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest

import headrace

SOURCES = Path(headrace.__file__).parent
HOOK = SOURCES.parents[1] / "docs/hooks/reference.py"


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("headrace_reference_pages", HOOK)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    sys.path.insert(0, str(HOOK.parent))  # as MkDocs does
    spec.loader.exec_module(module)
    sys.path.remove(str(HOOK.parent))
    yield module
    del sys.modules[spec.name], sys.modules["page_examples"], sys.modules["internal_names"]


@pytest.fixture(scope="module")
def added(hook, documented):
    """What pages give to the entries: name -> an example, links."""
    return hook.add_to_entries(hook.read_pages(), documented)


@pytest.fixture(scope="module")
def documented(hook):
    return [name for page in hook.plan_pages() for name in page.names]


def _find(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _is_adapter(path):
    return path.startswith(("headrace.adapters.", "headrace.torch."))


@pytest.fixture(scope="module")
def objects(documented):
    """What the documented names are, as far as they can be imported without optional packages."""
    return [_find(path) for path in documented if not _is_adapter(path)]


def _is_documented(value, name, objects, documented):
    by_name = any(path.rpartition(".")[2] == name for path in documented)
    return by_name and any(value is known or (value == known and isinstance(value, int | str)) for known in objects)


def test_the_names_of_headrace_itself_are_in_the_reference(documented, objects):
    names = [name for name in headrace.__all__ if name not in ("__version__", "LhotseDataLoader")]
    assert [name for name in names if not _is_documented(getattr(headrace, name), name, objects, documented)] == []
    assert "headrace.adapters.lhotse.LhotseDataLoader" in documented


def test_the_names_of_each_room_are_in_the_reference_but_for_what_rooms_use_among_themselves(hook, documented, objects):
    rooms = [file.parent.name for file in SOURCES.glob("*/__init__.py")]
    assert {"loading", "sources"} < set(rooms)
    missing = []
    for room in rooms:
        if room in ("adapters", "torch", "cli"):
            continue
        module = importlib.import_module(f"headrace.{room}")
        for name in set(getattr(module, "__all__", ())) - hook.INTERNAL_NAMES.get(room, set()):
            if not _is_documented(getattr(module, name), name, objects, documented):
                missing.append(f"{room}.{name}")
    assert missing == []


def test_what_is_left_out_of_the_reference_is_there_and_is_no_name_of_headrace_itself(hook, documented):
    for module, names in hook.INTERNAL_NAMES.items():
        room = importlib.import_module(f"headrace.{module}")
        assert [name for name in names if not hasattr(room, name)] == []
        assert not names & set(headrace.__all__)
        assert not {f"headrace.{module}.{name}" for name in names} & set(documented)


def test_what_adapters_declare_as_public_is_in_the_reference(documented):
    files = [*SOURCES.glob("adapters/*.py"), *SOURCES.glob("adapters/*/__init__.py"), SOURCES / "torch/__init__.py"]
    found = 0
    for file in files:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                module = ".".join((file.parent if file.name == "__init__.py" else file).with_suffix("").parts)
                module = module[module.rindex("headrace.") :]
                assert {f"{module}.{name}" for name in ast.literal_eval(node.value)} <= set(documented)
                found += 1
    assert found >= 5


@pytest.fixture(scope="module")
def adapters_with_doctest():
    """Names of adapters whose docstring has an example, by the sources: the packages that they need may be missing."""
    files = [*SOURCES.glob("adapters/**/*.py"), *SOURCES.glob("torch/*.py")]
    nodes = [node for file in files for node in ast.parse(file.read_text()).body]
    defined = [node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return {node.name for node in defined if ">>>" in (ast.get_docstring(node) or "")}


def test_each_name_has_an_example_of_its_docstring_or_of_a_page(documented, added, adapters_with_doctest):
    def has_doctest(path):
        if _is_adapter(path):
            return path.rpartition(".")[2] in adapters_with_doctest
        return ">>>" in (_find(path).__doc__ or "")

    assert set(headrace.__all__) - {"__version__"} <= {path.rpartition(".")[2] for path in documented}
    assert [path for path in documented if "```python" not in added[path] and not has_doctest(path)] == []


def test_each_name_has_a_link_to_a_page_that_exists(documented, added):
    docs = HOOK.parents[1]
    for path in documented:
        links = re.findall(r"\]\(\.\./\.\./\.\./([^)]*)/\)", added[path].partition("*Read more:*")[2])
        assert links, path
        assert all((docs / f"{link}.md").exists() for link in links), path


def test_an_example_is_what_is_executed_and_short(hook):
    names = ["headrace.batching.FixedCount", "headrace.pipes.iter.Batcher", "headrace.pipes.map.Batcher"]
    many = "\n".join(f"x = {number}" for number in range(30))
    page = f"""
<!-- skip: next -->
```python
import headrace as hr
hr.FixedCount(1)
```
```python
import headrace as hr
from headrace.pipes.iter import IterableWrapper

{many}
pipe = IterableWrapper(range(3)).batch(2)
with hr.DataLoader(corpus, batching=hr.FixedCount(2)):
    pass
```
"""
    found = hook.find_examples(names, {"a.md": page})
    assert found["headrace.batching.FixedCount"].code.startswith("with hr.DataLoader(")
    assert found["headrace.pipes.iter.Batcher"].code == "pipe = IterableWrapper(range(3)).batch(2)"
    assert len(found) == 2


def test_a_name_comes_once_and_no_page_twice(hook, documented):
    paths = [page.path for page in hook.plan_pages()]
    assert len(paths) == len(set(paths))
    assert len(documented) == len(set(documented))


def test_a_new_public_name_gets_an_entry(hook, tmp_path):
    rooms = "loading", "batching", "datasets", "sources", "torch", "pipes/graph"
    for room in rooms:
        (tmp_path / room).mkdir(parents=True, exist_ok=True)
        (tmp_path / room / "__init__.py").write_text("__all__ = []\n")
    for room in ("dataloader2", "adapters", "show"):
        (tmp_path / room).mkdir()
    for file in (
        "pipes/__init__",
        "pipes/iter",
        "pipes/map",
        "pipes/utils",
        "errors",
        "specs",
        "ranks",
        "show/iteration",
        "show/plot",
    ):
        (tmp_path / f"{file}.py").write_text("")
    (tmp_path / "dataloader2/graph.py").write_text("")
    (tmp_path / "loading/__init__.py").write_text("from .new import Thing\n__all__ = ['Thing']\n")
    (tmp_path / "adapters/other.py").write_text("__all__ = ['OtherLoader']\nclass OtherLoader: ...\n")
    names = [name for page in hook.plan_pages(tmp_path) for name in page.names]
    assert names == ["headrace.loading.Thing", "headrace.adapters.other.OtherLoader"]
