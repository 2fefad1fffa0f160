"""Torch is imported once for all workers, from the moment on that a loader is made, where its job needs torch only."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.engine.process.warden_client import _shared
from headrace.engine.user.ship import foresee_slow_modules, ship_job

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.extra

_WITH = "from torch import nn\n\ndef work(seq):\n    return seq\n"
_WITHOUT = "import decimal\n\ndef work(seq):\n    return seq\n"


class Unlucky:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


@pytest.fixture
def make_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Return the function of a module with this text."""

    def make(name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name).work

    return make


def _in_main(text: str) -> Any:
    """Return the function of a module that travels by value, as one of `__main__`."""
    module = types.ModuleType("made_by_hand")
    exec(text, vars(module))
    sys.modules["made_by_hand"] = module
    return module.work  # type: ignore[attr-defined]


def test_what_needs_torch_is_known(make_function: Callable[[str, str], Any]) -> None:
    uses = "import torch\n\ndef work(seq):\n    return torch.sin(seq)\n"
    has = "import torch\n\ndef work(seq):\n    return seq\n"
    table = np.arange(1 << 20)
    for job, expected in (
        (make_function("with_it", _WITH), True),
        (make_function("without_it", _WITHOUT), False),
        (_in_main(uses), True),
        (_in_main(has), False),  # its module does, but it is sent without it
        (torch.nn.Linear(2, 3), True),
        (torch.utils.data.Dataset, True),
        ([{"data": torch.zeros(3)}], True),
        (torch, True),
        ((table, abs, "torch", b"torch", np), False),
    ):
        assert ship_job(job).slow_modules == (("torch",) if expected else ()), job
        assert foresee_slow_modules(job) == (("torch",) if expected else ()), job


def test_the_search_ends_soon_and_raises_nothing() -> None:
    large = [bytes(1 << 16)] * 3 + [bytearray(number) for number in range(2000)]
    assert foresee_slow_modules((large, torch.sin)) == ()
    assert foresee_slow_modules((torch.zeros(3), Unlucky())) == ("torch",)
    assert foresee_slow_modules((Unlucky(), torch.zeros(3))) == ()


@pytest.mark.parametrize("with_torch", [True, False])
def test_the_import_begins_with_the_loader_that_needs_it(
    with_torch: bool, make_function: Callable[[str, str], Any]
) -> None:
    function = make_function("with_it", _WITH) if with_torch else make_function("without_it", _WITHOUT)
    items = [{"data": np.arange(number + 1)} for number in range(8)]
    assert not _shared
    with headrace.DataLoader(items, batching=headrace.FixedCount(2), num_workers=2, transform=function) as loader:
        assert [key[1] for key in _shared] == [("torch",)] * with_torch
        wardens = {warden.pid for warden in _shared.values()}
        assert sum(len(batch.tags) for batch in loader) == 8
        assert {warden.pid for warden in _shared.values()} == wardens or not with_torch
        assert len(_shared) == 1
    assert not _shared


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "executor": "thread"}])
def test_without_processes_nothing_begins(options: dict[str, Any], make_function: Callable[[str, str], Any]) -> None:
    function = make_function("with_it", _WITH)
    with headrace.DataLoader([{"data": np.ones(3)}], batching=headrace.FixedCount(1), transform=function, **options):
        assert not _shared
