"""Names of rooms are imported when they are first used, and are those that type checkers see."""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.errors import NotCarriedOverError
from headrace.exports import DEPARTED

ROOT = Path(headrace.__file__).parent
LAZY_ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if "export_lazily" in path.read_text())


def _declared(room):
    """Return name -> module of the imports below `if TYPE_CHECKING`."""
    path = ROOT / room / "__init__.py"
    (block,) = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    return {alias.name: node.module for node in block.body for alias in node.names}


@pytest.mark.parametrize("name", LAZY_ROOMS)
def test_a_room_exports_what_type_checkers_see(name):
    room = importlib.import_module(f"headrace.{name}")
    declared = _declared(name)
    assert set(room.__all__) == set(declared)
    assert len(room.__all__) == len(declared)
    for export, module in declared.items():
        path = module if module.startswith("headrace.") else f"headrace.{name}.{module}"
        assert getattr(room, export) is getattr(importlib.import_module(path), export)
    assert set(declared) <= set(dir(room))


@pytest.mark.parametrize("name", LAZY_ROOMS)
def test_a_name_that_a_room_has_not_is_an_attribute_error(name):
    room = importlib.import_module(f"headrace.{name}")
    with pytest.raises(AttributeError, match=f"'headrace.{name}' has no attribute 'Nothing'"):
        room.Nothing  # noqa: B018
    with pytest.raises(ImportError):
        exec(f"from headrace.{name} import Nothing")


def _imported_by(statement):
    code = f"import sys; {statement}; print(*(name for name in sys.modules if name.startswith('headrace.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_rooms_that_workers_import_are_lazy():
    assert {"batching", "datasets", "engine", "files", "loading", "sources"} <= set(LAZY_ROOMS)


def test_a_worker_of_a_loader_imports_nothing_that_only_a_trainer_needs():
    imported = _imported_by(
        "import headrace.engine.process.warden_server, headrace.loading.work, headrace.datasets.files.hdf"
    )
    assert "headrace.sources.hdf.source" in imported
    for module in (
        "loading.loader",
        "engine.engine",
        "engine.supervisor",
        "datasets.wrap.multi_proc",
        "datasets.distribute.dataset",
        "files.cache.cache",
        "sources.audio.source",
        "batching.buckets",
        "ranks",
    ):
        assert importlib.util.find_spec(f"headrace.{module}") is not None
        assert f"headrace.{module}" not in imported


@pytest.mark.parametrize("name", sorted(DEPARTED))
def test_a_name_that_is_no_longer_offered_says_what_to_use(name):
    for room in ("headrace", "headrace.datasets"):
        with pytest.raises(NotCarriedOverError, match="no longer offered"):
            getattr(importlib.import_module(room), name)
        with pytest.raises(NotCarriedOverError):
            exec(f"from {room} import {name}")
    with pytest.raises(NotCarriedOverError, match=re.escape(DEPARTED[name])):
        headrace.init_dataset({"class": name})
