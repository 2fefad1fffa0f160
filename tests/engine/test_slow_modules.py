"""Torch is imported once for all workers where their job needs it, and not otherwise."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.engine.user.ship import ship_job

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.extra

_WITH = "from torch import nn\n\ndef work(seq):\n    return seq\n"
_WITHOUT = "import decimal\n\ndef work(seq):\n    return seq\n"


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
