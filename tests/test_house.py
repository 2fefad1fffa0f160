"""The source tree keeps its plan: small folders, no circles, nothing private read from outside, files that exist."""

import re
from pathlib import Path

import pytest
import rooms
from structure import SourceTree

ROOT = Path(__file__).parents[1]
TREE = SourceTree(ROOT / "src" / "headrace")
ROOMS = ["", *sorted(path.parent.name for path in TREE.root.glob("*/__init__.py"))]
PAGES = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "inside").glob("*.md"))]


def show(offenders):
    return "\n".join(["", *map(str, offenders)])


# What the tree has come down to; a change that needs more says why, and changes the number
CEILINGS = {"source files": 436, "class names with several meanings": 3, "lonely Protocols": 9}


def test_the_tree_does_not_grow_back():
    counts = {
        "source files": len(TREE.modules),
        "class names with several meanings": len(TREE.ambiguous_names()),
        "lonely Protocols": len(TREE.lonely_protocols()),
    }
    assert {name: count for name, count in counts.items() if count > CEILINGS[name]} == {}


def test_no_folder_shows_a_reader_more_than_twenty_entries():
    crowded = TREE.crowded(20, max_of_root=25)
    assert not crowded, show(crowded)


def test_no_files_import_each_other_in_a_circle_not_even_for_types():
    circles = TREE.circles()
    assert not circles, show(circles)


def test_a_dataset_is_asked_and_its_class_is_not():
    rooms = ("headrace.loading", "headrace.cli", "headrace.adapters", "headrace.datasets")
    checks = TREE.class_checks(rooms, "Dataset")
    known = ("headrace.datasets.distribute.worker", "headrace.datasets.files.mapped", "headrace.datasets.wrap.runs")
    checks = [check for check in checks if not check.startswith(tuple(f"{name}:" for name in known))]
    assert not checks, show(checks)


def test_no_private_name_is_imported_from_another_file():
    imports = TREE.private_imports()
    assert not imports, show(imports)


def test_no_private_name_of_an_object_is_read_in_another_file():
    reads = TREE.private_reads()
    assert not reads, show(reads)


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_name_files_that_exist(room):
    missing = TREE.missing_files(room)
    assert not missing, show(missing)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_about_the_inside_name_files_that_exist(page):
    names = re.findall(r"`((?:\w+/)+(?:\w+\.pyi?)?|\w+\.py)`", page.read_text())
    assert names or page.name == "decisions.md"
    missing = [name for name in names if not ((TREE.root / name).exists() or (ROOT / name).exists())]
    assert not missing, show(missing)


def test_the_drawing_of_the_rooms_is_that_of_the_imports():
    assert rooms.drawn() == rooms.draw(), "run: python benchmarks/measuring/rooms.py"


# --- what finds the offenders, finds them ---


@pytest.fixture
def small(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / "small" / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(text)
        (tmp_path / "small" / "__init__.py").touch()
        return SourceTree(tmp_path / "small")

    return write


def test_circles_are_found_whatever_they_are_made_of(small):
    tree = small(
        a="from .b import f",
        b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .c import g",
        c="def f():\n    from . import a",
        d="from . import a",
    )
    assert tree.circles() == [["small.a", "small.b", "small.c"]]


def test_crowded_folders_are_found(small):
    tree = small(room__a="", room__b="", other__a="")
    assert tree.crowded(2, max_of_root=3) == [f"{tree.root / 'room'}: 3"]
    assert [line.rpartition(": ")[2] for line in tree.crowded(3, max_of_root=2)] == ["3"]


def test_missing_files_are_found_from_the_folder_the_room_and_the_root(small):
    tree = small(room__a='"""`b.py`, `room/a.py`, `a.py`; `.py` is none."""', room__part__c='"""`a.py`, `d.py`."""')
    assert tree.missing_files("room") == ["room/a.py:1 b.py", "room/part/c.py:1 d.py"]


def test_names_of_several_classes_and_protocols_with_one_implementation_are_found(small):
    tree = small(
        a="class Asked(Protocol):\n    def f(self): ...\nclass Lonely(Protocol):\n    x: int\n    def g(self): ...",
        b="class One:\n    def f(self): self.x = 1\nclass Two(One):\n    def g(self): ...\nclass Same: ...",
        room__c="class Same: ...",
    )
    assert tree.ambiguous_names() == {"Same": ["small.b", "small.room.c"]}
    assert tree.lonely_protocols() == ["small.a:3 Lonely"]
    assert tree.code_of_rooms() == {"": 10, "room": 1}


def test_private_reads_and_imports_and_asking_for_classes_are_found(small):
    tree = small(
        a="class Base: ...\nclass Sub(Base):\n    def __init__(self): self._x = 1\ndef _f(): ...",
        room__b="from ..a import Sub, _f\ndef g(s):\n    return isinstance(s, Sub), s._x",
        c="from .a import Sub\nclass More(Sub):\n    def h(self, other): return other._x",
    )
    assert tree.private_imports() == ["small.room.b:1 _f"]
    assert tree.private_reads() == ["small.room.b:3 s._x"]
    assert tree.class_checks(["small.room"], "Base") == ["small.room.b:3 Sub"]
