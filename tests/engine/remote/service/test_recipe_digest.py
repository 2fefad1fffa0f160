"""Which trainings may share: those whose workers would be given the same, and whose code is the same."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.engine import Job
from headrace.engine.process.worker_config import Shipment
from headrace.engine.remote.service.recipe import digest_code, digest_recipe

SCRIPT = """
import sys
import numpy as np
from headrace.engine import Job
from headrace.engine.process.worker_config import Shipment
from headrace.engine.remote.service.recipe import digest_recipe
import neighbour

class Items:
    def __init__(self): self.array = np.arange(200_000)
    def __len__(self): return 10

def scale(x): return x * 2

class Work:
    def __init__(self): self.items, self.scale, self.there = Items(), scale, neighbour.there
    def __call__(self, info): return lambda payload: self.scale(payload)

print(digest_recipe(Shipment.of(Job(Work()), "shared")).hex())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("def there(): return 1\n")
    return tmp_path


def digest_of_script(folder: Path) -> str:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=folder).stdout


def test_two_runs_of_a_script_have_one_recipe_until_a_module_of_theirs_changes(folder: Path) -> None:
    first = digest_of_script(folder)
    assert len(first.strip()) == 32
    assert digest_of_script(folder) == first, "classes and functions of __main__, arrays, modules"
    (folder / "neighbour.py").write_text("def there(): return 2\n")
    assert digest_of_script(folder) != first, "a module that is imported"


def test_a_new_file_next_to_an_imported_one_is_another_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    import neighbour  # type: ignore[import-not-found]  # noqa: F401

    before = digest_code()
    assert digest_code() == before
    (folder / "imported_by_workers_later.py").write_text("x = 1\n")
    assert digest_code() != before
    del sys.modules["neighbour"]


def make_shipment(constant: float) -> Shipment:
    def setup(info: object) -> object:
        return lambda payload: payload + constant

    return Shipment.of(Job(setup), "shared")  # type: ignore[arg-type]


def test_closures_arrays_folders_and_options_are_part_of_a_recipe() -> None:
    first = make_shipment(1.0)
    same = digest_recipe(first, "", 1)
    assert digest_recipe(make_shipment(1.0), "", 1) == same
    others = [
        digest_recipe(make_shipment(2.0), "", 1),
        digest_recipe(first, "2024", 1),
        digest_recipe(first, "", 2),
        digest_recipe(dataclasses.replace(first, cwd="/"), "", 1),
        digest_recipe(dataclasses.replace(first, preload=("torch",)), "", 1),
        digest_recipe(dataclasses.replace(first, argv=["other.py"]), "", 1),
        digest_recipe(dataclasses.replace(first, formats=[b"format"]), "", 1),
    ]
    assert len({same, *others}) == 8
    large = [Shipment.of(Job(np.full(100_000, value).__add__), "shared") for value in (1, 1, 2)]  # type: ignore[arg-type]
    digests = [digest_recipe(shipment) for shipment in large]
    assert digests[0] == digests[1] != digests[2]


def test_a_class_that_nobody_else_can_know_is_shared_with_nobody() -> None:
    digests = set()
    for _ in range(2):

        class Result:
            pass

        digests.add(digest_recipe(Shipment.of(Job(lambda info, kind=Result: kind), "shared")))  # type: ignore[arg-type]
    assert len(digests) == 2
